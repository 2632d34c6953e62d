"""The managed way: batches of keys become flights of `Attempts`, as far as the delivery has room.

A key that is in the cache, or that a running call will answer, needs no flight (`pending`). The plain way (`plain`) has
one call for every key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from asyncio_operator.engine.flights import Flight
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.pending import PendingKeys
from asyncio_operator.state.cells import ABSENT

AHEAD = 100
"""Keys that need a call are searched for in groups of this size: one by one, the search would cost more than the
calls."""


class WaitingBatch:
    """A batch whose keys, or those at some positions, wait for outcomes."""

    __slots__ = ("batch", "delivery", "missing", "positions")

    def __init__(self, batch: KeyBatch, positions: Sequence[int], delivery: Delivery) -> None:
        self.batch = batch
        self.positions = positions
        self.delivery = delivery
        self.missing = len(positions)

    def answer(self, position: int, outcome: Any) -> None:
        self.batch.outcomes[position] = outcome
        self.missing -= 1
        if not self.missing:
            self.delivery.end(self.batch)


class BatchSource:
    """Hands out flights; a `Source`."""

    def __init__(self, reader: Reader, delivery: Delivery, pending: PendingKeys) -> None:
        self._reader = reader
        self._delivery = delivery
        self._pending = pending
        self._current: WaitingBatch | None = None
        self._next = 0
        self._passed = 0
        self._ready: deque[Flight] = deque()

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def over(self) -> bool:
        return self._reader.over and self._current is None and not self._pending.background

    def take(self, now: float) -> Flight | None:
        ready = self._ready
        if not ready:
            self.prepare(now)
        return ready.popleft() if ready else None

    def prepare(self, now: float) -> None:
        while not self._ready:
            # A refresh takes a place of the capacity like any call, but no room: its key is not a key of a batch.
            if self._pending.background:
                self._ready.append(self._pending.background.popleft())
            elif self._current is None:
                if not self._delivery.takes_a_batch() or not self._next_batch():
                    return
            elif self._delivery.room() <= 0:
                return
            else:
                self._ask(self._current, now)

    def _next_batch(self) -> bool:
        batch = self._reader.read()
        if batch is NOTHING:
            return False
        positions = self._pending.recall(batch)
        self._delivery.take(batch)
        self._current, self._next, self._passed = WaitingBatch(batch, positions, self._delivery), 0, 0
        self._pass(self._current)
        if not positions:
            self._delivery.end(batch)
        return True

    def _pass(self, waiting: WaitingBatch) -> None:
        """Admit the keys before the next one that needs a call. A known key takes no room before such a key that is
        before it: in order it cannot leave first, and would hold its room for ever. In any order it leaves first."""
        keys, positions = waiting.batch.keys, waiting.positions
        if self._delivery.ordered:
            passed = positions[self._next] if self._next < len(positions) else len(keys)
        else:
            passed = len(keys) - len(positions) + self._next
        self._delivery.admit(passed - self._passed)
        self._passed = passed
        if self._next == len(positions):
            self._current = None

    def _ask(self, waiting: WaitingBatch, now: float) -> None:
        """Continue a batch, within the room, until `AHEAD` keys are found that need a call."""
        # Local variables and one look at the room: this loop runs for every key, also for those in the cache.
        keys, outcomes, ready, start = waiting.batch.keys, waiting.batch.outcomes, self._ready, self._next
        cached, ask = self._pending.cached, self._pending.ask
        positions = waiting.positions
        stop = min(len(positions), start + self._delivery.room())
        hits = 0
        place = start
        while place < stop and len(ready) < AHEAD:
            position = positions[place]
            key = keys[position]
            outcome = cached(key, now)
            if outcome is not ABSENT:
                outcomes[position] = outcome
                hits += 1
            elif (flight := ask(key, waiting, position, now)) is not None:
                ready.append(flight)
            place += 1
        self._next = place
        self._pass(waiting)
        # At the end, in one step: a hit has no waiter that would count it.
        if hits:
            waiting.missing -= hits
            if not waiting.missing:
                self._delivery.end(waiting.batch)

    def is_full(self) -> bool:
        return self._delivery.room() <= 0 or (self._current is None and not self._delivery.takes_a_batch())

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._delivery.wait(news)
