"""Finds calls that are past their deadline, with one heap operation per lane and timeout period.

A call's deadline is its start plus its lane's limit, so a lane only stores when its call started. The registry holds a
lane at most once, under the deadline that it had when it was registered. At that time the lane is checked. It may be
idle: it leaves the registry, and its next call registers it again. It may be in a later call: it is put back under that
call's deadline. Or it is late. A call that ends in time, as nearly all do, costs nothing.

The caller passes the time. This module knows neither clocks nor loops nor tasks.
"""

from __future__ import annotations

from math import inf
from typing import Generic, Protocol, TypeVar

from asyncio_operator.state.heap_queue import HeapPriorityQueue


class Deadlined(Protocol):
    """What the registry sees of a lane."""

    due: float
    """The time it is registered under; the registry's own."""
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
