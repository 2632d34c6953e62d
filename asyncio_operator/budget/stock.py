"""What a worker holds of one limit, and of the calls in flight.

Only `Permits` uses it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asyncio_operator.budget.clock_bounds import ClockBounds
from asyncio_operator.budget.terms import ENOUGH, GRAINS, GROWTH, PLENTY
from asyncio_operator.budget.usage import COUNTED
from asyncio_operator.errors import BudgetExceeded
from asyncio_operator.policies.rate_limit import rounded

AHEAD = 1.5
"""How much a worker without waiting calls holds ahead, as a multiple of its recent use."""

KEPT_CALLS = 2
"""Calls that a worker holds ahead if it has made one in the last second."""

SMOOTHING = 8
"""The number of calls whose mean latency is known."""

SHORTEST_CALL = 1e-3
"""Seconds. Shorter calls count as so long."""

LEAST_OF_WINDOW = 1e-6
"""The part of a limit that a call weighs which says nothing of its unit, or 0: more than rounding errors, so it waits
while a window is in debt. What it has used may be said later, by `settle`."""


class Permit:
    """Units that may start between two local times. `end` is their entry in the coordinator's window."""

    __slots__ = ("end", "since", "units", "until")

    def __init__(self, since: float, until: float, end: float, units: float) -> None:
        self.since = since
        self.until = until
        self.end = end
        self.units = units


class Group(NamedTuple):
    """Units that were reported to have started by `entry`, and did so at local times until `last`."""

    last: float
    entry: float
    units: float


