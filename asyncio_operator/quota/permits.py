"""The permits of one worker: what its coordinator granted, what started, and what to ask next.

    take, returned, hint                the calls of the worker, between messages, without a wait (law G8)
    ask_at, message, answered, lost     the exchange of messages, one at a time

The time is passed in: that of the worker's monotonic clock, in seconds. Nothing here waits.

Nothing starts without a permit that surely holds at this moment, whatever the coordinator's clock shows (law G7). What
becomes of permits is reported with the next message, and is reported again until a reply has come. If a message or its
reply was lost, the coordinator counts everything that it has granted, and this worker uses none of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from asyncio_operator.errors import BudgetExceeded, ConfigurationError
from asyncio_operator.quota.resources import SMOOTHING, Amount, ClockBounds, Ramp, Resource, Slots, Stock
from asyncio_operator.quota.spec import Budget, definition
from asyncio_operator.quota.terms import ENOUGH, VERSION, Json, Terms
from asyncio_operator.quota.usage import FreeStarts, Hint

EAGER = 0.1  # A worker whose calls wait, and had permits, asks again after this part of the interval.
RETRY_AFTER = 0.1  # Seconds after which a lost message is followed by the next.
MANY = 1e9  # Calls: more do not start between two messages.
REPEATED = 60.0  # Seconds for which the report of what started is sent again, if no reply comes.


class Permits:
    """What one worker holds of one budget.

    Attributes:
        free: what may start before anything else has to be looked at. It is `heard` while a call waits for others to
            return. The one who tells it of this sets that to False.
    """

    def __init__(self, budget: Budget, worker: str) -> None:
        self._budget = budget
        self._worker = worker  # A text that no other worker of any process ever has.
        self._terms = Terms(definition(budget))
        self._clock = ClockBounds()
        self._stocks = tuple(Stock(place, *limit) for place, limit in enumerate(self._terms.limits))
        self._shortest = min((stock.per for stock in self._stocks), default=math.inf)
        self._slots = None if budget.in_flight is None else Slots(budget.in_flight)
        self._amounts = tuple(Amount(unit, most) for unit, most in self._terms.spend.items())
        self._renewed: tuple[Resource, ...] = (*self._stocks, *(() if self._slots is None else (self._slots,)))
        self._resources = (*self._renewed, *self._amounts)
        self._weighed = tuple([(one, one.unit, one.default, one.floor) for one in self._resources])
        self._ramp = Ramp(self._stocks)
        # The results of `_look` hold until this time: how many calls may start as far as the ramp goes, and what is
        # ready of each resource. Of the first, `_counted` is what was left when calls were last counted.
        self._valid_until = -math.inf
        self._starts = self._counted = 0
        self._open = False
        self._lease_end = -math.inf
        self._paused_until = -math.inf
        self._last_start = -math.inf
        # The exchange of messages.
        self._epoch: str | None = None
        self._seen: float | None = None
        self._seq = 0
        self._asked: int | None = None
        self._reports = Reports()
        self._again = self._terms.shortest
        self._asked_at = self._answered_at = -math.inf
        # Round trips: the longest recent one, and a moving average.
        self._round_trip = self._usual_round_trip = 0.0
        # Whether there is more to report than `_reports`, or the coordinator believes that this worker holds something.
        self._active = False
        self._supply = ENOUGH
        # The last reply gave something beside what is left of a sum; so another may give more.
        self._progress = True
        self._urgent = self._rests = False
        # Since the last message; and those that run, without those that have started since the last count.
        self._calls = 0
        self._running = 0
        self._waits = False
        self._waits_since = math.inf
        self.free = FreeStarts()
        # The number of calls that `free` had at first.
        self._lent = 0

    # Calls

    def take(self, weights: Mapping[str, float], now: float) -> float:
        """Start a call of these weights, if it may start now. Returns when it may, as `next_start` does."""
        if self._lent or self.free.ended:
            self.collect()
        if self._starts > 0 and now < self._valid_until:
            for one, unit, default, floor in self._weighed:
                one.ready = left = one.ready - (weights.get(unit) or default)
                if left < floor:
                    break
            else:
                self._starts -= 1
                self._last_start = now
                return now
            for other, unit, default, _ in self._weighed:
                other.ready += weights.get(unit) or default
                if other is one:
                    break
        if (start := self.next_start(weights, now)) <= now:
            self.started(weights, now)
        return start

    def next_start(self, weights: Mapping[str, float], now: float) -> float:
        """When a call of these weights may start: now; a later time; or infinity, if a reply must come before. Units
        that are not named weigh the `default` of their resource. BudgetExceeded if the call can never start."""
        self.collect()
        if now < self._valid_until and self._fits(weights):
            return now
        self._look(now)
        return now if self._fits(weights) else self._wait(weights, now)

    def _fits(self, weights: Mapping[str, float]) -> bool:
        return self._starts > 0 and all(
            one.ready - (weights.get(unit) or default) >= floor for one, unit, default, floor in self._weighed
        )

    def started(self, weights: Mapping[str, float], now: float) -> None:
        """The call starts now, as `next_start` has allowed for the same time."""
        for one, unit, default, _ in self._weighed:
            one.ready -= weights.get(unit) or default
        self._starts -= 1
        self._last_start = now

    def lend(self) -> None:
        """Let `free` have the calls of the weight `usage.ONE` that may start next."""
        room = float(self._starts)
        for one in self._renewed:
            room = min(room, (one.ready - one.floor) / one.default)
        if room >= 1.0 and not self._amounts:
            self._lent = self.free.left = int(room)
            self.free.until = self._valid_until

    def collect(self) -> None:
        """Count the calls of `free`. No other may start without a question."""
        free = self.free
        if taken := self._lent - free.left:
            for one in self._renewed:
                one.ready -= taken * one.default
            self._starts -= taken
            self._last_start = free.last
        if ended := free.ended:
            self._running -= ended
            self._ramp.most += ended
            if self._slots is not None:
                self._slots.ready += ended
                self._slots.ended += ended
        self._lent = free.left = free.ended = 0

    def running(self) -> int:
        """Count the calls that have started. Returns the number of those that have not returned."""
        self.collect()
        calls, self._counted = self._counted - self._starts, self._starts
        self._calls += calls
        self._running += calls
        return self._running

    def returned(
        self,
        weights: Mapping[str, float],
        # The true weights, instead of the estimates in `weights`, as far as they are known.
        settled: Mapping[str, float] | None,
        started: float,  # The time that `started` got.
        now: float,
        # False: the source bills nothing but what is settled, so nothing else was spent (law G11).
        billed: bool = True,
    ) -> None:
        """A started call is over."""
        self._running -= 1
        if (slots := self._slots) is not None:
            slots.ready += 1
            slots.ended += 1
        self._ramp.most += billed
        if settled or not billed:
            settled = settled or {}
            for amount in self._amounts:
                estimate = weights.get(amount.unit) or amount.default
                amount.settle(estimate, settled.get(amount.unit, estimate if billed else 0.0))
            for stock in self._stocks:
                excess = settled.get(stock.unit, estimate := weights.get(stock.unit) or stock.default) - estimate
                if excess:
                    self._active = True
                    self.collect()
                    stock.flush(self._last_start, self._clock)
                if excess > 0:
                    stock.owe(excess, now, self._clock)
                    self._valid_until = -math.inf
                elif excess < 0:
                    stock.credit(-excess, started)
            return
        for amount in self._amounts:
            amount.ended += weights.get(amount.unit) or amount.default

    def misfit(self, weights: Mapping[str, float]) -> BudgetExceeded | None:
        """The error for a call that no window can ever hold, however long it waits; None for others."""
        return self._refusal(self._stocks, weights)

    def _refusal(self, resources: Iterable[Resource], weights: Mapping[str, float]) -> BudgetExceeded | None:
        name, on_spent = self._budget.name, self._budget.on_spent
        found = (one.refusal(name, weights.get(one.unit) or one.default, on_spent) for one in resources)
        return next((error for error in found if error is not None), None)

    def check(self, weights: Mapping[str, float]) -> None:
        """Raises BudgetExceeded if the call can never start."""
        error = self._refusal(self._resources, weights)
        if error is not None:
            self._reports.note_refusal(error.unit)
            raise error

    def part(self, weights: Mapping[str, float]) -> float:
        """The largest part of a limit that a call takes; 1 if there are no limits of units."""
        return max([(weights.get(one.unit) or one.default) / one.most for one in self._stocks], default=1.0)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None, now: float) -> None:
        """A source has said this: what is left, by unit, or that nothing may start for `retry_after` seconds.

        Hints must have been checked (`caps.problem`).
        """
        self._reports.note_hints(limits, retry_after, now)
        for unit, hint in limits.items():
            for stock in self._stocks:
                self._urgent |= stock.unit == unit and hint.remaining is not None and hint.remaining < stock.held()
        if retry_after:
            self._pause(now + retry_after)
            self._urgent = True

    def rest(self) -> None:
        """No call will come for some time: give everything back with the next message, which is due at once."""
        self._rests = self._urgent = self._active or bool(self._reports)

    # Messages

    def ask_at(self, now: float) -> float:
        """When to send the next message: now, a later time, or infinity, if there is nothing to say or it is not
        known. Ask again after each of the other methods."""
        if self._asked is not None:
            return math.inf
        if self._waits or self._urgent:
            self.collect()
            returned = self._slots is not None and self._slots.ended
            pause = self._again * EAGER if self._progress or self._urgent or returned else self._again
            return max(now, self._answered_at + pause)
        return max(now, self._asked_at + self._again) if self._active or self._reports else math.inf

    def message(self, now: float) -> Json:
        """The message to send now. `answered` or `lost` must follow before the next."""
        self._look(now)
        running = self._running
        horizon = self._terms.ahead(self._again, self._round_trip, self._usual_round_trip)
        # The pace of what was used since the last message. Calls that follow a long pause came at its end.
        scale = horizon / min(max(now - self._asked_at, 1e-3), 1.0)
        recent = now - self._last_start < 1.0
        if self._rests:
            scale, recent = 0.0, False
            for resource in self._resources:
                resource.rest()
        slots, most_calls = [0, 0], math.inf
        if self._slots is not None:
            slots = self._slots.offer(recent, running, now)
            most_calls = self._slots.usable(horizon, self._usual_round_trip, self._shortest, self._supply)
        for stock in self._stocks:
            stock.estimate(scale, self._calls, recent, most_calls)
            stock.give_back(stock.want)
        self._calls = 0
        self._ramp.look(running, now)
        # What was ready may be given back.
        self._valid_until = -math.inf
        moved = [entry for stock in self._stocks for entry in stock.report()]
        self._seq += 1
        self._asked, self._asked_at = self._seq, now
        debts = {stock.unit: stock.debt for stock in self._stocks if stock.debt}
        self._reports.close(self._seq, moved, debts, now)
        if not self._waits:
            self._waits_since = math.inf
        message: Json = {
            "kind": "ask",
            "version": VERSION,
            "worker": self._worker,
            "budget": self._terms.definition,
            "epoch": self._epoch,
            "seen": self._seen,
            "seq": self._seq,
            "reports": self._reports.unconfirmed(now),
            "held": [stock.held() for stock in self._stocks],
            "horizon": horizon,
            "want": [stock.want for stock in self._stocks],
            "call": [stock.call for stock in self._stocks],
            "usual": [stock.usual for stock in self._stocks],
            "waited": max(0.0, now - self._waits_since),
            "running": 0 if self._rests else running,
            "slots": slots,
            "spend": {amount.unit: amount.offer(scale, running) for amount in self._amounts},
        }
        held = (message["held"], message["want"], message["slots"], *(kept[:2] for kept in message["spend"].values()))
        self._active = any(map(any, held))
        # A call that still waits asks again after the reply, and then waits anew.
        self._progress = self._urgent = self._waits = self._rests = False
        for stock in self._stocks:
            stock.call = stock.debt = 0.0
        return message

    def answered(self, reply: Json, sent: float, now: float) -> bool:
        """A reply has come. Returns whether it came in time, before its permits have ended; one to another message than
        the last is dropped. `sent` is when the message was sent, or a later time that was surely before the coordinator
        read its clock. ConfigurationError if the coordinator has the budget with other limits."""
        if reply.get("seq") != self._asked:
            return False
        self.collect()
        self._asked = None
        if "error" in reply:
            raise ConfigurationError(f"the budget {self._budget.name!r}: {reply['error']}")
        if reply["epoch"] != self._epoch:
            if self._epoch is not None:
                # The coordinator has lost its state. What it granted before is counted as started there.
                self._clock = ClockBounds()
                for stock in self._stocks:
                    stock.forget()
            self._epoch = reply["epoch"]
        self._seen = max(reply["now"], self._seen or reply["now"])
        self._reports.confirmed()
        took = now - self._asked_at
        self._round_trip = max(took, 0.8 * self._round_trip)
        self._usual_round_trip += (took - self._usual_round_trip) / SMOOTHING
        self._clock.exchanged(sent, reply["now"], now)
        self._lease_end = self._clock.last_surely_before(reply["until"])
        for stock, permits in zip(self._stocks, reply["permits"], strict=True):
            if stock.unit in reply["drop"]:
                stock.flush(self._last_start, self._clock)
                stock.give_back(0.0)
            stock.take(permits, reply["until"], self._clock)
            if stock.debt:
                # Calls have returned while the message was on its way.
                stock.owe(0.0, now, self._clock)
        if self._slots is not None:
            self._slots.ready = (reply["slots"] or 0) - self.running()
        for amount in self._amounts:
            amount.answered(*reply["spend"].get(amount.unit, (0.0, amount.spent))[:2])
        if reply["pause"]:
            self._pause(now + reply["pause"])
        self._again = reply["again"]
        self._ramp.workers = reply["workers"]
        self._supply = reply["supply"]
        self._answered_at = now
        self._progress = any(one.held() > 0 for one in self._renewed or self._amounts)
        self._active |= any(one.held() > 0 for one in self._resources)
        self._valid_until = -math.inf
        return now < self._lease_end

    def lost(self, now: float) -> None:
        """No reply will come. It is not known whether the coordinator got the message."""
        self._asked = None
        self._answered_at = now
        self._progress = False
        self._again = max(self._again, RETRY_AFTER)
        self._active = True

    # Inside

    def _look(self, now: float) -> None:
        """Find what may start now, and until when this holds."""
        running = self.running()
        valid_until = self._lease_end
        for stock in self._stocks:
            valid_until = min(valid_until, stock.look(now, self._last_start, self._clock))
        self._open = now >= self._paused_until and now < self._lease_end
        if not self._open:
            valid_until = self._paused_until if now < self._paused_until else math.inf
        self._starts = self._counted = int(min(self._ramp.most - running, MANY)) if self._open else 0
        self._valid_until = valid_until

    def _wait(self, weights: Mapping[str, float], now: float) -> float:
        self.check(weights)
        if now < self._paused_until:
            # No reply shortens a pause, so none is asked for.
            return self._paused_until
        if (at := self._ramp.ready_at(self.running() + 1, now)) > now:
            self.free.heard = True
            return at
        wanted = [(one, weights.get(one.unit) or one.default) for one in self._resources]
        at = max((one.ready_at(units, now) for one, units in wanted), default=now)
        if at < math.inf and self._open:
            # It is held already, for later: no message is needed.
            return at
        # The next message says how much the heaviest call needs, so that the reply is enough for one.
        for one, units in wanted:
            one.call = max(one.call, units)
        self.free.heard |= self._slots is not None
        # A call after `rest` keeps what is held.
        self._waits, self._rests = True, False
        self._waits_since = min(self._waits_since, now)
        return math.inf

    def _pause(self, until: float) -> None:
        self.collect()
        self._paused_until = max(self._paused_until, until)
        self._ramp.restart()
        self._valid_until = -math.inf


class Reports:
    """What a worker reports, again and again until a reply has come: what became of permits, debts, refused calls, and
    what the source said. It is true if there is something that is not confirmed."""

    def __init__(self) -> None:
        self._sent: list[tuple[float, int, Json]] = []
        self._begin()

    def _begin(self) -> None:
        self._hints: dict[str, tuple[float, Hint]] = {}
        self._refused: dict[str, int] = {}
        self._paused_until = -math.inf

    def __bool__(self) -> bool:
        return bool(self._sent or self._hints or self._refused) or self._paused_until > -math.inf

    def note_refusal(self, unit: str) -> None:
        """A call was refused because of this unit."""
        self._refused[unit] = self._refused.get(unit, 0) + 1

    def note_hints(self, limits: Mapping[str, Hint], retry_after: float | None, now: float) -> None:
        """A source has said this."""
        for unit, hint in limits.items():
            heard, earlier = self._hints.get(unit, (now, Hint()))
            # A source's answers overtake each other, so of one window the least that remains is passed on.
            over = earlier.remaining is None or now >= heard + (earlier.reset_after or 0.0)
            if over or (hint.remaining is not None and hint.remaining <= (earlier.remaining or 0.0)):
                self._hints[unit] = (now, hint)
        if retry_after:
            self._paused_until = max(self._paused_until, now + retry_after)

    def close(self, number: int, moved: list[list[Any]], debts: dict[str, float], now: float) -> None:
        """Put all open reports into the message of this number."""
        hints: Json = {}
        for unit, (heard, hint) in self._hints.items():
            if hint.reset_after is not None:
                hint = replace(hint, reset_after=max(0.0, hint.reset_after - (now - heard)))
            # A remaining 0 is said, though it equals False.
            hints[unit] = {name: one for name, one in asdict(hint).items() if one is not None and one is not False}
        report: Json = {
            "moved": moved,
            "debts": debts,
            "refused": self._refused,
            "hints": hints,
            "pause": max(0.0, self._paused_until - now),
        }
        self._begin()
        if report := {name: what for name, what in report.items() if what}:
            self._sent.append((now, number, report))

    def unconfirmed(self, now: float) -> list[list[Any]]:
        """Pairs of a number and a report, for a message. The coordinator remembers for longer which it has applied."""
        return [
            [number, report if now - since < REPEATED else {**report, "moved": []}]
            for since, number, report in self._sent
        ]

    def confirmed(self) -> None:
        """A reply has come."""
        self._sent.clear()
