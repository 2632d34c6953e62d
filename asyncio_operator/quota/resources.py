"""What a worker holds of each limit of a budget, which calls take and give back.

A call takes units of every `Resource`. They are its for a window (`Stock`), until it returns (`Slots`), or, as far as
they were used, for ever (`Amount`). The coordinator's clock says when a window is over (`ClockBounds`). Only `Permits`
uses this module.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from asyncio_operator.errors import BudgetExceeded
from asyncio_operator.quota.terms import ENOUGH, GRAINS, GROWTH, PLENTY
from asyncio_operator.quota.usage import COUNTED
from asyncio_operator.quota.window import rounded

DRIFT = 2e-4  # Two clocks of quartz differ by at most 100 millionths each.


class ClockBounds:
    """The coordinator's time minus the local time is in ``[low, high]``, at local time `at`. Nothing is known first.

    The coordinator read its clock after a message was sent, and before the reply was received. The upper bound is the
    best of all exchanges, and drift raises it. The lower one is that of the last exchange: an older one would be too
    high if the coordinator's clock has been set back since, and calls would start too early. Only differences of the
    worker's own monotonic clock are used, so wrong wall clocks do no harm.
    """

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


AHEAD = 1.5  # How much a worker without waiting calls holds ahead, as a multiple of its recent use.
KEPT_CALLS = 2  # Calls that a worker holds ahead if it has made one in the last second.
SMOOTHING = 8  # The number of calls whose mean latency is known.
SHORTEST_CALL = 1e-4  # Seconds. Shorter calls count as so long.

LEAST_OF_WINDOW = 1e-6
"""Weight of a call that names no amount for a unit, as a part of the limit. It is not 0, and above rounding errors, so
that such calls wait while the window is in debt. What it has used may be said later, by `settle`."""

LEAST_OF_SUM = 1e-8  # The same for an amount that may be spent: such a call is refused when all is spent.

UNPROVEN = 0.05
"""The part of a window's calls that may be in flight before the source has answered. Law G5: a source that refuses all
calls refuses these, and those that the limit lets start in the time of a call."""


class Resource:
    """What a worker holds of one limit."""

    def __init__(self, unit: str, most: float, least: float) -> None:
        self.unit = unit  # What calls weigh in; no weight has an empty one, so every call takes the `default`.
        self.most = most  # Of all workers.
        self.default = 1.0 if unit in COUNTED else least  # The weight of a call that says nothing of the unit, or 0.
        # What calls may take now. They take it themselves, as far as `floor`, because sums have rounding errors.
        # `given` was ready before they took: at the last look at a stock, or the last message of an amount.
        self.floor = -1e-9 * most
        self.ready = self.given = 0.0
        # What this worker wants to hold, and the weight of the heaviest call that waits for a message.
        self.want = self.call = 0.0
        self.starved = False  # Whether calls had to wait for it since the last message.

    def ready_at(self, units: float, now: float) -> float:
        """When so much may be taken; infinity if not before a reply."""
        if self.ready - units >= self.floor:
            return now
        self.starved = True
        return math.inf

    def rest(self) -> None:
        """Want nothing."""
        self.want = self.call = 0.0
        self.starved = False

    def refusal(self, name: str, units: float, on_spent: str) -> BudgetExceeded | None:
        """The error for a call that can never take so much. `name` is that of the budget."""
        return None

    def held(self) -> float:
        """What this worker holds, and calls may still take."""
        return self.ready


@dataclass(slots=True)
class Permit:
    """Units that may start between two local times. `end` is their entry in the coordinator's window."""

    since: float
    until: float
    end: float
    units: float


class Group(NamedTuple):
    """Units that were reported to have started by `entry`, and did so at local times until `last`."""

    last: float
    entry: float
    units: float


