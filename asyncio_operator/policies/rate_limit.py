"""How many calls may start in a period of time: `RateLimit`, and its windows in a process.

Two rules hold at the same time (laws R10 and G2). The log: all units that start within `per` seconds, wherever this
window begins, are at most ``rate + burst``. The bucket: it holds ``rate + burst`` units, each start takes some, and
they return at `rate` per `per`. So starts after a burst are slower, and the mean never exceeds `rate` per `per`. A
bucket alone would let twice its size through in one window. The windows of a process and of a coordinator
(`quota.window`) keep both.

A refusal of the source closes the window of a process, of an operator or a lookup. Nothing starts for as long as the
source asks, and nothing is known of it: it may refuse all calls. So the next calls start evenly, at the rate of the
limit, until the first of them is answered, or for a twentieth of the window (law R10). The permits of a budget have a
ramp of their own (`quota.resources`), because a coordinator grants them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncio_operator.checks import Duration, must_be, natural, positive_duration, positive_int, seconds
from asyncio_operator.policies.retry import LONGEST_WAIT, refusal_wait

MOST_STARTS = 10_000_000
"""The maximum of starts in a window, each remembered in 32 bytes: enough for a daily quota, in 0.3 GB."""


UNPROVEN = 0.05  # The part of a window for which calls start evenly, unless one is answered.


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
            allowed = f"at most {MOST_STARTS:,}, because each start of a window is remembered"
            name = "rate + burst" if self.burst else "rate"
            raise must_be(name, most, f"{allowed}; for more, make the window shorter, with per=")


class LocalWindow:
    """The window of a `RateLimit` on the calls of one process, which begins anew after a refusal (law R10). Calls that
    start before `proven` may be the first that is answered, so their ends have to be heard."""

    def __init__(self, limit: RateLimit) -> None:
        self._per = seconds(limit.per)
        self._most = limit.rate + (limit.burst or 0)
        # Without a burst the log alone keeps the mean, without rounding errors.
        self._has_bucket = bool(limit.burst)
        self._interval, self._even = self._per / limit.rate, self._per / self._most
        self._full = -math.inf
        # The latest starts: they fill a window alone, so those before them never matter again.
        self._starts: deque[float] = deque(maxlen=self._most)
        self._proof = UNPROVEN * self._per
        # Calls that start from `_begin` on are counted, and start evenly before `proven`.
        self._begin = self.proven = -math.inf
        self._count = 0
        # The calls that start without a look at anything else.
        self._free = self._most_free = 0 if self._has_bucket else self._most

    def take(self, now: float) -> float:
        """Start a call now, if it may. Returns when it may, or infinity for a call whose end has to be heard."""
        if len(self._starts) < self._free:
            self._starts.append(now)
            return now
        if now < self.proven:
            return math.inf
        start = self.next_start(now)
        if start <= now:
            self.start(now)
        return start

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start if none starts until then."""
        earliest = now
        if len(self._starts) >= self._most:
            first = self._starts[0]
            earliest = first + self._per
            while earliest - first < self._per:
                # The sum was rounded down: one start would be too early.
                earliest = math.nextafter(earliest, math.inf)
            if earliest < now:
                earliest = now
            if self._has_bucket:
                earliest = max(earliest, self._full - (self._most - 1) * self._interval)
        if earliest < self.proven:
            return max(earliest, min(self._begin + self._count * self._even, self.proven))
        return earliest

    def start(self, now: float) -> None:
        """A call starts now. It is counted even if it was not allowed."""
        self._count += 1
        self._starts.append(now)
        if self._has_bucket:
            self._full = max(self._full, now) + self._interval

    def ended(self, started: float, now: float, error: BaseException | None) -> bool:
        """A call that started at that time has ended. Returns whether calls that wait may start now."""
        if error is None:
            if started < self._begin:
                return False
            waited, self.proven = now < self.proven, -math.inf
            self._free = self._most_free
            return waited
        if (wait := refusal_wait(error)) is not None:
            begin = now + wait if wait <= LONGEST_WAIT else now
            # A refusal lets nothing start earlier: calls that are refused at once start evenly too.
            self._begin = max(begin, min(self._begin + self._count * self._even, self.proven))
            self.proven = self._begin + self._proof
            self._count = self._free = 0
        return False


class ProcessWindow:
    """The window of a limit for all runs of one operator or lookup in this process, one after the other (law G13)."""

    def __init__(self, limit: RateLimit | None) -> None:
        self._limit = limit
        self._clock: Callable[[], float] | None = None
        self._window: LocalWindow | None = None

    def by(self, clock: Callable[[], float]) -> LocalWindow | None:
        """The window for a run whose loop has this clock; None if there is no limit."""
        if self._limit is not None and clock != self._clock:
            # A loop with a time of its own: starts by another clock say nothing about it.
            self._clock, self._window = clock, LocalWindow(self._limit)
        return self._window

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessWindow, (self._limit,)
