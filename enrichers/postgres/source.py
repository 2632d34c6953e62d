"""Where a connection string comes from: text, or a function that gives it, which is checked, named, and never shown.

A function keeps a secret out of a pickle, so nothing that it captured, gave or said in an error is repeated here: its
name is, and the type of what it gave or raised. It may block, and runs in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import gives_coroutines, missing_here
from enrichers.postgres.dsn import check_dsn

Dsn = str | Callable[[], str]

_WANTED = "it must be a plain function without arguments that returns the connection string (it may block)"


def check_source(source: object) -> None:
    """Whether it is a connection string, or can be called for one.

    Raises:
        ConfigurationError: says what is wrong, and shows no connection string.
    """
    if not callable(source):
        check_dsn(source)
    elif gives_coroutines(source) or inspect.isasyncgenfunction(source):
        raise ConfigurationError(f"{_named(source)} is a coroutine function; {_WANTED}")
    elif not _takes_nothing(source):
        raise ConfigurationError(f"{_named(source)} cannot be called without arguments; {_WANTED}")


async def connection_string(source: Dsn, seconds: float | None) -> str:
    """The checked connection string; a function has so many seconds to give it, or any number if None.

    Raises:
        ConfigurationError: the function failed, took longer, or gave something else.
    """
    if isinstance(source, str):
        return source
    try:
        async with asyncio.timeout(seconds):
            dsn = await _called(source)
    except TimeoutError:
        problem = ConfigurationError(f"{_named(source)} gave nothing within {seconds:g} s (connect_timeout)")
    except ConfigurationError as error:
        problem = error.with_traceback(None)
    else:
        return dsn
    raise problem


async def _called(source: Callable[[], object]) -> str:
    dsn, error = await asyncio.to_thread(_outcome, source)
    if error is None:
        return _checked(dsn, _named(source))
    # Of other errors nothing more is shown: they may hold a secret.
    missing = missing_here(error)
    problem = ConfigurationError(f"{_named(source)} raised {type(error).__name__}{f': {missing}' if missing else ''}")
    problem.__cause__ = _without_callers(error) if missing else None
    raise problem


def _without_callers(error: BaseException) -> BaseException:
    """The error with its last frame alone, which tells what was missing; those above hold what the function knows."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return error.with_traceback(frame)


def _outcome(source: Callable[[], object]) -> tuple[object, BaseException | None]:
    """What a function gives or raises; a thread cannot hand over every error as one."""
    try:
        return source(), None
    except BaseException as error:
        return None, error


def shown_source(source: Callable[[], str]) -> str:
    """A function that gives a connection string, without what it may have captured."""
    while isinstance(source, functools.partial):
        source = source.func
    return getattr(source, "__qualname__", type(source).__qualname__)


def _named(source: Callable[..., Any]) -> str:
    return f"dsn: the function {shown_source(source)}"


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; True where that cannot be known."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _checked(dsn: object, named: str) -> str:
    if inspect.iscoroutine(dsn):
        dsn.close()
    if dsn is None:
        raise ConfigurationError(
            f"{named} gave None; if it reads an environment variable, that is not set in this process (Spark gives "
            "NAME to the executors by spark.executorEnv.NAME)"
        )
    if not isinstance(dsn, str):
        raise ConfigurationError(f"{named} gave something of type {type(dsn).__name__}; {_WANTED}")
    try:
        return check_dsn(dsn)
    except ConfigurationError as error:
        problem = ConfigurationError(f"{named} gave no usable connection string: {error}")
    raise problem
