"""Sweeps over time: how many run at once, and how much starts within a window. All are n log n."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

Start = tuple[float, float]
"""When something started, and its weight."""

Freed = tuple[float, int, float]
"""From when on a start weighs less, its position, and by how much."""


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


def over_window(
    starts: Sequence[Start], most: float, per: float, moment: float, freed: Sequence[Freed] = ()
) -> Iterator[tuple[int, int, float]]:
    """Windows of `per` seconds in which more than `most` starts: positions of their first and last start, and the sum.

    Args:
        starts: in the order of time.
        moment: starts that are `per` less this time apart are in no common window.
        freed: what starts weigh less from a later time on, in the order of time.
    """
    first, inside, place = 0, 0.0, 0
    weights = [weight for _, weight in starts]
    tolerance = most * 1e-9
    for last, (at, weight) in enumerate(starts):
        while first < last and at - starts[first][0] >= per - moment:
            inside -= weights[first]
            first += 1
        while place < len(freed) and freed[place][0] <= at + moment:
            _, start, units = freed[place]
            weights[start] -= units
            inside -= units if first <= start < last else 0.0
            place += 1
        inside += weights[last]
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
    total, lowest, first = 0.0, inf, 0
    for last, (at, weight) in enumerate(starts):
        # The sum from i to j is total[j] - total[i - 1]; what may start in that time is speed * (at[j] - at[i]).
        before = total - speed * at
        if before < lowest:
            lowest, first = before, last
        total += weight
        above = total - speed * at - lowest - most
        if above > tolerance and weight > 0:
            yield first, last, above


def distinct_between(writes: Sequence[tuple[float, T]], spans: Sequence[tuple[float, float]]) -> list[int]:
    """For each span, how many different keys were written in it, its two ends excluded.

    A Fenwick tree marks the last write of each key, up to the end of the span that is looked at.

    Args:
        writes: time and key, in the order of time.
        spans: in any order.
    """
    size = len(writes)
    tree = [0] * (size + 1)
    times = [at for at, _ in writes]
    last: dict[T, int] = {}
    found = [0] * len(spans)
    done = 0
    for place in sorted(range(len(spans)), key=lambda place: spans[place][1]):
        begin, end = spans[place]
        while done < size and times[done] < end:
            key = writes[done][1]
            if key in last:
                _mark(tree, last[key], -1)
            _mark(tree, done, 1)
            last[key] = done
            done += 1
        found[place] = max(0, _count(tree, done) - _count(tree, bisect_right(times, begin)))
    return found


def _mark(tree: list[int], place: int, change: int) -> None:
    place += 1
    while place < len(tree):
        tree[place] += change
        place += place & -place


def _count(tree: list[int], place: int) -> int:
    """The marks before a place."""
    found = 0
    while place > 0:
        found += tree[place]
        place -= place & -place
    return found
