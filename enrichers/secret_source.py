"""Functions that give a secret: a connection string, a URL, headers with a token.

Such a function keeps the secret out of the pickle, out of every ``repr``, and lets it change. So nothing that it
captured, gave or said in an error is repeated here: its name is, the type of what it raised, and the module or
environment variable that this process lacks. One that blocks runs in a thread. No frame that holds what it gave stays
with an error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import function_name, gives_coroutines, missing_here, takes

T = TypeVar("T")


@dataclass(frozen=True)
class SecretSource(Generic[T]):
    """An argument that is a secret, or a function without arguments that gives it.

    Args:
        argument: its name, as ``dsn``.
        what: what it is, in words.
        check: gives what it is given, if it will do; else raises a `ConfigurationError` that shows no part of it.
        may_await: whether the function may be asynchronous.
    """

    argument: str
    what: str
    check: Callable[[object], T]
    may_await: bool = False

    def check_source(self, source: object) -> None:
        """Check what a user gave.

        Raises:
            ConfigurationError: it will not do, or is a function that could never give it. Neither the secret nor what
                the function has captured is shown.
        """
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
                f"that gives the {self.what} (it may block: it runs in a thread)"
            )

    async def get(self, source: T | Callable[[], T | Awaitable[T]], seconds: float | None = None) -> T:
        """The checked secret; a function has so many seconds to give it, or any number if None.

        Raises:
            ConfigurationError: the function failed, took longer than `seconds`, which the argument ``connect_timeout``
                says, or gave something else.
        """
        if not callable(source):
            return source
        named = f"{self.argument}: the function {function_name(source)}"
        try:
            async with asyncio.timeout(seconds):
                return await self._asked(source, named)
        except TimeoutError:
            problem = ConfigurationError(f"{named} gave nothing within {seconds:g} s (connect_timeout)")
        except ConfigurationError as error:
            problem = error.with_traceback(None)
        raise problem

    async def _asked(self, function: Callable[[], object], named: str) -> T:
        given: Any
        given, error = (function(), None) if gives_coroutines(function) else await asyncio.to_thread(_outcome, function)
        if self.may_await and isinstance(given, Awaitable):
            given, error = await _awaited(given)
        if error is not None:
            # Of other errors nothing more is shown: they may hold a secret.
            lack = missing_here(error)
            problem = ConfigurationError(f"{named} raised {type(error).__name__}{f': {lack}' if lack else ''}")
            problem.__cause__ = _bare(error) if lack else None
            raise problem
        if given is None:
            raise ConfigurationError(
                f"{named} gave None; if it reads an environment variable, that is not set in this process (Spark gives "
                "NAME to the executors by spark.executorEnv.NAME)"
            )
        if inspect.iscoroutine(given):
            given.close()
        try:
            return self.check(given)
        except ConfigurationError as refusal:
            problem = ConfigurationError(f"{named} gave no usable {self.what}: {refusal}")
        raise problem


def checked_text(argument: str, text: object, problem: Callable[[str], str | None], form: str = "") -> str:
    """A text, if `problem` finds nothing wrong with it; `form` says how it must look.

    Raises:
        ConfigurationError: says what is wrong with it without showing it.
    """
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ConfigurationError(
            f"{argument} is of type {kind}; it must be a string, or a function without arguments that gives one"
            + ("; is an environment variable not set in this process?" if text is None else "")
        )
    found = problem(text)
    if found:
        raise ConfigurationError(f"{argument} (not shown, it may hold a password): {found}{form}")
    return text


def _outcome(function: Callable[[], object]) -> tuple[object, BaseException | None]:
    """What a function gives or raises; a thread cannot hand over every error as one."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


async def _awaited(given: Awaitable[object]) -> tuple[object, BaseException | None]:
    try:
        return await given, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        return None, error


def _bare(error: BaseException) -> BaseException:
    """The error that tells what is missing, with its last frame alone: that is how it is known, and what stands around
    it, in other errors and in the frames above, may hold a secret."""
    told, behind = error, _behind(error)
    while behind is not None and missing_here(behind):
        told, behind = behind, _behind(behind)
    frame = told.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    told.__cause__ = told.__context__ = None
    return told.with_traceback(frame)


def _behind(error: BaseException) -> BaseException | None:
    """What an error is told to come from. What `os.environ` looked up below it says nothing to anybody."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
