"""Clocks: callables that return seconds as a float.

Code in this package reads time only from a clock that was passed in. None means the system's clock. State and timers
count whole milliseconds since the epoch (`checks.milliseconds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from math import inf

Clock = Callable[[], float]  # Seconds, as a float.

wall: Clock = time.time
"""The time of day. State that outlives a process is stamped with it."""

monotonic: Clock = time.monotonic  # The clock of asyncio's own loops.

running_call: ContextVar[Callable[[], float]] = ContextVar("running_call")
"""Returns the seconds that are left for the call that runs in this context. The code that runs calls sets it."""


def time_left() -> float | None:
    """Seconds until the running call is cancelled, for a client that accepts a time limit.

    The number is negative after the limit. None means that there is no limit, or that this code does not run in a call
    of the operator.
    """
    left = running_call.get(None)
    return None if left is None or (seconds := left()) == inf else seconds
