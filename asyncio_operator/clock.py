"""Clocks: callables that give seconds as a float.

Nothing in this package asks the system for the time except through a clock that was passed in; None stands for the
system's. State and timers count whole milliseconds since the epoch.
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
"""Milliseconds below which every time lies, for it is stored in 64 bits."""

wall: Clock = time.time
"""The time of day, by which state that outlives a process is stamped."""

monotonic: Clock = time.monotonic
"""What asyncio's own loops measure time with."""

running_call: ContextVar[Callable[[], float]] = ContextVar("running_call")
"""Gives the seconds that the call which runs in this context has left; set by whoever runs calls."""


def time_left() -> float | None:
    """Seconds until the call that this is a part of is cancelled, for a client that can be told a limit.

    It is negative past the limit. None if there is no limit, or this is no part of a call of the operator.
    """
    left = running_call.get(_no_limit)()
    return None if left == inf else left


def _no_limit() -> float:
    return inf


def milliseconds(clock: Clock | None) -> Callable[[], int]:
    """The same clock in whole milliseconds, ``round(clock() * 1000)``; None is the system's.

    What is given raises a `StateError` where the clock gives no finite number, or one whose milliseconds do not fit 64
    bits, which would fail far from here.

    Raises:
        ConfigurationError: `clock` cannot be called.
    """
    if clock is None:
        clock = wall
    if not callable(clock):
        raise ConfigurationError(f"clock={describe(clock)}: a callable that gives seconds as a float is needed")

    def now() -> int:
        try:
            time = round(clock() * 1000)
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"the clock {describe(clock)} gave no time ({type(error).__name__}: {error}): "
                "a clock gives seconds as a finite float"
            ) from error
        if -LIMIT <= time < LIMIT:
            return time
        raise StateError(
            f"the clock {describe(clock)} gave {time / 1000:g} seconds, whose milliseconds have more than 64 bits: "
            "a clock gives seconds as a float, as time.time does, not nanoseconds"
        )

    return now
