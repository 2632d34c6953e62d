"""How a task reports to the driver: its trace when it ends, and its figures when it ends and while it runs.

At the end an accumulator of Spark is the truth: Spark passes it on for tasks that succeed, and for no others. While
tasks run their figures go to the driver once a second, over the connection that budgets use too. All runs of a worker
share one, and one message has the figures of all. Figures are those since the start of a run, so a lost message does no
harm. A run that fails, or that Spark ends, waits for the answer to a last one, `LAST` seconds at most. If a run
succeeds, Spark itself passes on its report, except after a `limit`: once Spark has enough rows, it drops the report and
ends the worker. So a run that succeeds waits for the answer too, `MOMENT` seconds at most.

A report names the part of the metrics and the micro-batch that its task belongs to. So the figures of a micro-batch are
complete when its tasks have ended, and are never mixed with those of the next.

Law: a driver that cannot be reached costs a task nothing but these seconds, once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from asyncio_operator.clock import monotonic
from asyncio_operator.engine.lent import Lent
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.figures import Figures
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.driver_wire import FIGURES, DriverAddress, DriverClient

logger = logging.getLogger("asyncio_operator.metrics")

LONGEST_NAME = 100
"""Characters of an enricher in a plan: the name of a server and a table, and few enough for three in a line."""

EVERY = 1.0  # Seconds between two messages.
LAST = 1.0  # Seconds that a task which does not succeed waits until its last figures have arrived.
MOMENT = 0.05  # Seconds that a task which succeeds waits until its last figures have arrived.
PAUSE = 60.0  # Seconds without a message after the driver did not answer.
MOST_RUNS = 50  # Reports in one message. One has a few kilobytes at most, and a message has room for a megabyte.
MicroBatch = tuple[str, int]  # The run id of a streaming query, and the number of the micro-batch.


@dataclass(frozen=True, slots=True)
class Origin:
    """The run of a lookup in a task."""

    enrichment: str  # Tells apart the calls of `enrich`.
    stage: int  # With the partition: the rows. Every attempt for them gives the same rows.
    partition: int
    attempt: int  # Number of the task's attempt, different for all attempts of an application.
    run: str  # Tells apart the runs of one attempt. If Spark coalesces partitions, a task runs the lookup for each.


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a run has done since it began."""

    part: str  # Name of the part of the metrics; "" for none.
    batch: MicroBatch | None  # None outside of streams.
    figures: Figures
    origin: Origin | None = None  # None outside of Spark.
    # "running"; "ended" by Spark, or because all is done; "failed"; or "succeeded", which is known when Spark passes on
    # the report of a whole task.
    state: str = "succeeded"
    in_flight: int = 0  # Calls that run now.

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


Reports = Any  # The collections on the driver, a list in a worker. Both have ``extend``.


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the reports of tasks go: the accumulator that all collections on the driver share, and the name of one of
    these. It is sent to the workers."""

    accumulator: Accumulator[Reports]
    name: str

    def add(self, reports: Iterable[Any]) -> None:
        """Report, if the task succeeds."""
        self.accumulator.add([(self.name, report) for report in reports])


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where the trace of a task, of at most `limit` events, is reported when it has ended. It is sent to the
    workers."""

    destination: Destination
    limit: int


@dataclass(frozen=True, slots=True)
class Reporting:
    """Reports the figures of tasks. It is sent to the workers."""

    destination: Destination
    part: str  # Name of the part of the metrics; "" for none.
    enrichment: str  # Tells apart the calls of `enrich`.
    # The driver, which gets the figures of running tasks; None: it gets them only when tasks have ended.
    live: DriverAddress | None = None

    def begin(self, figures: Callable[[], Figures], in_flight: Callable[[], int]) -> TaskReporter:
        """The reporter of a run in the task of this process. Call it on the task's main thread."""
        task, batch, origin = TaskContext.get(), None, None
        if task is not None and (number := task.getLocalProperty("streaming.sql.batchId")) is not None:
            # Spark passes a query's run id to its jobs as the job group.
            batch = task.getLocalProperty("spark.jobGroup.id") or "", int(number)
        if task is not None and (attempt := task.taskAttemptId()) is not None:
            origin = Origin(self.enrichment, task.stageId(), task.partitionId(), attempt, os.urandom(8).hex())

        def report() -> TaskReport:
            return TaskReport(self.part, batch, figures(), origin, "running", in_flight())

        return TaskReporter(self.destination, report, None if origin is None else self.live)


