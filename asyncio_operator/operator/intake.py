"""From the input to the lanes: elements are admitted to the queue, and called for.

Where a call takes one element, lanes take elements from one window over the input (`ElementWindow`). Unless an element
is in trouble, nothing is kept of it but its entry in the queue. Otherwise each element is a flight from the start
(`engine.flights`). The elements of a snapshot go in before the input. In key-ordered mode an element starts when its
key is free.
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
from asyncio_operator.engine.window import CallWindow
from asyncio_operator.operator.buffer import Buffer
from asyncio_operator.operator.outcomes import Outcomes, value_of
from asyncio_operator.queues.base import Entry
from asyncio_operator.queues.key_ordered import KeyOrderedStreamElementQueue

if TYPE_CHECKING:
    from asyncio_operator.engine.attempts import Attempts
    from asyncio_operator.operator.cached_results import CachedOutcomes
    from asyncio_operator.operator.options import RunOptions

AT_ONCE: Final = 200
"""Elements without a call of their own, whose results are kept, between two turns of the loop: about a millisecond."""


class ElementWindow(CallWindow):
    """The new elements of a run, which are admitted as lanes take them. It is the `Owner` of their entries."""

    eager = False

    def __init__(self, source: ElementSource, outcomes: Outcomes, judges: bool) -> None:
        attempts = source.attempts
        super().__init__(self, attempts, plain=not (judges or attempts.gate.listens), final=not judges)
        self.instant = source.reader.instant
        self.complete = outcomes.answered if self._plain else attempts.complete if judges else self._complete
        self._source = source
        self._outcomes = outcomes
        # One generator for all lanes: the next lane goes on where another one stopped.
        self._admission: Iterator[tuple[Any, Any]] | None = None

    def open(self) -> bool:
        """Whether there may be an element to admit now."""
        source = self._source
        if self._admission is None:
            # Room first: law O1, no input is read that has no place.
            if source.buffer.is_full() or not source.reader.has_some():
                return False
            self._admission = self._admit() if self._plain else map(self._paired, self._admit())
        return True

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.let_start(self._admission or iter(()))

    def close(self) -> None:
        """No element is admitted any more. The admission holds the last one, and the input."""
        self._admission = None

    def _admit(self) -> Iterator[tuple[Entry, Any]]:
        """Elements from the input, put into the queue, as long as there is room and something to read."""
        buffer, reader = self._source.buffer, self._source.reader
        queue = buffer.queue
        put = queue.put
        # Counted here, and looked up again when it is used up: a look at the queue for each element costs more.
        room = queue.capacity - len(queue)
        for element in reader:
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
            reader.exhausted()
        self._admission = None

    def _paired(self, pair: tuple[Entry, Any]) -> tuple[Call, Any]:
        return self._call(pair[0]), pair[1]

    def _complete(self, call: Call, result: Any, started: float) -> None:
        """The result of a call of which a limit has to hear."""
        self._attempts.gate.ended(call, self._attempts.now())
        self._outcomes.complete(call.pieces[0][1][0], result)

    def hold(self, slot: Any, refusal: BaseException | None) -> Call:
        call = super().hold(slot, refusal)
        call.make_flights()  # Now, because it has been admitted now.
        return call

    def read_ahead(self) -> None:
        """Admit one element, which waits for a limit."""
        if (pair := next(self._admission or iter(()), None)) is not None:
            self.hold(pair[0], None)

    def value_of(self, slot: Any) -> Any:
        return value_of(slot) if self._plain else slot.values[0]

    def left(self) -> None:
        if self._source.reader.over:
            self._attempts.news()

    # -- the owner of elements

    def values(self, positions: Sequence[Entry]) -> list[Any]:
        return [value_of(entry) for entry in positions]

    def flights(self, positions: Sequence[Entry]) -> list[Flight]:
        now = self._attempts.now()
        flights = [Flight(entry, value_of(entry), 0, now, 0) for entry in positions]
        self._source.flights.update(zip(positions, flights, strict=True))
        return flights


class ElementSource:
    """Admits elements as flights, or in a window; a `Source`.

    Args:
        restored: elements that go in before the input, with the attempts they have used.
        numbers: gives each element its number.
        cached: knows the elements that need no call of their own.

    Attributes:
        flights: by the entries of records that are inside the buffer, if they have one.
    """

    def __init__(
        self,
        options: RunOptions,
        buffer: Buffer,
        reader: Reader,
        outcomes: Outcomes,
        restored: Sequence[tuple[Any, int]],
        recorder: Recorder,
        numbers: Iterator[int],
        cached: CachedOutcomes | None = None,
    ) -> None:
        self.attempts: Attempts
        self.direct = options.direct
        self.alone = options.direct and options.retry is None and not options.limited
        self.flights: dict[Entry, Any] = {} if cached is None else cached.flights
        self.keyed = buffer.queue if isinstance(buffer.queue, KeyOrderedStreamElementQueue) else None
        self.waiting = 0
        self.buffer = buffer
        self.reader = reader
        self._outcomes = outcomes
        self._judges = options.retry is not None and options.retry.if_result is not None
        self._window: ElementWindow | None = None
        self._next = deque(restored)
        self._recorder = recorder
        self._context = copy_context()
        self._numbers = numbers
        self._cached = cached
        self._ready: Flight | None = None

    @property
    def over(self) -> bool:
        """Whether no element will come any more."""
        if not self.reader.over or (self._window is not None and self._window.working):
            # An element that a lane calls for may need another attempt.
            return False
        return not self._next and not (self._cached is not None and self._cached.background)

    def take(self, now: float) -> Flight | None:
        """The next element that may have its first attempt, if there is one."""
        if self._next or not self.direct:
            self.prepare(now)
        if self._cached is not None and self._cached.background:
            return self._cached.background.popleft()
        flight, self._ready = self._ready, None
        if flight is not None:
            self.waiting -= 1
        return flight

    def take_run(self, most: int, now: float) -> None:
        """None: each element has a flight."""

    def window(self) -> ElementWindow | None:
        if not self.direct or self._next or self.waiting:
            return None
        window = self._window = self._window or ElementWindow(self, self._outcomes, self._judges)
        return window if window.open() else None

    def values(self, call: Call) -> Any:
        return call.values

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        ((_, (entry,)),) = call.pieces
        self._outcomes.complete(entry, results[0])
        self._outcomes.figures.latency.add(now - call.started)
        return True

    def prepare(self, now: float) -> None:
        """Admit elements until there is one to take."""
        answered = 0
        if self.direct and not self._next:
            # Law O2: one element is read ahead.
            if not self.attempts.held and (window := self.window()) is not None:
                window.read_ahead()
            return
        while self._ready is None:
            # An element whose key is free goes before new input, which would only wait behind others.
            if self.keyed is not None and (entry := self.keyed.next_runnable()) is not None:
                flight: Flight | None = self.flights[entry]
            else:
                if self.buffer.is_full():
                    return
                element, attempts = self._next.popleft() if self._next else (self.reader.read(), 0)
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
                # The loop turns before more input is read. Nothing would wake the run for restored elements.
                self.reader.wanted = True
                return

    def _admit(self, element: Any, attempts: int, now: float) -> Flight | None:
        queue, number = self.buffer.queue, next(self._numbers)
        if type(element) is Watermark:
            entry = queue.put_watermark(element)
            self._recorder.watermark(entry, element.timestamp, number, now)
            self.buffer.completed()
            return None
        value = element.value if type(element) is Record else element
        entry = queue.put(element) if self.keyed is None else self._put_by_key(element, value, attempts)
        make = Flight if self._cached is None else self._cached.make_flight
        flight = self.flights[entry] = make(entry, value, number, now, attempts)
        self.buffer.admitted += 1
        self.waiting += 1
        self._recorder.admitted(flight)
        return flight

    def _put_by_key(self, element: Any, value: Any, attempts: int) -> Entry:
        """Put an element into the queue, which calls `key` for it."""
        # Law O10: `key` may take a snapshot, or fail, and the element must be in a snapshot even then.
        self._next.appendleft((element, attempts))
        try:
            entry = self._context.copy().run(self.buffer.queue.put, element)
        except BaseException as error:
            remedy = "it is called with the value (of a Record: its value), and must give a key that can be hashed"
            raise element_error("key", value, error, remedy, attempts) from error
        self._next.popleft()
        return entry

    def is_full(self) -> bool:
        return self.buffer.is_full()

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self.buffer.wait(news)

    def stop(self) -> None:
        if self._window is not None:
            self._window.close()

    def to_come(self) -> list[tuple[Any, int]]:
        """Elements that were restored or read, and not admitted, each with the attempts that it has used."""
        return [*self._next, *[(element, 0) for element in self.reader.to_come()]]

    def attempts_of(self, entry: Entry) -> int:
        """The number of attempts for the element that have failed."""
        flight = self.flights.get(entry)
        return 0 if flight is None else flight.attempts

    def emitted(self, entry: Entry, now: float) -> None:
        """The outputs of the element have been handed over."""
        flight = self.flights.pop(entry, None)
        self._recorder.emitted(entry, flight, now)
