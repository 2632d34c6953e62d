"""The queue of a run, with what waits at its two ends: admission for room, emission for something that may leave.

It adds to a `StreamElementQueue` the futures, the counters, and the time in which no input was read because it was
full. It decides no order, and knows no calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncio_operator.queues import StreamElementQueue
from asyncio_operator.waiting import wake


class Buffer:
    """What is admitted and not yet emitted.

    Attributes:
        admitted, emitted: records so far.
        room: waits for a place.
        ready: waits for something that may leave.
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

    async def wait_for_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full():
            await self.wait(asyncio.get_running_loop().create_future())

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future; if there is no room now, some room completes it too."""
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
        """Seconds in which admission has waited for room."""
        return self._blocked + (0.0 if self._blocked_since is None else self._now() - self._blocked_since)

    def completed(self) -> None:
        """An element has completed: if one may leave now, wake the emission."""
        ready = self.ready
        if ready is not None and self.queue.peek_completed() is not None:
            self.ready = None
            wake(ready)
