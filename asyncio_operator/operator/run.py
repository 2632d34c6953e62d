"""One run of the operator: admission at one end, emission at the other, and the lanes between them.

Admission takes an element from the input into the queue when there is room, and hands it to a lane (`intake`; with
`engine.attempts` where more than one call may be needed). An outcome completes the entry (`outcomes`); emission takes
completed entries out in the order that the queue decides. Law: an admitted element ends in exactly one of result,
timeout result, skipped, or failure of the run; once a run has failed nothing is emitted. It knows no Spark, and no
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from asyncio_operator.elements import OperatorSnapshot, Record, Watermark
from asyncio_operator.engine.attempts import Attempts
from asyncio_operator.engine.contracts import Consumer, Input
from asyncio_operator.engine.failures import stray_run
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.recorder import SILENT, recorder_of
from asyncio_operator.engine.timing import clock_of, drop, error_of, start_task, wait_through, wake
from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.function import AsyncFunction
from asyncio_operator.metrics import OperatorStatistics
from asyncio_operator.operator.buffer import Buffer
from asyncio_operator.operator.intake import ElementIntake, ElementSource
from asyncio_operator.operator.options import RunOptions
from asyncio_operator.operator.outcomes import Outcomes
from asyncio_operator.policies.shutdown import FINAL_WAIT, longest_end
from asyncio_operator.queues.base import Entry, StreamElementQueue

logger = logging.getLogger("asyncio_operator")


class Run:
    """A run over one input; it starts with the first step of `outputs`, on the loop that makes this step.

    Args:
        function: opened before the first call, and closed after the last.
        invoke: called with a value, or with a list of values.
        queue: holds the elements that are admitted and not yet emitted; its capacity is the operator's buffer.
        restore: its elements go in before the input.
        starting: called with the run when it starts; an error that it raises prevents the start.
        consumer: knows how many outputs it has not taken yet; None if it takes each output when it is yielded.
    """

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        invoke: Callable[[Any], Any],
        queue: StreamElementQueue,
        elements: Input,
        options: RunOptions,
        restore: OperatorSnapshot | None,
        starting: Callable[[Run], None],
        consumer: Consumer | None = None,
    ) -> None:
        self._function = function
        self._invoke = invoke
        self._queue = queue
        self._elements = elements
        self._options = options
        self._restored: Sequence[tuple[Any, int]] = () if restore is None else restore.elements
        self._starting: Callable[[Run], None] | None = starting
        self._consumer = consumer
        self._latest: deque[tuple[Entry, int]] = deque(maxlen=0 if consumer is None else consumer.limit)
        self._partly = 0
        self._closing = False
        self._abandoned = False
        self._reader: Reader
        self._buffer: Buffer
        self._outcomes: Outcomes
        self._lanes: Lanes
        self._source: ElementSource | None = None
        self._attempts: Attempts | None = None
        self._recorder = SILENT
        self._life: asyncio.Task[BaseException | None] | None = None
        self._last_tasks: list[asyncio.Task[BaseException | None]] = []
        self._dead = False
        self._phase = "opening the function"

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        options = self._options
        starting, self._starting = self._starting, None
        assert starting is not None
        starting(self)
        now = self._now = clock_of(loop)
        reader = self._reader = Reader(self._elements)
        buffer = self._buffer = Buffer(self._queue, now)
        outcomes = self._outcomes = Outcomes(options, self._function.timeout, buffer)
        restored, self._restored = self._restored, ()
        if options.managed or restored:
            recorder = self._recorder = recorder_of(options.trace, now())
            source = self._source = ElementSource(buffer, reader, restored, recorder)
            attempts = self._attempts = Attempts(
                source,
                reader,
                outcomes,
                options,
                self._invoke,
                name=describe(self._function),
                clock=now,
                recorder=recorder,
                keys=source.keyed,
                breaker_clock=options.clock,
            )
            self._lanes = attempts.lanes
        else:
            intake = ElementIntake(buffer, reader, outcomes)
            self._lanes = Lanes(self._invoke, intake, options, clock=now, name=describe(self._function))
        self._life = start_task(self._live())
        self._life.add_done_callback(lambda _: wake(buffer.ready))

    @property
    def begun(self) -> bool:
        """Whether its first step was made."""
        return self._starting is None

    def done(self) -> bool:
        """Whether every call has ended and the function is closed."""
        return self._dead if self._life is None else self._life.done()

    def strand(self) -> bool:
        """Whether the loop was closed before the run had ended. Then no task of it can go on, and the run is over.

        It is logged once, here. asyncio would log every task by itself, and would not name the run.
        """
        life = self._life
        if life is None or life.done() or not life.get_loop().is_closed():
            return False
        if not self._dead:
            self._dead = True
            logger.warning(
                "the event loop was closed while a run of %s was open: its calls are dropped, and the function may not "
                "have been closed; end a run before its loop, as asyncio.run does",
                describe(self._function),
            )
            for task in (life, self._reader.reading, *self._lanes.tasks(), *self._last_tasks):
                if task is not None:
                    drop(task)
        return True

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that it runs on, once it has started."""
        return None if self._life is None else self._life.get_loop()

    def snapshot(self) -> OperatorSnapshot:
        """The elements that were admitted or read ahead, and not handed over. Called on the run's loop only."""
        source = self._source
        attempts_of = _none_used if source is None else source.attempts_of
        inside = [(entry.element, attempts_of(entry)) for entry in self._queue.entries()]
        to_come = [(element, 0) for element in self._reader.to_come()] if source is None else source.to_come()
        return OperatorSnapshot((*self._on_their_way(), *inside, *to_come))

    def _on_their_way(self) -> list[tuple[Any, int]]:
        """Emitted elements whose outputs the consumer has not taken yet, each with the attempts that it has used."""
        missing = 0 if self._consumer is None else self._consumer.waiting() - self._partly
        elements: list[tuple[Any, int]] = []
        # A copy, because the figures are read from other threads.
        for entry, attempts in reversed(self._latest.copy()):
            if missing <= 0:
                break
            elements.append((entry.element, attempts))
            missing -= 1 if type(entry.element) is Watermark else len(entry.outputs or ())
        return elements[::-1]

    def statistics(self) -> OperatorStatistics:
        if self._life is None:
            return OperatorStatistics()
        buffer, outcomes, managed = self._buffer, self._outcomes, self._attempts
        on_their_way = sum(type(element) is not Watermark for element, _ in self._on_their_way())
        emitted = max(0, buffer.emitted - on_their_way)
        attempts = latency = self._lanes.latency.percentiles()
        retries = backing_off = 0
        if managed is not None:
            latency = managed.latency.percentiles()
            retries, backing_off = managed.retries, managed.backing_off
        return OperatorStatistics(
            admitted=buffer.admitted,
            emitted=emitted,
            in_flight=self._lanes.in_flight,
            buffered=buffer.admitted - emitted,
            backing_off=backing_off,
            retries=retries,
            timeouts=outcomes.timeouts,
            failures=outcomes.failures,
            skipped=outcomes.skipped,
            backpressure_seconds=buffer.backpressure(),
            latency=latency,
            attempt_latency=attempts,
        )

    # -- the life of the run

    async def _live(self) -> BaseException | None:
        """Open, run, close. Returns the first error; an error of `close` becomes a note on it.

        It returns the error, and does not raise it: ``SystemExit`` would pass through the loop, and a
        ``CancelledError`` of the input or of the function would look like a run without a failure.
        """
        failure: BaseException | None = None
        try:
            await self._function.open()
            if not self._abandoned:
                self._phase = "a call"
                await self._lanes.run()
        except BaseException as error:
            failure = error
        self._closing = True
        for what, closing in await self._close():
            if failure is None or (self._abandoned and isinstance(failure, asyncio.CancelledError)):
                failure = closing
            else:
                failure.add_note(f"closing {what} failed too: {describe_error(closing)}")
        return failure

    async def _close(self) -> list[tuple[str, BaseException]]:
        """End the reading of the input and close the function, once each, even if this task is cancelled.

        Returns:
            the names of those that failed to close, with their errors.
        """
        self._recorder.ended(self._now())
        loop = self.loop
        if loop is None or not loop.is_running():
            # The loop is gone, and this coroutine is thrown away: `close` gets the one step that is left.
            closing_step = error_of(self._function.close)
            with contextlib.suppress(StopIteration):
                closing_step.send(None)
            closing_step.close()
            return []
        # Each in a task of its own: a cancellation of this one must not cut a clean-up in the middle.
        grace = self._options.grace_period
        self._phase = "closing the input"
        reading = start_task(error_of(lambda: self._reader.close(grace)))
        self._last_tasks.append(reading)
        interrupted = await wait_through(reading, grace + FINAL_WAIT)
        self._phase = "closing the function"
        closing = start_task(error_of(self._function.close))
        self._last_tasks.append(closing)
        interrupted = await wait_through(closing, grace) or interrupted
        errors = {"the input": reading.result() if reading.done() else None}
        if not reading.done():
            logger.error("closing the input ignores its cancellation, and is left behind")
        if not closing.done():
            closing.cancel()
            await wait_through(closing, FINAL_WAIT)
            errors["the function"] = TimeoutError(
                f"closing the function took longer than grace_period={grace} s and was cancelled; raise grace_period, "
                "or close faster"
            )
        else:
            error = closing.result()
            errors["the function"] = interrupted if error is None else error
        return [(what, error) for what, error in errors.items() if error is not None]

    async def outputs(self, cut: Callable[[], None]) -> AsyncGenerator[Any, None]:
        """The outputs, in the order of the queue. Ends when every call has ended and the function is closed.

        Args:
            cut: called if the consumer is cancelled while it waits, which ends the run.
        """
        try:
            self._start()
        except BaseException:
            self._dead = True
            raise
        lanes, queue, buffer, flatten = self._lanes, self._queue, self._buffer, self._options.flatten
        # A flattened input stays inside until its last output is handed over.
        take = queue.peek_completed if flatten else queue.poll_completed
        latest = None if self._consumer is None else self._latest
        loop, source = asyncio.get_running_loop(), self._source
        try:
            while True:
                while not lanes.failed and (entry := take()) is not None:
                    element, outputs = entry.element, entry.outputs or ()
                    kind = type(element)
                    if flatten:
                        for output in outputs[:-1]:
                            # The element is still in the queue, so a snapshot must not take its outputs in transit for
                            # those of an earlier one.
                            self._partly += 1
                            yield Record(output, element.timestamp) if kind is Record else output
                            if lanes.failed:
                                break
                        if lanes.failed:
                            break
                        self._partly = 0
                        queue.poll_completed()
                    # Before the yield: admission goes on while the consumer works on this output.
                    if buffer.room is not None:
                        wake(buffer.room)
                    if latest is not None and (outputs or kind is Watermark):
                        latest.append((entry, 0 if source is None else source.attempts_of(entry)))
                    if source is not None:
                        source.emitted(entry, self._now())
                    if kind is Watermark:
                        yield element
                        continue
                    buffer.emitted += 1
                    if outputs:
                        yield Record(outputs[-1], element.timestamp) if kind is Record else outputs[-1]
                if self.done():
                    return
                if asyncio.get_running_loop() is not loop:
                    raise StateError(
                        "the run began on another event loop, to which it belongs; read its outputs there, or begin a "
                        "run with operator.process(...) in each loop"
                    )
                # No await came since the queue was empty, so no completion can have been missed.
                ready = buffer.ready = loop.create_future()
                await ready
        except asyncio.CancelledError:
            # The consumer was cancelled, not the run: law O8, the next step has to say so.
            self._abandoned = True
            cut()
            raise
        except GeneratorExit:
            self._abandoned = True
            raise
        finally:
            # The traceback of a failure keeps this frame, and must not keep the last element with it.
            entry = element = output = None
            outputs = ()
            await self._end()

    async def _end(self) -> None:
        """Cancel what runs, wait for it, and raise the error with which the run failed."""
        life, loop = self._life, self.loop
        if life is None or loop is None or loop.is_closed():
            return
        if loop is not asyncio.get_running_loop() and not life.done():
            # Nothing on this loop can wait for it.
            loop.call_soon_threadsafe(life.cancel)
            return
        if not life.done():
            self._abandoned = True
            self._lanes.stop()
            if not self._closing:
                life.cancel()
            # A task that ignores its cancellation longer than this is left behind. If the consumer is cancelled again,
            # it waits no longer, and the run ends without it.
            await asyncio.wait([life], timeout=longest_end(self._options.grace_period))
        if not life.done():
            logger.error(
                "a run did not end within %.1f s: %s ignores its cancellation; it is no longer waited for",
                longest_end(self._options.grace_period),
                self._phase,
            )
            return
        failure = asyncio.CancelledError() if life.cancelled() else life.result()
        if isinstance(failure, asyncio.CancelledError) and life.cancelling() and not self._abandoned:
            failure = stray_run(describe(self._function))
        if failure is not None and not (self._abandoned and isinstance(failure, asyncio.CancelledError)):
            raise failure


def _none_used(entry: Entry) -> int:
    return 0
