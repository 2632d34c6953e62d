"""One lane, and the cancellations that can hit it.

Any code on a loop can cancel every task of it. A lane takes back a cancellation that hit a call. A cancellation that
hits the run is reported as a failure of the function that must have caused it, because a bare ``CancelledError`` says
neither which code cancelled nor why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from math import inf
from typing import Any

from asyncio_operator.engine.contracts import Window
from asyncio_operator.errors import describe

logger = logging.getLogger("asyncio_operator.calls")

IDLE: Any = object()

present_run: ContextVar[object] = ContextVar("present_run")
"""The mark of the lanes in which the present code runs: that of a call, or of a task or timer that a call has started,
because these have a copy of its context."""


class Lane:
    """One place for a call.

    Attributes:
        started: when the present call started.
        limit: seconds that it may take; infinity for no limit.
        due: the time for which its timer is set (`deadlines`).
        watched: whether its limit is watched, by a timer if there is a limit.
        context: that of its task.
        first_context: a copy of it, from before the first call.
        apart: whether the context of its task has changed; see `contexts`.
    """

    __slots__ = (
        "apart",
        "context",
        "due",
        "expired",
        "first_context",
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
        self.first_context: Context
        self.apart = False
        self.slot: Any = IDLE
        self.started = 0.0
        self.limit = limit
        self.due = inf
        # As if it had a timer, so that no call of a lane without a limit sets one.
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


async def wait_for_calls(lanes: Mapping[Lane, None], grace_period: float) -> asyncio.CancelledError | None:
    """Wait until the lanes have ended and left the mapping. Those that are left after the grace period (seconds) are
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
