"""The way of a partition's keys: admitted batch by batch, looked up in the lanes, delivered in order.

The pipeline is the intake of the lanes. It reads batches of keys as long as there is room, hands their keys out across
batch borders, so that no call waits for the end of a batch, and delivers a batch when all its keys have an outcome, or
a part of it when that part has been ready for a while or its room is needed. It knows neither rows nor threads.

What is held in memory is bounded twice: keys looked up and not yet emitted by `buffer`, and rows by `buffer` too, but
never so that fewer than `BATCHES` batches are in the pipe, or it would run empty between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import (
    ElementTimeoutError,
    FunctionError,
    ResultError,
    describe,
    describe_error,
)
from asyncio_operator.inputs import Input
from asyncio_operator.lanes import Lanes
from asyncio_operator.lookup.keys import Chunk, Failure, KeyBatch, Timed
from asyncio_operator.metrics import Histogram
from asyncio_operator.policies.batching import splits
from asyncio_operator.waiting import clock_of, wake

BATCHES = 4
"""Batches that may be in the pipe whatever their size: one being emitted, one waiting for a slow key, two in flight."""

FLUSH = 0.1
"""Seconds after which ready outcomes of a batch that is not complete are delivered; half of what law X9 allows."""

STARVED_FLUSH = 0.005
"""The same when lanes wait for the room that it makes: many times the price of looking for ready outcomes."""


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """Options of a lookup, durations in seconds.

    Attributes:
        fail: the first failure ends the run.
        timed: latencies of answers are wanted.
        remedy: what the user can do about a failure, for the end of a message.
        grace_period: for calls that ignore their cancellation at the end. With the second after which a task sees that
            Spark is gone, it stays within the 5 s of law X7.
    """

    ordered: bool = True
    capacity: int = 100
    buffer: int = 6400
    timeout: float | None = None
    fail: bool = True
    timed: bool = False
    remedy: str = ""
    grace_period: float = 2.5


class LookupPipeline:
    """Looks the keys of batches up, on the loop that makes it.

    Args:
        enricher: opened.
        source: gives `KeyBatch`.
        deliver: called with a batch and the number of its leading keys that are ready (in unordered mode, of all its
            keys that are); the batch has ended, and is delivered for the last time, when ``batch.ended``.
    """

    def __init__(
        self, enricher: Enricher, source: Input, deliver: Callable[[KeyBatch, int], None], options: LookupOptions
    ) -> None:
        self.timeouts = 0
        self._calls = 0
        self._enricher = enricher
        self._source = source
        self._deliver = deliver
        self._options = options
        self._chunk = enricher.max_batch
        self._batches: deque[KeyBatch] = deque()
        self._current: KeyBatch | None = None
        self._keys = 0
        self._handed = 0
        self._rows = 0
        self._count = 0
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        invoke = self._invoke_chunk if self._chunk > 1 else self._invoke_timed if options.timed else enricher.lookup
        self._driver = Lanes(
            invoke,
            self,
            capacity=min(options.capacity, options.buffer),
            timeout=options.timeout,
            clock=self._clock,
            grace_period=options.grace_period,
        )

    @property
    def calls(self) -> int:
        """Calls of the enricher that have been started."""
        not_started = self._current.left_over() if self._chunk == 1 and self._current is not None else 0
        return self._calls - not_started

    @property
    def latency(self) -> Histogram:
        """Durations of calls, in seconds."""
        return self._driver.latency

    async def run(self) -> None:
        """Run until the source has ended and everything is delivered.

        Raises:
            FunctionError: a lookup failed, and ``options.fail`` is set; or it raised what is no `Exception`.
        """
        try:
            await self._driver.run()
            self._flush()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """The consumer has handed over the rows of `keys` keys, and, if `batch` is given, all of that batch."""
        self._keys -= keys
        self._handed -= keys
        if batch is not None:
            self._rows -= batch.rows
            self._count -= 1
        wake(self._room)

    # -- the intake of the lanes

    async def window(self) -> KeyBatch | None:
        while (batch := self._current) is None or not batch.open():
            if batch is None or batch.admitted == len(batch.keys):
                if not await self._next_batch():
                    return None
                continue
            room = self._options.buffer - self._keys
            if room <= 0:
                await self._wait_for_room()
                continue
            admitted = batch.admit(room, self._chunk)
            self._keys += admitted
            if self._chunk == 1:
                self._calls += admitted
        return batch

    async def _next_batch(self) -> bool:
        self._current = None
        while self._count >= BATCHES and self._rows >= self._options.buffer:
            await self._wait_for_room()
        while await self._source.ready():
            for batch in self._source:
                self._take(batch)
                return True
            self._source.exhausted()
        return False

    def _take(self, batch: KeyBatch) -> None:
        batch.owner = self
        self._batches.append(batch)
        self._count += 1
        self._rows += batch.rows
        if self._timer is None:
            self._flush()
        if batch.keys:
            self._current = batch
        else:
            batch.left()

    async def _wait_for_room(self) -> None:
        self._room = self._loop.create_future()
        if self._stuck():
            self._flush()
        await self._room
        self._room = None

    # -- delivery

    def ended(self, batch: KeyBatch) -> None:
        if not self._options.ordered:
            self._batches.remove(batch)
            self._hand_over(batch, len(batch.keys))
            return
        while self._batches and self._batches[0].ended:
            first = self._batches.popleft()
            self._hand_over(first, len(first.keys))

    def _flush(self) -> None:
        """Deliver what is ready, now and from time to time, also of batches that are not complete.

        A batch is complete when its last lane leaves it, but for one in which a call is late: its key has an outcome
        and waits for nobody.
        """
        if self._timer is not None:
            self._timer.cancel()
        ordered = self._options.ordered
        for batch in list(self._batches):
            ready = batch.ready() if ordered else batch.answered()
            if ready == len(batch.keys):
                batch.end()
                continue
            if ready > batch.delivered:
                self._hand_over(batch, ready)
            if ordered:
                break
        delay = STARVED_FLUSH if self._stuck() else FLUSH
        self._timer = self._loop.call_later(delay, self._flush) if self._batches else None

    def _hand_over(self, batch: KeyBatch, ready: int) -> None:
        self._handed += ready - batch.delivered
        batch.delivered = ready
        self._deliver(batch, ready)

    def _stuck(self) -> bool:
        """Whether lanes wait for room while the consumer has nothing to do: only parts of batches can make some."""
        return self._room is not None and self._handed <= 0

    # -- calls

    async def _invoke_timed(self, key: Any) -> Timed:
        started = self._clock()
        return Timed(await self._enricher.lookup(key), self._clock() - started)

    async def _invoke_chunk(self, chunk: Chunk) -> None:
        await self._look_up(chunk, chunk.start, chunk.stop)

    async def _look_up(self, chunk: Chunk, start: int, stop: int) -> None:
        """One call for the keys from `start` to `stop`; if it fails of what one key may be to blame for, two halves."""
        keys: Sequence[Any] = chunk.batch.keys[start:stop]
        started = self._clock()
        self._calls += 1
        try:
            found: Sequence[Any] = await self._enricher.lookup_many(keys)
        except Exception as error:
            if _cancelled():
                raise
            if stop - start > 1 and splits(error):
                middle = (start + stop) // 2
                await self._look_up(chunk, start, middle)
                if not _cancelled():
                    await self._look_up(chunk, middle, stop)
            else:
                chunk.write(start, [self.failed(key, error, started) for key in keys])
            return
        seconds = self._clock() - started
        if not isinstance(found, Sequence) or len(found) != len(keys):
            wrong = ResultError(
                f"lookup_many gave {_shape(found)} for {len(keys)} keys; it must give a sequence with one answer for "
                "each key, in the order of the keys"
            )
            found = [self.failed(key, wrong, started) for key in keys]
        elif self._options.timed:
            found = [Timed(answer, seconds) for answer in found]
        chunk.write(start, found)

    def failed(self, key: Any, error: BaseException, started: float) -> Failure:
        """The outcome of a key whose call raised; if failures are to end the run, they do here."""
        cancelled = isinstance(error, asyncio.CancelledError)
        if self._options.fail or not (cancelled or isinstance(error, Exception)):
            self._fail(key, error)
        return Failure(error, self._clock() - started)

    def timed_out(self, key: Any, started: float) -> Failure:
        self.timeouts += 1
        error = ElementTimeoutError(
            f"the lookup of key {describe(key)} gave no answer within its timeout of {self._options.timeout} s; raise "
            "timeout= if healthy answers take as long"
        )
        if self._options.fail:
            self._fail(key, error)
        return Failure(error, self._clock() - started, timed_out=True)

    def _fail(self, key: Any, error: BaseException) -> None:
        failure = FunctionError(
            f"{describe(self._enricher)} failed for key {describe(key)}: {describe_error(error)}{self._options.remedy}",
            element=describe(key),
            attempts=1,
        )
        failure.__cause__ = error
        self._driver.fail(failure)


def _cancelled() -> bool:
    """Whether this call was cancelled, at its deadline or with the run, and the enricher made something else of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _shape(found: Any) -> str:
    if isinstance(found, Sequence):
        return f"{len(found)} answers"
    return f"{type(found).__name__}, {describe(found)},"
