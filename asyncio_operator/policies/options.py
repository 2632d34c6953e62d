"""Checks of option values, one sentence for each: the argument, its value, and what is allowed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import timedelta

from asyncio_operator.errors import ConfigurationError, describe

Duration = float | timedelta

LARGEST = sys.float_info.max


def positive_int(name: str, value: object) -> int:
    """`value`, if it is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} is {describe(value)}; it must be an int of at least 1")
    return value


def natural(name: str, value: object) -> int:
    """`value`, if it is an int of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{name} is {describe(value)}; it must be an int of at least 0")
    return value


def duration(name: str, value: object) -> float:
    """Seconds, from a number or a timedelta that is finite and not negative."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LARGEST:
        raise ConfigurationError(
            f"{name} is {describe(value)}; it must be a number of seconds or a timedelta, finite and not negative"
        )
    return float(seconds)


def positive_duration(name: str, value: object) -> float:
    """The same, and more than 0."""
    seconds = duration(name, value)
    if not seconds:
        raise ConfigurationError(f"{name} is {describe(value)}; it must be more than 0 seconds")
    return seconds


def seconds(value: Duration) -> float:
    """A duration that was checked before, in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def number(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> float:
    """A number for which `holds` is true; `allowed` says the same in words."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value) or value > LARGEST:
        raise ConfigurationError(f"{name} is {describe(value)}; it must be a number {allowed}")
    return float(value)


def flag(name: str, value: object) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {describe(value)}; it must be True or False")
    return value


def timeout(name: str, value: object) -> float | None:
    """Seconds, or None for no limit, which 0 means too."""
    return None if value is None else duration(name, value) or None


def plain_function(name: str, value: object, allowed: str) -> None:
    """Check that `value` can be called and is not ``async``: hooks are called where nothing can be awaited."""
    if not callable(value):
        raise ConfigurationError(f"{name} is {describe(value)}; it must be {allowed}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ConfigurationError(f"{name} is {describe(value)}; it must be an ordinary function, not an `async def`")


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """`value`, if it is one of the words that are allowed."""
    if not isinstance(value, str) or value not in allowed:
        words = " | ".join(f'"{word}"' for word in allowed)
        raise ConfigurationError(f"{name} is {describe(value)}; it must be {words}")
    return value


def gives_coroutines(function: object) -> bool:
    """Whether it is a coroutine function, or an object, but no class, that is called as one."""
    if not callable(function) or inspect.isclass(function):
        return False
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
