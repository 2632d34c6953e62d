"""When a call that takes long is made a second time (laws H1 and H2).

Most slow calls are slow by bad luck: a server that collects garbage, a lost packet, a full queue. The same call made
again is answered at the usual speed, so the first answer of the two comes early. Source: Dean and Barroso, "The Tail at
Scale", CACM 2013: 2 % more calls took the 99.9th percentile of 1,000 reads from 1,800 ms to 74 ms.

Two things go wrong with this idea, and are prevented here:

- When a source is slow as a whole, copies make it slower. So copies have a share of the calls, and what a quiet time
  did not use of it is lost, except for a few.
- One bad server raises the percentile of all calls until none is made a second time. So a percentile counts as at most
  `cap`, or 4 times the median. And a call that was cancelled because its copy has answered counts with the time after
  which the copy was made: that keeps the percentile where it is, while its true latency would raise it, and its absence
  would lower it.

This module knows neither clocks nor calls: durations and `now` are passed in, in seconds.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

from asyncio_operator.checks import Duration, duration, must_be, number, positive_duration
from asyncio_operator.errors import ConfigurationError

LATEST = 1000
"""Latencies that a percentile is taken of: enough for p99.9, and forgotten soon after a source has changed."""

REFRESHED = 100
"""New latencies after which the percentile is computed again; at first as many as there are. Sorting then costs half a
microsecond for each of them."""

FEWEST = 20  # Latencies before a percentile says anything, however low it is.
TIMES_MEDIAN = 4.0  # The highest percentile, as a multiple of the median, where no `cap` is given.
SAVED = 500  # Calls whose share of copies may be saved up: 10 copies at 2 %. A burst of slow calls gets these at once.
CALM = 1.0  # Seconds without copies after the source has said that it is overloaded.
ROUNDING = 1e-9  # More than the rounding error of a product of a share and a count.

PERCENTILE = re.compile(r"p(\d\d(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Hedge:
    """Makes a slow call a second time, and takes the first answer. The other call is cancelled.

    Attributes:
        after: how long a call runs before it is made a second time: seconds, a timedelta, or a percentile of the latest
            latencies, from "p50" to "p99.9".
        extra: the share of all calls that may be second ones: more than 0, and at most 1.
        floor: the shortest time that a percentile counts as, in seconds or as a timedelta.
        cap: the longest time that a percentile counts as; `after` in seconds must not be more. With a cap, calls are
            made again also before there are enough latencies for the percentile: after that time. None: 4 times the
            median.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    after: Duration | str = "p98"
    extra: float = 0.02
    floor: Duration = 0.01
    cap: Duration | None = None

    def __post_init__(self) -> None:
        if isinstance(self.after, str):
            _rank(self.after)
        else:
            object.__setattr__(self, "after", positive_duration("after", self.after))
        object.__setattr__(self, "extra", number("extra", self.extra, "over 0 and at most 1", lambda x: 0 < x <= 1))
        floor = duration("floor", self.floor)
        object.__setattr__(self, "floor", floor)
        if self.cap is not None:
            cap = positive_duration("cap", self.cap)
            if cap < floor:
                raise ConfigurationError(f"cap is {cap} s; it must not be less than floor, which is {floor} s")
            if not isinstance(self.after, str) and duration("after", self.after) > cap:
                raise ConfigurationError(f"after is {self.after} s; it must not be more than cap, which is {cap} s")
            object.__setattr__(self, "cap", cap)


class Hedger:
    """Decides for the calls of one run. It stores the latest latencies and two counts. After `delay` seconds a call is
    made a second time; that is infinity while there are too few latencies."""

    def __init__(self, spec: Hedge) -> None:
        self._extra = spec.extra
        self._saved = max(1.0, spec.extra * SAVED)
        self._calls = 0
        self._spent = 0.0
        self._calm_until = -math.inf
        self._latest: deque[float] = deque(maxlen=LATEST)
        self._new = 0
        self._rank: float | None = None
        if isinstance(spec.after, str):
            self._rank = _rank(spec.after)
            self._floor = duration("floor", spec.floor)
            self._cap = None if spec.cap is None else duration("cap", spec.cap)
            # With fewer, the percentile would be the slowest call of all.
            self._wanted = max(FEWEST, math.ceil(1 / (1 - self._rank) - ROUNDING))
            self.delay = math.inf if self._cap is None else self._cap
        else:
            self.delay = duration("after", spec.after)

    def called(self) -> None:
        """A call starts that is not a copy."""
        self._calls += 1

    def copied(self) -> None:
        """A copy starts."""
        self._calls += 1
        self._spent += 1

    def lasted(self, seconds: float) -> None:
        """A call was answered after this time. If its copy has answered first: the copy was made after this time."""
        if self._rank is None:
            return
        self._latest.append(seconds)
        self._new += 1
        if self._new >= self._wanted:
            self._new, self._wanted = 0, min(REFRESHED, len(self._latest))
            ordered = sorted(self._latest)
            count = len(ordered)
            highest = TIMES_MEDIAN * ordered[(count - 1) // 2] if self._cap is None else self._cap
            self.delay = max(self._floor, min(highest, ordered[math.ceil(self._rank * count - ROUNDING) - 1]))

    def overloaded(self, now: float, wait: float) -> None:
        """The source refuses calls for `wait` seconds; 0: it names no time."""
        self._calm_until = max(self._calm_until, now + max(CALM, wait))

    def next_copy(self, now: float) -> float:
        """The earliest time, not before `now`, at which a copy may start; infinity if that needs more calls."""
        calls = self._calls
        # What was not used is lost, so that copies are a share of the latest calls too, and not only of all.
        self._spent = max(self._spent, self._extra * calls - self._saved)
        if self._spent + 1 > self._extra * (calls + 1):
            return math.inf
        return max(now, self._calm_until)


def _rank(after: str) -> float:
    """The share of calls that is faster than a percentile such as "p98"."""
    found = PERCENTILE.fullmatch(after)
    percent = float(found[1]) if found else 0.0
    if not 50 <= percent <= 99.9:
        raise must_be("after", after, 'a number of seconds, a timedelta, or a percentile from "p50" to "p99.9"')
    return percent / 100
