"""What a task reports: figures of an enrichment, and where they come from.

This module is separate from `metrics` because code in workers uses it without the faces. `reporting` sends figures to
the driver. A report names the part of the metrics and the micro-batch that its task belongs to. So the figures of a
micro-batch are complete when its tasks have ended, and are never mixed with those of the next.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from pyspark import TaskContext

from asyncio_operator.figures import Figures

LONGEST_NAME = 100
"""Characters of an enricher in a plan: the name of a server and a table, and few enough for three in a line."""

MicroBatch = tuple[str, int]
"""The run id of a streaming query, and the number of the micro-batch."""


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
    figures: Figures
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
        return cls(part, micro_batch, Figures.of_json(figures), Origin(*origin), state, in_flight)


def running_micro_batch() -> MicroBatch | None:
    """The micro-batch of the task that runs here. Spark passes a query's run id to its jobs as the job group."""
    task = TaskContext.get()
    number = None if task is None else task.getLocalProperty("streaming.sql.batchId")
    if task is None or number is None:
        return None
    return task.getLocalProperty("spark.jobGroup.id") or "", int(number)
