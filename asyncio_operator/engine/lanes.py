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
- A lane only stores the start of its call. It has at most one timer, for the deadline that it had when that was set.
  When it rings the lane is idle, late, or in a younger call. A call that ends in time costs nothing.

A cancellation that hits the run is reported as a failure of the function, because a bare ``CancelledError`` says
neither which code cancelled nor why. Every `BaseException` of a call is caught, ``SystemExit`` too.

A function that does not await delays all other calls. So a thread takes samples of the stacks, and logs a warning.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from math import inf
from os.path import dirname, sep
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import monotonic, running_call
from asyncio_operator.engine.contexts import OwnContexts, are_replaced, doubtful_values
from asyncio_operator.engine.contracts import Intake, Window
from asyncio_operator.engine.failures import stray_cancellation
from asyncio_operator.engine.timing import Turn, start_task
from asyncio_operator.errors import describe
from asyncio_operator.metrics import MANY_SAMPLES, Histogram
from asyncio_operator.policies.adaptive_capacity import calls_at_first

if TYPE_CHECKING:
    from asyncio_operator.engine.options import CallOptions
    from asyncio_operator.engine.timers import Timers

loop_logger = logging.getLogger("asyncio_operator.loop")

INTERVAL = 1.0
"""Seconds between two samples. What blocks for less than some seconds in all is not worth a warning."""

LOOKS = 5
HELD = 4
"""A function holds the loop if this many of the last `LOOKS` samples are inside of it. A function that awaits is rarely
in a single sample. One that is in nearly all of them leaves no time for other calls, whether it blocks or computes."""

# Not with Path, which would remove the "./" of a file in an archive that was sent with a job.
_OURS = tuple(
    f"{dirname(dirname(dirname(__file__)))}{sep}{package}{sep}" for package in ("asyncio_operator", "enrichers")
)

_LIBRARIES = ("aiohttp", "asyncpg", "numpy", "opentelemetry", "pyarrow", "redis", "rocksdict", "sqlalchemy", "yarl")
"""What the enrichers call. A user's function is called by the library itself, before anything that it calls."""

_warned: set[str] = set()


class _Watched:
    """The runs of this process that are watched, and the thread that does it while there are any."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.runs: dict[object, LoopWatch] = {}
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._look, name="asyncio-operator-watch", daemon=True)
        self.thread.start()

    def _look(self) -> None:
        pause = threading.Event()
        while self.runs:
            pause.wait(INTERVAL)
            for watch in list(self.runs.values()):
                watch.look()
        self.thread = None
        # A run that began meanwhile may have taken this thread for one that goes on.
        if self.runs and self.thread is None:
            self.start()


_watched = _Watched()


@contextmanager
def watched(name: str, lane: CodeType) -> Iterator[None]:
    """Watch the loop of this thread while it is entered.

    Args:
        name: of the user's function, for the warning.
        lane: the code of the coroutine that calls it.
    """
    global _watched
    if _watched.process != os.getpid():
        # The thread of the parent was not forked.
        _watched = _Watched()
    mark, here = object(), _watched
    here.runs[mark] = LoopWatch(threading.get_ident(), name, lane)
    if here.thread is None:
        here.start()
    try:
        yield
    finally:
        del here.runs[mark]


class LoopWatch:
    """Watches the thread of a loop.

    Args:
        thread: its identifier.
        name: the name in the warning, of the user's function.
        lane: the code of the coroutine that calls users' functions.
    """

    def __init__(self, thread: int | None, name: str, lane: CodeType) -> None:
        self._thread = thread
        self._name = name
        self._lane = lane
        self._looks: deque[bool] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Take one sample. It is called at regular intervals."""
        frames = _frames(sys._current_frames().get(self._thread or 0), self._lane)
        self._looks.append(bool(frames))
        if frames and sum(self._looks) >= HELD and self._name not in _warned:
            _warned.add(self._name)
            places = ", called by ".join(f"{f.f_code.co_filename}:{f.f_lineno} ({f.f_code.co_name})" for f in frames)
            loop_logger.warning(
                "%s blocked the event loop (%d of %d samples, at %s). Code that does not await stops all other calls, "
                "and no deadline can cut it: a late result counts as in time. Await an asynchronous client there, or "
                "put a blocking one into a BlockingEnricher or BlockingFunction",
                self._name,
                sum(self._looks),
                len(self._looks),
                places,
            )


