"""Which calls are past their limits: the registry of the lanes' deadlines, and the timer for the earliest.

The deadline of a call is its start plus the limit of its lane, so a lane only stores the start of its call. The
registry holds a lane at most once, under the deadline that it had when it was registered. At that time the lane is
checked: it may be idle (it leaves the registry, and its next call registers it again), in a younger call (it is put
back under the deadline of that call), or late. A call that ends in time, as nearly all do, costs nothing. The registry
reads no clock: it is given the time.

What follows from a passed deadline is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

from asyncio_operator.engine.lane import Lane
from asyncio_operator.engine.timing import COARSEST, Alarm
from asyncio_operator.state.heap_queue import HeapPriorityQueue

LAST_TURNS = 10
"""Turns of the loop that a late call is given to finish without waiting. A result that has arrived takes one turn to
reach the coroutine, and one or two more for each task it has been wrapped in."""


def _due(lane: Lane) -> float:
    return lane.due


class Deadlines:
    """The registry, by times in seconds."""

    def __init__(self) -> None:
        self._lanes: HeapPriorityQueue[Lane] = HeapPriorityQueue(_due)

    def watch(self, lane: Lane) -> bool:
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

    def late(self, now: float) -> list[Lane]:
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


class Timeouts:
    """Finds the late calls of lanes, by one timer for the earliest deadline.

    A late call first gets `LAST_TURNS` turns of the loop, because a result that has arrived wins.

    Args:
        clock: gives seconds.
        over: whether the run has ended, and no call is late any more.
        passed: called with the lanes whose calls are late.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        over: Callable[[], bool],
        passed: Callable[[list[Lane]], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._over = over
        self._passed = passed
        self._deadlines = Deadlines()
        self._alarm = Alarm(loop, clock, self._wake)

    def watch(self, lane: Lane) -> None:
        """Watch the call that the lane has just started, or that has got a new limit."""
        if self._deadlines.watch(lane):
            self._alarm.set(lane.due)

    def cancel(self) -> None:
        """Watch no call any more."""
        self._alarm.cancel()

    def _wake(self) -> None:
        if self._over():
            return
        now = self._clock()
        late = [(lane, lane.window, lane.slot, lane.started) for lane in self._deadlines.late(now)]
        if late:
            self._loop.call_soon(self._last_turn, late, LAST_TURNS)
        due = self._deadlines.next_due()
        if due is not None:
            self._alarm.set(max(due, now + COARSEST))

    def _last_turn(self, late: list[tuple[Lane, Any, Any, float]], turns: int) -> None:
        # A lane whose call has ended meanwhile may be in another one, which is not late.
        late = [call for call in late if call == (call[0], call[0].window, call[0].slot, call[0].started)]
        if self._over() or not late:
            return
        if turns:
            self._loop.call_soon(self._last_turn, late, turns - 1)
        else:
            self._passed([lane for lane, *_ in late])
