"""When elements that no call runs for have to be looked at: by the end of their back-off, or by their limit.

An element waits in back-off for its next attempt, or for a place in a call while its deadline runs. Times are in
seconds, and this module reads no clock.
"""

from __future__ import annotations

from math import inf

from asyncio_operator.engine.flights import Flight
from asyncio_operator.state.heap_queue import HeapPriorityQueue


class Waits:
    """When elements have to be looked at: at the end of a back-off, or at the limit of a wait for a place.

    Attributes:
        earliest: no element has to be looked at before this time.
    """

    def __init__(self) -> None:
        self.earliest = inf
        self._back_offs: HeapPriorityQueue[Flight] = HeapPriorityQueue(_wakes)
        self._limits: HeapPriorityQueue[Flight] = HeapPriorityQueue(_wakes)

    @property
    def backing_off(self) -> int:
        """The number of elements that wait for their next attempt."""
        return len(self._back_offs)

    def back_off(self, flight: Flight, until: float) -> None:
        """Wait for the next attempt."""
        flight.wakes = until
        self._back_offs.add(flight)
        self.earliest = min(self.earliest, until)

    def watch(self, flight: Flight, until: float) -> None:
        """Watch the limit of an element that waits for a place."""
        if until < inf:
            flight.wakes = until
            self._limits.add(flight)
            self.earliest = min(self.earliest, until)

    def leave(self, flight: Flight) -> None:
        """The element no longer waits for a place."""
        if flight.wakes < inf:
            self._limits.remove(flight)
            flight.wakes = inf

    def forget(self, flight: Flight) -> None:
        """The element no longer waits, neither in back-off nor for a place."""
        self._back_offs.remove(flight)
        self.leave(flight)

    def clear(self) -> None:
        """No element waits any more."""
        self._back_offs.clear()
        self._limits.clear()

    def ready(self, now: float) -> list[Flight]:
        """Take out those whose back-off is over by now."""
        return _take(self._back_offs, now)

    def overdue(self, now: float) -> list[Flight]:
        """Take out those whose limit is reached by now."""
        return _take(self._limits, now)

    def next_due(self) -> float:
        """The time at which `ready` or `overdue` next returns an element; infinity if no element waits."""
        first, second = self._back_offs.peek(), self._limits.peek()
        self.earliest = min(inf if first is None else first.wakes, inf if second is None else second.wakes)
        return self.earliest


def _wakes(flight: Flight) -> float:
    return flight.wakes


def _take(heap: HeapPriorityQueue[Flight], now: float) -> list[Flight]:
    taken = []
    while (flight := heap.peek()) is not None and flight.wakes <= now:
        heap.poll()
        flight.wakes = inf
        taken.append(flight)
    return taken