class Stock:
    """The permits for one limit. Permits are in the order in which they were granted, and so in the order of `until`.

    Attributes:
        ready: units that may start now, as of the last look.
        used: units that have started since the last look.
        call: the weight of the heaviest call that waits for a message.
        usual: the weight of a call, on average between two messages; 0 before the first.
        starved: whether calls had to wait since the last message.
    """

    __slots__ = (
        *("place", "unit", "most", "per", "default", "ready", "used", "call", "usual", "starved", "debt", "want"),
        *("moved", "permits", "_looked", "_grain", "_groups", "_used_since_message"),
    )

    def __init__(self, place: int, unit: str, rate: float, per: float, burst: float) -> None:
        self.place = place
        self.unit = unit
        self.most = rate + burst
        self.per = per
        self.default = 1.0 if unit in COUNTED else LEAST_OF_WINDOW * self.most
        self.ready = self.used = self.call = self.debt = self.want = 0.0
        self.starved = False
        self.moved: dict[tuple[float, float | None], float] = {}
        self.permits: deque[Permit] = deque()
        self._looked = -math.inf
        self._grain = per / GRAINS
        self._groups: deque[Group] = deque()
        self._used_since_message = self.usual = 0.0

    def look(self, now: float, last_start: float, clock: ClockBounds) -> float:
        """Find what is ready now; until when this holds."""
        self.flush(last_start, clock)
        while self.permits and self.permits[0].until < now:
            self._give(self.permits.popleft())
        ready, change = 0.0, math.inf
        for permit in self.permits:
            if permit.since > now:
                change = min(change, permit.since)
            elif permit.until < now:
                continue
            else:
                ready += permit.units
                change = min(change, permit.until)
        # Sums have rounding errors.
        self.ready, self._looked = ready + 1e-9 * self.most, now
        # Starts of different grains are reported apart.
        return min(change, now + self._grain) if ready else change

    def flush(self, last_start: float, clock: ClockBounds) -> None:
        """Note for a report what has started since the last look."""
        units = self.used
        if not units:
            return
        self.used = 0.0
        self._used_since_message += units
        entry = rounded(clock.at_most(last_start), self._grain)
        for permit in self.permits:
            if permit.since <= self._looked <= permit.until:
                taken = min(permit.units, units)
                if taken <= 0:
                    continue
                permit.units -= taken
                units -= taken
                self._note(permit.end, min(entry, permit.end), taken)
                self._groups.append(Group(last_start, min(entry, permit.end), taken))
                if units <= 0:
                    break
        # What started without a permit: only a caller that did not ask `next_start` does so.
        if units > 1e-6 * self.most:
            self.debt += units
        while self.permits and self.permits[0].units <= 1e-12 * self.most:
            self.permits.popleft()
        while self._groups and self._groups[0].last < last_start - self.per:
            self._groups.popleft()

    def take(self, permits: list[list[float]], until: float, clock: ClockBounds) -> None:
        """Permits were granted: pairs of the earliest start and an amount. They end at `until`."""
        end, local = rounded(until, self._grain), clock.last_surely_before(until)
        for since, units in permits:
            self.permits.append(Permit(clock.first_surely_after(since), local, end, units))

    def pay(self, now: float, clock: ClockBounds) -> None:
        """Pay with what is held for debts since the last message."""
        units, self.debt = self.debt, 0.0
        self._pay(units, now, clock)

    def ready_at(self, units: float, now: float) -> float:
        """When so much may start; infinity if no permits that hold at one time are enough."""
        if units <= self.ready:
            return now
        found, ended = 1e-9 * self.most, 0
        for permit in sorted(self.permits, key=_since):
            at = max(now, permit.since)
            found += permit.units
            while ended < len(self.permits) and self.permits[ended].until <= at:
                found -= self.permits[ended].units
                ended += 1
            if found >= units:
                return at
        return math.inf

    def credit(self, units: float, started: float) -> None:
        """A call that started at this local time used so much less than it had reserved."""
        place = bisect_left(self._groups, started, key=_last)
        # What started between two looks was taken from several permits, of which the first may be too small.
        together = self._groups[place].last if place < len(self._groups) else 0.0
        while units > 0 and place < len(self._groups) and self._groups[place].last == together:
            last, entry, counted = self._groups[place]
            less = min(units, counted)
            self._groups[place] = Group(last, entry, counted - less)
            self._note(entry, None, less)
            units -= less
            place += 1

    def owe(self, units: float, now: float, clock: ClockBounds) -> None:
        """Calls have used so much more than they had reserved: what is held pays for it, and the rest is a debt.

        So nothing starts before the coordinator has counted the debt, which is at most that of the calls in flight.
        """
        self._used_since_message += units
        self._pay(units, now, clock)

    def _pay(self, units: float, now: float, clock: ClockBounds) -> None:
        entry = rounded(clock.at_most(now), self._grain)
        for permit in self.permits:
            taken = min(permit.units, units)
            if taken > 0 and now <= permit.until:
                permit.units -= taken
                units -= taken
                # What may not start yet stays counted at the end of its lease.
                if permit.since <= now:
                    self._note(permit.end, min(entry, permit.end), taken)
        self.debt += units

    def held(self) -> float:
        """The units that may still start."""
        return sum(permit.units for permit in self.permits)

    def give_back(self, keep: float) -> None:
        """Give all back that is more than `keep`, the last first."""
        surplus = self.held() - keep
        while self.permits and surplus > 0:
            permit = self.permits[-1]
            given = min(surplus, permit.units)
            surplus -= given
            permit.units -= given
            self._note(permit.end, None, given)
            if permit.units <= 1e-12 * self.most:
                self.permits.pop()
        self.ready = 0.0

    def estimate(self, scale: float, calls: int, recent: bool, most_calls: float = math.inf) -> None:
        """What this worker can use in a horizon, from its use since the last message, in `calls`.

        Args:
            most_calls: the calls for which it has slots in this time.
        """
        if calls:
            self.usual = self._used_since_message / calls
        used, self._used_since_message = self._used_since_message * scale, 0.0
        if self.starved:
            wish = max(GROWTH * used, GROWTH * self.want, 1e-3 * self.most)
        else:
            wish = max(AHEAD * used, self.want / 2) if used else 0.0
            if wish < self.usual:
                wish = 0.0
        if recent:
            wish = max(wish, KEPT_CALLS * self.usual)
        self.want = min(self.most, max(wish, self.call))
        if most_calls < math.inf:
            # Permits for which there is no slot would be missing elsewhere.
            self.want = min(self.want, most_calls * (self.usual or self.call))
        self.starved = False

    def rest(self) -> None:
        """Want nothing."""
        self.want = self.call = self._used_since_message = 0.0
        self.starved = False

    def report(self) -> list[list[Any]]:
        """What became of permits, for a message."""
        moved = [[self.place, end, start, units] for (end, start), units in self.moved.items()]
        self.moved.clear()
        return moved

    def forget(self) -> None:
        """Drop everything that is known by the coordinator's time."""
        self.permits.clear()
        self.moved.clear()
        self._groups.clear()
        self.ready = self.used = self.debt = 0.0

    def _give(self, permit: Permit) -> None:
        if permit.units > 0:
            self._note(permit.end, None, permit.units)

    def _note(self, end: float, start: float | None, units: float) -> None:
        self.moved[end, start] = self.moved.get((end, start), 0.0) + units


