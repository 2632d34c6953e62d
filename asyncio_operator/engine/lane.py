"""One lane: the call that it runs, and its limit.

A lane only stores the start of its call. It has at most one timer, for the deadline that it had when that was set. When
it rings the lane is idle, late, or in a younger call. A call that ends in time costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.contracts import Window

if TYPE_CHECKING:
    from asyncio_operator.engine.timers import Timers

IDLE: Any = object()


class Lane:
    """One place for a call.

    Attributes:
        started: when the present call started.
        limit: seconds that it may take; infinity for no limit.
        due: the time for which its timer is set.
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


LAST_TURNS = 10
"""Turns of the loop that a late call is given to finish without waiting. A result that has arrived takes one turn to
reach the coroutine, and one or two more for each task it has been wrapped in."""


class Timeouts:
    """Finds the late calls of lanes.

    Args:
        over: whether the run has ended, and no call is late any more.
        passed: called with the lanes whose calls are late.
    """

    def __init__(self, timers: Timers, over: Callable[[], bool], passed: Callable[[list[Lane]], None]) -> None:
        self._timers = timers
        self._over = over
        self._passed = passed
        # Those that were late when the timers rang, with their calls, until they get their first turn.
        self._late: list[tuple[Lane, Any, Any, float]] = []

    def watch(self, lane: Lane) -> None:
        """Watch the call that the lane has just started, or that has got a new limit.

        A lane whose timer is set for an earlier time keeps that time, and is looked at again then.
        """
        due = lane.started + lane.limit
        # The early time is right for the look, and moving the timer for every call would cost as much as a new one.
        if lane.watched:
            if due >= lane.due:
                return
            self._timers.delete(lane.due, self._look, lane)
        lane.watched = True
        lane.due = due
        if due < inf:
            self._timers.set(due, self._look, lane)

    def forget(self, lane: Lane) -> None:
        """The lane gets another limit: its next call sets a timer of its own."""
        self._timers.delete(lane.due, self._look, lane)
        lane.watched, lane.due = False, inf

    def _look(self, lane: Lane, now: float) -> None:
        lane.watched = False
        if not lane.busy or self._over():
            return
        if lane.started + lane.limit > now:
            self.watch(lane)
            return
        if not self._late:
            self._timers.loop.call_soon(self._first_turn)
        self._late.append((lane, lane.window, lane.slot, lane.started))

    def _first_turn(self) -> None:
        late, self._late = self._late, []
        self._last_turn(late, LAST_TURNS)

    def _last_turn(self, late: list[tuple[Lane, Any, Any, float]], turns: int) -> None:
        # A lane whose call has ended meanwhile may be in another one, which is not late.
        late = [call for call in late if call == (call[0], call[0].window, call[0].slot, call[0].started)]
        if self._over() or not late:
            return
        if turns:
            self._timers.loop.call_soon(self._last_turn, late, turns - 1)
        else:
            self._passed([lane for lane, *_ in late])