class Stock(Resource):
    """The permits for one limit, in the order in which they were granted, and so in the order of `until`."""

    def __init__(self, place: int, unit: str, rate: float, per: float, burst: float) -> None:
        super().__init__(unit, rate + burst, LEAST_OF_WINDOW * (rate + burst))
        self.place = place
        self.per = per
        self.usual = 0.0  # The weight of a call, on average between two messages; 0 before the first.
        self.debt = self._used_since_message = 0.0  # What was used beyond estimates, and is not paid.
        self.moved: dict[tuple[float, float | None], float] = {}
        self.permits: deque[Permit] = deque()
        self._looked = -math.inf
        self._grain = per / GRAINS
        self._groups: deque[Group] = deque()

    def refusal(self, name: str, units: float, on_spent: str) -> BudgetExceeded | None:
        if units <= self.most:
            return None
        return BudgetExceeded(
            f"the budget {name!r} allows {self.most:g} {self.unit} in {self.per:g} s, and one "
            f"call needs {units:g}: it can never start. Make the call smaller, or raise the limit",
            unit=self.unit,
            limit=self.most,
        )

    def look(self, now: float, last_start: float, clock: ClockBounds) -> float:
        """Find what is ready now; until when this holds."""
        self.flush(last_start, clock)
        while self.permits and self.permits[0].until < now:
            lapsed = self.permits.popleft()
            self._note(lapsed.end, None, lapsed.units)
        ready, change = 0.0, math.inf
        for permit in self.permits:
            if permit.since > now:
                change = min(change, permit.since)
            elif permit.until >= now:
                ready += permit.units
                change = min(change, permit.until)
        self.ready, self.given, self._looked = ready, ready, now
        # Starts of different grains are reported apart.
        return min(change, now + self._grain) if ready else change

    def flush(self, last_start: float, clock: ClockBounds) -> None:
        """Note for a report what has started since the last look."""
        units, self.given = self.given - self.ready, self.ready
        # Before the first start it is the rounding error of a call that was not let start.
        if not units or last_start == -math.inf:
            return
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

    def ready_at(self, units: float, now: float) -> float:
        """When so much may start; infinity if no permits that hold at one time are enough."""
        if self.ready - units >= self.floor:
            return now
        self.starved = True
        found, ended = -self.floor, 0
        for permit in sorted(self.permits, key=attrgetter("since")):
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
        place = bisect_left(self._groups, started, key=attrgetter("last"))
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
        """Calls have used so much more than they had reserved: what is held pays for it, and for what was owed before;
        the rest is a debt.

        So nothing starts before the coordinator has counted the debt, which is at most that of the calls in flight.
        """
        self._used_since_message += units
        units += self.debt
        entry = rounded(clock.at_most(now), self._grain)
        for permit in self.permits:
            taken = min(permit.units, units)
            if taken > 0 and now <= permit.until:
                permit.units -= taken
                units -= taken
                # What may not start yet stays counted at the end of its lease.
                if permit.since <= now:
                    self._note(permit.end, min(entry, permit.end), taken)
        self.debt = units

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
        self.ready = self.given = 0.0

    def estimate(self, scale: float, calls: int, recent: bool, most_calls: float = math.inf) -> None:
        """What this worker can use in a horizon, from its use since the last message, in `calls`. `scale` is the
        horizon as a multiple of the time since then; 0: it uses nothing more. It has slots for `most_calls` in this
        time."""
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

    def report(self) -> list[list[Any]]:
        """What became of permits, for a message. Starts first: calls give back units of the entry of their start."""
        moved = [[self.place, end, start, units] for (end, start), units in self.moved.items()]
        self.moved.clear()
        return sorted(moved, key=lambda one: one[2] is None)

    def forget(self) -> None:
        """Drop everything that is known by the coordinator's time."""
        self.permits.clear()
        self.moved.clear()
        self._groups.clear()
        self.ready = self.given = self.debt = 0.0

    def _note(self, end: float, start: float | None, units: float) -> None:
        if units > 0:
            self.moved[end, start] = self.moved.get((end, start), 0.0) + units


