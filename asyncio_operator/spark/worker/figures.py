"""Figures of an enrichment that can be added up, and the ledger in which the driver keeps them.

This module is separate from `metrics` because code in workers uses it without PySpark. A task reports once, when it
ends, with the part of the metrics and the micro-batch that it belongs to. So the figures of a micro-batch are complete
when its tasks have ended, and are never mixed with those of the next. Spark's thread for reports writes the ledger, and
any thread may read it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.accumulators import Accumulator

from asyncio_operator.metrics import Histogram
from asyncio_operator.trace import Trace

Reports = Any
"""A collection on the driver, a list in a worker. Both have ``extend``."""

RECENT = 100
"""The number of micro-batches whose figures are kept. Spark keeps the progress of equally many
(`spark.sql.streaming.numRecentProgressUpdates`)."""

MicroBatch = tuple[str, int]
"""The run id of a streaming query, and the number of the micro-batch."""


@dataclass(slots=True)
class EnrichmentFigures:
    """Figures that can be added up: those of one task, or of several.

    Attributes:
        rows: input rows.
        found, missing: input rows with a match, and without one.
        failures: input rows whose lookup failed or timed out. `skipped`: those of them that were dropped.
        calls: calls of the enricher.
        retries: attempts beyond the first of a key.
        cache_hits: distinct keys of batches that were found in the cache.
        shared: keys that took the outcome of a call that already ran.
        timeouts: keys that passed their deadline.
        latency: seconds from a key's first call to its outcome, waits between attempts included.
        attempt_latency: seconds of each call.
    """

    rows: int = 0
    found: int = 0
    missing: int = 0
    failures: int = 0
    skipped: int = 0
    calls: int = 0
    retries: int = 0
    cache_hits: int = 0
    shared: int = 0
    timeouts: int = 0
    latency: Histogram = field(default_factory=Histogram)
    attempt_latency: Histogram = field(default_factory=Histogram)

    def add(self, other: EnrichmentFigures) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Histogram):
                mine.merge(theirs)
            else:
                setattr(self, f.name, mine + theirs)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report of a task that has ended.

    Attributes:
        part: name of the part of the metrics; "" for none.
        batch: the micro-batch; None outside of streams.
    """

    part: str
    batch: MicroBatch | None
    figures: EnrichmentFigures


class Ledger:
    """The sums of all reports, by part: in total, and for each of the `RECENT` latest micro-batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, EnrichmentFigures] = {}
        self._batches: dict[MicroBatch, dict[str, EnrichmentFigures]] = {}

    def extend(self, reports: Iterable[TaskReport]) -> None:
        """Add reports of tasks."""
        with self._lock:
            for report in reports:
                _add(self._totals, report)
                if report.batch is not None:
                    _add(self._batches.setdefault(report.batch, {}), report)
            for batch in list(self._batches)[:-RECENT]:
                del self._batches[batch]

    def expect(self, part: str) -> None:
        """Add a part, which `parts` lists even before it has reported."""
        with self._lock:
            self._totals.setdefault(part, EnrichmentFigures())

    def parts(self) -> list[str]:
        """The parts that are expected or have reported, in the order of their first mention."""
        with self._lock:
            return list(self._totals)

    def sum(self, part: str | None = None, batch: MicroBatch | None = None) -> EnrichmentFigures:
        """A copy of the figures. `part` None: all parts. `batch` None: the whole time."""
        total = EnrichmentFigures()
        with self._lock:
            parts = self._totals if batch is None else self._batches.get(batch, {})
            for name, figures in parts.items():
                if part in (None, name):
                    total.add(figures)
        return total

    def has(self, part: str | None, batch: MicroBatch) -> bool:
        """Whether tasks of that micro-batch have reported."""
        with self._lock:
            reported = self._batches.get(batch, {})
            return bool(reported) if part is None else part in reported

    def forget(self, part: str | None = None) -> None:
        """Reset the figures of a part, or of all parts if `part` is None. Parts stay expected."""
        with self._lock:
            for name in self._totals:
                if part in (None, name):
                    self._totals[name] = EnrichmentFigures()
            for figures in self._batches.values():
                for name in [part] if part is not None else list(figures):
                    figures.pop(name, None)


def _add(parts: dict[str, EnrichmentFigures], report: TaskReport) -> None:
    parts.setdefault(report.part, EnrichmentFigures()).add(report.figures)


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes the trace of a task, and reports it. It is sent to the workers.

    Attributes:
        limit: the maximum number of events of a task.
    """

    accumulator: Accumulator[Reports]
    limit: int

    def report(self, trace: Trace) -> None:
        """Report the trace of a task that has ended. Call it on the task's main thread."""
        self.accumulator.add([trace])
