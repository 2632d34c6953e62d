"""Orders that wait for their delivery: calls, timers and state with a time to live, in one operator.

    python -m examples.timers_and_ttl

An operator asks a service for the weight of each ordered product. A cache keeps answers for an hour, so a product is
asked for once. Each order registers a timer. If its delivery comes in time, the timer is deleted; else the watermark
fires it, and a reminder leaves before that watermark. What is known of an order is keyed state that expires two hours
after it was written, for orders that are never delivered. Timers and state follow event time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from asyncio_operator import AsyncFunction, AsyncWaitOperator, Cache, Record, Watermark
from asyncio_operator.lookup import Lookup
from asyncio_operator.state import HeapStateBackend, StateTtlConfig, ValueStateDescriptor
from asyncio_operator.timers import InternalTimerService, Timer
from enrichers import FunctionEnricher

MINUTE = 60_000
PATIENCE = 30 * MINUTE
"""Milliseconds after which a reminder leaves for an order without a delivery."""


class Event(NamedTuple):
    """Something that happens to an order: it is "ordered" or "delivered"."""

    minute: int
    what: str
    order: int
    product: str


EVENTS = (
    Event(0, "ordered", 1, "tea"),
    Event(5, "ordered", 2, "ink"),
    Event(20, "delivered", 1, "tea"),
    Event(25, "ordered", 3, "tea"),
    Event(40, "ordered", 4, "ink"),
    Event(58, "delivered", 4, "ink"),
    Event(59, "delivered", 2, "ink"),  # late: the reminder has left
    Event(180, "ordered", 5, "tea"),
    Event(181, "delivered", 3, "tea"),  # so late that the order is forgotten
    Event(205, "delivered", 5, "tea"),
)

WEIGHTS = {"tea": 100, "ink": 40}


class Deliveries(AsyncFunction[Event, str]):
    """Follows orders from their event to their delivery.

    Attributes:
        requests: the products that the service was asked for.
        timers: give them to the operator that calls this function.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.timers = InternalTimerService(on_event_time=self.is_late)
        self._time = 0
        self._backend = HeapStateBackend(clock=lambda: self._time / 1000)
        ttl = StateTtlConfig(ttl=2 * 3600)
        self._open = self._backend.value_state(ValueStateDescriptor("open orders", ttl=ttl))
        self._weights = Lookup(FunctionEnricher(self._ask, "weight int"), cache=Cache(expire_after_write=3600))

    async def _ask(self, product: str) -> dict[str, int]:
        self.requests.append(product)
        await asyncio.sleep(0.001)  # a real service takes longer
        return {"weight": WEIGHTS[product]}

    async def open(self) -> None:
        """Open the lookup on the loop of the run."""
        await self._weights.open()

    async def close(self) -> None:
        """Close it."""
        await self._weights.close()

    async def invoke(self, event: Event) -> str:
        """What follows from an event. Nothing is awaited between a key and its use."""
        self._time = event.minute * MINUTE
        due = self._time + PATIENCE
        if event.what == "ordered":
            found = await self._weights.get(event.product)
            assert isinstance(found, dict)
            self._at(event.order)
            self._open.update((event.product, due))
            self.timers.register_event_time_timer(due)
            return f"order {event.order}: {found['weight']} g of {event.product}"
        self._at(event.order)
        known = self._open.value()
        if known is None:
            return f"order {event.order}: delivered, and forgotten before"
        self._open.clear()
        self.timers.delete_event_time_timer(known[1])
        return f"order {event.order}: delivered"

    def is_late(self, timer: Timer) -> None:
        """The watermark has passed the time of an order without a delivery."""
        self._at(timer.key)
        known = self._open.value()
        if known is not None:
            self.timers.collect(Record(f"order {timer.key}: where is the {known[0]}?", timer.timestamp))

    def _at(self, order: object) -> None:
        assert isinstance(order, int)
        self.timers.current_key = order
        self._backend.set_current_key(order)


def with_watermarks(events: tuple[Event, ...]) -> Iterator[Record[Event] | Watermark]:
    """The events in the order of their times, each before the watermark of its minute."""
    for event in events:
        yield Record(event, event.minute * MINUTE)
        yield Watermark(event.minute * MINUTE)


async def follow(function: Deliveries) -> list[Record[str] | Watermark]:
    """The outputs for all events. One element at a time, so that each finds what the one before it has left."""
    operator = AsyncWaitOperator(function, capacity=1, buffer=1, timers=function.timers)
    return [output async for output in operator.process(with_watermarks(EVENTS))]


def main() -> None:
    """Prints what leaves the operator."""
    function = Deliveries()
    for output in asyncio.run(follow(function)):
        match output:
            case Record(text, timestamp):
                print(f"{(timestamp or 0) // MINUTE:4} min  {text}")
            case Watermark(timestamp):
                print(f"{timestamp // MINUTE:4} min  --")
    print(f"{len(EVENTS)} events, {len(function.requests)} requests: {', '.join(function.requests)}")


if __name__ == "__main__":
    main()
