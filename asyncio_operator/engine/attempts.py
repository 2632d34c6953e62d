"""From a source to the lanes: which call starts next, and what its end means for the limits.

If nothing is asked before the first calls of elements, lanes take these from windows of the source. Only elements in
trouble come here (`attempt_ends`), and their next calls go first.

A free lane asks what may start, and `schedule` chooses it. When nothing may start, the one lane that seeks waits for
the first news: input, room, an element that is due, a key, the end of a call, or the rate limit. An element in
back-off holds no lane. What follows for an element is decided elsewhere (`attempt_ends`, `contracts.Endings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.budget.usage import running
from asyncio_operator.engine.attempt_ends import AttemptEnds
from asyncio_operator.engine.contracts import Endings, Source, Window
from asyncio_operator.engine.failing_batches import FailingBatches
from asyncio_operator.engine.failures import aligned
from asyncio_operator.engine.flights import SLACK, Call, Flight
from asyncio_operator.engine.gate import REFUSALS, REFUSED, Gate, Limited
from asyncio_operator.engine.hedging import Hedging
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.engine.schedule import A_TURN_LATER, Schedule
from asyncio_operator.engine.timing import COARSEST, wake
from asyncio_operator.errors import BudgetExceeded, ResultError
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.telemetry.annotations import answered_with, noted

if TYPE_CHECKING:
    from asyncio_operator.engine.options import Called, CallOptions
    from asyncio_operator.engine.timers import Timers


class Attempts:
    """The intake of the lanes, and its one window.

    Args:
        source: makes flights of what `reader` reads.
        called: what the calls are made of.
        timers: of the run, by the loop's time. Who has made them closes them.

    Attributes:
        held: calls of windows that wait for a limit.
        lanes: that make the calls.
        gate: says when they start.
        now: gives the time.
    """

    def __init__(
        self,
        source: Source,
        reader: Reader,
        endings: Endings,
        options: CallOptions,
        called: Called,
        limited: Limited,
        timers: Timers,
        recorder: Recorder,
    ) -> None:
        self.working = 0
        self._figures = figures = endings.figures
        self.instant, self.results, self.ended, self.final = reader.instant, None, None, False
        self._noted = called.noted
        self._source = source
        self._reader = reader
        self._keys = keys = source.keyed
        self._timeout = inf if options.timeout is None else options.timeout
        self._attempt_timeout = inf if options.attempt_timeout is None else options.attempt_timeout
        self._first_limit = min(self._timeout, self._attempt_timeout)
        self._batched = options.batching is not None
        # Whether every result is an outcome.
        self._satisfied = options.retry is None or options.retry.if_result is None
        self._failing = failing = FailingBatches(called.name, called.method, self._batched)
        self.gate = Gate(options, called, limited, timers, recorder, figures, self.news, self._resize)
        context = copy_context()
        if self.gate.weighs:
            # Where no limit has to hear of each call, this one takes what all of them say.
            anyone = Call([])
            anyone.gate = self.gate
            context.run(running.set, anyone)
        self.lanes = Lanes(called.invoke, self, options, timers=timers, name=called.name, context=context)
        self._recorder = recorder
        self._timers = timers
        self.now = timers.clock
        self._schedule = Schedule(source, options.batching, options.retry is not None)
        self.held = self._schedule.held
        self._ends = AttemptEnds(endings, self._schedule, options, keys, recorder, failing, timers, self.news)
        self._hedging: Hedging | None = None
        if options.hedge is not None:
            self._hedging = Hedging(
                limited.hedger or Hedger(options.hedge), recorder, timers, self.news, self._leave, figures
            )
        self._next: tuple[Call, Any] | None = None
        self._try_again = inf
        self._stopped = False
        # Whether the gate lets no call start now.
        self._closed = False
        self._news: asyncio.Future[None] | None = None
        self._reminder = timers.reminder(self.news)

    @property
    def backing_off(self) -> int:
        """Elements that wait for their next attempt."""
        return self._ends.backing_off

    def stop(self) -> None:
        """From now on no call starts, no element ends, and no input is read."""
        self._stopped = True
        self._ends.stop()
        if self._hedging is not None:
            self._hedging.stop()
        self.gate.leave()
        self._reader.stop()
        self._source.stop()

    def _resize(self, capacity: int) -> None:
        """A call has returned, and this many may run now."""
        self.lanes.resize(capacity)
        self.news()

    def news(self) -> None:
        """There may be something to start now."""
        wake(self._news)

    def abandon(self, flight: Flight) -> None:
        """No caller waits for the element any more: it ends without an outcome. A call for it alone is cancelled."""
        if flight.ended:
            return
        self._schedule.ended(flight)
        self._ends.forget(flight)
        call, flight.call = flight.call, None
        if call is not None:
            self._leave(call, [flight])
            if self._hedging is not None:
                self._hedging.left(call, [flight], "cancelled", self.now())
        self.news()

    def _leave(self, call: Call, flights: list[Flight]) -> None:
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
        return self._source.direct and (self._schedule.is_due or self._timers.earliest <= now)

    async def _wait(self) -> None:
        """Wait until there may be something to start."""
        if self._reader.wanted:
            if self._source.alone:
                await self._reader.ready()
                return
            self._reader.read_ahead(self.news)
        if self._try_again == A_TURN_LATER:
            await asyncio.sleep(0)
            self._schedule.turned()
            return
        news = self._news = self._timers.loop.create_future()
        if self._try_again < inf:
            self._reminder.set(self._try_again)
        try:
            await self._source.wait(news)
        finally:
            self._news = None
            self._reminder.cancel()

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
            hedging = None if gate.is_shut else self._hedging
            if hedging is not None and (copy := hedging.next_copy(now, gate)) is not None:
                return self._started(copy, now)
            call, self._try_again = schedule.next_call(now, gate.calls)
            if call is None:
                return None
            if not self.instant:
                # Reading the input took time, and a deadline may have passed meanwhile.
                now = self.now()
                if not self._in_time(call, now):
                    continue
            if not self._admitted(call, now):
                if self._try_again > now:
                    return None
                continue
            if self._hedging is not None:
                self._hedging.started(call, now)
            return self._started(call, now)
        self._try_again = self.now() + COARSEST
        return None

    def _started(self, call: Call, now: float) -> tuple[Call, Any]:
        self.gate.started(call, now)
        self._figures.calls += 1
        return call, self.value_of(call)

    def _in_time(self, call: Call, now: float) -> bool:
        """End the elements of the call that are past their deadline. Returns whether any element is left."""
        if call.pieces:
            # The time of its elements begins with the call.
            return True
        for flight in [flight for flight in call.flights if flight.deadline < now]:
            call.flights.remove(flight)
            self._ends.leave(flight)
            self._ends.overdue(flight, now)
        return bool(call.flights)

    def _admitted(self, call: Call, now: float) -> bool:
        """Whether the gate lets the call start now. If not, the next call is sought at once, or at `_try_again`."""
        gate, self._try_again = self.gate, now
        try:
            start = gate.admit(call, now)
        except REFUSED as error:
            # One element may be what weighs too much.
            if call.count > 1 and isinstance(error, BudgetExceeded | ResultError):
                self._schedule.split_unstarted(call)
            else:
                self._refuse(call, error, now)
            return False
        if start <= now:
            return True
        self._schedule.hold(call)
        self._try_again = start
        if self._batched:
            self._schedule.prepare(now)
        return False

    # -- the window: the start and the end of a call

    def take(self, now: float, call: Call) -> float:
        """Start a call of a window, if it may start now; see `Gate.take`."""
        start = self.gate.next_start(now)
        if start <= now and (start := self.gate.admit(call, now)) <= now:
            self.gate.started(call, now)
        return start

    def hold(self, call: Call) -> None:
        """A call of a window may not start yet. It is the next one."""
        self._count(call)
        self._schedule.hold(call)
        self.news()

    def _refuse(self, call: Call, error: BaseException, now: float) -> None:
        """The gate refuses a call. It counts as a failed attempt, so retries and back-off bridge an open circuit."""
        self.begun(call, now)
        self._ends.fail(self._flights(call), error, now)

    def begin(self, call: Call, started: float) -> float:
        """A call starts. Returns the seconds that it may take."""
        if self.gate.weighs:
            running.set(call)
        if self._noted:
            noted.set(call.note)
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
                self._ends.leave(flight)
            if call.half:
                continue
            if flight.begun is None:
                flight.started = started
                flight.deadline = started + self._timeout
            if flight.attempts:
                self._figures.retries += 1
            flight.begun = started
            self._recorder.attempt_started(flight, started)
        return call.limit(self._attempt_timeout) - started

    def _count(self, call: Call) -> None:
        """The elements of the call are handled here, also those of a window."""
        if not call.counted:
            call.counted = True
            self._schedule.unfinished += call.count

    def _flights(self, call: Call) -> list[Flight]:
        """The elements that the call may still give an outcome. From now on they have flights."""
        self._count(call)
        return call.present

    def complete(self, call: Call, result: Any) -> None:
        now = self.now()
        self._returned(call, now)
        if self._hedging is not None:
            self._hedging.answered(call, now)
        try:
            results = aligned(result, call.count, self._failing.method) if self._batched else (result,)
        except ResultError as error:
            # Law B3: nothing tells which result belongs to which element, so all of them fail.
            answered_with(error, call.http_status)
            self._ends.fail(self._flights(call), error, now)
            return
        verdicts: Sequence[bool] = ()
        if call.pieces:
            if call.count > 1:
                self._failing.end()
            if not self._satisfied:
                verdicts = list(map(self._ends.is_satisfied, call.values, results))
            if all(verdicts) and self._source.store(call, results, now):
                if call.counted:
                    self._schedule.ended_together(call.count)
                    if not self._schedule.unfinished or self._schedule.forming:
                        # No element may be left that could join a batch, or none at all: else the seeker sleeps on.
                        self.news()
                return
        self._flights(call)
        flights = call.flights
        self._failing.answered(flights)
        for flight, one, verdict in zip(flights, results, verdicts or repeat(None), strict=False):
            if flight not in call.late:
                flight.call = call  # And not its copy, if the first call has won.
                self._ends.result(flight, one, now, verdict)

    def failed(self, call: Call, error: BaseException, started: float) -> None:
        now = self.now()
        if self._noted:
            answered_with(error, call.http_status)
        self._returned(call, now, error)
        flights = self._flights(call)
        decisive = error if self._hedging is None else self._hedging.failed(call, error, now)
        if decisive is None:
            return
        self._ends.failed(flights, decisive, now)

    def timed_out(self, call: Call, started: float) -> float | None:
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
            self._ends.pass_limit(flight, now)
        return call.limit(self._attempt_timeout) - started if going_on else None

    def returned(self, call: Call, error: BaseException | None) -> None:
        self._returned(call, self.now(), error)

    def _returned(self, call: Call, now: float, error: BaseException | None = None) -> None:
        """The call has returned, in time or late."""
        self.gate.ended(call, now, error)
        for flight in call.late:
            flight.late -= 1
            self._recorder.call_returned(flight, now)
            if self._keys is not None and not flight.late:
                self._keys.release(flight.entry)
                if flight.held and not flight.ended:
                    self._schedule.again(flight)
                flight.held = False
                self.news()

    def value_of(self, call: Call) -> Any:
        values = self._source.values(call)
        return values if self._batched else values[0]

    def left(self) -> None:
        """There is nothing to do: the queue knows what is complete."""
