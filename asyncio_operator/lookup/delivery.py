"""Delivers the batches of a partition: in order, or as they end, and in parts if a key is slow.

A batch is delivered when all its keys have an outcome. A part of it is delivered earlier if that part has been ready
for a while, or if its room is needed. `buffer` bounds the memory in two ways: the keys that are looked up and not yet
emitted, and the rows. But `BATCHES` batches may always be in the pipeline, or it would run empty between them.

This module knows neither calls nor threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from asyncio_operator.engine.timing import wake
from asyncio_operator.lookup.key_batch import KeyBatch

if TYPE_CHECKING:
    from asyncio_operator.engine.timers import Timers

BATCHES = 4
"""Batches that may be in the pipeline whatever their size: one is emitted, one waits for a slow key, two are in
flight."""

FLUSH = 0.1  # Seconds after which the ready outcomes of an incomplete batch are delivered: half of what law X9 allows.

STARVED_FLUSH = 0.005
"""The same while calls wait for the room that this makes. It is many times the cost of a search for ready outcomes."""


class Delivery:
    """The batches in the pipeline.

    Args:
        deliver: called with a batch and the number of its leading keys that are ready (in unordered mode: of all keys
            that are ready). ``batch.ended`` marks the last delivery of a batch.
        timers: of the run.
    """

    def __init__(self, deliver: Callable[[KeyBatch, int], None], timers: Timers, *, ordered: bool, buffer: int) -> None:
        self.batches: deque[KeyBatch] = deque()  # Batches that have not ended, in the order of the input.
        self.keys = 0  # Number of keys that have been admitted and not emitted.
        self.settle: Callable[[], None] = lambda: None  # Called before ready outcomes are searched.
        self._deliver = deliver
        self.ordered = ordered  # Whether keys leave in the order of the input.
        self._buffer = buffer
        self._handed = 0
        self._rows = 0
        self._count = 0
        self._room: asyncio.Future[None] | None = None
        self._timers = timers
        self._searching = False

    def room(self) -> int:
        """The number of keys that may still be admitted."""
        return self._buffer - self.keys

    def takes_a_batch(self) -> bool:
        """Whether another batch may be read."""
        return self._count < BATCHES or self._rows < self._buffer

    def take(self, batch: KeyBatch, ends: bool) -> None:
        """A batch has been read, which ends at once or not."""
        self.batches.append(batch)
        self._count += 1
        self._rows += batch.rows
        if not (ends or self._searching):
            self.flush()

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future. New room completes it too."""
        self._room = news
        try:
            # Law X9 gives ready rows some time to leave in whole batches; calls that wait for their room do not have
            # it.
            if self._stuck():
                self.flush()
            await news
        finally:
            self._room = None

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """The consumer has passed on the rows of `keys` keys and, if `batch` is given, all of that batch."""
        self.keys -= keys
        self._handed -= keys
        if batch is not None:
            self._rows -= batch.rows
            self._count -= 1
        wake(self._room)

    def end(self, batch: KeyBatch) -> None:
        """Every key of the batch has an outcome."""
        # `flush` may have seen the last outcome first.
        if batch.ended:
            return
        batch.ended = True
        if not self.ordered:
            self.batches.remove(batch)
            self._hand_over(batch, len(batch.keys))
            return
        while self.batches and self.batches[0].ended:
            first = self.batches.popleft()
            self._hand_over(first, len(first.keys))

    def flush(self) -> None:
        """Deliver all ready outcomes, of incomplete batches too, and do it again after a delay."""
        self.close()
        self.settle()
        # A copy, because a batch that ends here leaves the deque.
        for batch in list(self.batches):
            ready = batch.ready() if self.ordered else batch.answered()
            if ready == len(batch.keys):
                self.end(batch)
                continue
            if ready > batch.delivered:
                self._hand_over(batch, ready)
            # In order, no row of a later batch may leave before the rest of this one.
            if self.ordered:
                break
        self._searching = bool(self.batches)
        if self._searching:
            wait = STARVED_FLUSH if self._stuck() else FLUSH
            self._timers.remind(self.flush, self._timers.clock() + wait)

    def close(self) -> None:
        """Stop searching for ready outcomes."""
        self._searching = False
        self._timers.remind(self.flush, inf)

    def _hand_over(self, batch: KeyBatch, ready: int) -> None:
        self._handed += ready - batch.delivered
        batch.delivered = ready
        self._deliver(batch, ready)

    def _stuck(self) -> bool:
        """Whether calls wait for room and the consumer has nothing to do: only a part of a batch can then make room."""
        waits = self._room is not None and not self._room.done()
        return waits and self._handed <= 0 and (self.room() <= 0 or not self.takes_a_batch())