class TaskReporter:
    """Reports the figures of one run of a lookup."""

    def __init__(self, destination: Destination, report: Callable[[], TaskReport], live: DriverAddress | None) -> None:
        self.over: TaskReport | None = None  # The last report of a run that has ended.
        self._destination = destination
        self._report = report  # Returns the figures so far, as a report of a running task.
        self._live = live  # See `Reporting`.
        self._sender: Sender | None = None

    def running(self) -> None:
        """The run has begun. Call it on the loop."""
        if self._live is not None:
            self._sender = _senders.borrow(self._live, partial(Sender, self._live))
            self._sender.begin(self)

    def now(self) -> list[Any]:
        """The figures so far, in a message: with the name of the collection on the driver."""
        return [self._destination.name, (self.over or self._report()).as_json()]

    def end(self, state: str) -> None:
        """The run is over: it "succeeded", "failed", or was "ended" by Spark. Call it on the task's main thread, which
        may wait `MOMENT` seconds if it succeeded, and else `LAST` seconds."""
        succeeded = state == "succeeded"
        report = replace(self._report(), state="succeeded", in_flight=0)
        # Spark drops it if the task fails.
        self._destination.add([report])
        # Rows of a task that has succeeded are those of Spark's own report.
        self.over = replace(report, state="ended" if succeeded else state)
        loop = loop_thread().loop
        if self._live is None or self._sender is None or not loop.is_running():
            return
        last = asyncio.run_coroutine_threadsafe(self._sender.last(self), loop)
        loop.call_soon_threadsafe(_senders.give_back, self._live, self._sender)
        try:
            last.result(MOMENT if succeeded else LAST)
        except Exception:  # The task's own error matters more.
            if not succeeded:
                last.cancel()


class Sender:
    """Sends the figures of this process to one driver. All of it runs on the loop."""

    def __init__(self, address: DriverAddress) -> None:
        self._client = DriverClient(address)
        self._runs: dict[TaskReporter, None] = {}
        self._regular: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    def begin(self, run: TaskReporter) -> None:
        """Send its figures from now on."""
        self._runs[run] = None
        # A function of the user may have cancelled all tasks of the loop.
        if self._regular is None or self._regular.done():
            self._regular = start_task(self._send_regularly())

    async def last(self, run: TaskReporter) -> None:
        """Send the figures of one run that has ended."""
        self._runs.pop(run, None)
        await self._send([run])

    async def _send_regularly(self) -> None:
        while self._runs:
            await asyncio.sleep(EVERY)
            runs = list(self._runs)
            for start in range(0, len(runs), MOST_RUNS):
                await self._send(runs[start : start + MOST_RUNS])

    async def _send(self, runs: Sequence[TaskReporter]) -> None:
        async with self._one_at_a_time:
            # What has ended by now is sent for the last time.
            for run in runs:
                if run.over is not None:
                    self._runs.pop(run, None)
            if not runs or monotonic() < self._not_before:
                return
            reports = [run.now() for run in runs]
            try:
                await self._client.ask(FIGURES, reports)
            except CoordinatorError as error:
                self._not_before = monotonic() + PAUSE
                logger.info("figures arrive when tasks have ended: %s", error)

    async def close(self) -> None:
        """Close the connection, when nothing runs."""
        await self._client.close()


_senders: Lent[DriverAddress, Sender] = Lent(end=Sender.close)
