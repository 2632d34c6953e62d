"""One run of the operator: admission at one end, emission at the other, and the lanes between them.

Admission takes an element from the input into the queue when there is room, and hands it to a lane (`intake`; with
`engine.attempts` where more than one call may be needed). An outcome completes the entry (`outcomes`); emission takes
completed entries out in the order that the queue decides. Law: an admitted element ends in exactly one of result,
timeout result, skipped, or failure of the run; once a run has failed nothing is emitted. No Spark, no threads.
Law: once a run has begun, its function is closed exactly once, however the run ends. Each closing has a limited time;
code that ignores its cancellation is logged and no longer awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator.elements import OperatorSnapshot, Record, Watermark
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.failures import stray_run
from asyncio_operator.engine.gate import Limited, Parts
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.options import Called
from asyncio_operator.engine.recorder import recorder_of
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import End, clock_of, close_within, error_of, start_task, wait_through, wake
from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.figures import OperatorStatistics
from asyncio_operator.function import AsyncFunction, BatchAsyncFunction
from asyncio_operator.operator.intake import ElementSource
from asyncio_operator.operator.options import OperatorTimers, RunOptions
from asyncio_operator.operator.outcomes import Buffer, Outcomes
from asyncio_operator.policies.rate_limit import ProcessWindow
from asyncio_operator.policies.shutdown import FINAL_WAIT, longest_end
from asyncio_operator.queues.base import StreamElementQueue
from asyncio_operator.quota.usage import overridden
from asyncio_operator.telemetry.calls import observed

if TYPE_CHECKING:
    from asyncio_operator.loop.channels import FromLoop
    from asyncio_operator.operator.cached_results import CachedOutcomes, ResultCache
    from asyncio_operator.quota.share import Reservation

logger = logging.getLogger("asyncio_operator.calls")

AT_ONCE: Final = 50
"""Timers that fire before the loop turns. By law T10 callbacks that return at once keep it for 10 ms at most, so each
of them may take 200 microseconds."""


class Firing:
    """The timers of a run: watermarks fire them, and what their callbacks collect waits here until it leaves.

    Law T9: a watermark that is about to leave fires the timers that it has reached. What their callbacks collect leaves
    before it. The end of the input fires nothing. A callback may collect at any other time too, as one of a
    `ProcessingTimeDriver` does; its records leave at once. Until `end`, the timers belong to the run.

    Args:
        collected: records of an earlier run that have not left yet.
        news: called when a record was collected.

    Raises:
        StateError: the timers belong to another run.
    """

    def __init__(self, timers: OperatorTimers, collected: Iterable[Record[Any]], news: Callable[[], object]) -> None:
        self.collected = deque(collected)  # Records that have not left yet, in their order.
        self._timers = timers
        self._news = news
        self._ended = False
        # As for the hooks of elements (law O17), but one for all callbacks: they belong to no element.
        self._context = copy_context()
        timers.collect_into(self._collect)

    def _collect(self, record: Record[Any]) -> None:
        self.collected.append(record)
        self._news()

    def fire(self, timestamp: int, fail: Callable[[BaseException], object]) -> bool | None:
        """Fire some of the timers that a watermark has reached. Returns whether there are more of them; None: a
        callback has raised an error, which `fail` got."""
        try:
            return self._context.run(self._timers.advance_watermark, timestamp, AT_ONCE)
        except BaseException as error:
            error.add_note(f"A timer of {describe(self._timers)} raised this when watermark {timestamp} fired it.")
            fail(error)
            return None

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._timers.collect_into(None)


class Run:
    """A run over one input. It begins when it is made, on the running loop.

    Args:
        function: opened before the first call, and closed after the last.
        queue: holds the elements that are admitted and not yet emitted; its capacity is the operator's buffer.
        cache: keeps results.
        window: of the rate limit.
        restore: its elements go in before the input.
        consumer: knows how many outputs it has not taken yet; None if it takes each output when it is yielded.
        on_demand: an element is inside until the consumer asks for the output after its last one.
    """

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        queue: StreamElementQueue,
        cache: ResultCache | None,
        window: ProcessWindow,
        elements: Input,
        options: RunOptions,
        restore: OperatorSnapshot,
        consumer: FromLoop | None,
        on_demand: bool,
    ) -> None:
        self.on_demand = on_demand
        self.options = options
        self.abandoned = False  # Whether the consumer wants no more outputs.
        self.loop = asyncio.get_running_loop()
        self.consumer = consumer
        # Elements, and records of timers, that were yielded and perhaps not taken, each with the attempts it has used.
        self.latest: deque[tuple[Any, int]] = deque(maxlen=0 if consumer is None else consumer.limit)
        self.partly = 0
        self.now = now = clock_of(self.loop)
        self._timers = timers = Timers(now)
        many = isinstance(function, BatchAsyncFunction)
        self._name = name = describe(function)
        invoke = observed(getattr(function, "invoke_batch" if many else "invoke"), name, many=many)
        self._reader = reader = Reader(elements)
        self.buffer = buffer = Buffer(queue, now)
        self.outcomes = outcomes = Outcomes(options, function.timeout, buffer)
        self._recorder = recorder = recorder_of(options.trace, now())
        weigh = overridden(function.weigh, AsyncFunction.weigh)
        self._allowance: Reservation | None = None
        if options.budget is not None:
            # Imported here: few runs have a budget, and it loads all that decides about one.
            from asyncio_operator.quota.share import own_allowance

            self._allowance = own_allowance(options.budget, name, weigh)
        called = Called(invoke=invoke, name=name, weigh=weigh)
        limited = Limited(breaker_clock=options.clock, allowance=self._allowance, limiter=window.by(now))
        parts = Parts(options, called, limited, timers, recorder, outcomes.figures)
        cached: CachedOutcomes | None = None
        if cache is not None:
            cached = cache.begin(function, outcomes, parts)
        self._function = cached or function
        self.source = ElementSource(parts, reader, outcomes, restore.elements, cached)
        self.lanes = self.source.attempts.lanes
        self._closing = False
        self._stranded = False
        self._failure: BaseException | None = None
        self._phase = "opening the function"
        self._last_tasks: list[End] = []
        self.firing: Firing | None = None
        if options.timers is not None:  # Last: a run that is refused must not keep them.
            self.firing = Firing(options.timers, restore.collected, lambda: wake(buffer.ready))
        # Ends when every call has ended and the function is closed; see `_live` for its result.
        self.task: End = start_task(self._live())
        self.task.add_done_callback(lambda _: wake(buffer.ready))

    async def _live(self) -> BaseException | None:
        """Open, run, close. Returns the first error; an error of `close` becomes a note on it.

        It returns the error, and does not raise it: ``SystemExit`` would pass through the loop, and a
        ``CancelledError`` of the input or of the function would look like a run without a failure.
        """
        failure: BaseException | None = None
        try:
            await self._function.open()
            if not self.abandoned:
                self._phase = "a call"
                await self.lanes.run()
        except BaseException as error:
            failure = error
        self._closing = True
        self._timers.close()
        for what, closing in await self._close():
            if failure is None or (self.abandoned and isinstance(failure, asyncio.CancelledError)):
                failure = closing
            else:
                failure.add_note(f"closing {what} failed too: {describe_error(closing)}")
        return failure

    async def _close(self) -> list[tuple[str, BaseException]]:
        """End the reading of the input and close the function, once each, even if this task is cancelled.

        Returns:
            the names of those that failed to close, with their errors.
        """
        self._recorder.ended(self._timers.clock())
        if not self.loop.is_running():
            # The loop is gone, and this coroutine is thrown away: `close` gets the one step that is left.
            closing_step = error_of(self._function.close)
            with contextlib.suppress(StopIteration):
                closing_step.send(None)
            closing_step.close()
            return []
        # Each in a task of its own: a cancellation of this one must not cut a clean-up in the middle.
        grace = self.options.grace_period
        self._phase = "closing the input"
        reading = start_task(error_of(lambda: self._reader.close(grace)))
        self._last_tasks.append(reading)
        interrupted = await wait_through([reading], grace + FINAL_WAIT)
        self._phase = "closing the function"
        remedy = "; raise grace_period, or close faster"
        closed = await close_within(
            "the function",
            self._function.close,
            grace,
            limit="grace_period=",
            remedy=remedy,
            tasks=self._last_tasks,
        )
        errors = {"the input": reading.result() if reading.done() else None}
        if not reading.done():
            logger.error("closing the input ignores its cancellation, and is left behind")
        errors["the function"] = interrupted if closed is None else closed
        return [(what, error) for what, error in errors.items() if error is not None]

    def strand(self) -> bool:
        """Whether the loop was closed before the run had ended. Then no task of it can go on, and the run is over.

        It is logged once, here. asyncio would log every task by itself, and would not name the run.
        """
        if self.task.done() or not self.loop.is_closed():
            return False
        if not self._stranded:
            self._stranded = True
            logger.warning(
                "the event loop was closed while a run of %s was open: its calls are dropped, and the function may not "
                "have been closed; end a run before its loop, as asyncio.run does",
                self._name,
            )
            for task in (self.task, self._reader.reading, *self.lanes.tasks(), *self._last_tasks):
                if task is None:
                    continue
                # asyncio.gather uses this switch too, to give up a task without a message.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                step: Any = task.get_coro()
                if inspect.getcoroutinestate(step) == inspect.CORO_CREATED:
                    step.close()
            if self.firing is not None:
                self.firing.end()
        return True

    def fail(self, error: BaseException) -> None:
        """End the run with an error that no call has raised, also if the last call has ended already."""
        self._failure = error
        self.lanes.fail(error)

    async def end(self) -> None:
        """Cancel what runs, wait until it has ended and the budget knows what its calls used, and raise the error with
        which the run failed."""
        try:
            await self._end()
        finally:
            if self.firing is not None:
                self.firing.end()
            if self._allowance is not None and asyncio.get_running_loop() is self.loop:
                await self._allowance.settled()

    async def _end(self) -> None:
        task = self.task
        if self.loop.is_closed():
            return
        if self.loop is not asyncio.get_running_loop() and not task.done():
            # Nothing on this loop can wait for it.
            self.loop.call_soon_threadsafe(task.cancel)
            return
        if not task.done():
            self.abandoned = True
            self.lanes.stop()
            if not self._closing:
                task.cancel()
            # A task that ignores its cancellation longer than this is left behind. If the consumer is cancelled again,
            # it waits no longer, and the run ends without it.
            await asyncio.wait([task], timeout=longest_end(self.options.grace_period))
        if not task.done():
            logger.error(
                "a run did not end within %.1f s: %s ignores its cancellation; it is no longer waited for",
                longest_end(self.options.grace_period),
                self._phase,
            )
            return
        failure = asyncio.CancelledError() if task.cancelled() else task.result()
        if isinstance(failure, asyncio.CancelledError) and task.cancelling() and not self.abandoned:
            failure = stray_run(self._name)
        if self._failure is not None and failure is not self._failure:
            if failure is not None:
                self._failure.add_note(f"the end of the run failed too: {describe_error(failure)}")
            failure = self._failure
        if failure is not None and not (self.abandoned and isinstance(failure, asyncio.CancelledError)):
            raise failure

    def snapshot(self) -> OperatorSnapshot:
        """The elements that were admitted or read ahead, and not handed over. Called on the run's loop only."""
        source, firing = self.source, self.firing
        inside = [(entry.element, source.attempts_of(entry)) for entry in self.buffer.queue.entries()]
        elements, collected = self._on_their_way()
        waiting = () if firing is None else firing.collected
        read = [(element, 0) for element in source.reader.input.read_ahead()]
        return OperatorSnapshot((*elements, *inside, *source.to_come, *read), (*collected, *waiting))

    def _on_their_way(self) -> tuple[list[tuple[Any, int]], list[Record[Any]]]:
        """What was emitted and not taken by the consumer yet: elements, each with the attempts that it has used, and
        records that timers have collected."""
        missing = 0 if self.consumer is None else self.consumer.waiting() - self.partly
        elements: list[tuple[Any, int]] = []
        collected: list[Record[Any]] = []
        # A copy, because the figures are read from other threads.
        for entry, attempts in reversed(self.latest.copy()):
            if missing <= 0:
                break
            if type(entry) is Record:
                collected.append(entry)
                missing -= 1
                continue
            elements.append((entry.element, attempts))
            missing -= 1 if type(entry.element) is Watermark else len(entry.outputs or ())
        return elements[::-1], collected[::-1]

    def statistics(self) -> OperatorStatistics:
        buffer = self.buffer
        on_their_way = sum(type(element) is not Watermark for element, _ in self._on_their_way()[0])
        emitted = max(0, buffer.emitted - on_their_way)
        return self.source.attempts.counted().statistics(
            OperatorStatistics,
            admitted=buffer.admitted,
            emitted=emitted,
            in_flight=self.lanes.in_flight,
            buffered=buffer.admitted - emitted,
            backing_off=self.source.attempts.backing_off,
            backpressure_seconds=buffer.backpressure(),
        )

    def collected(self) -> Iterator[Record[Any]]:
        """Records that timers have collected, as long as the run has not failed."""
        while self.firing is not None and self.firing.collected and not self.lanes.failed:
            record = self.firing.collected.popleft()
            if self.consumer is not None:
                self.latest.append((record, 0))
            yield record


