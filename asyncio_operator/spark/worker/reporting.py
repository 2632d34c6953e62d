"""How a task reports to the driver: figures and traces through an accumulator of Spark, and figures while it runs.

An accumulator is the truth: Spark passes it on for tasks that succeed, and for no others. `live_figures` is what the
driver knows before that, and of tasks that do not succeed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from asyncio_operator.figures import Figures
from asyncio_operator.spark.worker.live_figures import LiveMetrics, RunReport
from asyncio_operator.spark.worker.task_report import Origin, TaskReport, running_micro_batch
from asyncio_operator.trace import Trace

Reports = Any
"""The collections on the driver, a list in a worker. Both have ``extend``."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the reports of tasks go. It is sent to the workers.

    Attributes:
        accumulator: the one that all collections on the driver share.
        name: names the collection.
    """

    accumulator: Accumulator[Reports]
    name: str

    def add(self, reports: Iterable[Any]) -> None:
        """Report, if the task succeeds."""
        self.accumulator.add([(self.name, report) for report in reports])


@dataclass(frozen=True, slots=True)
class Reporting:
    """Reports the figures of tasks. It is sent to the workers.

    Attributes:
        part: name of the part of the metrics; "" for none.
        enrichment: tells apart the calls of `enrich`.
        live: None: figures arrive only when tasks have ended.
    """

    destination: Destination
    part: str
    enrichment: str
    live: LiveMetrics | None = None

    def begin(self, figures: Callable[[], Figures], in_flight: Callable[[], int]) -> TaskReporter:
        """The reporter of a run in the task of this process. Call it on the task's main thread."""
        return TaskReporter(self, figures, in_flight)


class TaskReporter:
    """Reports the figures of one run of a lookup."""

    def __init__(self, reporting: Reporting, figures: Callable[[], Figures], in_flight: Callable[[], int]) -> None:
        self._reporting = reporting
        self._figures = figures
        self._in_flight = in_flight
        self._batch = running_micro_batch()
        self._origin = _origin(reporting.enrichment)
        self._live = None
        if reporting.live is not None and self._origin is not None:
            self._live = RunReport(reporting.live, self._running)

    def running(self) -> None:
        """The run has begun. Call it on the loop."""
        if self._live is not None:
            self._live.begin()

    def end(self, state: str) -> None:
        """The run is over: it "succeeded", "failed", or was "ended" by Spark. Call it on the task's main thread."""
        report = self._report("succeeded")
        # Spark drops it if the task fails.
        self._reporting.destination.add([report])
        if self._live is not None:
            self._live.end(report, state)

    def _running(self) -> TaskReport:
        return self._report("running", self._in_flight())

    def _report(self, state: str, in_flight: int = 0) -> TaskReport:
        return TaskReport(self._reporting.part, self._batch, self._figures(), self._origin, state, in_flight)


def _origin(enrichment: str) -> Origin | None:
    task = TaskContext.get()
    if task is None or task.taskAttemptId() is None:
        return None
    return Origin(enrichment, task.stageId(), task.partitionId(), task.taskAttemptId(), os.urandom(8).hex())


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes the trace of a task, and reports it. It is sent to the workers.

    Attributes:
        limit: the maximum number of events of a task.
    """

    destination: Destination
    limit: int

    def report(self, trace: Trace) -> None:
        """Report the trace of a task that has ended. Call it on the task's main thread."""
        self.destination.add([trace])
