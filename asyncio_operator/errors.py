"""Every error that this package itself raises.

    AsyncOperatorError
    ├── ConfigurationError    an option, a column or a type is wrong; raised before work starts  (also ValueError)
    ├── ElementTimeoutError   an element exceeded its deadline                                   (also TimeoutError)
    ├── FunctionError         the user's function, or one of its hooks, failed; ends the run
    ├── EnricherError         an enricher could not answer; says whether another call may help
    │   ├── ResultError           a result, or a row, has the wrong shape or type
    │   └── MissingKeyError       a key has no row, and how="required" says that every key has one
    ├── CircuitOpenError      a circuit breaker refused the call
    ├── BudgetExceeded        a call would use more than its budget has; ends the run, unless on_spent="null"
    ├── CoordinatorError      the coordinator of a budget gave no answer; ends the run
    └── StateError            the object's present state does not allow the call
        └── StateMigrationError   stored state does not fit its new descriptor

Law: a message says what is wrong, where, and what to do. Errors of other libraries are mapped once, where they enter,
with ``raise ... from``. An error that is made of another one keeps what that says of a further call (`Verdict`). A
group of errors, such as that of an `asyncio.TaskGroup`, is judged by its members and shown by its first one. All errors
survive pickling, so that a Spark task can report them.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlsplit

Made = TypeVar("Made", bound=BaseException)

MOST_KINDS = 50
"""Kinds of errors that are counted by code. A job meets a handful; a broken source must not fill a table."""

_CODE = re.compile("[A-Za-z0-9_]{1,40}")

_HOST = r"(?:[^:\[\]@,]*|\[[^\[\]@,]*\])(?::[0-9]*)?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")


class AsyncOperatorError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(AsyncOperatorError, ValueError):
    """A wrong option, column or type: names it, its value, and what is allowed."""


class ElementTimeoutError(AsyncOperatorError, TimeoutError):
    """An element did not end before its deadline."""


class FunctionError(AsyncOperatorError):
    """The user's function failed for an element. ``__cause__`` is the error that it raised.

    Attributes:
        element: the value with which the function was called, as text of at most 200 characters.
        attempts: the number of calls that were made for the element.
    """

    def __init__(self, message: str, *, element: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.element = element
        self.attempts = attempts


class EnricherError(AsyncOperatorError):
    """An enricher could not answer.

    Attributes:
        retryable: whether the same call may succeed later (connection lost, overload); None if that is not known.
        retry_after: seconds after which the source asked to be called again, or None.
        overload: whether the source reported too much load.
        any_key: whether every other key would get the same error (no such table): its batch is not split.
        billed: whether the source may bill the failed call. False: it answered with an error, or was not called, so
            a spend limit gets back what was reserved (law G11). None: that is not known, and the estimate counts,
            except where the source reported too much load or asked to be called later.
        code: what the source calls the error: an HTTP status (an int), a SQLSTATE, or another short word or number as
            text. Figures count errors by it.
        reported: whether the enricher has given its budget what the source says, or must not. If not, the budget
            believes `retry_after` (law G5).
    """

    reported: bool = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        overload: bool = False,
        any_key: bool = False,
        billed: bool | None = None,
        code: int | str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.overload = overload
        self.any_key = any_key
        self.billed = billed

    @staticmethod
    def of(error: BaseException) -> EnricherError:
        """An error with the text of the first member of a group, what all its members say, and the group as its cause.

        It may not be retried if one member may not, and waits as long as the longest `retry_after` says. Groups may
        hold groups. An `EnricherError` is returned as it is.
        """
        if isinstance(error, EnricherError):
            return error
        first = first_of(error)
        text = str(first) if isinstance(first, EnricherError) else describe_error(first)
        made = EnricherError(text, **verdict(error))
        made.__cause__ = error
        return made


class ResultError(EnricherError):
    """A result, or a row, has the wrong shape or type. Another call would return the same, so it is not retried,
    unless the error is made with ``retryable=True``, as for a model whose next answer may be another one."""

    retryable: bool | None = False

    def __init__(self, message: str = "", *, retryable: bool | None = False, **others: Any) -> None:
        super().__init__(message, retryable=retryable, **others)


class MissingKeyError(EnricherError):
    """A key has no row, or a null in it, but ``how="required"`` says that every key has a row.

    Attributes:
        key: the key, as text of at most 200 characters.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message, retryable=False)
        self.key = key


