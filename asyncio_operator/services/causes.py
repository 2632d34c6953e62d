"""What an error of a library means, and the one place that makes the error of this package from it.

Each enricher has a table from its library's errors to a `Cause`. Here a cause becomes an error. Its text is followed by
the library's own words, cut, and without secrets. ``__cause__`` is kept only if its traceback would show no secret. No
frame of a library stays with an error, because its variables may hold passwords, and some tools log variables.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from asyncio_operator.errors import EnricherError
from asyncio_operator.hints import failed_import, missing_here
from asyncio_operator.services.secrets import Secrets, chain

Raised = TypeVar("Raised", bound=BaseException)

SHOWN = 300  # How many characters of an error's own words a message shows.


class StatementTimeoutError(EnricherError, TimeoutError):
    """The server or the network took too long. It counts as a timeout wherever errors are classified."""


class TooLargeError(EnricherError):
    """A statement or a result is larger than the server allows."""


class Cause(NamedTuple):
    """What an error means."""

    text: str  # What happened, and the remedy if there is one.
    retryable: bool | None = False  # Whether the same call may succeed later; None if that is not known.
    overload: bool = False  # Whether the source has too much to do.
    any_key: bool = True  # Whether every other key would have got the same error. If not, this key may cause it.
    kind: type[EnricherError] = EnricherError  # The class of the error.

    def error(
        self, message: str, retry_after: float | None = None, billed: bool | None = None, code: int | str | None = None
    ) -> EnricherError:
        """The error with this meaning."""
        _, retryable, overload, any_key, kind = self
        return kind(
            message,
            retryable=retryable,
            retry_after=retry_after,
            overload=overload,
            any_key=any_key,
            billed=billed,
            code=code,
        )


def lookup_error(
    error: BaseException,
    cause: Cause,
    subject: str,  # Names the enricher.
    secrets: Secrets,
    *,
    key: str = "",  # The key that was looked up; it is not shown if no key causes the error.
    words: str | None = None,  # The error's own words, if they are not its text.
    answered: bool = False,  # Whether the error is an answer of the source, which then bills nothing.
) -> EnricherError:
    """The error of a lookup that failed with `error`."""
    about = f"{subject}, {key}" if key and not cause.any_key else subject
    message = f"{about}: {cause.text}{own_words(error, secrets, words)}"
    # A statement that the server has cut at a time limit may have been worked on until then, as one without an answer.
    free = answered and cause.kind is not StatementTimeoutError
    # What a database calls its error: a SQLSTATE, SQLite's name, or the number of MySQL and MariaDB.
    codes = (getattr(error, name, None) for name in ("sqlstate", "pgcode", "sqlite_errorname"))
    code = next((one for one in codes if isinstance(one, str)), None)
    # Errors of the system have a number first too, which is none of a database.
    if code is None and error.args and type(error.args[0]) is int and not isinstance(error, OSError):
        code = str(error.args[0])
    return caused(cause.error(message, billed=False if free else None, code=code), error, secrets)


def import_error(error: BaseException, subject: str) -> EnricherError | None:
    """The error for a failed import in a user's function, which no key causes; None if `error` is no such import."""
    cause = failed_import(error)
    if cause is None:
        return None
    reason = missing_here(cause) or f"{type(cause).__name__}: {cause}"
    return EnricherError(f"{subject}: {reason}; no key is to blame", retryable=False, any_key=True)


def own_words(error: BaseException, secrets: Secrets, words: str | None = None) -> str:
    """An error's own words for the end of a message, or its type if it has none."""
    return f" ({secrets.line(str(error) if words is None else words, SHOWN) or type(error).__name__})"


def caused(raised: Raised, error: BaseException, secrets: Secrets) -> Raised:
    """`raised`, with `error` as its cause, unless that or its causes would bring a secret into a traceback."""
    for one in chain(error):
        one.__traceback__ = None  # The variables of its frames may hold a password.
    if not secrets.shown_by(error):
        raised.__cause__ = error
    raised.__suppress_context__ = True
    return raised
