"""The arithmetic of `plan`: from what the keys of tasks show to the number of lookups, how long they take, and the
`EnrichmentPlan`, which is a table, also in a notebook.

Keys come to a task as hashes of 64 bits, and null where a part of the key is null. It counts what `enrich` would look
up, batch by batch, keeps a `Sketch` of its keys, and returns one row of figures. Sketches of several tasks can be
merged. This module knows no DataFrame and no enricher.

Tasks go to workers as Spark schedules them: each to the worker that is free first. A worker with a cache looks up only
keys that its earlier tasks did not have. With `capacity` calls in flight of `latency` seconds each, capacity / latency
calls end in a second (Little's law); a budget may make it longer.

Sources: Bar-Yossef et al., "Counting distinct elements in a data stream" (2002), and Beyer et al., "On synopses for
distinct-value estimation under multiset operations" (2007), for the smallest hashes; Chao and Lin, "Nonparametric lower
bounds for species richness and shared species richness under sampling without replacement" (2012), for the estimate of
the whole from a part.
"""

from __future__ import annotations

import html
import textwrap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark import TaskContext

from asyncio_operator.checks import seconds
from asyncio_operator.metrics import Latency
from asyncio_operator.quota.spec import Budget
from asyncio_operator.view.tables import WIDTH, Row, amount, html_table, text_table

if TYPE_CHECKING:
    import pyarrow as pa

