"""Clocks: callables that return seconds as a float.

Code in this package reads time only from a clock that was passed in. None means the system's clock. State and timers
count whole milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from math import inf

from asyncio_operator.errors import ConfigurationError, StateError, describe

Clock = Callable[[], float]
"""Seconds, as a float."""

LIMIT = 1 << 63
"""Milliseconds. Every time lies below it and not below its negative, because times are stored in 64 bits."""

wall: Clock = time.time
"""The time of day. State that outlives a process is stamped with it."""

monotonic: Clock = time.monotonic
"""The clock of asyncio's own loops."""

running_call: ContextVar[Callable[[], float]] = ContextVar("running_call")
"""Returns the seconds that are left for the call that runs in this context. The code that runs calls sets it."""


def time_left() -> float | None:
    """Seconds until the running call is cancelled, for a client that accepts a time limit.

    The number is negative after the limit. None means that there is no limit, or that this code does not run in a call
    of the operator.
    """
    left = running_call.get(None)
    return None if left is None or (seconds := left()) == inf else seconds


def milliseconds(clock: Clock | None) -> Callable[[], int]:
    """The same clock in whole milliseconds, ``round(clock() * 1000)``; None for the system's clock.

    The returned function raises a `StateError` if the clock returns no finite number, or one whose milliseconds do not
    fit into 64 bits. Unchecked, such a time would fail much later, when it is stored.

    Raises:
        ConfigurationError: `clock` cannot be called.
    """
    if clock is None:
        clock = wall
    if not callable(clock):
        raise ConfigurationError(f"clock={describe(clock)}: it must be a callable that returns seconds as a float")

    low, high = -LIMIT, LIMIT  # Names of the function, for speed.

    def now() -> int:
        try:
            time = round(clock() * 1000)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise StateError(
                f"the clock {describe(clock)} gave no time ({type(error).__name__}: {error}): "
                "a clock must return seconds as a finite float"
            ) from error
        if low <= time < high:
            return time
        raise StateError(
            f"the clock {describe(clock)} gave {describe(time // 1000)} seconds, whose milliseconds have more than 64 "
            "bits: a clock must return seconds as a float, as time.time does, not nanoseconds"
        )

    return now