def _frames(innermost: FrameType | None, lane: CodeType) -> list[FrameType]:
    """If a lane has called a user's function: the innermost frame, and the frame of that function if it is another."""
    # Not every frame outside of our files is the user's: the loop itself is library code. Only what a lane has called
    # counts.
    frame, user = innermost, None
    while frame is not None and frame.f_code is not lane:
        if not frame.f_code.co_filename.startswith(_OURS):
            user = frame
        frame = frame.f_back
    if frame is None or user is None or innermost is None or _is_called_by_us(user):
        return []
    return [innermost] if innermost is user else [innermost, user]


def _is_called_by_us(outermost: FrameType) -> bool:
    """Whether the outermost frame outside of our files is a library that our files call, and no function of a user."""
    package = str(outermost.f_globals.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


calls_logger = logging.getLogger("asyncio_operator.calls")

IDLE: Any = object()

present_run: ContextVar[object] = ContextVar("present_run")
"""The mark of the lanes in which the present code runs: that of a call, or of a task or timer that a call has started,
because these have a copy of its context."""


class Lane:
    """One place for a call.

    Attributes:
        started: when the present call started.
        limit: seconds that it may take; infinity for no limit.
        due: the time for which its timer is set.
        watched: whether its limit is watched, by a timer if there is a limit.
        context: that of its task.
        first_context: a copy of it, from before the first call.
        apart: whether the context of its task has changed; see `contexts`.
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
        self.context: Context
        self.first_context: Context
        self.apart = False
        self.slot: Any = IDLE
        self.started = 0.0
        self.limit = limit
        self.due = inf
        # As if it had a timer, so that no call of a lane without a limit sets one.
        self.watched = limit == inf
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


async def wait_for_calls(lanes: Mapping[Lane, None], grace_period: float) -> asyncio.CancelledError | None:
    """Wait until the lanes have ended and left the mapping. Those that are left after the grace period (seconds) are
    logged.

    A cancellation does not end the wait. It is returned.
    """
    running = {lane.task for lane in lanes}
    loop = asyncio.get_running_loop()
    ends, left = loop.time() + grace_period, grace_period
    interrupted: asyncio.CancelledError | None = None
    while running:
        try:
            _, running = await asyncio.wait(running, timeout=left)
        except asyncio.CancelledError as error:
            interrupted = error
            running = {task for task in running if not task.done()}
        left = ends - loop.time()
        if left <= 0:
            break
    for lane in lanes:
        if lane.task in running:
            calls_logger.error(
                "%s ignored its cancellation for the grace period of %.1f s and is left behind",
                "the input" if lane.slot is IDLE else f"a call for element {describe(lane.window.value_of(lane.slot))}",
                grace_period,
            )
    return interrupted


LAST_TURNS = 10
"""Turns of the loop that a late call is given to finish without waiting. A result that has arrived takes one turn to
reach the coroutine, and one or two more for each task it has been wrapped in."""


class Timeouts:
    """Finds the late calls of lanes.

    Args:
        over: whether the run has ended, and no call is late any more.
        passed: called with the lanes whose calls are late.
    """

    def __init__(self, timers: Timers, over: Callable[[], bool], passed: Callable[[list[Lane]], None]) -> None:
        self._timers = timers
        self._over = over
        self._passed = passed
        # Those that were late when the timers rang, with their calls, until they get their first turn.
        self._late: list[tuple[Lane, Any, Any, float]] = []

    def watch(self, lane: Lane) -> None:
        """Watch the call that the lane has just started, or that has got a new limit.

        A lane whose timer is set for an earlier time keeps that time, and is looked at again then.
        """
        due = lane.started + lane.limit
        # The early time is right for the look, and moving the timer for every call would cost as much as a new one.
        if lane.watched:
            if due >= lane.due:
                return
            self._timers.delete(lane.due, self._look, lane)
        lane.watched = True
        lane.due = due
        if due < inf:
            self._timers.set(due, self._look, lane)

    def forget(self, lane: Lane) -> None:
        """The lane gets another limit: its next call sets a timer of its own."""
        self._timers.delete(lane.due, self._look, lane)
        lane.watched, lane.due = False, inf

    def _look(self, lane: Lane, now: float) -> None:
        lane.watched = False
        if not lane.busy or self._over():
            return
        if lane.started + lane.limit > now:
            self.watch(lane)
            return
        if not self._late:
            self._timers.loop.call_soon(self._first_turn)
        self._late.append((lane, lane.window, lane.slot, lane.started))

    def _first_turn(self) -> None:
        late, self._late = self._late, []
        self._last_turn(late, LAST_TURNS)

    def _last_turn(self, late: list[tuple[Lane, Any, Any, float]], turns: int) -> None:
        # A lane whose call has ended meanwhile may be in another one, which is not late.
        late = [call for call in late if call == (call[0], call[0].window, call[0].slot, call[0].started)]
        if self._over() or not late:
            return
        if turns:
            self._timers.loop.call_soon(self._last_turn, late, turns - 1)
        else:
            self._passed([lane for lane, *_ in late])


logger = logging.getLogger("asyncio_operator")

FAILED = "failed"


class Lanes:
    """Runs `invoke` for what `intake` hands out, a limited number of calls at a time.

    Args:
        options: `capacity` is how many calls run at a time, at first if it is adaptive. `timeout` and `attempt_timeout`
            are what a call may take where its window does not `begin` it. `grace_period` is how long the end waits for
            calls that ignore their cancellation.
        timers: of the run. Who has made them closes them.
        name: of what is called, for messages.
        context: that of its calls; None: the present one.

    Attributes:
        direct: seconds of the calls that gave their element its outcome at once, in a window of final results.
        latency: seconds of the other calls.
    """

    def __init__(
        self,
        invoke: Callable[[Any], Awaitable[Any]],
        intake: Intake,
        options: CallOptions,
        *,
        timers: Timers,
        name: str,
        context: Context | None = None,
    ) -> None:
        self.latency = Histogram()
        self.direct = Histogram()
        self.failed = False
        self._failure: BaseException | None = None
        self._invoke = invoke
        self._intake = intake
        self._capacity = calls_at_first(options.capacity)
        self._timeout = min(options.timeout or inf, options.attempt_timeout or inf)
        self._clock = timers.clock
        self._grace_period = options.grace_period
        self._name = name
        self._loop = timers.loop
        self._context = context or copy_context()
        self._doubtful = doubtful_values(self._context)
        self._finished = RunEnd(self._loop, self._cancelled)
        # In starting order; cancelled in the same order. A dict, because any of them may end.
        self._lanes: dict[Lane, None] = {}
        self._late: set[Lane] = set()
        self._idle: list[asyncio.Future[bool]] = []
        self._leaving = 0
        self._turn = Turn(self._loop)
        self._seeking = False
        self._drained = False
        self._stopping = False
        self._mark = object()
        timers.fail = self.fail
        self._timeouts = Timeouts(timers, self._is_over, self._pass_limits)
        self._held_up = timers.reminder(self._report_held_up)

    @property
    def in_flight(self) -> int:
        """Calls that are running now, also late ones that have not returned."""
        # A copy, because another thread may ask.
        return sum(lane.slot is not IDLE for lane in list(self._lanes))

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the lanes."""
        return [lane.task for lane in self._lanes]

    def resize(self, capacity: int) -> None:
        """From now on, start a call only while fewer than `capacity` are running."""
        if capacity == self._capacity or self._stopping:
            return
        self._capacity = capacity
        while self._idle and self._surplus():
            self._leaving += 1
            self._idle.pop().set_result(False)
        if not self._seeking:
            self._appoint()

    def _surplus(self) -> bool:
        return len(self._lanes) - self._leaving > self._capacity

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
            interrupted = await wait_for_calls(self._lanes, self._grace_period)
            self._fold()
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

    def when_cut_short(self, call: Callable[[bool], object]) -> None:
        """Call it in the turn after the run has failed, with True, or was cancelled, with False. Its calls may take
        longer to end."""
        self._finished.add_done_callback(lambda end: call(self.failed) if self.failed or end.cancelled() else None)

    def _cancelled(self) -> None:
        """The task that waits for the end is cancelled here and now: by its own caller, or by what a call has started.

        All tasks of the loop may be cancelled in this very turn, as at its end. The lanes among them would take that
        for failed calls, and start the next ones before that task is awake.
        """
        if present_run.get(None) is self._mark and not self._stopping:
            here = asyncio.current_task(self._loop)
            calls = [lane for lane in self._lanes if lane.task is here and lane.busy]
            elements = [describe(lane.window.value_of(lane.slot)) for lane in calls]
            self.fail(stray_cancellation(f"{self._name} cancelled tasks that are not its own", *elements))
        self.stop()

    def cut(self, slot: Any) -> None:
        """Cancel the call for this slot, as if it were late."""
        for lane in [lane for lane in self._lanes if lane.busy and lane.slot is slot]:
            self._cut(lane)

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
            while (window := await self._seek(lane, appointed)) is not None:
                appointed = False
                lane.window = window
                await self._work(lane, window)
                if self._surplus():
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

    async def _seek(self, lane: Lane, appointed: bool) -> Window | None:
        """Wait for one's turn to be the seeker, and then for work."""
        if self._seeking and not appointed and not self._drained:
            turn: asyncio.Future[bool] = self._loop.create_future()
            self._idle.append(turn)
            if not await turn:
                self._leaving -= 1
                return None
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
                    turn.set_result(True)
        return window

    async def _work(self, lane: Lane, window: Window) -> None:
        # Local variables, because these lines run for every call, and an attribute takes several times as long to read.
        complete, results, instant, begin = window.complete, window.results, window.instant, window.begin
        clock, invoke, watch, doubtful = self._clock, self._invoke, self._timeouts.watch, self._doubtful
        record, ended = (self.direct if window.final else self.latency).samples.append, window.ended
        cancelling = lane.task.cancelling
        context, first_context, apart = lane.context, lane.first_context, lane.apart
        if apart:
            # Each call has a copy of its own, so nothing that it sets comes here, and there is nothing to compare.
            own = OwnContexts(first_context, invoke, complete, begin)
            begin = None if begin is None else own.begin
            invoke, complete, context, doubtful = own.invoke, own.complete, first_context, ()
        window.working += 1
        if begin is None and lane.limit != self._timeout:
            self._timeouts.forget(lane)
            lane.limit = self._timeout
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
                # It may have said which call it is, in the context. That is no change by the call.
                first_context = copy_context()
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
            elif lane.apart is apart:
                # Its duration was counted when it was cut.
                continue
            else:
                break
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
            self._fold()
        if len(self._lanes) > self._capacity or (now == started and not self._turn.stands()):
            return -inf
        return -inf if self._intake.is_urgent(now) else self._turn.ends(now)

    def _fold(self) -> None:
        self.latency.fold()
        self.direct.fold()

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
        if self._idle:
            self._seeking = True
            self._idle.pop().set_result(True)
        elif len(self._lanes) < self._capacity and not self._drained:
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
        lane.window.failed(lane.slot, error, lane.started)
        if self._stopping:
            # The run has ended, perhaps by this error: law O18, the lane starts no other call.
            raise asyncio.CancelledError
        return FAILED

    # -- deadlines

    def _is_over(self) -> bool:
        return self._stopping or self._finished.done()

    def _pass_limits(self, late: list[Lane]) -> None:
        """The calls of these lanes are past their limits."""
        for lane in late:
            if lane.expired:
                # Cut while it had its last turns, or with the call of a lane before it.
                continue
            limit: float | None = None
            try:
                limit = lane.window.timed_out(lane.slot, lane.started)
            except BaseException as error:
                self._cut(lane)
                self.fail(error)
                return
            if limit is None:
                self._cut(lane)
            else:
                lane.limit = limit
                self._timeouts.watch(lane)
        self._check_finished()

    def _cut(self, lane: Lane) -> None:
        lane.expired = True
        self._late.add(lane)
        # Now, and not when it returns: a call that never returns would not be counted.
        self.latency.add(self._clock() - lane.started)
        lane.task.cancel()
        # Its window does not wait for it.
        self._leave(lane.window)
        if len(self._late) >= self._capacity:
            self._held_up.set(self._clock() + self._grace_period)

    def _report_held_up(self) -> None:
        """Log why no call starts: late calls hold every place, and no one knows for how long."""
        held = [describe(lane.window.value_of(lane.slot)) for lane in self._late]
        if len(held) >= self._capacity:
            logger.error("calls that ignore their cancellation hold all places; one of them is for element %s", held[0])

    def _call_ended_late(self, lane: Lane, error: BaseException | None) -> None:
        if not isinstance(error, asyncio.CancelledError) and lane in self._late:
            logger.warning(
                "a call ignored its cancellation, held its place in the capacity for %.3f s after it "
                "started, and its outcome is dropped; element: %s",
                self._clock() - lane.started,
                describe(lane.window.value_of(lane.slot)),
            )
        if self._stopping:
            lane.window.returned(lane.slot, error)
            raise asyncio.CancelledError
        lane.expired = False
        self._late.discard(lane)
        lane.task.uncancel()  # that of `_cut`; others are absorbed
        lane.window.working += 1
        lane.window.returned(lane.slot, error)

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
        self._held_up.cancel()
        self._intake.stop()
        for lane in [lane for lane in self._lanes if lane not in self._late]:
            lane.expired = True
            lane.task.cancel()
