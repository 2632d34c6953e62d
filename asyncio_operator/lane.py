"""One lane: what `lanes` and the registry of deadlines know of it; and the cancellations that it may meet with.

Law O17: what a call leaves open keeps the call's context, and nothing in that holds the run: `present_run` is a mark,
and `running_call` knows the lane alone.

Everything on a loop can cancel every task of it. A lane takes back what hit a call; what hits the run is told as the
failure of the function that must have done it, because a bare ``CancelledError`` says neither who nor why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import Any

from asyncio_operator.errors import FunctionError
from asyncio_operator.windows import Window

IDLE: Any = object()

present_run: ContextVar[object] = ContextVar("present_run")
"""The mark of the lanes in which a call runs, or has started what runs here: its tasks and timers have a copy of its
context."""


class Lane:
    """One place for a call."""

    __slots__ = ("due", "expired", "limit", "slot", "started", "task", "watched", "window")

    def __init__(self, limit: float) -> None:
        self.task: asyncio.Task[None]
        self.window: Window
        self.slot: Any = IDLE
        self.started = 0.0
        self.limit = limit
        self.due = inf
        # A lane without a limit needs no watching.
        self.watched = limit == inf
        self.expired = False

    @property
    def busy(self) -> bool:
        return self.slot is not IDLE and not self.expired

    def time_left(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Gives the seconds that are left for the lane's call. It holds the lane, and so nothing of an ended run."""
        return lambda: inf if self.slot is IDLE else self.started + self.limit - clock()


def uncancel(task: asyncio.Task[None]) -> None:
    """Take back cancellations that have been dealt with, or a later `asyncio.timeout` in the lane would see them."""
    while task.cancelling():
        task.uncancel()


class RunEnd(asyncio.Future[None]):
    """What the task of a run waits for; `on_cancel` is called, there and then, where somebody cancels that task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], None]) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:
        self._on_cancel()
        return super().cancel(msg)


def stray_cancellation(what: str, element: str = "") -> FunctionError:
    """What a run fails of where its own tasks are cancelled by somebody who has not started them, perhaps in the call
    for that element."""
    call = f" in the call for element {element}" if element else ""
    return FunctionError(
        f"{what}{call}; a function may cancel only tasks that it has started itself, and leave no timer or task behind "
        "that cancels others: what asyncio.all_tasks() gives belongs to all who are on the event loop",
        element=element,
    )
