"""What a task measures and reports: figures of an enrichment that can be added up, and traces.

This module is separate from `metrics` because code in workers uses it without the faces. A task reports once, when it
ends, with the part of the metrics and the micro-batch that it belongs to. So the figures of a micro-batch are complete
when its tasks have ended, and are never mixed with those of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from asyncio_operator.metrics import Histogram
from asyncio_operator.trace import Trace

Reports = Any
"""A collection on the driver, a list in a worker. Both have ``extend``."""

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
        hedged: slow calls that were made a second time; they count as `calls`.
        budget_seconds: seconds in which calls waited for a budget.
        hedges_won: second calls that gave the answer.
        journal_hits: distinct keys of batches whose answer the journal had.
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
    hedged: int = 0
    budget_seconds: float = 0.0
    hedges_won: int = 0
    journal_hits: int = 0

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


@dataclass(frozen=True, slots=True)
class Reporting:
    """Reports the figures of a task. It is sent to the workers."""

    accumulator: Accumulator[Reports]
    part: str

    def __call__(self, figures: EnrichmentFigures) -> None:
        self.accumulator.add([TaskReport(self.part, _running_micro_batch(), figures)])


def _running_micro_batch() -> MicroBatch | None:
    """The micro-batch of the task that runs here. Spark passes a query's run id to its jobs as the job group."""
    task = TaskContext.get()
    number = None if task is None else task.getLocalProperty("streaming.sql.batchId")
    if task is None or number is None:
        return None
    return task.getLocalProperty("spark.jobGroup.id") or "", int(number)


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
