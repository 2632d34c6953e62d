"""What a worker knows of its coordinator's clock: an interval in which it must be.

Each exchange of messages gives one: the coordinator read its clock after the message was sent, and before the reply was
received. Later exchanges make the interval smaller, and drift makes it larger. Only differences of the worker's own
monotonic clock are used, so wrong wall clocks do no harm.
"""

from __future__ import annotations

import math

DRIFT = 2e-4
"""Two clocks of quartz differ by at most 100 millionths each."""


class ClockBounds:
    """The coordinator's time minus the local time is in ``[low, high]``, at local time `at`. Nothing is known first."""

    def __init__(self) -> None:
        self._low, self._high, self._at = -math.inf, math.inf, 0.0

    def exchanged(self, sent: float, time: float, received: float) -> None:
        """The coordinator's clock showed `time` between these local times."""
        widened = DRIFT * max(0.0, received - self._at)
        low, high = max(self._low - widened, time - received), min(self._high + widened, time - sent)
        if low > high:
            # One of the clocks was set. What was known before is wrong.
            low, high = time - received, time - sent
        self._low, self._high, self._at = low, high, received

    def first_surely_after(self, time: float) -> float:
        """The first local time at which the coordinator's clock surely shows `time` or more."""
        local = time - self._low
        return local + DRIFT * max(0.0, local - self._at)

    def last_surely_before(self, time: float) -> float:
        """The last local time at which the coordinator's clock surely shows `time` or less."""
        local = time - self._high
        return local - DRIFT * max(0.0, local - self._at)

    def at_most(self, local: float) -> float:
        """The latest time that the coordinator's clock may show at a local time."""
        return local + self._high + DRIFT * abs(local - self._at)