class Slots:
    """Calls in flight, at most `most` in all workers.

    Attributes:
        used: calls that run.
        allowed: calls that may run.
        starved: whether calls had to wait for a slot since the last message.
        waits: whether calls had to wait, for whatever it was.
    """

    __slots__ = ("_latency", "_most", "_wanted", "allowed", "starved", "used", "waits")

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = self.allowed = self._wanted = 0
        self.starved = self.waits = False
        # Of a call, in seconds; not known before the first has returned.
        self._latency = math.inf

    def returned(self, lasted: float | None) -> None:
        """A call is over."""
        self.used -= 1
        if lasted is not None:
            before = lasted if self._latency == math.inf else self._latency
            self._latency = before + (lasted - before) / SMOOTHING

    def offer(self, recent: bool) -> list[int]:
        """How many calls this worker may have from now on, and how many it wants."""
        if self.starved:
            self._wanted = min(self._most, max(2 * self._wanted, self.used + 1))
        else:
            self._wanted = max(self.used, self._wanted * 3 // 4 if recent else 0)
        if self.waits:
            # A slot is kept for a call that has a permit for later, or waits for one.
            self._wanted = max(self._wanted, min(self._most, self.used + 1))
        self.starved = self.waits = False
        self.allowed = max(self.used, min(self.allowed, self._wanted))
        return [self.allowed, self._wanted]

    def usable(self, horizon: float, round_trip: float, per: float, supply: int) -> float:
        """The calls for which this worker wants permits: one for each free slot, and more ahead if that pays.

        With none ahead a slot is empty for a round trip when its call returns: of what slots allow, ``round_trip /
        latency`` is lost. But what is held meanwhile is a unit that no worker uses: ``latency / slots`` of a window is
        lost, if units are just enough, and slots are of no use if they are scarce.
        """
        free = self.allowed - self.used
        if supply == PLENTY or (supply == ENOUGH and self._latency**2 < self.allowed * per * round_trip):
            return free + math.ceil(self.allowed * horizon / 2 / max(self._latency, SHORTEST_CALL))
        return free

    def rest(self) -> None:
        """Want nothing."""
        self._wanted, self.starved, self.waits = 0, False, False


def misfit(name: str, stocks: Iterable[Stock], weights: Mapping[str, float]) -> BudgetExceeded | None:
    """The error for a call that no window can ever hold."""
    for stock in stocks:
        units = weights.get(stock.unit) or stock.default
        if units > stock.most:
            return BudgetExceeded(
                f"the budget {name!r} allows {stock.most:g} {stock.unit} in {stock.per:g} s, and one "
                f"call needs {units:g}: it can never start. Make the call smaller, or raise the limit",
                unit=stock.unit,
                limit=stock.most,
            )
    return None


def _since(permit: Permit) -> float:
    return permit.since


def _last(group: Group) -> float:
    return group.last
