"""The ledger in which the driver keeps the figures that tasks report.

Reports come from two sides, each on a thread of its own: from tasks that run, again and again, over the driver's
service, and from Spark, once for each task that has succeeded. Any thread may read.

Spark's reports come through an accumulator. PySpark keeps every accumulator for ever, with its value, and cannot lose
one safely while jobs run. So there is one for each SparkContext. Its value on the driver passes each report on to the
collection that it names, while anything else refers to that. On the way to a worker it becomes an empty list, to which
the task adds its report. A task that Spark runs again reports again.

Each task of a traced enrichment records a trace of its own; they arrive in the user's trace. Tasks use the time of day,
so traces of several machines are shifted against each other by the difference of their clocks.

Laws: calls, retries, latencies and what else is work count for every attempt. Rows count for one attempt of each
partition: the one that has succeeded last, else the one with most rows that has not failed. Nothing counts twice: a
report has all that its run has done since it began, and takes the place of the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.checks import of_kind
from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.figures import FIGURES, Figures, Kind
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.worker.reporting import Destination, MicroBatch, Origin, Reports, TaskReport, Tracing
from asyncio_operator.spark.worker.versions import context_of
from asyncio_operator.trace import Trace

RECENT = 100
"""The number of micro-batches whose figures are kept. Spark keeps the progress of equally many
(`spark.sql.streaming.numRecentProgressUpdates`)."""

MOST_PARTITIONS = 10_000  # Partitions that are remembered. If Spark computes an older one again, its rows count again.
MOST_LOOKUPS = 50  # Calls of `enrich` that are remembered. A stream with `foreachBatch` makes one for each micro-batch.
MOST_TASKS = 100  # Tasks that are shown. Those that run are all counted.
SILENT = 5.0  # Seconds without a report after which a running task is "silent": its calls no longer count as in flight.
GONE = 3600.0  # Seconds without a report after which nothing more is expected from an attempt that has not succeeded.
ROWS = tuple(name for name, one in FIGURES.items() if one.kind is Kind.ROWS)  # The figures that count rows.

Rows = tuple[int, ...]
"""The values of `ROWS`."""

NO_ROWS = (0,) * len(ROWS)


@dataclass(slots=True)
class Run:
    """The latest report of a run. Of the figures in `work` rows do not matter; it is None when the run has succeeded,
    and no more comes. `at` is the time of the report."""

    origin: Origin
    state: str = "running"
    rows: Rows = NO_ROWS
    work: Figures | None = field(default_factory=Figures)
    in_flight: int = 0
    at: float = 0.0

    def state_at(self, now: float) -> str:
        """The state as it is shown: "running", "silent", "failed", "ended" or "succeeded"."""
        return "silent" if self.state == "running" and now - self.at > SILENT else self.state


@dataclass(slots=True)
class Partition:
    """The runs for a partition of a stage, by attempt, and the number of the attempt that has succeeded last. The rows
    `before` do not count, because the figures were reset after they came."""

    part: str
    batch: MicroBatch | None
    attempts: dict[int, dict[str, Run]] = field(default_factory=dict)
    succeeded: int | None = None
    before: Rows = NO_ROWS

    def runs(self) -> Iterator[Run]:
        """All runs."""
        return (run for runs in self.attempts.values() for run in runs.values())

    def rows(self) -> Rows:
        """The rows of the attempt that counts."""
        going = [runs for runs in self.attempts.values() if all(run.state != "failed" for run in runs.values())]
        if self.succeeded is not None:
            going = [self.attempts[self.succeeded]]
        sums = (tuple(map(sum, zip(*(run.rows for run in runs.values()), strict=True))) for runs in going)
        return max(sums, default=NO_ROWS)

    def counted(self) -> Rows:
        """The rows since the last reset."""
        return tuple(max(0, now - before) for now, before in zip(self.rows(), self.before, strict=True))


@dataclass(frozen=True, slots=True)
class Lookup:
    """A call of `enrich` whose tasks report.

    Attributes:
        name: names the enricher, without secrets.
        budget: what limits its calls.
    """

    name: str
    part: str
    budget: Budget | None = None
    trace: Trace | None = None

    @property
    def label(self) -> str:
        """Equal for calls that belong together, such as those of the micro-batches of a stream."""
        return f"{self.part}: {self.name}" if self.part else self.name


@dataclass(frozen=True, slots=True)
class TaskView:
    """A run that is going on, or has ended without success, as it reported last."""

    label: str
    origin: Origin
    state: str  # See `Run.state_at`.
    age: float  # Seconds since the report.
    in_flight: int  # 0 unless the state is "running".
    figures: Figures


class Ledger:
    """The sums of all reports, by part: in total, and for each of the `RECENT` latest micro-batches."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By part and micro-batch; None: the whole time.
        self._sums: dict[tuple[str, MicroBatch | None], Figures] = {}
        self._partitions: dict[tuple[str, int, int], Partition] = {}
        self._room = MOST_PARTITIONS
        self._lookups: dict[str, Lookup] = {}
        self._by_label: dict[str, Figures] = {}

    def extend(self, reports: Iterable[TaskReport]) -> None:
        """Add reports of tasks, in the order in which they come."""
        with self._lock:
            for report in reports:
                origin = report.origin
                if origin is None:
                    self._add(report.part, report.batch, report.figures)
                    continue
                place = origin.enrichment, origin.stage, origin.partition
                if place not in self._partitions:
                    self._partitions[place] = Partition(report.part, report.batch)
                partition = self._partitions[place]
                run = partition.attempts.setdefault(origin.attempt, {}).setdefault(origin.run, Run(origin))
                if run.work is None:
                    continue  # A report from before the success, which came late.
                # It takes the place of the one before it.
                before = partition.counted()
                change = Figures()
                change.add(report.figures)
                change.subtract(run.work)
                run.work = report.figures
                if report.state == "succeeded":
                    partition.succeeded, run.work = origin.attempt, None
                run.rows = tuple(getattr(report.figures, name) for name in ROWS)
                run.state, run.in_flight, run.at = report.state, report.in_flight, self._clock()
                for name, now, then in zip(ROWS, partition.counted(), before, strict=True):
                    setattr(change, name, now - then)
                self._add(partition.part, partition.batch, change)
                if origin.enrichment in self._lookups:
                    self._by_label[self._lookups[origin.enrichment].label].add(change)
            batches = dict.fromkeys(batch for _, batch in self._sums if batch is not None)
            for old in list(batches)[:-RECENT]:
                self._sums = {key: figures for key, figures in self._sums.items() if key[1] != old}
            if len(self._partitions) > self._room:
                # The oldest ones of which no report is expected that would change the rows.
                gone, leave = self._clock() - GONE, len(self._partitions) - MOST_PARTITIONS // 2
                settled = [
                    key
                    for key, one in self._partitions.items()
                    if one.succeeded is not None or all(run.at < gone for run in one.runs())
                ]
                for key in settled[:leave]:
                    del self._partitions[key]
                self._room = max(MOST_PARTITIONS, 2 * len(self._partitions))

    def _add(self, part: str, batch: MicroBatch | None, figures: Figures) -> None:
        for time in {None, batch}:
            self._sums.setdefault((part, time), Figures()).add(figures)

    def begin(self, lookup: Lookup) -> str:
        """Note a call of `enrich`. Returns what its tasks report as their `Origin.enrichment`."""
        name = uuid4().hex
        with self._lock:
            self._lookups[name] = lookup
            self._by_label.setdefault(lookup.label, Figures())
            for old in list(self._lookups)[:-MOST_LOOKUPS]:
                label = self._lookups.pop(old).label
                if label not in {one.label for one in self._lookups.values()}:
                    del self._by_label[label]
        return name

    def lookups(self) -> list[tuple[Lookup, Figures]]:
        """The latest call of `enrich` of each label, and a copy of the figures of all calls with that label."""
        with self._lock:
            latest = {lookup.label: lookup for lookup in self._lookups.values()}
            found = [(lookup, Figures()) for lookup in latest.values()]
            for lookup, copy in found:
                copy.add(self._by_label[lookup.label])
            return found

    def tasks(self) -> list[TaskView]:
        """All runs in the state "running", then at most `MOST_TASKS` others that have not succeeded. The youngest of
        each come first."""
        running: list[TaskView] = []
        others: list[TaskView] = []
        now = self._clock()
        with self._lock:
            for run in (run for partition in reversed(self._partitions.values()) for run in partition.runs()):
                lookup = self._lookups.get(run.origin.enrichment)
                if run.work is None or lookup is None:
                    continue
                state = run.state_at(now)
                views, calls = (running, run.in_flight) if state == "running" else (others, 0)
                if views is running or len(others) < MOST_TASKS:
                    views.append(TaskView(lookup.label, run.origin, state, now - run.at, calls, run.work))
        return running + others

    def expect(self, part: str) -> None:
        """Add a part, which `parts` lists even before it has reported."""
        with self._lock:
            self._sums.setdefault((part, None), Figures())

    def parts(self) -> list[str]:
        """The parts that are expected or have reported, in the order of their first mention."""
        with self._lock:
            return [part for part, batch in self._sums if batch is None]

    def sum(self, part: str | None = None, batch: MicroBatch | None = None) -> Figures:
        """A copy of the figures. `part` None: all parts. `batch` None: the whole time."""
        total = Figures()
        with self._lock:
            for (name, time), figures in self._sums.items():
                if part in (None, name) and batch == time:
                    total.add(figures)
        return total

    def in_flight(self, part: str | None = None, batch: MicroBatch | None = None) -> int:
        """Calls that ran when their tasks reported last."""
        now = self._clock()
        with self._lock:
            return sum(
                run.in_flight
                for partition in self._partitions.values()
                if part in (None, partition.part) and batch in (None, partition.batch)
                for run in partition.runs()
                if run.state_at(now) == "running"
            )

    def has(self, part: str | None, batch: MicroBatch) -> bool:
        """Whether tasks of that micro-batch have reported."""
        with self._lock:
            return any(part in (None, name) and batch == time for name, time in self._sums)

    def forget(self, part: str | None = None) -> None:
        """Reset the figures of a part, or of all parts if `part` is None. Parts stay expected.

        Tasks that run count from now on.
        """
        with self._lock:
            kept = {key: figures for key, figures in self._sums.items() if key[1] is None or part not in (None, key[0])}
            self._sums = {key: Figures() if part in (None, key[0]) else figures for key, figures in kept.items()}
            for lookup in self._lookups.values():
                if part in (None, lookup.part):
                    self._by_label[lookup.label] = Figures()
            for partition in self._partitions.values():
                if part in (None, partition.part):
                    partition.before = partition.rows()


