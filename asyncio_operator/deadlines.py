"""Which calls in flight are past their deadline, at the price of one heap operation per lane and timeout period.

A call's deadline is the start of its lane's present call plus the timeout, so a lane only writes down when it started.
The registry holds a lane at most once, under the deadline it had when it was registered. When that time comes the lane
is looked at again: it may be idle (it leaves the registry, and its next call registers it again), in a younger call (it
is put back under that call's deadline), or late. A call that ends in time, as nearly all do, costs nothing here.

Pure: it is given the time and gives decisions. It knows neither loops nor tasks.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from asyncio_operator.state.heap_queue import HeapPriorityQueue


class Deadlined(Protocol):
    """What the registry sees of a lane."""

    due: float
    """The time it is registered under; the registry's own."""
    started: float
    """When the present call started."""
    watched: bool
    """Whether it is in the registry."""

    @property
    def busy(self) -> bool: ...


L = TypeVar("L", bound=Deadlined)


def _due(lane: Deadlined) -> float:
    return lane.due


class Deadlines(Generic[L]):
    """The registry for one timeout, in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lanes: HeapPriorityQueue[L] = HeapPriorityQueue(_due)

    def watch(self, lane: L) -> bool:
        """Register a lane that has just started a call. True if `next_due` may have become earlier."""
        lane.watched = True
        lane.due = lane.started + self.timeout
        return self._lanes.add(lane)

    def late(self, now: float) -> list[L]:
        """Take out the lanes whose present call is past its deadline."""
        late = []
        while (lane := self._lanes.peek()) is not None and lane.due <= now:
            self._lanes.poll()
            lane.watched = False
            if lane.busy:
                if lane.started + self.timeout <= now:
                    late.append(lane)
                else:
                    self.watch(lane)
        return late

    def next_due(self) -> float | None:
        """When to call `late` again, or None if nothing is registered."""
        lane = self._lanes.peek()
        return None if lane is None else lane.due