async def outputs_of(begin: Callable[[], Run], cut: Callable[[], None]) -> AsyncGenerator[Any, None]:
    """The outputs of a run, in the order of its queue. Ends when every call has ended and the function is closed.

    Args:
        begin: makes the run, in the first step.
        cut: called when the consumer is cancelled while it waits, which ends the run.
    """
    run = begin()
    lanes, buffer, source, queue = run.lanes, run.buffer, run.source, run.buffer.queue
    flatten, on_demand, firing = run.options.flatten, run.on_demand, run.firing
    flights, traced = source.flights, run.options.trace is not None
    # A flattened input stays inside until its last output is handed over, and a watermark until what it fires is.
    stays = flatten or firing is not None
    take = queue.peek_completed if stays or on_demand else queue.poll_completed
    latest = None if run.consumer is None else run.latest
    try:
        while True:
            while not lanes.failed and (entry := take()) is not None:
                element, outputs = entry.element, entry.outputs or ()
                kind = type(element)
                if stays:
                    due: bool | None = firing is not None and kind is Watermark
                    while firing is not None and not lanes.failed and (due or firing.collected):
                        for record in run.collected():
                            yield record
                        if due and not lanes.failed and (due := firing.fire(element.timestamp, run.fail)) is None:
                            await asyncio.wait([run.task])
                            return
                        if due:
                            await asyncio.sleep(0)
                    for output in outputs[:-1] if flatten else ():
                        # The element is still in the queue, so a snapshot must not take its outputs in transit for
                        # those of an earlier one.
                        run.partly += 1
                        yield Record(output, element.timestamp) if kind is Record else output
                        if lanes.failed:
                            break
                    if lanes.failed:
                        break
                    run.partly = 0
                    if not on_demand:
                        queue.poll_completed()
                # Before the yield: admission goes on while the consumer works on this output.
                if buffer.room is not None and not on_demand:
                    wake(buffer.room)
                if latest is not None and (outputs or kind is Watermark):
                    latest.append((entry, source.attempts_of(entry) if flights else 0))
                if flights or traced:
                    source.emitted(entry, run.now())
                if kind is Watermark:
                    yield element
                else:
                    buffer.emitted += 1
                    if outputs:
                        yield Record(outputs[-1], element.timestamp) if kind is Record else outputs[-1]
                if on_demand:
                    queue.poll_completed()
                    wake(buffer.room)
            if firing is not None and firing.collected and not lanes.failed:
                for record in run.collected():
                    yield record
                continue
            if run.task.done():
                return
            if asyncio.get_running_loop() is not run.loop:
                raise StateError(
                    "the run began on another event loop, to which it belongs; read its outputs there, or begin a run "
                    "with operator.process(...) in each loop"
                )
            # No await came since the queue was empty, so no completion can have been missed.
            ready = buffer.ready = run.loop.create_future()
            await ready
    except asyncio.CancelledError:
        # The consumer was cancelled, not the run: law O8, the next step has to say so.
        run.abandoned = True
        cut()
        raise
    except GeneratorExit:
        run.abandoned = True
        raise
    finally:
        # The traceback of a failure keeps this frame, and must not keep the last element with it.
        entry = element = output = None
        outputs = ()
        await run.end()
