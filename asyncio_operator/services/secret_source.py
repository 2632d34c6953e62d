"""Functions that give a secret: a connection string, a URL, headers with a token.

Such a function keeps the secret out of the pickle and out of every ``repr``, and the secret may change. So no message
repeats what the function captured, returned, or said in an error. A message shows only its name, the type of its error,
and a module or environment variable that this process lacks. A blocking function runs in a thread. No frame that holds
the result stays with an error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from asyncio_operator.checks import gives_coroutines, takes
from asyncio_operator.errors import ConfigurationError, first_of, function_name, keep_verdict
from asyncio_operator.hints import missing_here

T = TypeVar("T")


@dataclass(frozen=True)
class SecretSource(Generic[T]):
    """An argument that is a secret, or a function without arguments that returns it."""

    argument: str  # Its name, such as ``dsn``.
    what: str  # What it is, in words.
    # Returns the value that it gets, if that is valid; else it raises a `ConfigurationError` that shows no part of it.
    check: Callable[[object], T]
    may_await: bool = False  # Whether the function may be asynchronous.

    def check_source(self, source: object) -> None:
        """ConfigurationError if the argument that a user passed is invalid, or a function that could never return it.
        It shows neither the secret nor what the function has captured."""
        if not callable(source):
            self.check(source)
            return
        problem = ""
        if inspect.isasyncgenfunction(source) or (gives_coroutines(source) and not self.may_await):
            problem = "an `async def` function"
        else:
            try:
                takes(self.argument, source)
            except ConfigurationError:
                problem = "which takes arguments"
        if problem:
            kind = "a" if self.may_await else "an ordinary"
            raise ConfigurationError(
                f"{self.argument} is {function_name(source)}, {problem}; it must be {kind} function without arguments "
                f"that returns the {self.what} (it may block: it runs in a thread)"
            )

    async def get(self, source: T | Callable[[], T | Awaitable[T]], seconds: float | None = None) -> T:
        """The checked secret. ConfigurationError if the function failed, took longer than `seconds` (the argument
        ``connect_timeout``; None: no limit), or returned something else."""
        if not callable(source):
            return source
        named = f"{self.argument}: the function {function_name(source)}"
        try:
            async with asyncio.timeout(seconds):
                return await self._asked(source, named)
        except TimeoutError:
            problem = ConfigurationError(f"{named} returned nothing within {seconds:g} s (connect_timeout)")
        except ConfigurationError as error:
            problem = error.with_traceback(None)
        raise problem  # Outside of the handlers, so that no error with a secret becomes its context.

    async def _asked(self, function: Callable[[], object], named: str) -> T:
        given, error = await _outcome(function, self.may_await)
        if error is not None:
            # Nothing else of an error is shown: its text may hold a secret.
            lack = missing_here(error)
            problem = ConfigurationError(
                f"{named} raised {type(first_of(error)).__name__}{f': {lack}' if lack else ''}"
            )
            problem.__cause__ = _bare(error) if lack else None
            # What it says of a further call is no secret.
            raise keep_verdict(problem, error)
        if given is None:
            raise ConfigurationError(
                f"{named} returned None; if it reads an environment variable, that is not set in this process (with "
                "Spark, set spark.executorEnv.NAME to give NAME to the executors)"
            )
        if inspect.iscoroutine(given):
            given.close()
        try:
            return self.check(given)
        except ConfigurationError as refusal:
            problem = ConfigurationError(f"{named} returned no usable {self.what}: {refusal}")
        raise problem


def location(url: str) -> str:
    """The server of a checked URL, and what it names there, for messages: ``mysql+aiomysql://host:port/database``."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def shown_source(source: str | Callable[[], str]) -> str:
    """A URL without its secrets, or the name of the function that returns it."""
    return repr(location(source)) if isinstance(source, str) else function_name(source)


def checked_text(argument: str, text: object, problem: Callable[[str], str | None], form: str = "") -> str:
    """A text in which `problem` finds no error. Else ConfigurationError: it says what is wrong without showing the
    text, and ends with `form`, which says how the text must look."""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ConfigurationError(
            f"{argument} is of type {kind}; it must be a string, or a function without arguments that returns one"
            + ("; is an environment variable not set in this process?" if text is None else "")
        )
    found = problem(text)
    if found:
        raise ConfigurationError(f"{argument} (not shown, it may hold a password): {found}{form}")
    return text


async def _outcome(function: Callable[[], object], may_await: bool) -> tuple[Any, BaseException | None]:
    """The result of a function, or its error. The error is returned, because a thread cannot raise every kind of it."""

    def call() -> tuple[object, BaseException | None]:
        try:
            return function(), None
        except BaseException as error:
            return None, error

    given, error = (function(), None) if gives_coroutines(function) else await asyncio.to_thread(call)
    if not (may_await and isinstance(given, Awaitable)):
        return given, error
    try:
        return await given, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        return None, error


def _bare(error: BaseException) -> BaseException:
    """The innermost error that says what is missing, with only its last frame.

    `missing_here` needs that frame. Other errors and other frames are removed, because they may hold a secret.
    """
    lacking = error
    while True:
        # As a traceback shows it.
        behind = lacking.__cause__ or (None if lacking.__suppress_context__ else lacking.__context__)
        if behind is None or not missing_here(behind):
            break
        lacking = behind
    frame = lacking.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    lacking.__cause__ = lacking.__context__ = None
    return lacking.with_traceback(frame)
