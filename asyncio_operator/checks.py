"""Checks of option values. Each error is one sentence: the argument, its value, and what is allowed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeVar

from asyncio_operator.clock import wall
from asyncio_operator.errors import ConfigurationError, ResultError, StateError, describe

T = TypeVar("T")

Duration = float | timedelta

LARGEST = sys.float_info.max

SHORTEST = 0.001  # Seconds; nothing is kept for a shorter time, because state counts in milliseconds.
LONGEST = 1e12  # Seconds: 30,000 years, which 64 bits can hold in milliseconds.

LIMIT = 1 << 63
"""Milliseconds. Every time lies below it and not below its negative, because times are stored in 64 bits."""


def must_be(name: str, value: object, allowed: str) -> ConfigurationError:
    """The error for an argument whose value is not what is allowed."""
    return ConfigurationError(f"{name} is {describe(value)}; it must be {allowed}")


def positive_int(name: str, value: object, besides: str = "") -> int:
    """`value`, if it is an int of at least 1. `besides` ends the message, with what else is allowed."""
    return natural(name, value, 1, besides)


def natural(name: str, value: object, least: int = 0, besides: str = "") -> int:
    """`value`, if it is an int that is not less."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise must_be(name, value, f"an int of at least {least}{besides}")
    return value


def duration(name: str, value: object) -> float:
    """Seconds, from a number or a timedelta that is finite and not negative."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LARGEST:
        raise must_be(name, value, "a number of seconds or a timedelta, finite and not negative")
    return float(seconds)


def positive_duration(name: str, value: object) -> float:
    """`duration` that is more than 0."""
    seconds = duration(name, value)
    if not seconds:
        raise must_be(name, value, "more than 0 seconds")
    return seconds


def lasting(name: str, value: object) -> float:
    """`positive_duration` for how long something is kept: at least `SHORTEST`, at most `LONGEST`."""
    seconds = positive_duration(name, value)
    if seconds < SHORTEST:
        raise must_be(name, value, f"at least {SHORTEST} seconds")
    if seconds > LONGEST:
        raise must_be(name, value, f"at most {LONGEST:.0f} seconds, or None")
    return seconds


def seconds(value: Duration) -> float:
    """The seconds of a duration that was checked before."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def number(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> float:
    """A number for which `holds` is true. `allowed` says the same in words, for the message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value) or value > LARGEST:
        raise must_be(name, value, f"a number {allowed}")
    return float(value)


def flag(name: str, value: object) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise must_be(name, value, "True or False")
    return value


def timeout(name: str, value: object) -> float | None:
    """Seconds, or None for no limit; 0 means no limit too."""
    return None if value is None else duration(name, value) or None


def plain_function(name: str, value: object, allowed: str, *arguments: str) -> None:
    """Check that `value` is callable, with these arguments if any are named, and is not ``async``.

    Hooks are called where nothing can be awaited.
    """
    if not callable(value):
        raise must_be(name, value, allowed)
    if gives_coroutines(value):
        raise must_be(name, value, "an ordinary function, not an `async def`")
    if arguments:
        takes(name, value, *arguments)


def takes(name: str, function: Callable[..., object], *arguments: str) -> None:
    """Check that `function` can be called with these arguments, which are named in words.

    A function without a signature, such as some written in C, passes.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        # Without defaults and annotations: a default may hold a secret.
        bare = [one.replace(default=one.empty, annotation=one.empty) for one in signature.parameters.values()]
        # Without the arguments of a partial, for the same reason.
        shown = f"a partial of {describe(function.func)}" if isinstance(function, partial) else describe(function)
        count = ("no arguments", "one argument, ", "two arguments, ")[len(arguments)]
        raise ConfigurationError(
            f"{name} is {shown}, which takes {inspect.Signature(bare)}; it must take {count}{' and '.join(arguments)}"
        ) from None


def plain_result(name: str, result: T) -> T:
    """The result of a hook.

    Raises:
        ResultError: it is a coroutine, which would never be awaited.
    """
    if isinstance(result, CoroutineType):
        raise not_awaited(name, result)
    return result


def milliseconds(clock: Callable[[], float] | None) -> Callable[[], int]:
    """The same clock in whole milliseconds, ``round(clock() * 1000)``; None for the system's clock.

    The returned function raises a `StateError` if the clock returns no finite number, or one whose milliseconds do not
    fit into 64 bits. Unchecked, such a time would fail much later, when it is stored.

    Raises:
        ConfigurationError: `clock` is no plain function without arguments.
    """
    if clock is None:
        clock = wall
    plain_function("clock", clock, "a callable that returns seconds as a float")
    takes("clock", clock)
    low, high = -LIMIT, LIMIT  # Names of the function, for speed.

    def read() -> int:
        try:
            now = round(clock() * 1000)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise StateError(
                f"the clock {describe(clock)} gave no time ({type(error).__name__}: {error}): "
                "a clock must return seconds as a finite float"
            ) from error
        if low <= now < high:
            return now
        raise StateError(
            f"the clock {describe(clock)} gave {describe(now // 1000)} seconds, whose milliseconds have more than 64 "
            "bits: a clock must return seconds as a float, as time.time does, not nanoseconds"
        )

    return read


FUNCTION = "the function"


def not_awaited(name: str, result: CoroutineType[object, object, object]) -> ResultError:
    """The error for a coroutine instead of a result. The coroutine is closed, so that Python does not warn about it."""
    result.close()
    hooks = "hooks are ordinary functions: await in the function itself instead"
    return ResultError(f"{name} returned a coroutine; {'`await` is missing in it' if name == FUNCTION else hooks}")


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """`value`, if it is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = " | ".join(f'"{word}"' for word in allowed)
        raise must_be(name, value, words)
    return value


def gives_coroutines(function: object) -> bool:
    """Whether it is a coroutine function, or an instance whose ``__call__`` is one."""
    if not callable(function) or inspect.isclass(function):
        return False
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_idempotent(function: Any) -> bool:
    """Whether two calls of a function have the effect of one: its attribute `idempotent`, True if it has none.

    A partial has that of its function, unless it has its own.
    """
    while isinstance(function, partial) and not hasattr(function, "idempotent"):
        function = function.func
    return bool(getattr(function, "idempotent", True))


def of_kind(name: str, value: object, kind: type, short: str | None = None) -> None:
    """Check that `value` is a specification of this kind, or None. `short`: what else is taken, in words."""
    if value is not None and not isinstance(value, kind):
        also = f", {short}" if short else ""
        if isinstance(value, float) and "number" in also:
            also += " (an int)"
        also += f", or None, as in {name}={kind.__name__}(...)"
        raise must_be(name, value, f"a {kind.__name__}{also}")


def check_directory(directory: str | Path) -> Path:
    """The directory as a path, absolute and without links; it need not exist.

    Raises:
        ConfigurationError: it is no path, cannot be one, or begins with a ``~``, which only a shell replaces.
    """
    if isinstance(directory, str | Path) and str(directory).startswith("~"):
        raise ConfigurationError(f"directory={describe(directory)}: ~ is not supported, pass Path(...).expanduser()")
    if isinstance(directory, str | Path) and str(directory) and "\0" not in str(directory):
        try:
            str(directory).encode()
        except UnicodeEncodeError:
            pass
        else:
            return Path(directory).resolve()
    raise ConfigurationError(f"directory={describe(directory)}: a path is needed, in UTF-8 and without NUL")
