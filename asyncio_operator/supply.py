"""The source of flights in a managed run: a snapshot first, then the input; in key-ordered mode, free keys."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.engine.flights import Flight
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.operator.buffer import Buffer
from asyncio_operator.operator.outcomes import function_error
from asyncio_operator.queues import Entry, KeyOrderedStreamElementQueue


class Supply:
    """Admits elements as flights; a `Source`.

    Args:
        restored: elements that go in before the input, with the attempts they have used.

    Attributes:
        flights: by the entries of records that are inside the buffer.
    """

    def __init__(self, buffer: Buffer, reader: Reader, restored: Sequence[tuple[Any, int]], recorder: Recorder) -> None:
        self.flights: dict[Entry, Flight] = {}
        self.keyed = buffer.queue if isinstance(buffer.queue, KeyOrderedStreamElementQueue) else None
        self.wants_input = False
        self.waiting = 0
        self._buffer = buffer
        self._next = deque(restored)
        self._reader = reader
        self._recorder = recorder
        self._number = 0
        self._ready: Flight | None = None

    @property
    def over(self) -> bool:
        """Whether no element will come any more."""
        return self._reader.over and not self._next

    def take(self, now: float) -> Flight | None:
        """The next element that may have its first attempt, if there is one."""
        self.prepare(now)
        flight, self._ready = self._ready, None
        if flight is not None:
            self.waiting -= 1
        return flight

    def prepare(self, now: float) -> None:
        """Admit elements until there is one to take."""
        while self._ready is None:
            if self.keyed is not None and (entry := self.keyed.next_runnable()) is not None:
                self._ready = self.flights[entry]
                return
            if self._buffer.is_full():
                return
            element, attempts = self._next.popleft() if self._next else (self._reader.read(), 0)
            if element is NOTHING:
                self.wants_input = not self._reader.over
                return
            flight = self._admit(element, attempts, now)
            if self.keyed is None:
                self._ready = flight

    def _admit(self, element: Any, attempts: int, now: float) -> Flight | None:
        queue, number = self._buffer.queue, self._number
        self._number += 1
        if type(element) is Watermark:
            watermark = queue.put_watermark(element)
            self._recorder.watermark(watermark, number, now)
            self._buffer.completed()
            return None
        value = element.value if type(element) is Record else element
        entry = queue.put(element) if self.keyed is None else self._put_by_key(element, value, attempts)
        flight = self.flights[entry] = Flight(entry, value, number, now, attempts)
        self._buffer.admitted += 1
        self.waiting += 1
        self._recorder.admitted(flight)
        return flight

    def _put_by_key(self, element: Any, value: Any, attempts: int) -> Entry:
        """Put an element into its queue. Until it is there it is among those that go in next: `key`, which may take a
        snapshot, or fail, is called for it (O10)."""
        self._next.appendleft((element, attempts))
        try:
            entry = self._buffer.queue.put(element)
        except BaseException as error:
            remedy = "it is called with the value (of a Record: its value), and must give a key that can be hashed"
            raise function_error("key", value, error, remedy, attempts) from error
        self._next.popleft()
        return entry

    def read_ahead(self, news: Callable[[], None]) -> None:
        self._reader.read_ahead(news)

    def stop(self) -> None:
        self._reader.stop()

    def is_full(self) -> bool:
        return self._buffer.is_full()

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._buffer.wait(news)

    def to_come(self) -> list[tuple[Any, int]]:
        """What was restored, or read, and has not been admitted, with the attempts that it has used."""
        return [*self._next, *[(element, 0) for element in self._reader.to_come()]]

    def attempts_of(self, entry: Entry) -> int:
        """Attempts for the element that have ended in failure."""
        flight = self.flights.get(entry)
        return 0 if flight is None else flight.attempts

    def emitted(self, entry: Entry, now: float) -> None:
        """The outputs of the element have been handed over."""
        flight = self.flights.pop(entry, None)
        self._recorder.emitted(entry, flight, now)
