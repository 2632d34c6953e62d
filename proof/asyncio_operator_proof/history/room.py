"""When a run has room: for a call, while fewer run than `capacity`; for a row, while fewer are inside than `buffer`."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from asyncio_operator_proof.history.parts import Run

Span = tuple[float, float]


def room_for_calls(run: Run) -> list[Span]:
    """The times with room for a call, from the start of the first call on: before it the service is opened."""
    edges = [(call.start, 1) for call in run.calls] + [(call.stopped, -1) for call in run.calls]
    edges.sort()
    # A buffer that is smaller than the capacity bounds the calls too.
    capacity, running, since = min(run.setting["capacity"], run.setting.get("buffer", inf)), 0, inf
    found: list[Span] = []
    for at, change in edges:
        before, running = running, running + change
        if before >= capacity > running:
            since = at
        elif before < capacity <= running and since < at:
            found.append((since, at))
        elif since == inf and running < capacity:
            since = at
    if running < capacity and since < inf:
        found.append((since, inf))
    return found


def room_for_rows(run: Run, consumer_ready: bool) -> list[Span]:
    """The times at which every row that was read is admitted. Of a slow consumer it cannot be seen when a row has left,
    so then there is room until as many rows were read as fit in."""
    buffer = run.setting.get("buffer")
    if buffer is None:
        return [(-inf, inf)]
    edges = [(row.at, 1) for row in run.rows.values()]
    if consumer_ready:
        edges += [(row.left, -1) for row in run.rows.values() if row.left is not None]
    edges.sort()
    inside, since = 0, -inf
    found: list[Span] = []
    for at, change in edges:
        before, inside = inside, inside + change
        if before <= buffer < inside:
            found.append((since, at))
        elif inside <= buffer < before:
            since = at
    return found if inside > buffer else [*found, (since, inf)]


def in_both(some: list[Span], others: list[Span]) -> list[Span]:
    """The times that are in both."""
    found: list[Span] = []
    place = other = 0
    while place < len(some) and other < len(others):
        begin, end = max(some[place][0], others[other][0]), min(some[place][1], others[other][1])
        if begin < end:
            found.append((begin, end))
        if some[place][1] <= others[other][1]:
            place += 1
        else:
            other += 1
    return found


def longest(room: list[Span], begin: float, end: float) -> float:
    """The longest time with room between two moments."""
    found, place = 0.0, max(0, bisect_right(room, (begin, inf)) - 1)
    while place < len(room) and room[place][0] < end:
        found = max(found, min(end, room[place][1]) - max(begin, room[place][0]))
        place += 1
    return found
