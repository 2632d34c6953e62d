"""Figures of an enrichment that can be added up, and the ledger in which the driver keeps them.

Apart from `metrics`, so that the worker's side knows no pyspark. A task reports once, when it ends, and says which part
of the metrics it worked for and in which micro-batch it ran; so figures of a micro-batch are complete as soon as its
tasks have ended, and are never mixed with those of the next, whenever they are looked at. The ledger is written by the
thread on which Spark hands reports over, and read by any other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from asyncio_operator.metrics import Histogram

RECENT = 100
"""Micro-batches whose figures are kept apart: as many as Spark keeps of a query's progress
(`spark.sql.streaming.numRecentProgressUpdates`)."""

MicroBatch = tuple[str, int]
"""The run of a streaming query, and the number of the micro-batch in it."""


@dataclass(slots=True)
class EnrichmentFigures:
    """Figures that can be added up: of a task, or of all of them.

    Attributes:
        rows: input rows.
        found, missing: input rows with a match, and without one.
        failures: input rows whose lookup failed or timed out; `skipped`, those of them that were dropped.
        calls: calls of the enricher.
        retries: attempts of keys beyond their first.
        cache_hits: keys, of batches of rows, that were found in the cache.
        shared: keys that took the outcome of a call that ran already.
        timeouts: keys that passed their deadline.
        latency: of keys that were called for, from their first call to their outcome, waits between attempts included.
        attempt_latency: of calls.
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
    """What a task says at its end.

    Attributes:
        part: of the metrics; "" for none.
        batch: None outside of streams.
    """

    part: str
    batch: MicroBatch | None
    figures: EnrichmentFigures


class Ledger:
    """All that tasks have reported: of every part in total, and in each of the `RECENT` latest micro-batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, EnrichmentFigures] = {}
        self._batches: dict[MicroBatch, dict[str, EnrichmentFigures]] = {}

    def extend(self, reports: Iterable[TaskReport]) -> None:
        """Enter reports of tasks."""
        with self._lock:
            for report in reports:
                _add(self._totals, report)
                if report.batch is not None:
                    _add(self._batches.setdefault(report.batch, {}), report)
            for batch in list(self._batches)[:-RECENT]:
                del self._batches[batch]

    def expect(self, part: str) -> None:
        """A part of that name is there, whatever it may report."""
        with self._lock:
            self._totals.setdefault(part, EnrichmentFigures())

    def parts(self) -> list[str]:
        """Those that are expected or have reported, the first ones first."""
        with self._lock:
            return list(self._totals)

    def sum(self, part: str | None = None, batch: MicroBatch | None = None) -> EnrichmentFigures:
        """A copy of the figures; of all parts if `part` is None, of the whole time if `batch` is."""
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
        """Start anew; all parts if `part` is None. Parts stay expected."""
        with self._lock:
            for name in self._totals:
                if part in (None, name):
                    self._totals[name] = EnrichmentFigures()
            for figures in self._batches.values():
                for name in [part] if part is not None else list(figures):
                    figures.pop(name, None)


def _add(parts: dict[str, EnrichmentFigures], report: TaskReport) -> None:
    parts.setdefault(report.part, EnrichmentFigures()).add(report.figures)
