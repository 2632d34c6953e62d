"""Which calls are past their limits: the lanes' deadlines, as timers of the run.

The deadline of a call is its start plus the limit of its lane, so a lane only stores the start of its call. A lane has
at most one timer, for the deadline that it had when the timer was set. When it rings the lane is looked at: it may be
idle (it has no timer then, and its next call sets one), in a younger call (the timer is set for the deadline of that
call), or late. A call that ends in time, as nearly all do, costs nothing.

What follows from a passed deadline is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.lane import Lane

if TYPE_CHECKING:
    from asyncio_operator.engine.timers import Timers

LAST_TURNS = 10
"""Turns of the loop that a late call is given to finish without waiting. A result that has arrived takes one turn to
reach the coroutine, and one or two more for each task it has been wrapped in."""


class Timeouts:
    """Finds the late calls of lanes.

    A late call first gets `LAST_TURNS` turns of the loop, because a result that has arrived wins.

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