SIZE = 4096
"""The maximum number of keys in a sketch. Fewer keys are counted exactly, more with a standard error of
1 / sqrt(SIZE - 2), which is 1.6 %."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """The keys with the smallest hashes. Which are kept depends only on the hashes, so sketches can be merged."""

    # At most `SIZE`, in ascending order.
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    # For each key, the number of batches that contain it.
    batches: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def merged(self, other: Sketch) -> Sketch:
        """The sketch of the keys of both."""
        hashes, places = np.unique(np.concatenate([self.hashes, other.hashes]), return_inverse=True)
        batches = np.zeros(len(hashes), np.int64)
        np.add.at(batches, places, np.concatenate([self.batches, other.batches]))
        return Sketch(hashes[:SIZE], batches[:SIZE])

    def distinct(self, part: float = 1.0) -> float:
        """The number of distinct keys, if the sketch has seen this part of all batches.

        For a part it is the estimate of Chao and Lin, in which batches are samples and keys are species. It is not less
        than the number seen, and on average not more than the true number. Keys that are in one batch only, or in many
        batches, are estimated well. Many rare keys beside a few frequent ones are estimated too low.
        """
        seen = float(len(self.hashes))
        # Hashes are uniform, so the largest of the smallest ones shows how many there are in the whole range.
        if seen == SIZE:
            seen = (SIZE - 1) * 2.0**64 / float(self.hashes[-1])
        if part >= 1.0 or not seen:
            return seen
        once, twice = float((self.batches == 1).mean()), float((self.batches == 2).mean())
        return seen + (seen * once * once / (2.0 * twice + part / (1.0 - part) * once) if once else 0.0)


@dataclass(slots=True)
class TaskFigures:
    """What one task would look up."""

    partition: int
    rows: int = 0  # Input rows, and those whose key has a null:
    nulls: int = 0
    cut: bool = False  # There are more rows, which were not read.
    lookups: int = 0  # Distinct keys of each batch of rows, added up.
    asked: int = 0  # Those that the task does not remember, and the number of calls for them:
    calls: int = 0
    misses: int = 0  # The same for keys that are not in a cache, which is empty at the start of the task.
    miss_calls: int = 0
    hashes: bytes = b""  # The bytes of its `Sketch`.
    batches: bytes = b""

    @property
    def sketch(self) -> Sketch:
        """The sketch of its keys."""
        return Sketch(np.frombuffer(self.hashes, np.uint64), np.frombuffer(self.batches, np.int64))


_DDL = {"int": "long", "bool": "boolean", "bytes": "binary"}
SCHEMA = ", ".join(f"{one.name} {_DDL[str(one.type)]}" for one in fields(TaskFigures))  # Its fields, as Spark DDL.


@dataclass(frozen=True, slots=True)
class Survey:
    """A function for `mapInArrow`. It is sent to the workers."""

    sample: int  # Rows to read at least; a batch is always read as a whole.
    max_batch: int  # Keys in one call.
    cache_rows: int  # The maximum number of keys in the cache.
    remembered: int = 0  # The maximum number of keys that a task remembers.

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row of `SCHEMA`."""
        import pyarrow as pa

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        yield pa.RecordBatch.from_pylist([asdict(self.figures(partition, batches))])

    def figures(self, partition: int, batches: Iterator[pa.RecordBatch]) -> TaskFigures:
        """The figures of a task over batches of one column, which contains hashes."""
        found, sketch = TaskFigures(partition), Sketch()
        cache, memory = OrderedDict[int, None](), OrderedDict[int, None]()
        for batch in batches:
            if found.rows >= self.sample:
                found.cut = True
                break
            column = batch.column(0)
            hashes = column.drop_null().to_numpy().view(np.uint64)
            # In the order of their first row, in which a cache would see them.
            keys = hashes[np.sort(np.unique(hashes, return_index=True)[1])]
            missed = _misses(cache, self.cache_rows, keys)
            new = _misses(memory, self.remembered, keys) if self.remembered else len(keys)
            found.rows += batch.num_rows
            found.nulls += column.null_count
            found.lookups += len(keys)
            found.asked += new
            found.calls += -(-new // self.max_batch)
            found.misses += missed
            found.miss_calls += -(-missed // self.max_batch)
            # A full sketch keeps only smaller hashes, so nearly all keys of a large input end here.
            if len(sketch.hashes) == SIZE:
                keys = keys[keys <= sketch.hashes[-1]]
            sketch = sketch.merged(Sketch(keys, np.ones(len(keys), np.int64)))
        found.hashes, found.batches = sketch.hashes.tobytes(), sketch.batches.tobytes()
        return found


def _misses(kept: OrderedDict[int, None], most: int, keys: npt.NDArray[np.uint64]) -> int:
    """Adds keys to a cache of at most `most` keys, which drops the least recently used one. Returns how many were not
    in it."""
    misses = 0
    for key in keys.tolist():
        if key in kept:
            kept.move_to_end(key)
            continue
        misses += 1
        kept[key] = None
        if len(kept) > most:
            kept.popitem(last=False)
    return misses


class Whole:
    """All rows of the job, by number; None if all were read. The rest is assumed to be like the rows that the tasks
    have read. A task remembers at most `remembered` keys."""

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


@dataclass(slots=True)
class Caches:
    """What workers look up if each has a cache for `rows` keys."""

    whole: Whole
    rows: int
    # By worker: its tasks, what was seen of their keys, and the number of different ones.
    tasks: dict[int, list[TaskFigures]] = field(default_factory=dict)
    sketches: dict[int, Sketch] = field(default_factory=dict)
    known: dict[int, float] = field(default_factory=dict)

    def asked(self, worker: int, one: TaskFigures) -> tuple[float, float]:
        """The keys that a task of this worker looks up after its cache, and the maximum number of calls for them."""
        tasks = self.tasks.setdefault(worker, [])
        tasks.append(one)
        sketch = self.sketches[worker] = self.sketches.get(worker, Sketch()).merged(one.sketch)
        before = self.known.get(worker, 0.0)
        known = self.known[worker] = max(before, sketch.distinct(self.whole.part(tasks)))
        factor = self.whole.factor(one)
        keys = one.misses * factor
        if known <= self.rows:  # The cache holds all keys so far: only keys that are new to this worker miss.
            keys = min(keys, known - before)
        return keys, min(keys, one.miss_calls * factor)


class Total(NamedTuple):
    """What all tasks look up, the number of calls, and the seconds until the last call ends."""

    lookups: float
    calls: float
    seconds: float


def worked_off(
    tasks: Iterable[TaskFigures],
    workers: int,
    capacity: int,  # Calls in flight of a task, each of which takes `latency` seconds.
    latency: float,
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
        heappush(free, (since + (latency * max(1.0, own_calls / capacity) if own_calls else 0.0), worker))
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


COLUMNS = ("without a cache", "with a cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentPlan:
    """What `enrich` would do with a DataFrame.

    Attributes:
        rows: number of input rows. It is always counted exactly.
        null_keys: input rows whose key has a null, which are not looked up. Exact if all rows were read.
        distinct_keys: number of different keys. Exact up to 4,095 if all rows were read.
        lookups: the maximum number of keys looked up without a cache: the distinct keys of each batch of rows, added
            up. Exact if all rows were read.
        calls: the number of calls for them.
        cached_lookups, cached_calls: the same with the given cache, or with a `Cache()`. If the cache is too small for
            the keys of a task, each task counts as if its cache were empty at the start.
        tasks: partitions of the input.
        tasks_at_once: how many tasks run at the same time.
        sampled_rows: input rows that were read. It equals `rows` if nothing was extrapolated.
        max_attempts: how often a key that fails is looked up. The other figures count one attempt.
        latency: seconds of a call, as given; None if not given.
        seconds, cached_seconds: duration of the calls, without and with the cache; None without a latency. It is longer
            if other jobs use the budget at the same time. None too if some call can never start.
        weights, cached_weights: with a budget, what the calls weigh by unit: calls, keys, and the units of the
            enricher, estimated from some keys.
        budget: as given.
        never: why the budget lets a call for some key never start; None if no key that was weighed is so heavy.
        journal_rows: input rows whose answer the journal has. They count in `rows` and in no figure of keys and calls.
        journal_calls: the number of calls that the journal saves, without a cache.
        max_calls: how many calls the enricher runs at the same time in a task; None if it sets no limit.
        calls_at_once: how many calls run at the same time in a task: `max_calls` or `capacity`, the lower one.
        table_rows: about how many rows the enricher's table has, if half of them or more will be looked up; else None.
        join_program: the program that joins the whole table instead, if the enricher has one.
        distinct: whether each key is looked up once in the whole job, as with strategy="distinct".
    """

    rows: int
    null_keys: int
    distinct_keys: int
    lookups: int
    calls: int
    cached_lookups: int
    cached_calls: int
    tasks: int
    tasks_at_once: int
    sampled_rows: int
    max_attempts: int = 1
    latency: float | None = None
    seconds: float | None = None
    cached_seconds: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    cached_weights: Mapping[str, float] = field(default_factory=dict)
    budget: Budget | None = None
    never: str | None = None
    journal_rows: int = 0
    journal_calls: int = 0
    max_calls: int | None = None
    calls_at_once: int = 0
    distinct: bool = False
    table_rows: int | None = None
    join_program: str | None = None

    def __str__(self) -> str:
        """The figures as a table of at most 100 columns."""
        head, *remarks = (textwrap.fill(line, WIDTH) for line in (self._input(), *self._remarks()))
        program = [] if self.join_program is None else [self.join_program]
        return "\n".join([head, text_table(COLUMNS, self._rows()), *remarks, *program])

    def show(self) -> None:
        """Print the figures."""
        print(self)

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(line)}</p>" for line in self._remarks())
        program = "" if self.join_program is None else f"<pre>{html.escape(self.join_program)}</pre>"
        return html_table(COLUMNS, self._rows(), self._input()) + remarks + program

    def _remarks(self) -> list[str]:
        """What else a user should know, in sentences."""
        facts = [] if self.latency is None else [f"A call takes {self.latency * 1000:.2f} ms"]
        if self.distinct:
            facts.append('With strategy="distinct" each key is looked up once in the job')
        if self.max_attempts > 1:
            facts.append(f"A key that fails is looked up again (up to {self.max_attempts} attempts per key)")
        if self.max_calls is not None:
            why = f" (the enricher's max_calls is {self.max_calls:,})" if self.calls_at_once == self.max_calls else ""
            facts.append(f"At most {_count(self.calls_at_once, 'call')} at once in a task{why}")
        for unit, limit in ({} if self.budget is None else self.budget.spend or {}).items():
            estimated = self.weights.get(unit, 0.0)
            if estimated > limit:
                cents = unit == "usd" and round(estimated, 2) > limit
                shown = amount(round(estimated, 2) if cents else estimated)
                facts.append(f"Estimated {shown} {unit} exceeds the limit of {amount(limit)} {unit}")
        if self.never is not None:
            facts.append(self.never[:1].upper() + self.never[1:])
        if self.table_rows is not None:
            distinct, rows = _count(self.distinct_keys, "distinct key"), _count(self.table_rows, "row")
            facts.append(f"A join costs less: {distinct} will be looked up in a table of about {rows}")
        return [f"{fact}." for fact in facts]

    def _rows(self) -> list[Row]:
        """The figures without and with a cache, and what the calls weigh in the units of the enricher."""
        rows: list[Row] = [
            ("keys", [f"{self.lookups:,}", f"{self.cached_lookups:,}"]),
            ("calls", [f"{self.calls:,}", f"{self.cached_calls:,}"]),
        ]
        if self.seconds is not None and self.cached_seconds is not None:
            rows.append(("seconds", [f"{self.seconds:,.2f}", f"{self.cached_seconds:,.2f}"]))
        both = self.weights, self.cached_weights
        units = [unit for unit in self.weights if unit not in ("calls", "keys")]
        return rows + [(unit, [amount(weights[unit]) for weights in both]) for unit in units]

    def _input(self) -> str:
        part = "" if self.sampled_rows == self.rows else f" (looked at {self.sampled_rows:,})"
        saved = _count(self.journal_calls, "call")
        known = (
            f", {self.journal_rows:,} with an answer in the journal, which saves {saved}" if self.journal_rows else ""
        )
        distinct = _count(self.distinct_keys, "distinct key")
        about = "" if self.sampled_rows == self.rows and self.distinct_keys < SIZE else "about "
        return (
            f"{_count(self.rows, 'row')}{part} in {_count(self.tasks, 'task')}, {self.tasks_at_once:,} at once: "
            f"{self.null_keys:,} without a key{known}, {about}{distinct}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
