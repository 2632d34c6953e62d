"""From the input to the lanes: `ElementIntake` in the plain way, `ElementSource` in the managed way.

The plain way makes one call for every element, in the order of the input, and keeps nothing of an element but its entry
in the queue. A run uses it unless it retries, batches, or has limits or keys. In the managed way an element is a flight
(see `engine.flights`). The elements of a snapshot go in before the input. In key-ordered mode an element starts when
its key is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.engine.failures import element_error
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.operator.buffer import Buffer
from asyncio_operator.operator.outcomes import Outcomes, value_of
from asyncio_operator.queues.base import Entry
from asyncio_operator.queues.key_ordered import KeyOrderedStreamElementQueue

if TYPE_CHECKING:
    from asyncio_operator.operator.cached_results import CachedOutcomes

AT_ONCE: Final = 200
"""Elements without a call of their own, whose results are kept, between two turns of the loop: about a millisecond."""


class ElementIntake:
    """The intake of the lanes, and its one window."""

    results = begin = None
    final = False

    def __init__(self, buffer: Buffer, reader: Reader, outcomes: Outcomes) -> None:
        self.working = 0
        self.instant = reader.instant
        self.complete = outcomes.complete
        self._buffer = buffer
        self._reader = reader
        self._outcomes = outcomes
        self._admission: Iterator[tuple[Entry, Any]] | None = None

    async def window(self) -> ElementIntake | None:
        # Room first: law O1, no input is read that has no place.
        if self._buffer.is_full():
            await self._buffer.wait_for_room()
        if not await self._reader.ready():
            return None
        # One generator for all lanes: the next lane goes on where another one stopped.
        if self._admission is None:
            self._admission = self._admit()
        return self

    def is_urgent(self, now: float) -> bool:
        return False

    def stop(self) -> None:
        """No element is admitted any more."""
        self._reader.stop()
        self._admission = None

    def __iter__(self) -> Iterator[tuple[Entry, Any]]:
        return self._admission or iter(())

    def _admit(self) -> Iterator[tuple[Entry, Any]]:
        """Elements from the input, put into the queue, as long as there is room and something to read."""
        buffer, queue = self._buffer, self._buffer.queue
        put = queue.put
        # Counted here, and looked up again when it is used up: a look at the queue for each element costs more.
        room = queue.capacity - len(queue)
        for element in self._reader:
            kind = type(element)
            if kind is Watermark:
                queue.put_watermark(element)
                buffer.completed()
            else:
                buffer.admitted += 1
                # Into the queue before the call starts: the order of the queue is that of the input.
                yield put(element), element.value if kind is Record else element
            room -= 1
            if not room:
                room = queue.capacity - len(queue)
                if not room:
                    break
        else:
            self._reader.exhausted()
        self._admission = None

    def failed(self, entry: Entry, error: BaseException, started: float) -> None:
        self._outcomes.failed(entry, error)

    def timed_out(self, entry: Entry, started: float) -> None:
        self._outcomes.timed_out(entry)

    def returned(self, entry: Entry, error: BaseException | None) -> None:
        """The element has ended."""

    def value_of(self, entry: Entry) -> Any:
        return value_of(entry)

    def left(self) -> None:
        """There is nothing to do: the queue knows what is complete."""


class ElementSource:
    """Admits elements as flights; a `Source`.

    Args:
        restored: elements that go in before the input, with the attempts they have used.
        numbers: gives each element its number.
        cached: knows the elements that need no call of their own.

    Attributes:
        flights: by the entries of records that are inside the buffer.
    """

    direct = False

    def __init__(
        self,
        buffer: Buffer,
        reader: Reader,
        restored: Sequence[tuple[Any, int]],
        recorder: Recorder,
        numbers: Iterator[int],
        cached: CachedOutcomes | None = None,
    ) -> None:
        self.flights: dict[Entry, Any] = {} if cached is None else cached.flights
        self.keyed = buffer.queue if isinstance(buffer.queue, KeyOrderedStreamElementQueue) else None
        self.waiting = 0
        self._buffer = buffer
        self._next = deque(restored)
        self._reader = reader
        self._recorder = recorder
        self._context = copy_context()
        self._numbers = numbers
        self._cached = cached
        self._ready: Flight | None = None

    @property
    def over(self) -> bool:
        """Whether no element will come any more."""
        return self._reader.over and not self._next and not (self._cached is not None and self._cached.background)

    def take(self, now: float) -> Flight | None:
        """The next element that may have its first attempt, if there is one."""
        self.prepare(now)
        if self._cached is not None and self._cached.background:
            return self._cached.background.popleft()
        flight, self._ready = self._ready, None
        if flight is not None:
            self.waiting -= 1
        return flight

    def take_run(self, most: int, now: float) -> None:
        """None: each element has a flight."""

    def window(self, now: float) -> None:
        """None: it is not direct."""

    def values(self, call: Call) -> Any:
        return call.values

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        return False

    def prepare(self, now: float) -> None:
        """Admit elements until there is one to take."""
        answered = 0
        while self._ready is None:
            # An element whose key is free goes before new input, which would only wait behind others.
            if self.keyed is not None and (entry := self.keyed.next_runnable()) is not None:
                flight: Flight | None = self.flights[entry]
            else:
                if self._buffer.is_full():
                    return
                element, attempts = self._next.popleft() if self._next else (self._reader.read(), 0)
                if element is NOTHING:
                    return
                flight = self._admit(element, attempts, now)
                if self.keyed is not None:
                    continue
            if flight is None or self._cached is None or not self._cached.answers(flight, now):
                self._ready = flight
                continue
            self.waiting -= 1
            answered += 1
            if answered >= AT_ONCE and not self._next:
                # As if there was no more input now: the loop turns before more of it is read. Restored elements are in
                # memory, and nothing would wake the run for them.
                self._reader.wanted = True
                return

    def _admit(self, element: Any, attempts: int, now: float) -> Flight | None:
        queue, number = self._buffer.queue, next(self._numbers)
        if type(element) is Watermark:
            entry = queue.put_watermark(element)
            self._recorder.watermark(entry, element.timestamp, number, now)
            self._buffer.completed()
            return None
        value = element.value if type(element) is Record else element
        entry = queue.put(element) if self.keyed is None else self._put_by_key(element, value, attempts)
        make = Flight if self._cached is None else self._cached.make_flight
        flight = self.flights[entry] = make(entry, value, number, now, attempts)
        self._buffer.admitted += 1
        self.waiting += 1
        self._recorder.admitted(flight)
        return flight

    def _put_by_key(self, element: Any, value: Any, attempts: int) -> Entry:
        """Put an element into the queue, which calls `key` for it."""
        # Law O10: `key` may take a snapshot, or fail, and the element must be in a snapshot even then.
        self._next.appendleft((element, attempts))
        try:
            entry = self._context.copy().run(self._buffer.queue.put, element)
        except BaseException as error:
            remedy = "it is called with the value (of a Record: its value), and must give a key that can be hashed"
            raise element_error("key", value, error, remedy, attempts) from error
        self._next.popleft()
        return entry

    def is_full(self) -> bool:
        return self._buffer.is_full()

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._buffer.wait(news)

    def to_come(self) -> list[tuple[Any, int]]:
        """Elements that were restored or read, and not admitted, each with the attempts that it has used."""
        return [*self._next, *[(element, 0) for element in self._reader.to_come()]]

    def attempts_of(self, entry: Entry) -> int:
        """The number of attempts for the element that have failed."""
        flight = self.flights.get(entry)
        return 0 if flight is None else flight.attempts

    def emitted(self, entry: Entry, now: float) -> None:
        """The outputs of the element have been handed over."""
        flight = self.flights.pop(entry, None)
        self._recorder.emitted(entry, flight, now)
