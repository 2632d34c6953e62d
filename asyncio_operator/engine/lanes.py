"""The lanes: `capacity` long-lived coroutines, each of which runs one call at a time.

An element's life is one straight line in a lane: take, start, await, decide. There is no task, timer, lock or thread
hop per element, so a result cannot race its own timeout. An *intake* says what to run and what an outcome means; the
lanes decide nothing about elements.

- Work comes in *windows*: iterators that all lanes share. A window is over when it is exhausted and no lane is in it.
- At most one lane, the *seeker*, waits for work. When it has found some, it appoints the next one. So a lane is started
  only when all others are busy, and a thousand idle lanes are not woken for one element.
- If calls return at once, the working lane stops after a while, and the seeker goes on in the next turn (`Turn`).
- A call past its deadline first gets a few turns of the loop, because a result that has arrived wins. Then its element
  ends. Its lane is cancelled, and holds its place until the call has returned.
- The first failure ends everything: all lanes are cancelled and awaited, for at most `grace_period` seconds.
- A cancellation that did not come from the lanes is an error of the call that it hits. Between two calls, or where a
  call cancels the task that waits for the end, it is a failure of the run.

A cancellation that hits the run is reported as a failure of the function, because a bare ``CancelledError`` says
neither which code cancelled nor why. Every `BaseException` of a call is caught, ``SystemExit`` too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import monotonic, running_call
from asyncio_operator.engine.contexts import are_replaced, doubtful_values, in_own_contexts
from asyncio_operator.engine.contracts import Intake, Window
from asyncio_operator.engine.failures import stray_cancellation
from asyncio_operator.engine.flights import Call
from asyncio_operator.engine.timing import Turn, after_last_turns, start_task, wait_through
from asyncio_operator.engine.watch import watched
from asyncio_operator.errors import describe
from asyncio_operator.metrics import MANY_SAMPLES, Histogram
from asyncio_operator.policies.adaptive_capacity import calls_at_first

if TYPE_CHECKING:
    from asyncio_operator.engine.gate import Parts

logger = logging.getLogger("asyncio_operator")
calls = logging.getLogger("asyncio_operator.calls")

present_run: ContextVar[object] = ContextVar("present_run")
"""The mark of the lanes in which the present code runs: that of a call, or of a task or timer that a call has started,
because these have a copy of its context."""

FAILED = "failed"
IDLE: Any = object()


class Lane:
    """One place for a call. It only stores the start of its call.

    It has at most one timer, for the deadline that it had when that was set. When it rings the lane is idle, late, or
    in a younger call. A call that ends in time costs nothing.
    """

    __slots__ = (
        "apart",
        "context",
        "due",
        "expired",
        "first_context",
        "limit",
        "slot",
        "started",
        "task",
        "watched",
        "window",
    )

    def __init__(self, limit: float) -> None:
        self.task: asyncio.Task[None]
        self.window: Window
        self.context: Context  # That of its task.
        self.first_context: Context  # A copy of it, from before the first call.
        self.apart = False  # Whether the context of its task has changed; see `contexts`.
        self.slot: Any = IDLE
        self.started = 0.0  # When the present call started.
        self.limit = limit  # Seconds that it may take; infinity for no limit.
        self.due = inf  # The time for which its timer is set.
        # As if it had a timer, so that no call of a lane without a limit sets one.
        self.watched = limit == inf  # Whether its limit is watched, by a timer if there is a limit.
        self.expired = False

    @property
    def busy(self) -> bool:
        return self.slot is not IDLE and not self.expired

    def time_left(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Returns the seconds that are left for the lane's call. It refers to the lane only, not to the run."""
        return lambda: inf if self.slot is IDLE else self.started + self.limit - clock()


def uncancel(task: asyncio.Task[None]) -> None:
    """Take back handled cancellations: a later `asyncio.timeout` in the lane would see them otherwise."""
    while task.cancelling():
        task.uncancel()


