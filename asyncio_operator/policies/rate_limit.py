"""How many calls may start in a time.

Two rules hold at once (law R10). The log: a start must not come sooner than `per` seconds after the start that was
``rate + burst`` before it, so no window of `per` seconds, wherever it begins, holds more. The bucket: it holds
``rate + burst`` tokens, each start takes one, and one comes back every ``per / rate`` seconds, so a burst is paid back
and the mean never exceeds `rate` per `per`. A bucket alone would let twice as much through in a window as it holds.

The bucket is kept as the time at which it will be full again. Source: the generic cell rate algorithm, ITU-T I.371.

It knows neither clocks nor calls.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.options import Duration, natural, positive_duration, positive_int, seconds

MOST_STARTS = 10_000_000
"""In a window, for each is remembered for as long, in 32 bytes: enough for the quota of a day, and a third of a GB."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `rate` starts, plus `burst`, in any window of `per` seconds.

    Attributes:
        rate: starts per `per`, over a long time.
        per: the length of the window, in seconds or as a timedelta.
        burst: how many more may come in one window, after a time with fewer; None is 0. Together with `rate` at most
            10,000,000.

    Raises:
        ConfigurationError: a value is wrong.
    """

    rate: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        positive_int("rate", self.rate, "; for less than one in a window, make the window longer, with per=")
        object.__setattr__(self, "per", positive_duration("per", self.per))
        if self.burst is not None:
            natural("burst", self.burst)
        most = self.rate + (self.burst or 0)
        if most > MOST_STARTS:
            raise ConfigurationError(
                f"{'rate + burst' if self.burst else 'rate'} is {describe(most)}; it must be at most {MOST_STARTS:,}, "
                "for each start of a window is remembered; for more, make the window shorter, with per="
            )


class Limiter:
    """The starts of the last window. It holds ``rate + burst`` times at most, and both methods are O(1)."""

    def __init__(self, spec: RateLimit) -> None:
        self._per = seconds(spec.per)
        self._interval = self._per / spec.rate
        most = spec.rate + (spec.burst or 0)
        self._starts: deque[float] = deque(maxlen=most)
        self._most = most
        self._full = -math.inf
        # Without a burst the log alone keeps the mean, and does so without rounding.
        self._slack = (most - 1) * self._interval if spec.burst else math.inf

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start if none does until then."""
        if len(self._starts) < self._most:
            return now
        oldest = self._starts[0]
        earliest = oldest + self._per
        while earliest - oldest < self._per:
            # The sum was rounded down.
            earliest = math.nextafter(earliest, math.inf)
        return max(now, earliest, self._full - self._slack)

    def start(self, now: float) -> None:
        """A call starts now. It is counted whether it was allowed or not."""
        self._starts.append(now)
        self._full = max(self._full, now) + self._interval

    def rested_at(self) -> float:
        """From when on it allows what a new one does, if nothing starts until then; minus infinity if nothing has."""
        return max(self._starts[-1] + self._per, self._full) if self._starts else -math.inf
