"""The queue whose records leave as they complete, but never cross a watermark.

The elements form segments: the records between two watermarks, closed by the later one. Only the first segment emits.
Its records leave in the order they complete; when the last one has left, its watermark leaves and the next segment is
the first. With no watermarks there is one segment, and nothing ever waits for anything else.
Source: Flink's ``UnorderedStreamElementQueue``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from asyncio_operator.elements import Watermark
from asyncio_operator.queues.base import Entry, StreamElementQueue, watermark_entry


class Segment:
    """The records since the last watermark, and the watermark that closes them once it has come."""

    __slots__ = ("completed", "inside", "watermark")

    def __init__(self) -> None:
        self.inside: dict[Entry, None] = {}
        self.completed: deque[Entry] = deque()
        self.watermark: Entry | None = None


class UnorderedStreamElementQueue(StreamElementQueue):
    """Between two watermarks, records leave in the order they complete."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._segments = deque([Segment()])
        self._size = 0

    def put(self, element: Any) -> Entry:
        self._size += 1
        last = self._segments[-1]
        entry = Entry(element, last.completed)
        last.inside[entry] = None
        return entry

    def put_entry(self, entry: Entry) -> None:
        """Take an entry of another class in."""
        self._size += 1
        last = self._segments[-1]
        entry.completed = last.completed
        last.inside[entry] = None

    def put_watermark(self, watermark: Watermark) -> Entry:
        self._size += 1
        self._segments[-1].watermark = entry = watermark_entry(watermark)
        self._segments.append(Segment())
        return entry

    def peek_completed(self) -> Entry | None:
        first = self._segments[0]
        if first.completed:
            return first.completed[0]
        return None if first.inside else first.watermark

    def poll_completed(self) -> Entry | None:
        first = self._segments[0]
        if first.completed:
            entry = first.completed.popleft()
            del first.inside[entry]
            self._size -= 1
            return entry
        if first.inside or first.watermark is None:
            return None
        self._segments.popleft()
        self._size -= 1
        return first.watermark

    def entries(self) -> list[Entry]:
        entries: list[Entry] = []
        for segment in self._segments:
            entries += segment.inside
            if segment.watermark is not None:
                entries.append(segment.watermark)
        return entries

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"UnorderedStreamElementQueue({len(self)} of {self.capacity}, {len(self._segments)} segments)"
