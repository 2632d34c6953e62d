"""One run of the operator: admission on one side, emission on the other, the lanes between them.

Admission takes an element from the input into the queue when there is room, and hands its entry to a lane. An outcome
completes the entry; emission takes completed entries out in the order that the queue decides. Law: an admitted element
ends in exactly one of result, timeout result, skipped, or failure of the run; once a run has failed nothing is emitted.
It knows no Spark, and no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.errors import ElementTimeoutError, FunctionError, ResultError, describe, describe_error
from asyncio_operator.function import AsyncFunction
from asyncio_operator.inputs import Input
from asyncio_operator.lanes import Lanes, clock_of
from asyncio_operator.metrics import OperatorStatistics
from asyncio_operator.queues import Entry, StreamElementQueue

OnError = str | Callable[[Any, BaseException], Any]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What becomes of results, errors and timeouts: the options of the operator of the same names."""

    on_error: OnError = "fail"
    on_timeout: Callable[[Any], Any] | None = None
    timeout: float | None = None
    flatten: bool = False


class Run:
    """A run over one input; it starts with the first step of `outputs`, on the loop that makes this step.

    Args:
        starting: called with the run when it starts; what it raises prevents that.
        function: opened before the first call, and closed after the last.
        queue: holds what is admitted and not yet emitted; its capacity is the operator's buffer.
        capacity: calls at once.
        clock: gives seconds; None for the loop's time.
        grace_period: see `Lanes`; it bounds the function's `close` too.
    """

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        queue: StreamElementQueue,
        elements: Input,
        outcomes: Outcomes,
        starting: Callable[[Run], None],
        *,
        capacity: int,
        clock: Callable[[], float] | None,
        grace_period: float,
    ) -> None:
        self.lanes = 0
        self.instant = elements.instant
        self._function = function
        self._queue = queue
        self._input = elements
        self._outcomes = outcomes
        self._flatten = outcomes.flatten
        self._starting = starting
        self._capacity = capacity
        self._clock = clock
        self._grace_period = grace_period
        self._admission: Iterator[tuple[Entry, Any]] | None = None
        self._admitted = self._emitted = self._timeouts = self._failures = self._skipped = 0
        self._backpressure = 0.0
        self._blocked_since: float | None = None
        self._room: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closing = False
        self._abandoned = False
        self._driver: Lanes
        self._life: asyncio.Task[BaseException | None] | None = None

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = self._clock or clock_of(loop)
        self._driver = Lanes(
            self._function.invoke,
            self,
            capacity=self._capacity,
            timeout=self._outcomes.timeout,
            clock=self._now,
            grace_period=self._grace_period,
        )
        self._starting(self)
        self._life = loop.create_task(self._live())
        self._life.add_done_callback(lambda _: _wake(self._ready))

    def done(self) -> bool:
        """Whether every call has ended and the function is closed."""
        return self._life is not None and self._life.done()

    def statistics(self) -> OperatorStatistics:
        blocked = 0.0 if self._blocked_since is None else self._now() - self._blocked_since
        latency = self._driver.latency.percentiles()
        return OperatorStatistics(
            admitted=self._admitted,
            emitted=self._emitted,
            in_flight=self._driver.in_flight,
            buffered=self._admitted - self._emitted,
            timeouts=self._timeouts,
            failures=self._failures,
            skipped=self._skipped,
            backpressure_seconds=self._backpressure + blocked,
            latency=latency,
            attempt_latency=latency,
        )

    # -- the life of the run

    async def _live(self) -> BaseException | None:
        """Open, run, close; give the first error, with that of `close` as a note on it.

        It raises nothing, because ``SystemExit`` would pass through the loop, and a ``CancelledError`` of the input or
        of the function would look as if nothing had failed.
        """
        failure: BaseException | None = None
        try:
            await self._function.open()
            if not self._abandoned:
                await self._driver.run()
        except BaseException as error:
            failure = error
        self._closing = True
        try:
            await self._close()
        except BaseException as error:
            if failure is None or (self._abandoned and isinstance(failure, asyncio.CancelledError)):
                failure = error
            else:
                failure.add_note(f"closing the function failed too: {describe_error(error)}")
        return failure

    async def _close(self) -> None:
        grace = asyncio.timeout(self._grace_period)
        try:
            async with grace:
                await self._function.close()
        except TimeoutError as error:
            if not grace.expired():
                raise
            raise TimeoutError(
                f"closing the function took longer than grace_period={self._grace_period} s and was cancelled; raise "
                "grace_period, or close faster"
            ) from error

    async def outputs(self) -> AsyncGenerator[Any, None]:
        """The outputs as they may leave; ends when everything has ended and the function is closed."""
        self._start()
        driver, queue, flatten = self._driver, self._queue, self._flatten
        # A flattened input stays inside until its last output is handed over.
        take = queue.peek_completed if flatten else queue.poll_completed
        try:
            while True:
                while not driver.failed and (entry := take()) is not None:
                    element, outputs = entry.element, entry.outputs or ()
                    kind = type(element)
                    if flatten:
                        for output in outputs[:-1]:
                            yield Record(output, element.timestamp) if kind is Record else output
                            if driver.failed:
                                break
                        if driver.failed:
                            break
                        queue.poll_completed()
                    if (room := self._room) is not None:
                        self._room = None
                        _wake(room)
                    if kind is Watermark:
                        yield element
                        continue
                    self._emitted += 1
                    if outputs:
                        yield Record(outputs[-1], element.timestamp) if kind is Record else outputs[-1]
                if self.done():
                    return
                ready = self._ready = asyncio.get_running_loop().create_future()
                await ready
        finally:
            await self._end()

    async def _end(self) -> None:
        """Cancel what runs, wait for it, and raise what the run failed of."""
        life = self._life
        if life is None or life.get_loop().is_closed():
            return
        if not life.done():
            self._abandoned = True
            self._driver.stop()
            if not self._closing:
                life.cancel()
            await asyncio.wait([life])
        failure = asyncio.CancelledError() if life.cancelled() else life.result()
        if failure is not None and not (self._abandoned and isinstance(failure, asyncio.CancelledError)):
            raise failure

    # -- admission: the intake of the lanes

    async def window(self) -> Run | None:
        queue = self._queue
        if len(queue) >= queue.capacity:
            self._blocked_since = self._now()
            try:
                while len(queue) >= queue.capacity:
                    room = self._room = asyncio.get_running_loop().create_future()
                    await room
            finally:
                self._room = None
                self._backpressure += self._now() - self._blocked_since
                self._blocked_since = None
        if not await self._input.ready():
            return None
        if self._admission is None:
            self._admission = self._admit()
        return self

    def __iter__(self) -> Iterator[tuple[Entry, Any]]:
        return self._admission or iter(())

    def _admit(self) -> Iterator[tuple[Entry, Any]]:
        """Elements from the input, put into the queue, as long as there is room and something to read."""
        queue, put = self._queue, self._queue.put
        room = queue.capacity - len(queue)
        for element in self._input:
            kind = type(element)
            if kind is Watermark:
                queue.put_watermark(element)
                self._completed()
            else:
                self._admitted += 1
                yield put(element), element.value if kind is Record else element
            room -= 1
            if not room:
                room = queue.capacity - len(queue)
                if not room:
                    break
        else:
            self._input.exhausted()
        self._admission = None

    def left(self) -> None:
        """There is nothing to do when the lanes have left: the queue knows what is complete."""

    # -- outcomes

    def complete(self, entry: Entry, result: Any) -> None:
        if self._flatten:
            try:
                outputs = _outputs_of(result)
            except BaseException as error:
                self.failed(entry, error)
                return
        else:
            outputs = (result,)
        entry.complete(outputs)
        if self._ready is not None:
            self._completed()

    def failed(self, entry: Entry, error: BaseException, started: float = 0.0) -> None:
        value = self.value_of(entry)
        self._failures += 1
        on_error = self._outcomes.on_error
        outputs: tuple[Any, ...] = ()
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise _function_error("the function", value, error, "it asks the process to end") from error
        if on_error == "skip":
            self._skipped += 1
        elif callable(on_error):
            try:
                result = on_error(value, error)
                outputs = _outputs_of(result) if self._flatten else (result,)
            except BaseException as hook_error:
                raise _function_error("on_error", value, hook_error, "make it return a result") from hook_error
        else:
            remedy = 'on_error="skip" or a function as on_error lets the run go on'
            raise _function_error("the function", value, error, remedy) from error
        entry.complete(outputs)
        self._completed()

    def timed_out(self, entry: Entry, started: float) -> None:
        value = self.value_of(entry)
        self._timeouts += 1
        hook = self._outcomes.on_timeout or self._function.timeout
        try:
            if getattr(hook, "__func__", None) is AsyncFunction.timeout:
                raise ElementTimeoutError(
                    f"element {describe(value)} had no result within its timeout of {self._outcomes.timeout} s; raise "
                    "the timeout, or give on_timeout for a result in its place"
                )
            result = hook(value)
        except BaseException as error:
            self.failed(entry, error)
        else:
            self.complete(entry, result)

    def value_of(self, entry: Entry) -> Any:
        return entry.element.value if type(entry.element) is Record else entry.element

    def _completed(self) -> None:
        ready = self._ready
        if ready is not None and self._queue.peek_completed() is not None:
            self._ready = None
            _wake(ready)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _outputs_of(result: Any) -> tuple[Any, ...]:
    """The items of a result under ``flatten=True``."""
    if isinstance(result, str | bytes | bytearray | Mapping) or not isinstance(result, Iterable):
        raise ResultError(
            f"with flatten=True the function must return an iterable of outputs, such as a list; it returned "
            f"{type(result).__name__}: {describe(result)}"
        )
    return tuple(result)


def _function_error(what: str, value: Any, error: BaseException, remedy: str) -> FunctionError:
    element = describe(value)
    return FunctionError(
        f"{what} failed for element {element} in attempt 1 with {describe_error(error)}; {remedy}",
        element=element,
        attempts=1,
    )
