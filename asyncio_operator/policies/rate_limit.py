"""How many calls may start in a period of time.

Two rules hold at the same time (law R10). The log: a start comes at least `per` seconds after the start that was
``rate + burst`` before it. So no window of `per` seconds, wherever it begins, holds more than that. The bucket: it
holds ``rate + burst`` tokens, each start takes one, and one returns every ``per / rate`` seconds. So starts after a
burst are slower, and the mean never exceeds `rate` per `per`. A bucket alone would let twice its size through in one
window.

The bucket is stored as the time at which it will be full again. Source: the generic cell rate algorithm, ITU-T I.371.
This module knows neither clocks nor calls.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from asyncio_operator.checks import Duration, natural, positive_duration, positive_int, seconds
from asyncio_operator.errors import ConfigurationError, describe

MOST_STARTS = 10_000_000
"""The maximum of starts in a window, each remembered in 32 bytes: enough for a daily quota, in a third of a GB."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `rate` starts, plus `burst`, in any window of `per` seconds.

    Attributes:
        rate: starts per `per`, on average over a long time.
        per: the length of the window, in seconds or as a timedelta.
        burst: how many more may start in one window, after a time with fewer starts; None means 0. `rate` and `burst`
            together are at most 10,000,000.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    rate: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        positive_int("rate", self.rate, "; for less than one start in a window, make the window longer, with per=")
        object.__setattr__(self, "per", positive_duration("per", self.per))
        if self.burst is not None:
            natural("burst", self.burst)
        most = self.rate + (self.burst or 0)
        if most > MOST_STARTS:
            raise ConfigurationError(
                f"{'rate + burst' if self.burst else 'rate'} is {describe(most)}; it must be at most {MOST_STARTS:,}, "
                "because each start of a window is remembered; for more, make the window shorter, with per="
            )


class Limiter:
    """The starts of the last window. It stores at most ``rate + burst`` times, and both methods cost O(1)."""

    def __init__(self, spec: RateLimit) -> None:
        self._per = seconds(spec.per)
        self._interval = self._per / spec.rate
        most = spec.rate + (spec.burst or 0)
        self._starts: deque[float] = deque(maxlen=most)
        self._most = most
        self._full = -math.inf
        # Without a burst the log alone keeps the mean, without rounding errors.
        self._slack = (most - 1) * self._interval if spec.burst else math.inf

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start if no other call starts until then."""
        if len(self._starts) < self._most:
            return now
        oldest = self._starts[0]
        earliest = oldest + self._per
        while earliest - oldest < self._per:
            # The sum was rounded down: one start would be too early.
            earliest = math.nextafter(earliest, math.inf)
        return max(now, earliest, self._full - self._slack)

    def start(self, now: float) -> None:
        """A call starts now. It is counted even if it was not allowed."""
        # The deque drops the oldest start by itself, as it holds no more than one window allows.
        self._starts.append(now)
        self._full = max(self._full, now) + self._interval

    def rested_at(self) -> float:
        """From when on it acts like a new one, if no call starts until then; minus infinity if none ever started."""
        return max(self._starts[-1] + self._per, self._full) if self._starts else -math.inf