class RunEnd(asyncio.Future[None]):
    """The future that the task of a run waits for. It calls `on_cancel` at once when that task is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], None]) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:
        self._on_cancel()
        return super().cancel(msg)


class Lanes:
    """Makes the calls of a run for what `intake` hands out, a limited number at a time.

    Of the options, `capacity` is how many calls run at a time, at first if it is adaptive. `timeout` and
    `attempt_timeout` are what a call may take where its window does not `begin` it. `grace_period` is how long the end
    waits for calls that ignore their cancellation.

    Args:
        context: that of its calls.
    """

    def __init__(self, intake: Intake, parts: Parts, context: Context) -> None:
        options, timers = parts.options, parts.timers
        # Seconds of the calls that gave their element its outcome at once, in a window of final results.
        self.direct = Histogram()
        self.latency = Histogram()  # Seconds of the other calls.
        self.failed = False
        self._failure: BaseException | None = None
        self._invoke = parts.called.invoke
        self._intake = intake
        self._capacity = calls_at_first(options.capacity)
        self._timeout = min(options.timeout or inf, options.attempt_timeout or inf)
        self._clock = timers.clock
        self._grace_period = options.grace_period
        self._name = parts.called.name
        self._loop = timers.loop
        self._context = context
        self._doubtful = doubtful_values(self._context)
        self._finished = RunEnd(self._loop, self._cancelled)
        # In starting order; cancelled in the same order. A dict, because any of them may end.
        self._lanes: dict[Lane, None] = {}
        self._late: set[Lane] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._turn = Turn(self._loop)
        self._seeking = False
        self._drained = False
        self._stopping = False
        self._mark = object()
        timers.fail = self.fail
        self._timers = timers

    @property
    def in_flight(self) -> int:
        """Calls that are running now, also late ones that have not returned."""
        # A copy, because another thread may ask.
        return sum(lane.slot is not IDLE for lane in list(self._lanes))

    def tasks(self) -> list[asyncio.Task[None]]:
        return [lane.task for lane in self._lanes]

    def resize(self, capacity: int) -> None:
        """From now on, start a call only while fewer than `capacity` are running."""
        if capacity == self._capacity or self._stopping:
            return
        self._capacity = capacity
        if not self._seeking:
            self._appoint()

    @property
    def _working(self) -> int:
        """The number of lanes that seek work or are in a window."""
        return len(self._lanes) - len(self._idle)

    async def run(self) -> None:
        """Run until the intake is drained and every call has ended; raise the first failure.

        Cancelling it cancels the calls. In every case no call is running when it returns, save those that ignored
        their cancellation for `grace_period`, which are logged.
        """
        self._appoint()
        try:
            with watched(self._name, Lanes._work.__code__):
                await self._finished
        finally:
            self.stop()
            interrupted = await wait_through([lane.task for lane in self._lanes], self._grace_period)
            for lane in [lane for lane in self._lanes if not lane.task.done()]:
                read = lane.slot is IDLE
                calls.error(
                    "%s ignored its cancellation for the grace period of %.1f s and is left behind",
                    "the input" if read else f"a call for element {self._element_of(lane)}",
                    self._grace_period,
                )
            self.latency.fold()
            self.direct.fold()
            if self._failure is not None:
                raise self._failure
            if interrupted is not None:
                raise interrupted

    def fail(self, error: BaseException) -> None:
        """End the run with this error, unless it has ended already. All calls are cancelled here and now."""
        if not self._finished.done():
            self.failed = True
            self._failure = error
            self._finished.set_result(None)
            self.stop()

    def _cancelled(self) -> None:
        """The task that waits for the end is cancelled here and now: by its own caller, or by what a call has started.

        All tasks of the loop may be cancelled in this very turn, as at its end. The lanes among them would take that
        for failed calls, and start the next ones before that task is awake.
        """
        if present_run.get(None) is self._mark and not self._stopping:
            here = asyncio.current_task(self._loop)
            calls = [lane for lane in self._lanes if lane.task is here and lane.busy]
            elements = list(map(self._element_of, calls))
            self.fail(stray_cancellation(f"{self._name} cancelled tasks that are not its own", *elements))
        self.stop()

    def cut(self, call: Call) -> None:
        """Cancel this call, as if it were late."""
        for lane in [lane for lane in self._lanes if lane.busy and lane.slot is call]:
            self._cut(lane, call)

    def _element_of(self, lane: Lane) -> str:
        """What the call of a lane is for, in a message."""
        return describe(self._intake.value_of(lane.window.call_of(lane.slot)))

    # -- the life of a lane

    async def _live(self, lane: Lane) -> None:
        """The life of a lane, which begins as the seeker; see `_appoint`."""
        appointed = True
        failure: BaseException | None = None
        present_run.set(self._mark)
        running_call.set(lane.time_left(self._clock))
        # After both were set: the contexts of all calls are copies of this one.
        lane.first_context = copy_context()
        try:
            while (window := await self._seek(appointed)) is not None:
                appointed = False
                lane.window = window
                await self._work(lane, window)
                if self._working > self._capacity:
                    break
        except BaseException as error:
            if not self._loop.is_running():
                # The loop is gone, and the garbage collector throws this coroutine away.
                raise
            failure = error
            if isinstance(error, asyncio.CancelledError) and lane.task.cancelling() and not self._stopping:
                failure = stray_cancellation(f"a task that calls {self._name} was cancelled between two calls")
        del self._lanes[lane]
        lane.slot = lane.window = IDLE
        if failure is not None:
            self.fail(failure)
        self._check_finished()

    async def _seek(self, appointed: bool) -> Window | None:
        """Wait for one's turn to be the seeker, and then for work."""
        if self._seeking and not appointed and not self._drained:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(turn)
            await turn
        if self._drained:
            return None
        self._seeking = True
        if self._turn.is_over(self._clock()):
            # Calls that return at once never let the loop turn: timers, and all other code on it, would starve.
            await asyncio.sleep(0)
        window = await self._intake.window()
        self._seeking = False
        if window is None:
            self._drained = True
            # No lane would appoint them any more: they would wait for ever.
            while self._idle:
                turn = self._idle.pop()
                if not turn.done():
                    turn.set_result(None)
        return window

    async def _work(self, lane: Lane, window: Window) -> None:
        # Local variables, because these lines run for every call, and an attribute takes several times as long to read.
        complete, results, instant, begin = window.complete, window.results, window.instant, window.begin
        clock, invoke, watch, doubtful = self._clock, self._invoke, self._watch, self._doubtful
        record, ended = (self.direct if window.final else self.latency).samples.append, window.ended
        cancelling = lane.task.cancelling
        context, first_context, apart = lane.context, lane.first_context, lane.apart
        if apart:
            # Each call has a copy of its own, so nothing that it sets comes here, and there is nothing to compare.
            begin, invoke, complete = in_own_contexts(first_context, begin, invoke, complete)
            context, doubtful = first_context, ()
        window.working += 1
        if begin is None and lane.limit != self._timeout:
            # Its next call sets a timer of its own.
            self._timers.delete(lane.due, self._look, lane)
            lane.watched, lane.due, lane.limit = False, inf, self._timeout
        now = clock()
        turn_ends, may_stand = self._turn.ends(now), clock is not monotonic
        for slot, value in window:
            # Before the call, which may take long: work that comes meanwhile has to find a lane that waits for it.
            if not self._seeking:
                self._appoint()
            lane.slot = slot
            # If taking work takes no time, the last call ended just now: that saves a reading of the clock.
            lane.started = started = now if instant else clock()
            if begin is not None:
                limit = begin(slot, started)
                if not apart:
                    # It may have said which call it is, in the context. That is no change by the call.
                    first_context = lane.first_context = copy_context()
                if limit != lane.limit or not lane.watched:
                    lane.limit = limit
                    watch(lane)
            elif not lane.watched:
                watch(lane)
            try:
                result = await invoke(value)
            except BaseException as error:
                late = self._call_failed(lane, error)
            else:
                late = lane.expired
                if late:
                    self._call_ended_late(lane, None)
                elif results is not None:
                    results[slot] = result
                else:
                    complete(slot, result, started)
            lane.slot = IDLE
            if cancelling():
                await self._absorb(lane)
            now = clock()
            # Law O17: no call may see what this one has set. The lane leaves the window. Its next calls run in
            # copies of the context.
            try:
                if (doubtful and are_replaced(doubtful)) or context != first_context:
                    lane.apart, turn_ends = True, -inf
            except Exception:  # values that cannot be compared
                lane.apart, turn_ends = True, -inf
            if not late:
                record(now - started)
                if ended is not None:
                    ended(now, started)
            elif late is FAILED:
                self.latency.add(now - started)
            # Else its duration was counted when it was cut.
            if may_stand or now > turn_ends:
                turn_ends = self._turn_end(now, started)
                if now > turn_ends or lane.apart is not apart:
                    break
        self._leave(window)

    def _leave(self, window: Window) -> None:
        window.working -= 1
        if not window.working:
            window.left()

    def _turn_end(self, now: float, started: float) -> float:
        """The time until which a lane whose call has just ended may go on with its window."""
        if len(self.latency.samples) + len(self.direct.samples) >= MANY_SAMPLES:
            self.latency.fold()
            self.direct.fold()
        if self._working > self._capacity or (now == started and not self._turn.stands()):
            return -inf
        return -inf if self._intake.is_urgent(now) else self._turn.ends(now)

    async def _absorb(self, lane: Lane) -> None:
        """Take back a cancellation of its own task that a call has left behind, before it hits the next one."""
        uncancel(lane.task)
        # That lowered the count. The error itself is thrown at the next await, which has to be this harmless one.
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._stopping:
                raise
            uncancel(lane.task)

    def _appoint(self) -> None:
        """Make an idle lane the seeker, or a new one within the capacity."""
        if self._working >= self._capacity:
            return
        if self._idle:
            self._seeking = True
            self._idle.pop().set_result(None)
        elif not self._drained:
            self._seeking = True
            lane = Lane(self._timeout)
            lane.context = self._context.copy()
            lane.task = start_task(self._live(lane), lane.context)
            self._lanes[lane] = None

    def _call_failed(self, lane: Lane, error: BaseException) -> object:
        """What follows from an error of a call; `FAILED`, or True if its element had ended before, at its deadline."""
        if not self._loop.is_running():
            raise error
        if lane.expired:
            self._call_ended_late(lane, error)
            return True
        self._intake.failed(lane.window.call_of(lane.slot, lane.started), error)
        if self._stopping:
            # The run has ended, perhaps by this error: law O18, the lane starts no other call.
            raise asyncio.CancelledError
        return FAILED

    # -- deadlines

    def _watch(self, lane: Lane) -> None:
        """Watch the call that the lane has just started, or that has got a new limit.

        A lane whose timer is set for an earlier time keeps that time, and is looked at again then.
        """
        due = lane.started + lane.limit
        # The early time is right for the look, and moving the timer for every call would cost as much as a new one.
        if lane.watched:
            if due >= lane.due:
                return
            self._timers.delete(lane.due, self._look, lane)
        lane.watched, lane.due = True, due
        if due < inf:
            self._timers.set(due, self._look, lane)

    def _look(self, lane: Lane, now: float) -> None:
        """The timer of a lane rings."""
        lane.watched = False
        if not lane.busy:
            return
        if lane.started + lane.limit > now:
            self._watch(lane)
        else:
            after_last_turns(self._loop, partial(self._pass_limit, lane, lane.window, lane.slot, lane.started))

    def _pass_limit(self, lane: Lane, *call: Any) -> None:
        """A call of this lane, which is this one, is past its limit, unless it has ended in its last turns."""
        if not lane.busy or call != (lane.window, lane.slot, lane.started):
            return
        late = lane.window.call_of(lane.slot, lane.started)
        try:
            limit = self._intake.timed_out(late)
        except BaseException as error:
            self._cut(lane, late)
            self.fail(error)
            return
        if limit is None:
            self._cut(lane, late)
            self._check_finished()
        else:
            lane.limit = limit
            self._watch(lane)

    def _cut(self, lane: Lane, call: Call) -> None:
        lane.expired, lane.slot = True, call
        self._late.add(lane)
        # Now, and not when it returns: a call that never returns would not be counted.
        self.latency.add(self._clock() - lane.started)
        lane.task.cancel()
        # Its window does not wait for it.
        self._leave(lane.window)
        if len(self._late) >= self._capacity:
            self._timers.remind(self._report_held_up, self._clock() + self._grace_period)

    def _report_held_up(self) -> None:
        """Log why no call starts: late calls hold every place, and no one knows for how long."""
        if len(self._late) >= self._capacity:
            held = self._element_of(next(iter(self._late)))
            logger.error("calls that ignore their cancellation hold all places; one of them is for element %s", held)

    def _call_ended_late(self, lane: Lane, error: BaseException | None) -> None:
        if not isinstance(error, asyncio.CancelledError) and lane in self._late:
            logger.warning(
                "a call ignored its cancellation, held its place in the capacity for %.3f s after it "
                "started, and its outcome is dropped; element: %s",
                self._clock() - lane.started,
                self._element_of(lane),
            )
        if self._stopping:
            if type(lane.slot) is Call:
                self._intake.returned(lane.slot, error)
            raise asyncio.CancelledError
        lane.expired = False
        self._late.discard(lane)
        lane.task.uncancel()  # that of `_cut`; others are absorbed
        lane.window.working += 1
        self._intake.returned(lane.slot, error)

    # -- the end

    def _check_finished(self) -> None:
        """Once drained, all is over when no lane is left but those with late calls: these get the grace period."""
        if self._drained and len(self._lanes) == len(self._late) and not self._finished.done():
            self._finished.set_result(None)

    def stop(self) -> None:
        """Cancel what runs, so that no lane takes another element. A late call has been cancelled, and may clean up."""
        if self._stopping:
            return
        self._stopping = True
        self._timers.remind(self._report_held_up, inf)
        self._intake.stop()
        for lane in [lane for lane in self._lanes if lane not in self._late]:
            lane.expired = True
            lane.task.cancel()