class CircuitOpenError(AsyncOperatorError):
    """A circuit breaker is open: it refused the call, which was not made."""


class BudgetExceeded(AsyncOperatorError):  # noqa: N818
    """A call would use more than a budget allows. The call was not made.

    ``on_error`` never hides this error, except where the budget says ``on_spent="null"``.

    Attributes:
        unit: the unit of the limit, such as ``usd``.
        limit: how much the limit allows: in total for a spend limit, in one window for another.
        spent: how much was spent before, for a spend limit.
        on_spent: what follows: "fail" ends the run, "null" only the element (law G12).
    """

    retryable = False

    def __init__(
        self, message: str, *, unit: str = "", limit: float = 0.0, spent: float = 0.0, on_spent: str = "fail"
    ) -> None:
        super().__init__(message)
        self.on_spent = on_spent
        self.unit = unit
        self.limit = limit
        self.spent = spent


class CoordinatorError(AsyncOperatorError):
    """A coordinator gave no answer. The message names the coordinator, and shows no secret.

    Attributes:
        lasting: whether it will fail again until a person changes something, such as a wrong password.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class StateError(AsyncOperatorError):
    """The object's present state does not allow the call."""


class StateMigrationError(StateError):
    """Stored state was written with other serialisers, or another TTL setting, than those of its new descriptor."""


def describe(value: object, limit: int = 200) -> str:
    """The ``repr`` of a value for a message, cut at `limit` characters. If it fails, the result names the type."""
    try:
        return text_of(repr(value), limit)
    except BaseException as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


def function_error(
    failed: str, says: str, *, unit: str = "element", element: str = "", attempts: int = 0, cause: BaseException | None
) -> FunctionError:
    """The one maker of `FunctionError`: what `failed`, for which `element` if there is one, and what follows (`says`).

    Args:
        unit: what an element is there: a key, or arguments.
        element: the description of the element.
        cause: the error that the function raised.
    """
    where = f" for {unit} {element}" if element else ""
    error = FunctionError(f"{failed}{where}{says}", element=element, attempts=attempts)
    error.__cause__ = cause
    return error if cause is None else keep_verdict(error, cause)


def function_name(function: object) -> str:
    """The name of a function for a message.

    It shows nothing that the function has captured or was given before: the ``repr`` of a method shows its object, and
    that of a partial shows its arguments. A callable object is named by its class.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def shown_address(address: str | Callable[[], str]) -> str:
    """An address, or a function that returns one, for a ``repr`` and for messages: without user, password, options."""
    if callable(address):
        return function_name(address)
    scheme, _, rest = address.partition("://")
    try:
        parts = urlsplit(address)
    except ValueError:
        return repr(f"{scheme}://***")
    before, _, hosts = parts.netloc.rpartition("@")
    # With an @ elsewhere, or a host that is none, it is not known where the password ends.
    if rest.count("@") != parts.netloc.count("@") or "@" in before or not _HOSTS.fullmatch(hosts):
        return repr(f"{scheme}://***")
    return repr(f"{scheme}://{hosts}{parts.path}")


def describe_error(error: BaseException) -> str:
    """Type and text of an error for a message. If the text cannot be made, the result is the type alone.

    Of a group it is that of the first member.
    """
    error = first_of(error)
    try:
        text = text_of(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said(error: BaseException, name: str, reading: Callable[[Any], Any] = lambda value: value) -> Any:
    """An attribute of an error, converted by `reading`; None if it does not exist or cannot be read.

    What a group itself does not say, its members say together: `retryable` is false if it is for one, and true if it is
    for all; `retry_after` is the longest; `overload` and `any_key` are true if they are for one; anything else is what
    the first says.
    """
    try:
        value = getattr(error, name, None)
        if value is None and isinstance(error, BaseExceptionGroup):
            values = [said(one, name) for one in members(error)]
            if name == "billed":
                value = True if True in values else None if None in values else False
            elif name == "retryable":
                value = False if False in values else True if all(value is True for value in values) else None
            elif name == "retry_after":
                waits = [value for value in values if wait_of(value) is not None]
                value = max(waits, key=lambda value: wait_of(value) or 0.0, default=None)
            else:
                value = any(values) if name in ("overload", "any_key") else values[0]
        return reading(value)
    except BaseException:
        return None


def members(error: BaseException) -> list[BaseException]:
    """The errors in a group and in the groups in it, in their order; an error that is no group is its only member."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [member for one in inner for member in members(one)] or [error]


