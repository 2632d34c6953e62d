"""What a task measures: figures of an enrichment that can be added up, and where they come from.

This module is separate from `metrics` because code in workers uses it without the faces. `reporting` sends figures to
the driver. A report names the part of the metrics and the micro-batch that its task belongs to. So the figures of a
micro-batch are complete when its tasks have ended, and are never mixed with those of the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from pyspark import TaskContext

from asyncio_operator.metrics import Histogram

LONGEST_NAME = 100
"""Characters of an enricher in a plan: the name of a server and a table, and few enough for three in a line."""

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
        errors: failed attempts for keys, by the type of their error; those that were repeated too.
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
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: EnrichmentFigures) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Histogram):
                mine.merge(theirs)
            else:
                setattr(self, f.name, mine + theirs)

    def subtract(self, other: EnrichmentFigures) -> None:
        """Remove figures that were added before."""
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Histogram):
                mine.subtract(theirs)
            else:
                setattr(self, f.name, mine - theirs)

    def as_json(self) -> dict[str, Any]:
        """The figures that are not 0."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        histograms = {n: one.as_json() for n, one in found.items() if isinstance(one, Histogram) and one.count}
        others = {n: one for n, one in found.items() if one and not isinstance(one, Histogram)}
        return others | histograms | {"errors": dict(self.errors)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> EnrichmentFigures:
        """From the result of `as_json`."""
        read: dict[type, Callable[[Any], Any]] = {list: Histogram.of_json, dict: Counter}
        found: dict[str, Any] = {n: read.get(type(one), lambda number: number)(one) for n, one in values.items()}
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Origin:
    """The run of a lookup in a task.

    Attributes:
        enrichment: tells apart the calls of `enrich`.
        stage, partition: the rows. Every attempt for them gives the same rows.
        attempt: number of the task's attempt, different for all attempts of an application.
        run: tells apart the runs of one attempt. If Spark coalesces partitions, a task runs the lookup for each.
    """

    enrichment: str
    stage: int
    partition: int
    attempt: int
    run: str


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a run has done since it began.

    Attributes:
        part: name of the part of the metrics; "" for none.
        batch: the micro-batch; None outside of streams.
        origin: None outside of Spark.
        state: "running"; "ended" by Spark, or because all is done; "failed"; or "succeeded", which is known when Spark
            passes on the report of a whole task.
        in_flight: calls that run now.
    """

    part: str
    batch: MicroBatch | None
    figures: EnrichmentFigures
    origin: Origin | None = None
    state: str = "succeeded"
    in_flight: int = 0

    def as_json(self) -> list[Any]:
        """What `of_json` reads."""
        assert self.origin is not None
        return [self.part, self.batch, self.figures.as_json(), astuple(self.origin), self.state, self.in_flight]

    @classmethod
    def of_json(cls, values: list[Any]) -> TaskReport:
        """From the result of `as_json`."""
        part, batch, figures, origin, state, in_flight = values
        micro_batch = None if batch is None else (str(batch[0]), int(batch[1]))
        return cls(part, micro_batch, EnrichmentFigures.of_json(figures), Origin(*origin), state, in_flight)


def running_micro_batch() -> MicroBatch | None:
    """The micro-batch of the task that runs here. Spark passes a query's run id to its jobs as the job group."""
    task = TaskContext.get()
    number = None if task is None else task.getLocalProperty("streaming.sql.batchId")
    if task is None or number is None:
        return None
    return task.getLocalProperty("spark.jobGroup.id") or "", int(number)
