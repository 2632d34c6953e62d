"""Elements from admission to their end, the calls made for them, and the waits between these.

An element may need several calls, and with batches a call serves several elements. `Waits` is the timetable of elements
that wait: in back-off for their next attempt, or for a place while their deadline runs. Pure; times in seconds.
"""

from __future__ import annotations

from math import inf
from typing import Any

from asyncio_operator.queues import Entry
from asyncio_operator.state.heap_queue import HeapPriorityQueue


class Flight:
    """An element in flight.

    Attributes:
        number: of the record, in the order of the input.
        admitted: when it came in.
        attempts: those that have ended in failure.
        deadline: when it has to end; known from the start of its first attempt, infinity before.
        begun: when its present attempt started, or None before the first.
        wakes: when it has to be looked at, while it is in `Waits`.
        backing_off: whether it waits for its next attempt.
        late: calls for it that run on though they are past their limit.
    """

    __slots__ = (
        "admitted",
        "attempts",
        "backing_off",
        "begun",
        "deadline",
        "entry",
        "late",
        "number",
        "value",
        "wakes",
    )

    def __init__(self, entry: Entry, value: Any, number: int, admitted: float, attempts: int) -> None:
        self.entry = entry
        self.value = value
        self.number = number
        self.admitted = admitted
        self.attempts = attempts
        self.deadline = inf
        self.begun: float | None = None
        self.wakes = inf
        self.backing_off = False
        self.late = 0

    @property
    def ended(self) -> bool:
        return self.entry.outputs is not None


class Call:
    """A call for one element, or for the elements of a batch.

    Attributes:
        present: the elements that it may still give an outcome.
        late: those that have left it, at their deadlines, while it runs on.
        half: whether it is a part of a batch that failed, and belongs to the attempt of that.
        started: when it started.
    """

    __slots__ = ("half", "late", "present", "started")

    def __init__(self, flights: list[Flight], half: bool = False) -> None:
        self.present = flights
        self.late: list[Flight] = []
        self.half = half
        self.started = 0.0


class Waits:
    """Which elements have to be looked at, and when."""

    def __init__(self) -> None:
        self.backing_off = 0
        self._heap: HeapPriorityQueue[Flight] = HeapPriorityQueue(lambda flight: flight.wakes)

    def back_off(self, flight: Flight, until: float) -> None:
        """Wait for the next attempt."""
        flight.backing_off = True
        self.backing_off += 1
        flight.wakes = until
        self._heap.add(flight)

    def guard(self, flight: Flight) -> None:
        """Watch the deadline of an element that waits for a place."""
        if flight.deadline < inf:
            flight.wakes = flight.deadline
            self._heap.add(flight)

    def leave(self, flight: Flight) -> None:
        """The element waits no more."""
        if flight.wakes < inf:
            flight.wakes = inf
            self._heap.remove(flight)

    def due(self, now: float) -> tuple[list[Flight], list[Flight]]:
        """Take out those whose back-off is over, and those that are past their deadline."""
        ready: list[Flight] = []
        overdue: list[Flight] = []
        while (flight := self._heap.peek()) is not None and flight.wakes <= now:
            self._heap.poll()
            flight.wakes = inf
            (ready if flight.backing_off else overdue).append(flight)
            self.backing_off -= flight.backing_off
            flight.backing_off = False
        return ready, overdue

    def next_due(self) -> float | None:
        """When to call `due` again, or None if nothing waits."""
        flight = self._heap.peek()
        return None if flight is None else flight.wakes
