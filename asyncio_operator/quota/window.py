"""The window of one limit at its coordinator, which grants units before they start. Laws R10 and G2: see `rate_limit`.

A limiter of one process knows every start when it happens. A coordinator (`plan`, `place`, `move`) does not: it
grants units to a worker, which may start them at any time from `start` to `until`. So an entry of the log is the latest
time at which its units can have started. A grant that may start at time `a` is allowed if the units of all entries
after ``a - per`` and its own are at most ``rate + burst``. Proof that no window then holds more: of all grants with
starts in one window, look at the one that was placed last. Its start `a` is before the end of the window, so
``a - per`` is before its beginning; the others were placed before, and their entries are not before their real starts,
so all of them were counted. A report of the real start moves an entry back to it, and units that never started are
removed: both keep what the proof needs.

The bucket is stored as the time at which it will be full again. Source: the generic cell rate algorithm, ITU-T I.371.
Leased starts come up to `lease` seconds before their entries. So what other entries take from the bucket counts as
larger by what returns in this time, and the mean is kept for real starts too.

This module knows neither clocks nor calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any

from asyncio_operator.quota.terms import Rate

OWED_WINDOWS = 16
"""The maximum number of windows that pay for what was used beyond estimates. More is a mistake in the unit of an
estimate, and must not stop a job for hours."""

LATELY = 0.5  # Seconds. A source's statement is seldom older.


class Window:
    """The units of one limit in the last `per` seconds, and those that are leased."""

    def __init__(self, limit: Rate, grain: float = 0.0, lease: float = 0.0, now: float = 0.0) -> None:
        self.limit = limit  # What the user gave, and what holds unless the source allows less (`allow`).
        self.allow(limit.rate, limit.burst)
        # When the present half second began, the most units that were counted in it, and in the one before.
        self.peak = [now, 0.0, 0.0]
        # Entries that are leased are rounded up to multiples of it, so that there are few; 0 keeps them exact.
        self.grain = grain
        # The longest time from a leased start to its entry, which the rounding makes later too.
        self._stretch = lease + grain
        self._ends: deque[float] = deque()
        self._amounts: deque[float] = deque()
        self.used = 0.0  # The units of all entries.
        self._full = -math.inf

    def allow(self, rate: float, burst: float) -> None:
        """Keep another limit from now on."""
        self._interval = self.limit.per / rate
        self.most = rate + burst  # Units in one window.
        # Without a burst the log alone keeps the mean, without rounding errors.
        self._has_bucket = bool(burst)

    def since(self, begin: float) -> float:
        """The units of all entries after a time."""
        return self.used - sum(self._amounts[place] for place in range(bisect_right(self._ends, begin)))

    def note_peak(self, now: float) -> None:
        """Keep the units that are counted now, if they are the most of late."""
        if now - self.peak[0] > LATELY:
            self.peak = [now, 0.0, self.peak[1]]
        self.peak[1] = max(self.peak[1], self.used)

    def counted(self, begin: float) -> float:
        """The units since a time as a source may have counted them: its answer is about an earlier moment."""
        return self.since(begin) + max(self.peak[1:]) - self.used

    def room(self, at: float, until: float) -> float:
        """The units that may be leased to start from `at` to `until`. Less than 0 if there are too many already."""
        return min(self.most - self.since(at - self.limit.per), self._bucket_room(until))

    def plan(self, now: float, horizon: float, until: float, units: float) -> list[list[float]]:
        """When how many of `units` may start: pairs of the earliest start, from `now` to `horizon`, and an amount.

        All must have started at `until`. Nothing changes: `place` what is granted.
        """
        return self._openings(now, horizon, min(units, self._bucket_room(until)))

    def _openings(self, now: float, horizon: float, units: float) -> list[list[float]]:
        """When the log has room for these units, as its entries leave: pairs of a time and an amount."""
        found: list[list[float]] = []
        if units <= 0:
            return found
        free, at = self.most - self.used, now
        # The plan's own units leave after all others that leave before `horizon`.
        for end, amount in zip(self._ends, self._amounts, strict=True):
            if free > 0:
                found.append([at, min(free, units)])
                units -= found[-1][1]
                free = 0.0
            if units <= 0:
                return found
            # The first time whose window does not hold the entry.
            time = end + self.limit.per
            while time - end < self.limit.per:
                time = math.nextafter(time, math.inf)
            at = max(at, time)
            if at > horizon:
                return found
            free += amount
        if free > 0:
            found.append([at, min(free, units)])
        return found

    def place(self, end: float, units: float) -> None:
        """Units may start until `end`, which is rounded."""
        place = bisect_left(self._ends, end)
        if place < len(self._ends) and self._ends[place] == end:
            self._amounts[place] += units
        else:
            self._ends.insert(place, end)
            self._amounts.insert(place, units)
        self.used += units

    def owe(self, now: float, units: float, grain: float) -> None:
        """Units have started beyond what was granted: the log counts them when it first has room for them.

        So they are paid by this window, as its entries leave, and then by the next ones, and nothing is counted twice.
        """
        units = min(units, OWED_WINDOWS * self.most - self.since(now))
        # What is left for later windows needs no exact times, and few entries.
        while units > 1e-9 * self.most:
            for at, part in self._openings(now, math.inf, units):
                self.place(rounded(at, grain), part)
                units -= part
            grain = max(grain, self.limit.per / 8)

    def move(self, end: float, start: float | None, units: float) -> None:
        """Units of the entry at `end` have started by `start`, or, if that is None, never start. Both are rounded. An
        entry that has left the log is not missed."""
        place = bisect_left(self._ends, end)
        if place == len(self._ends) or self._ends[place] != end:
            return
        units = min(units, self._amounts[place])
        self._amounts[place] -= units
        self.used -= units
        if self._amounts[place] <= 1e-12 * self.most:
            self.used -= self._amounts[place]
            del self._ends[place], self._amounts[place]
        if start is not None:
            self.place(min(start, end), units)

    def forget(self, now: float) -> None:
        """Drop the entries that no window from now on can hold."""
        while self._ends and now - self._ends[0] >= self.limit.per:
            end, units = self._ends.popleft(), self._amounts.popleft()
            if self._has_bucket:
                self._full = max(self._full, end) + units * self._interval
        # Anew, because differences have rounding errors.
        self.used = math.fsum(self._amounts)

    def state(self) -> list[Any]:
        """The window as JSON."""
        return [list(self._ends), list(self._amounts), None if self._full == -math.inf else self._full]

    def restore(self, state: list[Any]) -> None:
        """Take over the state of another window."""
        ends, amounts, full = state
        self._ends, self._amounts = deque(ends), deque(amounts)
        self.used = math.fsum(amounts)
        self._full = -math.inf if full is None else full

    def _bucket_room(self, until: float) -> float:
        """The units that the bucket has for an entry at `until`."""
        if not self._has_bucket:
            return math.inf
        full, after, peak = self._full, 0.0, -math.inf
        for end, units in zip(self._ends, self._amounts, strict=True):
            if end <= until:
                full = max(full, end) + units * self._interval
            else:
                after += units * self._interval
                peak = max(peak, after - (end - until))
        missing = max(0.0, full - until + self._stretch) + max(0.0, peak + self._stretch)
        return self.most - missing / self._interval


def rounded(time: float, grain: float) -> float:
    """The first multiple of `grain` that is not before `time`; `time` itself for a grain of 0."""
    if not grain:
        return time
    end = math.ceil(time / grain) * grain
    while end < time:
        end = math.nextafter(end, math.inf)
    return end
