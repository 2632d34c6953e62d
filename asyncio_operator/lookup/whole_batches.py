"""The way of enrichers in memory: one call for all keys of a batch, which stay in Arrow from the input to the output.

No key has an object of its own, is shared with another batch, or is remembered: to ask again costs less. A batch with
more keys than a call takes is asked in parts, and other code has its turn between them. A part that fails is asked in
halves, as batches of keys are (law B4). All keys of a batch have one deadline, by which all parts must be answered.
Lookups that need more use `managed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from asyncio_operator.engine.failing_batches import FailingBatches
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.policies.batching import splits


class BatchWindow:
    """All keys of a batch, as one piece of work."""

    instant = True
    results = None
    begin = None

    def __init__(self, batch: KeyBatch, failures: KeyFailures, left: Callable[[KeyBatch], None]) -> None:
        self.working = 0
        self.taken = False
        self._batch = batch
        self._failures = failures
        self._on_left = left

    def __iter__(self) -> Iterator[tuple[None, KeyBatch]]:
        if not self.taken:
            self.taken = True
            yield None, self._batch

    def complete(self, slot: None, outcomes: Any) -> None:
        self._batch.outcomes = outcomes

    def failed(self, slot: None, error: BaseException, started: float) -> None:
        if isinstance(error, Exception):
            raise error  # The intake has judged the errors of calls, and this one ends the run.
        self._batch.outcomes = [self._failures.failure(key, error, started) for key in self._batch.keys]

    def timed_out(self, slot: None, started: float) -> None:
        self._batch.outcomes = [self._failures.timeout(key, started) for key in self._batch.keys]

    def returned(self, slot: None) -> None:
        """The batch has ended."""

    def value_of(self, slot: None) -> Any:
        return self._batch.keys[0]

    def left(self) -> None:
        if self.taken and not self._batch.ended:
            self._on_left(self._batch)


class WholeBatchIntake:
    """The intake of the lanes: a window for each batch, as far as the delivery takes batches.

    Args:
        ask: asks for `ArrowKeys`, and returns their outcomes.
        most: the maximum number of keys of one call.
        failing: notices that all calls with several keys fail.
    """

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        failures: KeyFailures,
        ask: Callable[[Any], Awaitable[Any]],
        most: int,
        clock: Callable[[], float],
        failing: FailingBatches,
    ) -> None:
        self._figures = failures.figures
        self._failing = failing
        self._reader = reader
        self._delivery = delivery
        self._failures = failures
        self._ask = ask
        self._most = most
        self._clock = clock
        self._window: BatchWindow | None = None

    async def window(self) -> BatchWindow | None:
        while self._window is None or self._window.taken:
            while not self._delivery.takes_a_batch():
                await self._delivery.wait(asyncio.get_running_loop().create_future())
            if not await self._reader.ready():
                return None
            batch = self._reader.read()
            if batch is not NOTHING:
                self._take(batch)
        return self._window

    def is_urgent(self, now: float) -> bool:
        return False

    def stop(self) -> None:
        """Stop reading the input."""
        self._reader.stop()

    async def call(self, batch: KeyBatch) -> Any:
        """The outcomes of a batch. Raises what ends the run, if a failure has to end it."""
        keys, most = batch.keys, self._most
        if len(keys) <= most:
            return await self._outcomes(keys)
        outcomes: list[Any] = []
        for first in range(0, len(keys), most):
            outcomes += await self._outcomes(keys[first : first + most])
            # The parts may await nothing.
            await asyncio.sleep(0)
        return outcomes

    async def _outcomes(self, keys: Any) -> Any:
        started = self._clock()
        self._figures.calls += 1
        try:
            answers = await self._ask(keys)
        except Exception as error:
            if len(keys) == 1 or not splits(error):
                self._failing.failed(keys)
                return [self._failures.failure(key, error, started) for key in keys]
            self._failing.divided(keys, error)
        else:
            self._failing.answered(keys)
            return answers
        await asyncio.sleep(0)
        half = len(keys) // 2
        return [*await self._outcomes(keys[:half]), *await self._outcomes(keys[half:])]

    def _take(self, batch: KeyBatch) -> None:
        self._delivery.take(batch)
        self._delivery.admit(len(batch.keys))
        if len(batch.keys):
            self._window = BatchWindow(batch, self._failures, self._delivery.end)
        else:
            self._delivery.end(batch)
