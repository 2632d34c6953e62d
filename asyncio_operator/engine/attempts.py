"""From a source to the lanes: which call starts next, and what its end means for elements and limits.

If nothing is asked before the first calls of elements, lanes take these from windows of the source. Only elements in
trouble come here, and their next calls go first. A free lane asks what may start, and `schedule` chooses it. When
nothing may start, the one lane that seeks waits for the first news: input, room, an element that is due, a key, the end
of a call, or the rate limit.

At the end of an attempt there is another one, after a back-off without a lane, or the outcome (`contracts.Endings`).
Whether there is another attempt, and when, says the user's `Retry`, whose hooks run in contexts of their own (O17).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import repeat
from math import inf, nextafter
from random import random
from typing import Any

from asyncio_operator.engine.contracts import Endings, Source, Window
from asyncio_operator.engine.failures import FailingBatches, aligned, element_error, ends_the_run, is_ordinary
from asyncio_operator.engine.flights import SLACK, Call, Flight
from asyncio_operator.engine.gate import REFUSALS, REFUSED, Gate, Parts
from asyncio_operator.engine.hedging import Hedging
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.schedule import A_TURN_LATER, Schedule, halves
from asyncio_operator.engine.timing import COARSEST, wake
from asyncio_operator.errors import BudgetExceeded, ElementTimeoutError, ResultError, count_kind, describe
from asyncio_operator.figures import Figures
from asyncio_operator.policies.batching import splits
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.quota.usage import running
from asyncio_operator.telemetry.annotations import answered_with, noted

logger = logging.getLogger("asyncio_operator.calls")


class Attempts(Window):
    """The intake of the lanes, and its one window.

    Args:
        source: makes flights of what `reader` reads.
    """

    def __init__(self, source: Source, reader: Reader, endings: Endings, parts: Parts) -> None:
        options, called, timers = parts.options, parts.called, parts.timers
        self.figures = parts.figures
        self.instant = reader.instant
        self._noted = called.noted
        self._source = source
        self._reader = reader
        self._keys = source.keyed
        self._timeout = inf if options.timeout is None else options.timeout
        self._attempt_timeout = inf if options.attempt_timeout is None else options.attempt_timeout
        self._first_limit = min(self._timeout, self._attempt_timeout)
        self._batched = options.batching is not None
        # Whether every result is an outcome.
        self._satisfied = not options.judges
        self._failing = FailingBatches(called.name, called.method, self._batched)
        self.gate = Gate(parts, self.news, self._resize)
        context = copy_context()
        if self.gate.weighs:
            # Where no limit has to hear of each call, this one takes what all of them say.
            anyone = Call([])
            anyone.gate = self.gate
            context.run(running.set, anyone)
        self.lanes = Lanes(self, parts, context)
        self.recorder = parts.recorder
        self.figures.attempt_latency = self.lanes.latency
        self._timers = timers
        self.now = timers.clock
        self._schedule = Schedule(source, options.batching, options.retry is not None)
        self.held = self._schedule.held  # Calls of windows that wait for a limit.
        self.backing_off = 0  # Elements that wait for their next attempt.
        self._endings = endings
        self._retry = options.retry
        self._context = copy_context()
        self._hedging: Hedging | None = None
        if options.hedge is not None:
            self._hedging = Hedging(parts.limited.hedger or Hedger(options.hedge), parts, self.news, self.leave)
        self._next: tuple[Call, Any] | None = None
        self._try_again = inf
        self._stopped = False
        # Whether the gate lets no call start now.
        self._closed = False
        self._news: asyncio.Future[None] | None = None

    def counted(self) -> Figures:
        """What the run has counted so far. Any thread may ask."""
        figures = Figures()
        figures.add(self.figures)
        # The latency of an element is that of its call, if nothing came between.
        figures.latency.merge(self.lanes.direct)
        figures.attempt_latency.merge(self.lanes.direct)
        return figures

    def stop(self) -> None:
        """From now on no call starts, no element ends, and no input is read."""
        self._stopped = True
        self.backing_off = 0
        if self._hedging is not None:
            self._hedging.stop()
        if self.gate.seat is not None:
            self.gate.seat.leave()
        self._reader.stop()
        self._source.stop()

    def _resize(self, capacity: int) -> None:
        """A call has returned, and this many may run now."""
        self.lanes.resize(capacity)
        self.news()

    def news(self) -> None:
        """There may be something to start now."""
        wake(self._news)

    def resume(self, flight: Flight) -> None:
        """An element that has failed in an earlier run is due for its next attempt."""
        self._schedule.unfinished += 1
        self._schedule.due.append(flight)
        self.news()

    def abandon(self, flight: Flight) -> None:
        """No caller waits for the element any more: it ends without an outcome. A call for it alone is cancelled."""
        if flight.ended:
            return
        self._schedule.ended(flight)
        if flight.wakes < inf and self._timers.delete(flight.wakes, self._wake, flight):
            self.backing_off -= 1
        self._leave_wait(flight)
        call, flight.call = flight.call, None
        if call is not None:
            self.leave(call, [flight])
            if self._hedging is not None:
                self._hedging.left(call, [flight], "cancelled", self.now())
        self.news()

    def leave(self, call: Call, flights: list[Flight]) -> None:
        """These elements do not need the call any more. It is cancelled if none is left."""
        call.late = {**call.late, **dict.fromkeys(flights)}
        for flight in flights:
            flight.late += 1
        if not call.present:
            self.gate.abandoned(call)
            self.lanes.cut(call)

    # -- the intake of the lanes

    async def window(self) -> Window | None:
        while (next_call := self._start()) is None:
            # Law R8: what is due waits for the gate, and goes first.
            window = None if self._closed or self._schedule.is_due else self._source.window()
            if window is not None:
                return window
            if self._stopped or self._schedule.over:
                return None
            await self._wait()
        self._next = next_call
        return self

    def is_urgent(self, now: float) -> bool:
        # Law R8: the next attempts of elements that failed go before new ones.
        due = self._schedule.is_due or self._timers.earliest <= now
        return self._source.direct and (due or (self._hedging is not None and self._hedging.wanted))

    async def _wait(self) -> None:
        if self._reader.wanted:
            if self._source.alone:
                await self._reader.ready()
                return
            self._reader.read_ahead(self.news)
        if self._try_again == A_TURN_LATER:
            await asyncio.sleep(0)
            self._schedule.turns += 1
            return
        news = self._news = self._timers.loop.create_future()
        self._timers.remind(self.news, self._try_again)
        try:
            await self._source.wait(news)
        finally:
            self._news = None
            self._timers.remind(self.news, inf)

    def __iter__(self) -> Iterator[tuple[Call, Any]]:
        return iter(self._take, None)

    def _take(self) -> tuple[Call, Any] | None:
        next_call, self._next = self._next or self._start(), None
        if next_call is not None or self._try_again < inf:
            # The lane that seeks, if it waits, knows neither when to ask again nor that there may be more to start.
            self.news()
        return next_call

    def _start(self) -> tuple[Call, Any] | None:
        """The call that starts now, and what it is called with; None if none may."""
        gate, schedule = self.gate, self._schedule
        self._reader.wanted = False
        for _ in range(REFUSALS):
            now = self.now()
            self._try_again = inf
            if self._timers.earliest <= now:
                # Before a call of new input, law R8: the next attempts that are due.
                self._timers.ring(now)
            start = gate.next_start(now)
            self._closed = start > now
            if self._closed:
                self._try_again = start
                schedule.prepare(now)
                return None
            hedging = self._hedging
            if hedging is not None and (pair := hedging.next_pair(now, gate)) is not None:
                self._schedule.count(pair[0])
                return self._started(pair[1])
            call, self._try_again = schedule.next_call(now, gate.calls)
            if call is None:
                return None
            if not self.instant:
                now = self.now()
                if self._timers.earliest <= now:
                    # Reading the input took time: elements may have passed their deadline.
                    schedule.hold(call)
                    continue
            if not self._admitted(call, now):
                if self._try_again > now:
                    return None
                continue
            return self._started(call)
        self._try_again = self.now() + COARSEST
        return None

    def _started(self, call: Call) -> tuple[Call, Any]:
        self.figures.calls += 1
        return call, self.value_of(call)

    def _admitted(self, call: Call, now: float) -> bool:
        """Start the call, if the gate lets it start. If not, the next call is sought at once, or at `_try_again`."""
        gate, self._try_again = self.gate, now
        try:
            start = gate.start(call, now)
        except REFUSED as error:
            unmade = isinstance(error, BudgetExceeded | ResultError)
            # One element may be what weighs too much.
            if call.count > 1 and unmade:
                # Call the halves next.
                for half in reversed(halves(call.flights)):
                    self._schedule.hold(Call(half, call.half))
            else:
                # An open circuit counts as a failed attempt, so retries and back-off bridge it. Of a call that is not
                # made only the one before it counts, if this is a half of that.
                self.begun(call, now)
                self._fail(self._flights(call), error, now, call.half or not unmade)
            return False
        if start <= now:
            return True
        self._schedule.hold(call)
        self._try_again = start
        if self._batched:
            self._schedule.prepare(now)
        return False

    # -- the window: the start and the end of a call

    def hold(self, call: Call) -> None:
        """A call of a window may not start yet. It is the next one."""
        self._schedule.count(call)
        self._schedule.hold(call)
        self.news()

    def begin(self, call: Call, started: float) -> float:
        """A call starts. Returns the seconds that it may take."""
        if self.gate.weighs:
            running.set(call)
        if self._noted:
            noted.set(call.note)
        if self._hedging is not None:
            self._hedging.started(call, started)
        return self.begun(call, started)

    def begun(self, call: Call, started: float) -> float:
        """The same, but for what the call says of itself."""
        call.started = started
        if call.pieces:
            call.deadline = started + self._timeout
            return self._first_limit
        for flight in call.present:
            flight.call = call
            if flight.wakes < inf:
                self._leave_wait(flight)
            if call.half:
                continue
            if flight.begun is None:
                flight.started = started
                flight.deadline = started + self._timeout
            if flight.attempts:
                self.figures.retries += 1
            flight.begun = started
            self.recorder.attempt_started(flight, started)
        return call.limit(self._attempt_timeout) - started

    def _flights(self, call: Call) -> list[Flight]:
        self._schedule.count(call)
        return call.present

    def complete(self, call: Call, result: Any, started: float) -> None:
        now = self.now()
        self._returned(call, now)
        if self._hedging is not None:
            self._hedging.answered(call, now)
        try:
            results = aligned(result, call.count, self._failing.method) if self._batched else (result,)
        except ResultError as error:
            # Law B3: nothing tells which result belongs to which element, so all of them fail.
            answered_with(error, call.http_status)
            self._fail(self._flights(call), error, now)
            return
        verdicts: Sequence[bool] = ()
        if call.pieces:
            if call.count > 1:
                self._failing.end()
            if not self._satisfied:
                verdicts = list(map(self._is_last, call.values, results))
            counted = call.counted  # The source may count it now, and end its elements.
            if all(verdicts):
                self._source.store(call, results, now)
                if counted:
                    self._schedule.unfinished -= call.count
                    if not self._schedule.unfinished or self._schedule.forming:
                        # No element may be left that could join a batch, or none at all: else the seeker sleeps on.
                        self.news()
                return
        self.complete_each(call, results, verdicts or repeat(None))

    def complete_each(self, call: Call, results: Sequence[Any], verdicts: Iterable[bool | None]) -> None:
        """Elements of the call need flights. `verdicts` say whether each result is the last one, if that is known."""
        self._flights(call)
        flights, now = call.flights, self.now()
        self._failing.answered(flights)
        failure: BaseException | None = None
        for flight, one, verdict in zip(flights, results, verdicts, strict=False):
            if flight in call.late:
                continue
            flight.call = call  # And not its copy, if the first call has won.
            self.recorder.attempt_ended(flight, "result", now)
            attempts, start = flight.attempts + 1, None
            try:
                if not (self._is_last(flight.value, one, attempts) if verdict is None else verdict):
                    flight.attempts = attempts
                    start = self._next_start(flight, None, now)
                if start is None:
                    self._end(flight, now, self._endings.complete, one, attempts)
                else:
                    self._back_off(flight, start, now)
            except BaseException as error:
                # Law J2: the run ends when the others are kept.
                failure = failure or error
        if failure is not None:
            raise failure

    def failed(self, call: Call, error: BaseException) -> None:
        now = self.now()
        if self._noted:
            answered_with(error, call.http_status)
        self._returned(call, now, error)
        flights = self._flights(call)
        decisive = error if self._hedging is None else self._hedging.failed(call, error, now)
        if decisive is None:
            return
        if call.count > 1 and is_ordinary(decisive) and splits(decisive):
            # Law B4, also for the last that is left. The halves belong to this attempt: its limit goes on, or is here.
            self._schedule.split(flights)
            self._failing.divided(flights, decisive)
            for flight in flights:
                flight.call = None
                self._watch(flight, max(now, flight.limit(self._attempt_timeout) - SLACK))
            self.news()
            return
        self._failing.failed(flights)
        self._fail(flights, decisive, now)

    def timed_out(self, call: Call) -> float | None:
        now = self.now()
        late = [flight for flight in self._flights(call) if flight.limit(self._attempt_timeout) <= now + SLACK]
        # These leave the call, which runs on for the elements that still have time.
        call.late = {**call.late, **dict.fromkeys(late)}
        going_on = bool(call.present)
        if self._hedging is not None:
            self._hedging.left(call, late, "timed_out", now)
        if not going_on:
            self.gate.judge(call, now, TimeoutError())
        for flight in late:
            flight.late += 1
            if self._keys is not None:
                # Law Q7: the key is not free while a call for it runs, although its element has ended.
                self._keys.hold(flight.entry)
            self._pass_limit(flight, now)
        return call.limit(self._attempt_timeout) - call.started if going_on else None

    def returned(self, call: Call, error: BaseException | None) -> None:
        self._returned(call, self.now(), error)

    def _returned(self, call: Call, now: float, error: BaseException | None = None) -> None:
        self.gate.ended(call, now, error)
        if self._hedging is not None and self._hedging.wanted:
            # A copy may start that the circuit breaker did not allow before.
            self.news()
        for flight in call.late:
            flight.late -= 1
            self.recorder.call_returned(flight, now)
            if self._keys is not None and not flight.late:
                self._keys.release(flight.entry)
                if flight.held and not flight.ended:
                    self._schedule.due.append(flight)
                flight.held = False
                self.news()

    def value_of(self, call: Call) -> Any:
        values = self._source.values(call)
        return values if self._batched else values[0]

    # -- the ends of attempts

    def _is_last(self, value: Any, outcome: Any, attempts: int = 1, predicate: str = "if_result") -> bool:
        """Whether no attempt follows one with this result or, for the predicate "on", this error.

        Raises:
            FunctionError: the predicate of `retry` failed.
        """
        if self._retry is None or getattr(self._retry, predicate) is None:
            return True
        ask = self._retry.unsatisfied if predicate == "if_result" else self._retry.retries
        try:
            return not self._context.copy().run(ask, outcome)
        except BaseException as error:
            self.figures.failures += 1
            raise element_error(f"retry.{predicate}", value, error, "make it return true or false", attempts) from error

    def _pass_limit(self, flight: Flight, now: float) -> None:
        """An attempt has reached the element's deadline, or its own limit."""
        self.recorder.attempt_ended(flight, "timed_out", now)
        if flight.deadline <= now + SLACK:
            self._end(flight, now, self._endings.timed_out, flight.attempts + 1)
            return
        error = ElementTimeoutError(
            f"attempt {flight.attempts + 1} for element {describe(flight.value)} had no result within "
            f"attempt_timeout={self._attempt_timeout} s"
        )
        self._judge(flight, error, now)

    def _fail(self, flights: list[Flight], error: BaseException, now: float, counts: bool = True) -> None:
        for flight in flights:
            self.recorder.attempt_ended(flight, "error", now, error)
            self._judge(flight, error, now, counts)

    def _judge(self, flight: Flight, error: BaseException, now: float, counts: bool = True) -> None:
        """An attempt has failed, which counts or not: wait for the next, or end the element with its error."""
        flight.attempts += counts
        hidden = is_ordinary(error) and not ends_the_run(error)
        again = hidden and not self._is_last(flight.value, error, flight.attempts, "on")
        start = self._next_start(flight, error, now) if again else None
        if start is None:
            self._end(flight, now, self._endings.failed, error, flight.attempts, again)
        else:
            kind = count_kind(self.figures.errors, error)
            logger.debug("attempt %d of an element failed with %s", flight.attempts, kind)
            self._back_off(flight, start, now)

    def _next_start(self, flight: Flight, error: BaseException | None, now: float) -> float | None:
        """When the element's next attempt starts; None if there is none. Its `attempts` include the latest one."""
        assert self._retry is not None
        deadline = None if flight.deadline == inf else flight.deadline
        return self._retry.next_start(flight.attempts, error, now, deadline, random)

    def _back_off(self, flight: Flight, start: float, now: float) -> None:
        flight.call = None
        self.recorder.backing_off(flight, now, start)
        flight.wakes = start
        self.backing_off += 1
        self._timers.set(start, self._wake, flight)

    def _end(self, flight: Flight, now: float, end: Callable[..., str], *outcome: Any) -> None:
        """Give the element its outputs, by `end`, which says how."""
        try:
            how = end(flight if flight.entry is None else flight.entry, *outcome)
        except BaseException:
            self.recorder.completed(flight, "failed", now)
            raise
        self._schedule.ended(flight)
        flight.call = None
        self.recorder.completed(flight, how, now)
        if flight.entry is None:
            self.recorder.emitted(None, flight, now)
        else:
            self.figures.latency.add(now - flight.admitted)
        # An end may free a key, end the run, or leave no element that could join a batch: else the seeker sleeps on.
        if self._keys is not None or not self._schedule.unfinished or self._schedule.forming:
            self.news()

    def _watch(self, flight: Flight, until: float) -> None:
        """Watch the limit of an element that waits for a place in a call."""
        if until < inf:
            flight.wakes = until
            self._timers.set(until, self._pass_wait, flight)

    def _leave_wait(self, flight: Flight) -> None:
        """The element no longer waits for a place."""
        if flight.wakes < inf:
            self._timers.delete(flight.wakes, self._pass_wait, flight)
            flight.wakes = inf

    def _wake(self, flight: Flight, now: float) -> None:
        """The back-off of an element is over."""
        flight.wakes = inf
        if self._stopped:
            return
        self.backing_off -= 1
        if flight.deadline < now:
            self._end(flight, now, self._endings.timed_out, flight.attempts)
        else:
            # Law R3: an attempt may start at the deadline, and not after it.
            self._watch(flight, max(flight.deadline, nextafter(now, inf)))
            # Law Q7: calls of one key never overlap, so the next attempt waits for a call that was cut.
            flight.held = self._keys is not None and flight.late > 0
            if not flight.held:
                self._schedule.due.append(flight)
        self.news()

    def _pass_wait(self, flight: Flight, now: float) -> None:
        """An element has waited for a place until its limit."""
        flight.wakes = inf
        if self._stopped:
            return
        if flight.split:
            flight.split = False
            self._pass_limit(flight, now)
        else:
            self._end(flight, now, self._endings.timed_out, flight.attempts)
        self.news()
