"""The plain way from the input to the lanes: one call for every element, in the order they come.

It is what a run uses unless it retries, batches, or has limits or keys to mind (see `attempts`): nothing is known of an
element but its entry in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.operator.buffer import Buffer
from asyncio_operator.operator.outcomes import Outcomes, value_of
from asyncio_operator.queues import Entry


class Admission:
    """The intake of the lanes, and its one window."""

    begin = None

    def __init__(self, buffer: Buffer, reader: Reader, outcomes: Outcomes) -> None:
        self.lanes = 0
        self.instant = reader.instant
        self.runs_code = reader.runs_code
        self.complete = outcomes.complete
        self._buffer = buffer
        self._reader = reader
        self._outcomes = outcomes
        self._admission: Iterator[tuple[Entry, Any]] | None = None

    async def window(self) -> Admission | None:
        if self._buffer.is_full():
            await self._buffer.wait_for_room()
        if not await self._reader.ready():
            return None
        if self._admission is None:
            self._admission = self._admit()
        return self

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
        room = queue.capacity - len(queue)
        for element in self._reader:
            kind = type(element)
            if kind is Watermark:
                queue.put_watermark(element)
                buffer.completed()
            else:
                buffer.admitted += 1
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

    def returned(self, entry: Entry) -> None:
        """The element has ended."""

    def value_of(self, entry: Entry) -> Any:
        return value_of(entry)

    def left(self) -> None:
        """There is nothing to do: the queue knows what is complete."""
