"""Hedged calls: which running call is made a second time and when, and what the end of one of the two means.

A *copy* is a second call for the elements of a call that takes long. Both belong to the same attempt: they share its
limit, and what ends them is handled once. The copy takes a place of its own in the capacity.

    one answers               it wins; the other has to be cancelled
    one fails                 the other is awaited, and decides
    both fail                 the attempt fails with the error of the first
    an element leaves         at its deadline, or because no caller wants it: it leaves both

Only first calls are hedged, and no refreshes of a cache. One timer of the run waits for the oldest one without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from asyncio_operator.engine.failures import is_ordinary
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.timing import after_last_turns
from asyncio_operator.errors import BudgetExceeded, CoordinatorError, ResultError
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.policies.retry import refusal_wait

if TYPE_CHECKING:
    from asyncio_operator.engine.gate import Gate, Parts


class Hedging:
    """The calls of a run that may get a copy, and the pairs of a call and its copy.

    Args:
        hedger: of this run, or of an earlier one for the same calls.
        news: called when a call may get a copy now.
        leave: called with the other call of a pair, and the elements that do not need it any more.
    """

    def __init__(
        self, hedger: Hedger, parts: Parts, news: Callable[[], None], leave: Callable[[Call, list[Flight]], None]
    ) -> None:
        self._hedger = hedger
        self._recorder = parts.recorder
        self._now = parts.timers.clock
        self._news = news
        self._leave = leave
        self._figures = parts.figures
        # Without a copy, in the order of their starts. A dict, because a call may end at any moment.
        self._single: dict[Call, None] = {}
        self._pairs: dict[Call, Call] = {}
        # The copies whose first call has failed, with its error.
        self._alone: dict[Call, BaseException] = {}
        self.wanted = False  # Whether a copy is looked for, of a call that was due when the timer rang.
        self._rang = -inf
        self._armed = False
        self._delay = inf
        self._timers = parts.timers

    def stop(self) -> None:
        """No call gets a copy any more."""
        self._timers.remind(self._ring, inf)
        self._single.clear()

    def started(self, call: Call, now: float) -> None:
        """A call starts."""
        if call in self._pairs:
            # The copy of another one.
            return
        self._hedger.called()
        if not call.is_first or not call.awaited:
            return
        call.started = now
        self._single[call] = None
        if not self._armed and not self.wanted:
            self._watch_oldest()

    def next_pair(self, now: float, gate: Gate) -> tuple[Call, Call] | None:
        """A call, and its copy that starts now; None if none may."""
        if not self.wanted or (gate.breaker is not None and gate.breaker.state != "closed"):
            return None
        first = next(iter(self._single), None)
        if first is None or first.started + self._hedger.delay > self._rang:
            self.wanted = False
            self._watch_oldest()
            return None
        allowed = self._hedger.next_copy(now)
        if allowed > now:
            # Until enough calls have started, the share is looked at when each of them does. Else the timer says when.
            if allowed < inf:
                self.wanted = False
                self._arm(allowed)
            return None
        copy = Call(list(first.present), half=True)
        try:
            copy.weights = None if first.late else first.weights
            start = gate.start(copy, now)
        except (BudgetExceeded, CoordinatorError, ResultError):
            # The first call goes on without a copy. What is exceeded ends the run at the next call that is needed.
            start = inf
        if start > now:
            # The budget is asked again at each start, and when it says.
            if start < inf:
                self._arm(start)
            return None
        del self._single[first]
        self._pairs[first], self._pairs[copy] = copy, first
        self._hedger.copied()
        self._figures.hedged += 1
        for flight in copy.flights:
            flight.copies += 1
            self._recorder.copy_started(flight, now)
        return first, copy

    # -- the ends of calls

    def answered(self, call: Call, now: float) -> None:
        """The call has returned a result. The other call of its pair is cancelled."""
        if call in self._single:
            del self._single[call]
            self._hedger.lasted(now - call.started)
            if self._hedger.delay < self._delay and not self.wanted:
                # The timer was set for a later time than that of calls that run.
                self._watch_oldest()
            return
        other, lone = self._parted(call)
        if (call.half and other is not None) or lone is not None:
            self._figures.hedges_won += 1
            if other is not None:
                # A lower bound of its latency is enough: it is above the percentile.
                self._hedger.lasted(call.started - other.started)
            for flight in call.present:
                self._recorder.attempt_ended(flight, "cancelled", now)
            self._recorder.copy_ended(call.present, "result", now)
        elif other is not None:
            self._hedger.lasted(now - call.started)
            self._recorder.copy_ended(call.present, "cancelled", now)
        if other is not None:
            self._leave(other, other.present)

    def failed(self, call: Call, error: BaseException, now: float) -> BaseException | None:
        """The call has raised. Returns the error of its attempt, or None if the other call of its pair decides."""
        if (wait := refusal_wait(error)) is not None:
            self._hedger.overloaded(now, wait)
        other, lone = self._parted(call)
        if lone is not None or (other is not None and call.half):
            self._recorder.copy_ended(call.present, "error", now, error)
        if not is_ordinary(error):
            # It ends the run, whatever the other call would bring.
            return error
        if other is None:
            return error if lone is None else lone
        for flight in call.present:
            flight.call = other
        if other.half:
            self._alone[other] = error
            for flight in call.present:
                self._recorder.attempt_ended(flight, "error", now, error)
        return None

    def left(self, call: Call, flights: list[Flight], outcome: str, now: float) -> None:
        """These elements have left the call. They leave the other call of its pair too."""
        other = self._pairs.get(call)
        if other is not None or call in self._alone:
            self._recorder.copy_ended(flights, outcome, now)
        if not call.present:
            self._parted(call)
        if other is not None and flights:
            self._leave(other, flights)

    def _parted(self, call: Call) -> tuple[Call | None, BaseException | None]:
        """The call has ended. Returns the other call of its pair, or the error with which that has ended."""
        self._single.pop(call, None)
        other = self._pairs.pop(call, None)
        if other is not None:
            del self._pairs[other]
        return other, self._alone.pop(call, None)

    # -- the timer

    def _watch_oldest(self) -> None:
        """Set the timer for the oldest call without a copy, if there is one."""
        oldest = next(iter(self._single), None)
        self._arm(inf if oldest is None else oldest.started + self._hedger.delay)

    def _arm(self, due: float) -> None:
        self._delay = self._hedger.delay
        self._armed = due < inf
        self._timers.remind(self._ring, due)

    def _ring(self) -> None:
        oldest, now = next(iter(self._single), None), self._now()
        due = inf if oldest is None else oldest.started + self._hedger.delay
        if due > now:
            self._arm(due)
        else:
            # A result that has arrived wins. After the loop was blocked, nearly all that seem to be slow have one.
            after_last_turns(self._timers.loop, lambda: self._begin(now))

    def _begin(self, rang: float) -> None:
        self._armed, self.wanted, self._rang = False, True, rang
        self._news()
