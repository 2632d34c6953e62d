"""Clocks: callables that give seconds as a float.

Nothing in this package asks the system for the time except through a clock that was passed in; None stands for the
system's. State and timers count whole milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from asyncio_operator.errors import ConfigurationError

Clock = Callable[[], float]
"""Seconds, as a float."""


monotonic: Clock = time.monotonic
"""What asyncio's own loops measure time with."""


def system_clock() -> float:
    """The system's time: seconds since the epoch."""
    return time.time()


def milliseconds(clock: Clock | None) -> Callable[[], int]:
    """The same clock in whole milliseconds, ``round(clock() * 1000)``; None is the system's.

    Raises:
        ConfigurationError: `clock` cannot be called.
    """
    if clock is None:
        clock = time.time
    if not callable(clock):
        raise ConfigurationError(f"clock={clock!r:.200}: a callable that gives seconds as a float is needed")
    return lambda: round(clock() * 1000)
