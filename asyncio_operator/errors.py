"""Every error this package raises by itself.

    AsyncOperatorError
    ├── ConfigurationError    an option, a column or a type is wrong; found before work starts   (also ValueError)
    ├── ElementTimeoutError   an element passed its deadline                                     (also TimeoutError)
    ├── FunctionError         the user's function, or one of his hooks, failed; ends the run
    ├── ResultError           the function answered with something of the wrong shape
    ├── EnricherError         an enricher could not answer; says whether asking again may help
    │   └── MissingKeyError       a key has no row, and how="required" says that every key has one
    ├── CircuitOpenError      a circuit breaker refused the call
    └── StateError            a call that the object's present state does not allow
        └── StateMigrationError   stored state does not fit its new descriptor

Law: a message names what is wrong, where, and what to do. Errors of other libraries are mapped once, where they
enter, with ``raise ... from``. All of them survive pickling, so that a Spark task can report them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class AsyncOperatorError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(AsyncOperatorError, ValueError):
    """A wrong option, column or type: names it, its value, and what is allowed."""


class ElementTimeoutError(AsyncOperatorError, TimeoutError):
    """An element did not end before its deadline."""


class FunctionError(AsyncOperatorError):
    """The user's function failed for an element; ``__cause__`` is the error it raised.

    Attributes:
        element: the value the function was called with, as text of at most 200 characters.
        attempts: the calls that were made for the element.
    """

    def __init__(self, message: str, *, element: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.element = element
        self.attempts = attempts


class ResultError(AsyncOperatorError):
    """A result has the wrong shape or type. Asking again would give the same, so it is never retried."""

    retryable = False


class EnricherError(AsyncOperatorError):
    """An enricher could not answer.

    Attributes:
        retryable: whether the same call may succeed later (connection lost, overload), or None if that is not known.
        retry_after: seconds after which the source asked to be called again, or None.
        overload: whether the source said that it has too much to do.
        any_key: whether any other key would have got the same answer (no privilege, no such table): of a batch that
            failed of it, no half is worth a call.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        overload: bool = False,
        any_key: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.overload = overload
        self.any_key = any_key


class MissingKeyError(EnricherError):
    """A key has no row, or a null in it, where ``how="required"`` says that every key has a row.

    Attributes:
        key: the key, as text of at most 200 characters.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message, retryable=False)
        self.key = key


class CircuitOpenError(AsyncOperatorError):
    """A circuit breaker is open: the call was refused without being made."""


class StateError(AsyncOperatorError):
    """A call that the object's present state does not allow."""


class StateMigrationError(StateError):
    """Stored state was written with other serialisers, or another TTL setting, than its new descriptor has."""


def describe(value: object, limit: int = 200) -> str:
    """The ``repr`` of a value for a message, cut at `limit` characters; a ``repr`` that fails gives the type's name."""
    try:
        return _told(repr(value), limit)
    except BaseException as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


def function_name(function: object) -> str:
    """The name of a function for a message, without what it has captured or was given before: the ``repr`` of a method
    shows its object, that of a partial what it was given. An object that is called as one is named by its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def describe_error(error: BaseException) -> str:
    """Type and text of an error for a message; a text that cannot be made is left out."""
    try:
        text = text_of(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said(error: BaseException, name: str, reading: Callable[[Any], Any] = lambda value: value) -> Any:
    """What an error says of itself in the attribute of this name, as `reading` takes it; one that is not there, or
    cannot be read, is taken for None."""
    try:
        return reading(getattr(error, name, None))
    except BaseException:
        return None


def text_of(value: object, limit: int = 2000) -> str:
    """The ``str`` of a value, mostly an error, cut at `limit` characters. Raises what it raises."""
    return _told(str(value), limit)


def _told(text: str, limit: int) -> str:
    """Text that can be encoded; what cannot, such as a byte of a file name, is written as its code."""
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
