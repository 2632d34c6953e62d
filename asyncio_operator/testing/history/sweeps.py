"""Sweeps over time: how many run at once, and how much starts within a window. All are n log n."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

Start = tuple[float, float]
"""When something started, and its weight."""


Span = tuple[float, int, float, int | None, T]
"""Start, its event, end, its event (None: it was not seen), and what it is."""


def at_once(spans: Iterable[Span[T]], moment: float) -> Iterator[tuple[T, int]]:
    """Each span in the order of starts, with the number that run at its start, itself included.

    Args:
        spans: in any order. What starts and ends at one moment does so in the order of events.
        moment: a span that ends within this time after the start of another has ended before it.
    """
    edges: list[tuple[float, float, int, Any]] = []
    for start, event, end, end_event, what in spans:
        edges.append((start, event, 1, what))
        edges.append((max(start, end - moment), inf if end_event is None else end_event, -1, None))
    edges.sort(key=lambda edge: edge[:3])
    running = 0
    for _, _, change, what in edges:
        running += change
        if change > 0:
            yield what, running


def over_window(starts: Sequence[Start], most: float, per: float, moment: float) -> Iterator[tuple[int, int, float]]:
    """Windows of `per` seconds in which more than `most` starts: positions of their first and last start, and the sum.

    Args:
        starts: in the order of time.
        moment: starts that are `per` less this time apart are in no common window.
    """
    first, inside = 0, 0.0
    tolerance = most * 1e-9
    for last, (at, weight) in enumerate(starts):
        while at - starts[first][0] >= per - moment:
            inside -= starts[first][1]
            first += 1
        inside += weight
        if inside > most + tolerance and weight > 0:
            yield first, last, inside


def over_long_run(
    starts: Sequence[Start], rate: float, per: float, most: float, moment: float
) -> Iterator[tuple[int, int, float]]:
    """Times T, from one start to another, in which more than ``rate * T / per + most`` starts.

    Yields positions of the first and the last start, and what is above that.
    """
    speed = rate / per
    tolerance = (most + rate) * 1e-9 + speed * moment
    total, lowest, first = 0.0, float("inf"), 0
    for last, (at, weight) in enumerate(starts):
        # The sum from i to j is total[j] - total[i - 1]; what may start in that time is speed * (at[j] - at[i]).
        before = total - speed * at
        if before < lowest:
            lowest, first = before, last
        total += weight
        above = total - speed * at - lowest - most
        if above > tolerance and weight > 0:
            yield first, last, above


def distinct_between(accesses: Sequence[tuple[float, T]]) -> list[int]:
    """For each access of a key, how many other keys were accessed since the same key was accessed last.

    It is -1 for the first access of a key. A Fenwick tree over the positions marks the last access of each key.
    """
    size = len(accesses)
    tree = [0] * (size + 1)

    def add(position: int, change: int) -> None:
        position += 1
        while position <= size:
            tree[position] += change
            position += position & -position

    def count(position: int) -> int:
        found = 0
        while position > 0:
            found += tree[position]
            position -= position & -position
        return found

    last: dict[T, int] = {}
    distances: list[int] = []
    for position, (_, key) in enumerate(accesses):
        before = last.get(key)
        if before is None:
            distances.append(-1)
        else:
            distances.append(count(position) - count(before + 1))
            add(before, -1)
        add(position, 1)
        last[key] = position
    return distances
