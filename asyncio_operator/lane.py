"""One lane: what `lanes` and the registry of deadlines know of it."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from asyncio_operator.windows import Window

IDLE: Any = object()


class Lane:
    """One place for a call."""

    __slots__ = ("due", "expired", "limit", "slot", "started", "task", "turn_ends", "watched", "window")

    def __init__(self, limit: float, turn_ends: float) -> None:
        self.task: asyncio.Task[None]
        self.window: Window
        self.slot: Any = IDLE
        self.started = 0.0
        self.limit = limit
        self.due = inf
        # A lane without a limit needs no watching.
        self.watched = limit == inf
        self.expired = False
        self.turn_ends = turn_ends

    @property
    def busy(self) -> bool:
        return self.slot is not IDLE and not self.expired


def uncancel(task: asyncio.Task[None]) -> None:
    """Take back cancellations that have been dealt with, or a later `asyncio.timeout` in the lane would see them."""
    while task.cancelling():
        task.uncancel()
