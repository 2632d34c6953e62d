"""From the input to the lanes: elements are admitted to the queue, and called for.

Lanes take elements from one window over the input, or slices of it as batches. Unless an element is in trouble, nothing
is kept of it but its entry in the queue. With a key, a cache or a trace each element is a flight from the start
(`engine.flights`). The elements of a snapshot go in before the input. In key-ordered mode an element starts when its
key is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.engine.attempts import Attempts
from asyncio_operator.engine.failures import element_error
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.recorder import SILENT
from asyncio_operator.engine.window import CallWindow
from asyncio_operator.operator.outcomes import Outcomes, value_of
from asyncio_operator.queues.base import Entry
from asyncio_operator.queues.key_ordered import KeyedEntry, KeyOrderedStreamElementQueue

if TYPE_CHECKING:
    from asyncio_operator.engine.gate import Parts
    from asyncio_operator.operator.cached_results import CachedOutcomes

AT_ONCE: Final = 200
"""Elements without a call of their own, whose results are kept, between two turns of the loop: about a millisecond."""


class Admitted:
    """The `Owner` of entries that were admitted together."""

    def __init__(self, source: ElementSource, time: float) -> None:
        self.time = time  # When that was; infinity: each when its call started.
        self._source = source

    def values(self, positions: Sequence[Entry]) -> list[Any]:
        return [value_of(entry) for entry in positions]

    def flights(self, positions: Sequence[Entry]) -> list[Flight]:
        time = min(self.time, self._source.attempts.now())
        known = self._source.flights
        for entry in positions:
            if entry not in known:
                known[entry] = Flight(entry, value_of(entry), time)
        return [known[entry] for entry in positions]


class ElementSource(CallWindow):
    """Admits elements as calls take them: a `Source`, and its window.

    Args:
        restored: elements that go in before the input, with the attempts they have used.
        cached: knows the elements that need no call of their own.
    """

    def __init__(
        self,
        parts: Parts,
        reader: Reader,
        outcomes: Outcomes,
        restored: Sequence[tuple[Any, int]],
        cached: CachedOutcomes | None = None,
    ) -> None:
        options, recorder = parts.options, parts.recorder
        self.buffer = buffer = outcomes.buffer
        self.is_full, self.wait = buffer.is_full, buffer.wait
        self.reader = reader
        # By the entries of records that are inside the buffer, if they have one.
        self.flights: dict[Entry, Any] = {} if cached is None else cached.flights
        self.keyed = buffer.queue if isinstance(buffer.queue, KeyOrderedStreamElementQueue) else None
        self.waiting = 0  # The number of elements that wait for their keys.
        self.direct = options.batching is None
        self._eager = not (self.keyed is None and cached is None and recorder is SILENT)
        # Whether an element that has failed in an earlier run goes on as one that has failed in this run.
        self._resumes = self.direct and not self._eager
        self.alone = self._resumes and options.retry is None and not options.limited
        self._outcomes = outcomes
        self.to_come = deque(restored)  # Elements that were restored, or read and not admitted, with their attempts.
        self._recorder = recorder
        self._context = copy_context()
        self._cached = cached
        # Elements in a row that needed no call.
        self._answered = 0
        self._runnable: KeyedEntry | None = None
        # One iterator for all lanes: the next lane goes on where another one stopped.
        self._admission: Iterator[tuple[Any, Any]] | None = None
        attempts = Attempts(self, reader, cached or outcomes, parts)
        judges = self._eager or options.hedge is not None or options.judges
        super().__init__(attempts, plain=not (judges or attempts.gate.listens), final=not judges)
        self.owner, self.instant = Admitted(self, inf), reader.instant
        self.complete: Callable[[Any, Any, float], object] = attempts.complete
        if self.final:
            self.complete = outcomes.answered if self._plain else self._complete

    # -- the source

    @property
    def over(self) -> bool:
        """Whether no element will come any more."""
        # An element that a lane calls for may need another attempt.
        if not self.reader.over or self.working or self.to_come:
            return False
        return self._cached is None or not self._cached.background

    def take_run(self, most: int, now: float) -> Call | None:
        if self._cached is not None and self._cached.background:
            return Call([self._cached.background.popleft()])
        while not self.direct and (admission := self._opened()) is not None:
            if not (taken := [slot for slot, _ in islice(admission, most)]):
                continue
            if self._eager:
                return Call([call.flights[0] for call in taken])
            admitted = Admitted(self, now)
            # Some may have failed in the run that was restored.
            if self.flights and not self.flights.keys().isdisjoint(taken):
                return Call(admitted.flights(taken))
            return Call(((admitted, taken),))
        return None

    def window(self) -> ElementSource | None:
        return self if self.direct and self._opened() is not None else None

    def values(self, call: Call) -> Any:
        return call.values

    def store(self, call: Call, results: Sequence[Any], now: float) -> None:
        complete, record = self._outcomes.complete, self._outcomes.figures.latency.add
        if self.direct:
            complete(call.pieces[0][1][0], results[0])
            record(now - call.started)
            return
        each = iter(results)
        for owner, entries in call.pieces:
            latency = now - min(owner.time, call.started)  # type: ignore[attr-defined]
            for entry, result in zip(entries, each, strict=False):
                complete(entry, result)
                record(latency)

    def prepare(self, now: float) -> None:
        # Law O2: one element is read ahead, and waits for a limit.
        if not self.attempts.held and (pair := next(self._opened() or iter(()), None)) is not None:
            self.hold(pair[0], None)

    def stop(self) -> None:
        # The admission holds the last element, and the input.
        self._admission = None

    # -- the window

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.let_start(self._admission or iter(()))

    def _complete(self, call: Call, result: Any, started: float) -> None:
        """The result of a call of which a limit has to hear."""
        self.attempts.gate.ended(call, self.attempts.now())
        self._outcomes.complete(call.pieces[0][1][0], result)

    def hold(self, slot: Any, refusal: BaseException | None) -> Call:
        call = super().hold(slot, refusal)
        if call.pieces:
            call.make_flights()  # Now, because it has been admitted now.
        return call

    def left(self) -> None:
        if self.reader.over:
            self.attempts.news()

    # -- admission

    def _opened(self) -> Iterator[tuple[Any, Any]] | None:
        """Gives elements, if there may be one now."""
        # Room first: law O1, no input is read that has no place.
        if (
            self._admission is None
            and self._answered < AT_ONCE
            and (self._is_runnable() or (not self.buffer.is_full() and (self.to_come or self.reader.has_some())))
        ):
            self._admission = self._admit()
            if self.direct and not (self._plain or self._eager):
                self._admission = ((self._call(entry), value) for entry, value in self._admission)
        return self._admission

    def _admit(self) -> Iterator[tuple[Any, Any]]:
        """Elements, put into the queue, as long as there is room and something to read: their entries, or calls for
        their flights, and their values."""
        buffer, eager = self.buffer, self._eager
        queue = buffer.queue
        put = queue.put
        yield from self._runnables()
        while self.to_come and not buffer.is_full() and self._answered < AT_ONCE:
            element, used = self.to_come.popleft()
            yield from self._admit_one(element, used)
            if used and self._resumes:
                # Its call goes before those for the next elements.
                self._admission = None
                return
        # Counted here, and looked up again when it is used up: a look at the queue for each element costs more.
        room = 0 if self.to_come else queue.capacity - len(queue)
        if room:
            for element in self.reader:
                kind = type(element)
                if eager or kind is Watermark:
                    yield from self._admit_one(element)
                    if self._answered >= AT_ONCE:
                        break
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
                self.reader.input.exhausted()
        self._admission = None

    def _admit_one(self, element: Any, used: int = 0) -> Iterator[tuple[Any, Any]]:
        """Admit an element, which has used this many attempts. Gives what may be called for now."""
        queue = self.buffer.queue
        if type(element) is Watermark:
            entry = queue.put_watermark(element)
            self._recorder.watermark(entry, element.timestamp, self.attempts.now())
            self.buffer.completed()
            return
        value = element.value if type(element) is Record else element
        if self.keyed is None:
            entry = queue.put(element)
        else:
            # Law O10: `key` may take a snapshot, or fail, and the element must be in a snapshot even then.
            self.to_come.appendleft((element, used))
            try:
                entry = self._context.copy().run(queue.put, element)
            except BaseException as error:
                remedy = "it is called with the value (of a Record: its value), and must give a key that can be hashed"
                raise element_error("key", value, error, remedy, used) from error
            self.to_come.popleft()
        self.buffer.admitted += 1
        if not (self._eager or used):
            yield entry, value
            return
        make = Flight if self._cached is None else self._cached.make_flight
        flight = self.flights[entry] = make(entry, value, self.attempts.now(), used)
        self._recorder.admitted(flight)
        if self._resumes:
            self.attempts.resume(flight)
        elif not self._eager:
            yield entry, value
        elif self.keyed is None:
            yield from self._call_for(flight)
        else:
            self.waiting += 1
            yield from self._runnables()

    def _is_runnable(self) -> bool:
        """Whether the key of an element that was admitted is free."""
        if self._runnable is None and self.keyed is not None:
            self._runnable = self.keyed.next_runnable()
        return self._runnable is not None

    def _runnables(self) -> Iterator[tuple[Call, Any]]:
        """Elements whose keys are free. They go before new input, which would only wait behind others."""
        while self._answered < AT_ONCE and self._is_runnable():
            assert self._runnable is not None
            flight, self._runnable = self.flights[self._runnable], None
            self.waiting -= 1
            yield from self._call_for(flight)

    def _call_for(self, flight: Any) -> Iterator[tuple[Call, Any]]:
        """A call for an element, if it needs one."""
        if self._cached is not None and self._cached.answers(flight, self.attempts.now()):
            self._answered += 1
            if self._answered == AT_ONCE:
                asyncio.get_running_loop().call_soon(self._go_on)
            return
        call = Call([flight])
        call.counted = False
        yield call, flight.value

    def _go_on(self) -> None:
        """The loop has turned."""
        self._answered = 0
        self.attempts.news()

    # -- what a run asks

    def attempts_of(self, entry: Entry) -> int:
        """The number of attempts for the element that have failed."""
        flight = self.flights.get(entry)
        return 0 if flight is None else flight.attempts

    def emitted(self, entry: Entry, now: float) -> None:
        """The outputs of the element have been handed over."""
        flight = self.flights.pop(entry, None)
        self._recorder.emitted(entry, flight, now)