class Slots(Resource):
    """Calls in flight: units that come back when a call returns. Since the last message `ended` calls have returned,
    and if it `waits`, a call had to wait, for whatever it was."""

    def __init__(self, most: int) -> None:
        super().__init__("", most, 1.0)
        self.floor = 0.0
        self.ended = self._running = 0
        self.waits = False
        self._ended_at = 0.0
        # Of a call, in seconds; not known before the first has returned.
        self._latency = math.inf

    def ready_at(self, units: float, now: float) -> float:
        self.waits = True
        return super().ready_at(units, now)

    def rest(self) -> None:
        super().rest()
        self.waits = False

    def offer(self, recent: bool, running: int, now: float) -> list[int]:
        """How many calls this worker may have from now on, and how many it wants. `running` calls are in flight."""
        if self.ended:
            # If all slots are in use, by the pace at which calls end (Little's law).
            mean = (running + self.ready) * (now - self._ended_at) / self.ended
            known = mean if self._latency == math.inf else self._latency
            self._latency = known + (mean - known) * min(1.0, self.ended / SMOOTHING)
            self.ended, self._ended_at = 0, now
        if self.starved:
            self.want = min(self.most, max(2 * self.want, running + 1))
        else:
            self.want = max(running, self.want * 3 // 4 if recent else 0)
        if self.waits:
            # A slot is kept for a call that has a permit for later, or waits for one.
            self.want = max(self.want, min(self.most, running + 1))
        self.starved = self.waits = False
        self._running = running
        self.ready = int(max(running, min(running + self.ready, self.want))) - running
        return [running + self.ready, int(self.want)]

    def usable(self, horizon: float, round_trip: float, per: float, supply: int) -> float:
        """The calls for which this worker wants permits: one for each free slot, and more ahead if that pays.

        With none ahead a slot is empty for a round trip when its call returns: of what slots allow, ``round_trip /
        latency`` is lost. But what is held meanwhile is a unit that no worker uses: ``latency / slots`` of a window is
        lost, if units are just enough, and slots are of no use if they are scarce.
        """
        allowed = self._running + self.ready
        if supply == PLENTY or (supply == ENOUGH and self._latency**2 < allowed * per * round_trip):
            return self.ready + math.ceil(allowed * horizon / 2 / max(self._latency, SHORTEST_CALL))
        return self.ready


class Amount(Resource):
    """What may be spent of one unit, and never comes back. Of what this worker holds, running calls have reserved what
    is not ready."""

    def __init__(self, unit: str, most: float) -> None:
        super().__init__(unit, most, LEAST_OF_SUM * most)
        self.spent = 0.0  # What all workers had spent at the last reply.
        self.total = self.confirmed = 0.0  # What this worker has spent, and how much of it the coordinator has counted.
        self.ended = (
            0.0  # The estimates of calls that have returned and spent just as much, and still count as running.
        )
        self._held = self._sent = self._settled = 0.0

    def settle(self, estimate: float, used: float) -> None:
        """A call is over that had reserved `estimate`."""
        # An estimate that was too low is paid from what is held ahead.
        paid = min(max(used - estimate, 0.0), max(self.ready, 0.0))
        self.ready -= paid
        self.given -= paid
        self._held -= estimate + paid
        self.total += used
        self._settled += max(estimate, used)

    def offer(self, scale: float, running: int) -> list[float]:
        """What this worker holds from now on, what it wants to hold, must hold for the waiting call, and has spent.
        `running` calls are in flight."""
        self._count()
        # Anew if none runs, because sums have rounding errors.
        reserved = self._held - self.ready if running else 0.0
        self.want = reserved + max(GROWTH * (self.given - self.ready) * scale, self.call)
        needed = reserved + self.call
        # Two workers that each keep a part of what a call needs would wait for each other for ever.
        enough = needed <= self._held - self.floor
        self._held = max(reserved, min(self._held, self.want)) if enough else reserved
        self.ready = self.given = self._held - reserved
        self.call, self._settled, self._sent = 0.0, 0.0, self.total
        return [self._held, self.want, needed, self.total, self.confirmed]

    def answered(self, held: float, spent: float) -> None:
        """The coordinator says what this worker may hold, and what all have spent."""
        self._count()
        self.confirmed, self.spent = self._sent, spent
        # Calls that have ended since the message have spent their part of what is held.
        more = max(held - self._settled - self._held, -self.ready)
        self._held += more
        self.ready += more
        self.given += more

    def _count(self) -> None:
        """Count what has ended."""
        self.total += self.ended
        self._settled += self.ended
        self._held -= self.ended
        self.ended = 0.0

    def refusal(self, name: str, units: float, on_spent: str) -> BudgetExceeded | None:
        """The error for a call that would pass the spend limit, whatever running calls turn out to cost."""
        spent = self.spent + self.total + self.ended - self.confirmed
        if spent + units <= self.most * (1 + 1e-9):
            return None
        return BudgetExceeded(
            f"the budget {name!r}: spend limit {self.most:g} {self.unit}, already spent {spent:.4g} "
            f"{self.unit}, and the next call needs {units:.4g}. Raise the limit, or take another name for a new "
            'budget; with on_spent="null" a job goes on without the rest',
            unit=self.unit,
            limit=self.most,
            spent=spent,
            on_spent=on_spent,
        )


class Ramp:
    """How many calls may be in flight, so that a source that refuses all of them has not refused a whole window.

    It begins with a part of a window, and grows by one with each answer, as does the congestion window of TCP in its
    slow start (RFC 5681), and with time at the rate of the limits, so slow calls use all of these. It begins again
    after a pause, and falls to what calls in flight have shown lately.
    """

    def __init__(self, stocks: Sequence[Stock]) -> None:
        self._stocks = stocks
        self.most = math.inf  # How many calls may be in flight.
        self.workers = 1  # Among how many the limits are divided.
        self._first = math.inf
        self._rate = self._at = 0.0

    def look(self, running: int, now: float) -> None:
        """A message is due. `running` calls are in flight."""
        if self._stocks:
            self._grow(now)
            calls = [(stock.most / (stock.usual or stock.call or stock.default), stock.per) for stock in self._stocks]
            self._first = max(2.0, UNPROVEN * min(most for most, _ in calls) / self.workers)
            self._rate = min(most / per for most, per in calls) / self.workers
            self.most = max(self._first, min(self.most, self._first + 2 * running))

    def ready_at(self, running: int, now: float) -> float:
        """When `running` calls may be in flight, if none returns."""
        if running > self.most:
            self._grow(now)
        missing = running - self.most
        return now if missing <= 1e-9 else now + missing / self._rate

    def restart(self) -> None:
        """The source has refused calls."""
        self.most = self._first

    def _grow(self, now: float) -> None:
        self.most += self._rate * (now - self._at)
        self._at = now
