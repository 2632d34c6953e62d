"""What an error of a library means, and the error of this package that says so: the one place that makes it.

Each enricher has a table from its library's errors to a `Cause`. Here a cause becomes an error: its text is followed by
the library's own words, cut, and without secrets; ``__cause__`` is kept only if a traceback of it tells no secret; and
no frame of a library stays with an error, because its variables hold passwords, and some tools log variables.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from asyncio_operator import EnricherError
from asyncio_operator.enricher import failed_import, missing_here
from enrichers.secrets import Secrets, chain

Raised = TypeVar("Raised", bound=BaseException)

SHOWN = 300
"""Characters of an error's own words that a message shows."""


class Cause(NamedTuple):
    """What an error means.

    Attributes:
        text: what happened, and the remedy where there is one.
        retryable: whether the same call may succeed later, or None if that is not known.
        overload: whether the source has too much to do.
        any_key: whether any other key would have got the same answer; else the one that was asked for may be to blame.
        kind: the class of the error.
    """

    text: str
    retryable: bool | None = False
    overload: bool = False
    any_key: bool = True
    kind: type[EnricherError] = EnricherError

    def error(self, message: str, retry_after: float | None = None) -> EnricherError:
        """The error that says so."""
        _, retryable, overload, any_key, kind = self
        return kind(message, retryable=retryable, retry_after=retry_after, overload=overload, any_key=any_key)


def lookup_error(
    error: BaseException, cause: Cause, subject: str, secrets: Secrets, *, key: str = "", words: str | None = None
) -> EnricherError:
    """The error of a lookup, made of what happened.

    Args:
        subject: names the enricher.
        key: what was asked for; left out where no key is to blame.
        words: the error's own ones, if they are not its text.
    """
    about = f"{subject}, {key}" if key and not cause.any_key else subject
    message = f"{about}: {cause.text}{own_words(error, secrets, words)}"
    return caused(cause.error(message), error, secrets)


def import_error(error: BaseException, subject: str) -> EnricherError | None:
    """The error that no key is to blame for, of an import that failed in a user's function, else None."""
    cause = failed_import(error)
    if cause is None:
        return None
    told = missing_here(cause) or f"{type(cause).__name__}: {cause}"
    return EnricherError(f"{subject}: {told}; no key is to blame", retryable=False, any_key=True)


def own_words(error: BaseException, secrets: Secrets, words: str | None = None) -> str:
    """An error's own words for the end of a message, or its type where it has none."""
    return f" ({secrets.line(str(error) if words is None else words, SHOWN) or type(error).__name__})"


def caused(raised: Raised, error: BaseException, secrets: Secrets) -> Raised:
    """`raised`, caused by `error` unless that, or what it came from, would bring a secret into a traceback."""
    for one in chain(error):
        one.__traceback__ = None
    if not secrets.told_by(error):
        raised.__cause__ = error
    raised.__suppress_context__ = True
    return raised