def first_of(error: BaseException) -> BaseException:
    """The first member of a group, which shows the group; an error that is no group is itself."""
    return members(error)[0] if isinstance(error, BaseExceptionGroup) else error


def wait_of(retry_after: Any) -> float | None:
    """The seconds of a `retry_after`: a number, a timedelta, or the text of a number. None if it is neither."""
    if isinstance(retry_after, timedelta):
        retry_after = retry_after.total_seconds()
    elif isinstance(retry_after, str):
        try:
            retry_after = float(retry_after)
        except ValueError:
            return None
    if isinstance(retry_after, bool) or not isinstance(retry_after, int | float):
        return None
    return float(retry_after) if 0 <= retry_after < float("inf") else None


class Verdict(TypedDict):
    """What an error says of a further call: the arguments of an `EnricherError`."""

    retryable: bool | None
    retry_after: float | None
    overload: bool
    any_key: bool
    billed: bool | None
    code: int | str | None


def verdict(error: BaseException) -> Verdict:
    """What an error, or a group of errors, says of a further call; for an `EnricherError` that is made of it (X14)."""
    retryable = said(error, "retryable")
    return Verdict(
        retryable=retryable if isinstance(retryable, bool) else None,
        retry_after=said(error, "retry_after", wait_of),
        overload=said(error, "overload", bool) is True,
        any_key=said(error, "any_key", bool) is True,
        billed=said(error, "billed", lambda billed: billed if isinstance(billed, bool) else None),
        code=code_of(first_of(error)),
    )


def code_of(error: BaseException) -> int | str | None:
    """The `code` of an `EnricherError`, or of an error of this package that is made of one, if it may name a figure: an
    HTTP status, or a short word. None otherwise."""
    code = said(error, "code") if isinstance(error, AsyncOperatorError) else None
    if type(code) is int:
        return code if 100 <= code <= 599 else None
    return code if type(code) is str and _CODE.fullmatch(code) else None


def count_kind(kinds: Counter[str], error: BaseException) -> str:
    """Count an error, or the first one of a group, by its type and code, as in "EnricherError 503". Returns that kind.

    There are at most `MOST_KINDS` kinds with a code, because each is a figure. More are counted by their type.
    """
    first = first_of(error)
    kind = type(first).__name__
    code = code_of(first)
    if code is not None and (f"{kind} {code}" in kinds or len(kinds) < MOST_KINDS):
        kind = f"{kind} {code}"
    kinds[kind] += 1
    return kind


def keep_verdict(made: Made, error: BaseException) -> Made:
    """`made`, an error of any class that is made of `error`, with what that says of a further call (X14)."""
    for name, value in verdict(error).items():
        if value is not None and (value is not False or name in ("retryable", "billed")):
            setattr(made, name, value)
    return made


def text_of(value: object, limit: int = 2000) -> str:
    """The ``str`` of a value, mostly an error, cut at `limit` characters. It raises what ``str`` raises.

    Characters that cannot be encoded, such as a file name's, become their codes.
    """
    text = str(value)[: limit + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
