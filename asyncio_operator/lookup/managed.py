"""The source of flights for the managed way: the keys of batches that neither the cache nor a running call answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncio_operator.flights import Flight
from asyncio_operator.inputs import Input
from asyncio_operator.lookup.calls import Calls
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.keys import KeyBatch
from asyncio_operator.queues import KeyOrderedStreamElementQueue
from asyncio_operator.sources import NOTHING, Reader
from asyncio_operator.state.cells import ABSENT


class Asking:
    """A batch whose keys wait for outcomes."""

    __slots__ = ("batch", "delivery", "missing")

    def __init__(self, batch: KeyBatch, delivery: Delivery) -> None:
        self.batch = batch
        self.delivery = delivery
        self.missing = len(batch.keys)

    def answer(self, position: int, outcome: Any) -> None:
        self.batch.outcomes[position] = outcome
        self.missing -= 1
        if not self.missing:
            self.delivery.end(self.batch)


class BatchSource:
    """Hands out flights; a `Source`."""

    keyed: KeyOrderedStreamElementQueue | None = None

    def __init__(self, source: Input, delivery: Delivery, calls: Calls) -> None:
        self.wants_input = False
        self.waiting = 0
        self._reader = Reader(source)
        self._delivery = delivery
        self._calls = calls
        self._asking: Asking | None = None
        self._next = 0
        self._ready: Flight | None = None

    @property
    def over(self) -> bool:
        return self._reader.over and self._asking is None and not self._calls.background

    def take(self, now: float) -> Flight | None:
        self.prepare(now)
        flight, self._ready = self._ready, None
        self.waiting = 0
        return flight

    def prepare(self, now: float) -> None:
        while self._ready is None:
            if self._calls.background:
                self._ready = self._calls.background.popleft()
            elif self._asking is None:
                if not self._delivery.takes_a_batch() or not self._next_batch():
                    return
            elif self._delivery.room() <= 0:
                return
            else:
                self._ready = self._ask(self._asking, now)
        self.waiting = 1

    def _next_batch(self) -> bool:
        batch = self._reader.read()
        if batch is NOTHING:
            self.wants_input = not self._reader.over
            return False
        self._delivery.take(batch)
        if batch.keys:
            self._asking = Asking(batch, self._delivery)
            self._next = 0
        else:
            self._delivery.end(batch)
        return True

    def _ask(self, asking: Asking, now: float) -> Flight | None:
        """Go on with a batch until a key needs a call, as far as there is room."""
        keys, outcomes, cached, start = asking.batch.keys, asking.batch.outcomes, self._calls.cached, self._next
        stop = min(len(keys), start + self._delivery.room())
        flight = None
        hits = 0
        for position in range(start, stop):
            outcome = cached(keys[position], now)
            if outcome is not ABSENT:
                outcomes[position] = outcome
                hits += 1
                continue
            flight = self._calls.ask(keys[position], asking, position, now)
            if flight is not None:
                stop = position + 1
                break
        self._next = stop
        self._delivery.keys += stop - start
        if stop == len(keys):
            self._asking = None
        if hits:
            asking.missing -= hits
            if not asking.missing:
                self._delivery.end(asking.batch)
        return flight

    def read_ahead(self, news: Callable[[], None]) -> None:
        self._reader.read_ahead(news)

    def stop(self) -> None:
        self._reader.stop()

    def is_full(self) -> bool:
        return self._delivery.room() <= 0 or (self._asking is None and not self._delivery.takes_a_batch())

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._delivery.wait(news)

    async def close(self, grace_period: float) -> None:
        """Nothing is read any more."""
        await self._reader.close(grace_period)
