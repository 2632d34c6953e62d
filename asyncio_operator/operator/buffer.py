"""The queue of a run, and the two waits at its ends: admission waits for room, emission for an element that may leave.

It adds futures and counters to a `StreamElementQueue`, and measures the time in which no input was read because the
queue was full. It decides no order, and knows no calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncio_operator.engine.timing import wake
from asyncio_operator.queues.base import StreamElementQueue


class Buffer:
    """The elements that are admitted and not yet emitted.

    Attributes:
        admitted, emitted: number of records so far.
        room: the future of a wait for room.
        ready: the future of a wait for an element that may leave.
    """

    def __init__(self, queue: StreamElementQueue, now: Callable[[], float]) -> None:
        self.queue = queue
        self.admitted = 0
        self.emitted = 0
        self.room: asyncio.Future[None] | None = None
        self.ready: asyncio.Future[None] | None = None
        self._now = now
        self._blocked = 0.0
        self._blocked_since: float | None = None

    def is_full(self) -> bool:
        return len(self.queue) >= self.queue.capacity

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future. If there is no room now, new room completes it too."""
        if not self.is_full():
            await news
            return
        self.room = news
        self._blocked_since = self._now()
        try:
            await news
        finally:
            self.room = None
            self._blocked += self._now() - self._blocked_since
            self._blocked_since = None

    def backpressure(self) -> float:
        """Seconds for which admission has waited for room."""
        return self._blocked + (0.0 if self._blocked_since is None else self._now() - self._blocked_since)

    def completed(self) -> None:
        """An element has completed. Wake the emission if an element may leave now."""
        ready = self.ready
        if ready is not None and self.queue.peek_completed() is not None:
            # Until the emission waits again, completions need not look at the queue.
            self.ready = None
            wake(ready)
