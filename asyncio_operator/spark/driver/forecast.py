"""The arithmetic of `plan`: from the figures of surveyed tasks to the number of lookups, and how long they take.

Tasks go to workers as Spark schedules them: each to the worker that is free first. A worker with a cache looks up only
keys that its earlier tasks did not have. With `capacity` calls in flight of `latency` seconds each, capacity / latency
calls end in a second (Little's law); a budget may make it longer. This module knows no DataFrame and no enricher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from asyncio_operator.budget.spec import Budget
from asyncio_operator.checks import seconds
from asyncio_operator.metrics import Latency
from asyncio_operator.spark.worker.survey import Sketch, TaskFigures


class Whole:
    """All rows of the job. The tasks have read some of them; the rest is assumed to be like those.

    Args:
        rows: the number of rows of all partitions; None if all were read.
        remembered: the maximum number of keys that a task remembers.
    """

    def __init__(self, tasks: Sequence[TaskFigures], rows: int | None, remembered: int = 0) -> None:
        self._remembered = remembered
        looked = sum(one.rows for one in tasks)
        cut = sum(one.rows for one in tasks if one.cut)
        self.rows = looked if rows is None else rows
        self._factor = max(1.0, (self.rows - looked + cut) / cut) if cut else 1.0

    def factor(self, one: TaskFigures) -> float:
        """All rows of a task, divided by the rows that it has read."""
        return self._factor if one.cut else 1.0

    def distinct(self, tasks: Sequence[TaskFigures]) -> float:
        """The number of distinct keys in all rows of these tasks."""
        return reduce(Sketch.merged, (one.sketch for one in tasks), Sketch()).distinct(self.part(tasks))

    def part(self, tasks: Iterable[TaskFigures]) -> float:
        """The share of the rows of these tasks that they have read."""
        looked = rows = 0.0
        for one in tasks:
            looked += one.rows
            rows += one.rows * self.factor(one)
        return looked / rows if rows else 1.0

    def asked(self, worker: int, one: TaskFigures) -> tuple[float, float]:
        """The keys that a task looks up without a cache, and the number of calls for them."""
        lookups, calls = one.lookups * self.factor(one), one.calls * self.factor(one)
        if one.cut and one.asked:
            known = one.sketch.distinct(self.part([one]))
            if known <= self._remembered:  # The task remembers all its keys: it asks for each once.
                calls *= min(1.0, known / (one.asked * self.factor(one)))
        return lookups, calls


class Caches:
    """What workers look up if each has a cache for `rows` keys."""

    def __init__(self, whole: Whole, rows: int) -> None:
        self._whole = whole
        self._rows = rows
        self._tasks: dict[int, list[TaskFigures]] = {}
        self._sketches: dict[int, Sketch] = {}
        self._known: dict[int, float] = {}

    def asked(self, worker: int, one: TaskFigures) -> tuple[float, float]:
        """The keys that a task of this worker looks up after its cache, and the maximum number of calls for them."""
        tasks = self._tasks.setdefault(worker, [])
        tasks.append(one)
        sketch = self._sketches[worker] = self._sketches.get(worker, Sketch()).merged(one.sketch)
        before = self._known.get(worker, 0.0)
        known = self._known[worker] = max(before, sketch.distinct(self._whole.part(tasks)))
        factor = self._whole.factor(one)
        keys = one.misses * factor
        if known <= self._rows:  # The cache holds all keys so far: only keys that are new to this worker miss.
            keys = min(keys, known - before)
        return keys, min(keys, one.miss_calls * factor)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a task makes calls. Durations are in seconds."""

    capacity: int
    latency: float

    def seconds(self, calls: float) -> float:
        """The minimum duration of this many calls of one task."""
        return self.latency * max(1.0, calls / self.capacity) if calls else 0.0


class Total(NamedTuple):
    """What all tasks look up, the number of calls, and the seconds until the last call ends."""

    lookups: float
    calls: float
    seconds: float


def worked_off(
    tasks: Iterable[TaskFigures],
    workers: int,
    pace: Pace,
    asked: Callable[[int, TaskFigures], tuple[float, float]],
) -> Total:
    """What `workers` look up, and how long it takes. The next task goes to the worker that is free first."""
    lookups = calls = 0.0
    free = [(0.0, worker) for worker in range(workers)]
    for one in tasks:
        since, worker = heappop(free)
        own_lookups, own_calls = asked(worker, one)
        lookups += own_lookups
        calls += own_calls
        heappush(free, (since + pace.seconds(own_calls), worker))
    return Total(lookups, calls, max(since for since, _ in free))


def weights_of(calls: float, keys: float, per_key: Mapping[str, float]) -> dict[str, float]:
    """What calls weigh, by unit, without the rounding errors of sums. `per_key`: the average weights of a key."""
    return {"calls": calls, "keys": keys, **{unit: float(f"{keys * amount:.12g}") for unit, amount in per_key.items()}}


def budget_seconds(budget: Budget, weights: Mapping[str, float], latency: float) -> float:
    """When the last of all calls ends at the earliest under a budget, whatever the number of tasks."""
    found = 0.0
    for limit in budget.limits:
        windows = ceil((weights.get(limit.unit, 0.0) - (limit.burst or 0)) / limit.rate) - 1
        found = max(found, windows * seconds(limit.per) + latency if windows > 0 else 0.0)
    if budget.in_flight is not None:
        found = max(found, weights["calls"] / budget.in_flight * latency)
    return found


def mean_latency(latency: Latency) -> float:
    """Average seconds of a call. Latency is assumed to grow evenly between percentiles, which is slightly too high."""
    p50, p95, p99, most = latency.p50, latency.p95, latency.p99, latency.max
    mean = 0.5 * p50 + 0.45 * (p50 + p95) / 2 + 0.04 * (p95 + p99) / 2 + 0.01 * (p99 + most) / 2
    # For equal percentiles, rounding errors would change the result.
    return min(max(p50, mean), most)