# -- how reports come


class _Extending(AccumulatorParam[Reports]):
    def zero(self, value: Reports) -> Reports:
        return []

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802
        value1.extend(value2)
        return value1


class Collections(WeakValueDictionary[str, Any]):
    """The collections of this process, by name, while anything else refers to them."""

    def register(self, collection: Any) -> str:
        """Add one. Returns its name."""
        name = uuid4().hex
        self[name] = collection
        return name

    def extend(self, reports: Iterable[tuple[str, Any]]) -> None:
        """Pass reports on, each to the collection of that name. Those of a dropped one are ignored."""
        for name, report in reports:
            collection = self.get(name)
            if collection is not None:
                collection.extend([report])


collections = Collections()

_lock = threading.Lock()
_current: tuple[SparkContext, Accumulator[Reports]] | None = None


def take(message: list[Any]) -> None:
    """Pass on reports of running tasks as JSON, each with the name of its ledger."""
    collections.extend((name, TaskReport.of_json(values)) for name, values in message)


def reported_to(collection: Any, spark: SparkSession, problem: str) -> Destination:
    """Where tasks add lists. On the driver, `collection` is extended by them, while anything refers to it."""
    global _current
    context = context_of(spark)
    if context is None:
        raise ConfigurationError(problem)
    with _lock:
        if _current is None or _current[0] is not context:
            _current = context, context.accumulator(collections, _Extending())
        return Destination(_current[1], collections.register(collection))


class _Included:
    """Adds the traces of tasks to the user's trace, until that is passed to another enrichment."""

    def __init__(self, trace: Trace) -> None:
        self._trace = ref(trace)
        self._run = trace.runs + 1  # It is cleared before it is included.

    def extend(self, traces: Iterable[Trace]) -> None:
        for one in traces:
            trace = self._trace()
            if trace is not None and trace.runs == self._run:
                trace.include(one)


_included: WeakKeyDictionary[Trace, _Included] = WeakKeyDictionary()


def trace_of_tasks(trace: Trace, spark: SparkSession) -> Tracing:
    """What tasks need to record for this trace. The trace is cleared."""
    of_kind("trace", trace, Trace)
    included = _Included(trace)
    destination = reported_to(
        included,
        spark,
        "trace needs a classic Spark session; Spark Connect has no accumulators: trace a `Lookup` or an operator "
        "instead, without Spark",
    )
    trace.clear()
    _included[trace] = included
    return Tracing(destination, trace.limit)
