"""The queue whose records leave in the order in which they complete, but never cross a watermark.

The elements form segments. A segment is the records between two watermarks, and the later watermark closes it. Only the
first segment emits, in the order in which its records complete. When its last record has left, its watermark leaves,
and the next segment becomes the first. Without watermarks there is one segment, and no record waits for another.
Source: Flink's ``UnorderedStreamElementQueue``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from asyncio_operator.elements import Watermark
from asyncio_operator.queues.base import Entry, StreamElementQueue


class Segment:
    """The records since the last watermark, and the watermark that closes the segment, None until it is put."""

    __slots__ = ("completed", "inside", "watermark")

    def __init__(self) -> None:
        # In input order, which a snapshot needs; a dict removes from anywhere in constant time.
        self.inside: dict[Entry, None] = {}
        self.completed: deque[Entry] = deque()
        self.watermark: Entry | None = None


class UnorderedStreamElementQueue(StreamElementQueue):
    """Between two watermarks, records leave in the order in which they complete."""

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

    def put_watermark(self, watermark: Watermark) -> Entry:
        self._size += 1
        self._segments[-1].watermark = entry = Entry(watermark)
        entry.outputs = ()
        # Records that follow go into a new segment, which emits only when this one is empty (law Q6).
        self._segments.append(Segment())
        return entry

    def peek_completed(self) -> Entry | None:
        first = self._segments[0]
        if first.completed:
            return first.completed[0]
        # A watermark leaves only when no record before it is left, complete or not.
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
