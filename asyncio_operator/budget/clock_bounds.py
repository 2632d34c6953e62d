"""What a worker knows of its coordinator's clock: an interval in which it must be.

Each exchange of messages gives one: the coordinator read its clock after the message was sent, and before the reply was
received. The upper bound is the best of all exchanges, and drift raises it. The lower one is that of the last exchange:
an older one would be too high if the coordinator's clock has been set back since, and calls would start too early. Only
differences of the worker's own monotonic clock are used, so wrong wall clocks do no harm.
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
        on_the_way = DRIFT * (received - sent)
        self._low, high = time - received - on_the_way, time - sent + on_the_way
        # Where the best is below the low bound, the coordinator's clock was set forward.
        best = self._high + widened
        self._high = min(best, high) if best >= self._low else high
        self._at = received

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
