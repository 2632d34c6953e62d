"""The queue whose elements leave in input order.

A completed element waits behind an older one that still runs (head-of-line blocking). So the queue's capacity, which
is the room for waiting results, must be larger than the number of calls in flight; otherwise one slow call stops the
fast ones. Source: Flink's ``OrderedStreamElementQueue``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from asyncio_operator.elements import Watermark
from asyncio_operator.queues.base import Entry, StreamElementQueue, watermark_entry


class OrderedStreamElementQueue(StreamElementQueue):
    """Records and watermarks leave in the order in which they were put."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[Entry] = deque()

    def put(self, element: Any) -> Entry:
        entry = Entry(element)
        self._entries.append(entry)
        return entry

    def put_watermark(self, watermark: Watermark) -> Entry:
        entry = watermark_entry(watermark)
        self._entries.append(entry)
        return entry

    def peek_completed(self) -> Entry | None:
        entries = self._entries
        if entries and entries[0].outputs is not None:
            return entries[0]
        return None

    def poll_completed(self) -> Entry | None:
        entries = self._entries
        if entries and entries[0].outputs is not None:
            return entries.popleft()
        return None

    def entries(self) -> list[Entry]:
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"OrderedStreamElementQueue({len(self)} of {self.capacity})"
