"""The batches of a partition on their way out: in order, or as they end, and in parts where a key is slow.

A batch is delivered when all its keys have an outcome, or a part of it when that part has been ready for a while or its
room is needed. What is in memory is bounded twice: keys looked up and not yet emitted by `buffer`, and rows by `buffer`
too, but never so that fewer than `BATCHES` batches are in the pipe, or it would run empty between them.

It knows neither calls nor threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from asyncio_operator.lookup.keys import KeyBatch
from asyncio_operator.waiting import wake

BATCHES = 4
"""Batches that may be in the pipe whatever their size: one being emitted, one waiting for a slow key, two in flight."""

FLUSH = 0.1
"""Seconds after which ready outcomes of a batch that is not complete are delivered; half of what law X9 allows."""

STARVED_FLUSH = 0.005
"""The same when calls wait for the room that it makes: many times the price of looking for ready outcomes."""


class Delivery:
    """What is in the pipe.

    Args:
        deliver: called with a batch and the number of its leading keys that are ready (in unordered mode, of all its
            keys that are); the batch has ended, and is delivered for the last time, when ``batch.ended``.

    Attributes:
        settle: called before ready outcomes are looked for.
        batches: those that have not ended, in the order of the input.
        keys: that have been admitted, and not emitted.
    """

    def __init__(self, deliver: Callable[[KeyBatch, int], None], *, ordered: bool, buffer: int) -> None:
        self.batches: deque[KeyBatch] = deque()
        self.keys = 0
        self._deliver = deliver
        self.settle: Callable[[], None] = lambda: None
        self._ordered = ordered
        self._buffer = buffer
        self._handed = 0
        self._rows = 0
        self._count = 0
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def room(self) -> int:
        """How many more keys may be admitted."""
        return self._buffer - self.keys

    def takes_a_batch(self) -> bool:
        """Whether one more batch may be read."""
        return self._count < BATCHES or self._rows < self._buffer

    def admit(self, keys: int) -> None:
        """So many keys are being looked up."""
        self.keys += keys

    def take(self, batch: KeyBatch) -> None:
        """The batch has been read."""
        self.batches.append(batch)
        self._count += 1
        self._rows += batch.rows
        if self._timer is None:
            self.flush()

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future, which some room completes too."""
        self._room = news
        try:
            if self._stuck():
                self.flush()
            await news
        finally:
            self._room = None

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """The consumer has handed over the rows of `keys` keys, and, if `batch` is given, all of that batch."""
        self.keys -= keys
        self._handed -= keys
        if batch is not None:
            self._rows -= batch.rows
            self._count -= 1
        wake(self._room)

    def end(self, batch: KeyBatch) -> None:
        """Every key of the batch has an outcome."""
        if batch.ended:
            return
        batch.ended = True
        if not self._ordered:
            self.batches.remove(batch)
            self._hand_over(batch, len(batch.keys))
            return
        while self.batches and self.batches[0].ended:
            first = self.batches.popleft()
            self._hand_over(first, len(first.keys))

    def flush(self) -> None:
        """Deliver what is ready, now and from time to time, also of batches that are not complete."""
        self.close()
        self.settle()
        for batch in list(self.batches):
            ready = batch.ready() if self._ordered else batch.answered()
            if ready == len(batch.keys):
                self.end(batch)
                continue
            if ready > batch.delivered:
                self._hand_over(batch, ready)
            if self._ordered:
                break
        delay = STARVED_FLUSH if self._stuck() else FLUSH
        self._timer = self._loop.call_later(delay, self.flush) if self.batches else None

    def close(self) -> None:
        """Look for ready outcomes no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_over(self, batch: KeyBatch, ready: int) -> None:
        self._handed += ready - batch.delivered
        batch.delivered = ready
        self._deliver(batch, ready)

    def _stuck(self) -> bool:
        """Whether calls wait for room while the consumer has nothing to do: only parts of batches can make some."""
        return self._room is not None and not self._room.done() and self._handed <= 0 and self._is_full()

    def _is_full(self) -> bool:
        return self.room() <= 0 or not self.takes_a_batch()
