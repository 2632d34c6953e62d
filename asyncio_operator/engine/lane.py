"""One lane, the registry of the lanes' deadlines, and the cancellations that can hit a lane.

The deadline of a call is its start plus the limit of its lane, so a lane only stores the start of its call. The
registry holds a lane at most once, under the deadline that it had when it was registered. At that time the lane is
checked: it may be idle (it leaves the registry, and its next call registers it again), in a younger call (it is put
back under the deadline of that call), or late. A call that ends in time, as nearly all do, costs nothing. The registry
reads no clock: it is given the time.

Any code on a loop can cancel every task of it. A lane takes back a cancellation that hit a call. A cancellation that
hits the run is reported as a failure of the function that must have caused it, because a bare ``CancelledError`` says
neither which code cancelled nor why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context, ContextVar
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from asyncio_operator.engine.contracts import Window
from asyncio_operator.errors import describe
from asyncio_operator.state.heap_queue import HeapPriorityQueue

logger = logging.getLogger("asyncio_operator")

IDLE: Any = object()

present_run: ContextVar[object] = ContextVar("present_run")
"""The mark of the lanes in which the present code runs: that of a call, or of a task or timer that a call has started,
because these have a copy of its context."""


class Lane:
    """One place for a call.

    Attributes:
        context: the context of its task when that began.
        apart: whether the context of its task has changed; see `contexts`.
    """

    __slots__ = (
        "apart",
        "context",
        "due",
        "expired",
        "limit",
        "slot",
        "started",
        "task",
        "watched",
        "window",
    )

    def __init__(self, limit: float) -> None:
        self.task: asyncio.Task[None]
        self.window: Window
        self.context: Context
        self.apart = False
        self.slot: Any = IDLE
        self.started = 0.0
        self.limit = limit
        self.due = inf
        # As if it were registered, so that no call of a lane without a limit is.
        self.watched = limit == inf
        self.expired = False

    @property
    def busy(self) -> bool:
        return self.slot is not IDLE and not self.expired

    def time_left(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Returns the seconds that are left for the lane's call. It refers to the lane only, not to the run."""
        return lambda: inf if self.slot is IDLE else self.started + self.limit - clock()


def uncancel(task: asyncio.Task[None]) -> None:
    """Take back handled cancellations: a later `asyncio.timeout` in the lane would see them otherwise."""
    while task.cancelling():
        task.uncancel()


class RunEnd(asyncio.Future[None]):
    """The future that the task of a run waits for. It calls `on_cancel` at once when that task is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], None]) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:
        self._on_cancel()
        return super().cancel(msg)


async def wait_for_calls(lanes: set[Lane], grace_period: float) -> asyncio.CancelledError | None:
    """Wait until the lanes have ended and left the set. Those that are left after the grace period (seconds) are
    logged.

    A cancellation does not end the wait. It is returned.
    """
    running = {lane.task for lane in lanes}
    loop = asyncio.get_running_loop()
    ends, left = loop.time() + grace_period, grace_period
    interrupted: asyncio.CancelledError | None = None
    while running:
        try:
            _, running = await asyncio.wait(running, timeout=left)
        except asyncio.CancelledError as error:
            interrupted = error
            running = {task for task in running if not task.done()}
        left = ends - loop.time()
        if left <= 0:
            break
    for lane in lanes:
        if lane.task in running:
            logger.error(
                "%s ignored its cancellation for the grace period of %.1f s and is left behind",
                "the input" if lane.slot is IDLE else f"a call for element {describe(lane.window.value_of(lane.slot))}",
                grace_period,
            )
    return interrupted


class Deadlined(Protocol):
    """The part of a lane that the registry uses."""

    due: float
    """The time under which it is registered. Only the registry sets it."""
    started: float
    """When the present call started."""
    limit: float
    """Seconds that it may take; infinity for no limit."""
    watched: bool
    """Whether it is in the registry."""

    @property
    def busy(self) -> bool: ...


L = TypeVar("L", bound=Deadlined)


def _due(lane: Deadlined) -> float:
    return lane.due


class Deadlines(Generic[L]):
    """The registry, by times in seconds."""

    def __init__(self) -> None:
        self._lanes: HeapPriorityQueue[L] = HeapPriorityQueue(_due)

    def watch(self, lane: L) -> bool:
        """Register a lane that has just started a call, or has a new limit. True if `next_due` may be earlier now.

        A lane that is registered under an earlier time keeps that time, and is checked again then.
        """
        due = lane.started + lane.limit
        # The early time is right for the check, and moving the lane in the heap for every call would cost as a timer.
        if lane.watched:
            if due >= lane.due:
                return False
            self._lanes.remove(lane)
        lane.watched = due < inf
        lane.due = due
        return lane.watched and self._lanes.add(lane)

    def late(self, now: float) -> list[L]:
        """Take out the lanes whose present call is past its deadline."""
        late = []
        while (lane := self._lanes.peek()) is not None and lane.due <= now:
            self._lanes.poll()
            lane.watched = False
            if lane.busy:
                if lane.started + lane.limit <= now:
                    late.append(lane)
                else:
                    self.watch(lane)
        return late

    def next_due(self) -> float | None:
        """When to call `late` again, or None if nothing is registered."""
        lane = self._lanes.peek()
        return None if lane is None else lane.due
