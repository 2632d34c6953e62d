"""`EnrichmentMetrics`: the figures of enrichments, on the driver.

Every task reports its figures once a second, over a connection, and when it ends, through an accumulator of the
SparkContext. A `Ledger` on the driver collects them, and says which attempts count. Percentiles come from
merged histograms, not from averages. All reports of a micro-batch arrive before Spark publishes its progress.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from asyncio_operator.checks import Duration, must_be, plain_function, positive_duration
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.figures import EnrichmentStatistics, rows_of_figures
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.driver_service import driver_address
from asyncio_operator.spark.driver.ledger import Ledger, Lookup, reported_to, trace_of_tasks
from asyncio_operator.spark.driver.live_page import LivePage
from asyncio_operator.spark.worker.driver_wire import DriverAddress
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator.spark.worker.reporting import LONGEST_NAME, MicroBatch, Reporting
from asyncio_operator.spark.worker.versions import micro_batch_of
from asyncio_operator.trace import Trace
from asyncio_operator.view.progress import Watch, display_here
from asyncio_operator.view.tables import html_table, text_table

logger = logging.getLogger("asyncio_operator.metrics")


class EnrichmentMetrics:
    """Collects the figures of every `enrich` that gets it, or a part of it, as ``metrics=``.

    Args:
        spark: the session whose jobs report.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._ledger = Ledger()
        self._destination = reported_to(
            self._ledger,
            spark,
            f"EnrichmentMetrics needs a classic Spark session, but was given {describe(spark)}. Spark Connect has no "
            "accumulators: use the status column there",
        )
        self._live: DriverAddress | None = None
        try:
            self._live = driver_address(spark)
        except ConfigurationError as error:
            logger.warning("metrics arrive only when tasks have ended: %s", error)
        self._context = spark.sparkContext
        self._part: str | None = None

    def part(self, name: str) -> EnrichmentMetrics:
        """Metrics for one `enrich` of several. They have figures of their own, which count here too.

        Raises:
            ConfigurationError: the name is not printable text, or is empty, or these metrics are a part themselves.
        """
        if not (isinstance(name, str) and name and name.isprintable()):
            raise ConfigurationError(f"part({describe(name)}): the name of a part must be text of one line, not empty")
        if self._part is not None:
            raise ConfigurationError(
                f"part({name!r}) of the part {self._part!r}: a part cannot be divided again; call "
                "part() on the whole metrics"
            )
        self._ledger.expect(name)
        part = copy.copy(self)
        part._part = name
        return part

    def statistics(self, batch: StreamingQueryProgress | None = None) -> EnrichmentStatistics:
        """The figures of all tasks so far, at most about a second old for those that run.

        Rows count for one attempt of each partition, the one that has succeeded or is farthest. All else counts for
        all attempts, also for those that failed or that Spark ended early.

        Args:
            batch: the progress of a streaming query, from a listener or `query.recentProgress`. The result then has
                only the figures of that micro-batch, and they are complete. The figures of the latest 100 micro-batches
                are kept. All figures of others, and of micro-batches without tasks, are 0.
        """
        return self._statistics(self._part, None if batch is None else micro_batch_of(batch))

    def _statistics(self, part: str | None, batch: MicroBatch | None) -> EnrichmentStatistics:
        figures, in_flight = self._ledger.sum(part, batch), self._ledger.in_flight(part, batch)
        return figures.statistics(
            EnrichmentStatistics, admitted=figures.rows, emitted=figures.rows, in_flight=in_flight
        )

    def show(self, batch: StreamingQueryProgress | None = None) -> None:
        """Print the figures as a table of at most 100 columns, with one for each part. `batch`: see `statistics`."""
        names, figures = zip(*self._columns(None if batch is None else micro_batch_of(batch)), strict=True)
        print(text_table(names, rows_of_figures(figures)))

    def _repr_html_(self) -> str:
        names, figures = zip(*self._columns(None), strict=True)
        return html_table(names, rows_of_figures(figures))

    def _columns(self, batch: MicroBatch | None) -> list[tuple[str, EnrichmentStatistics]]:
        """The figures of each part, and of all. A part may have the name of another column."""
        parts = self._ledger.parts() if self._part is None else []
        total = self._statistics(self._part, batch)
        if parts in ([], [""]):
            return [(self._part or "", total)]
        return [*((part or "others", self._statistics(part, batch)) for part in parts), ("total", total)]

    def __str__(self) -> str:
        return "\n".join(self._lines(None))

    def _lines(self, batch: MicroBatch | None) -> Iterator[str]:
        columns = self._columns(batch)
        for name, figures in columns:
            yield f"{name}: {figures}" if len(columns) > 1 else str(figures)

    def serve(self, port: int = 0, host: str = "127.0.0.1") -> LivePage:
        """Serve a live page of all lookups that report to these metrics, and of their budgets and traces.

        Its `url` has a token, without which nothing is shown. The page has names of enrichers, types of errors, and,
        with a trace, keys and the texts of their errors. It is served without encryption: use another host than the
        default only in a network that you trust.

        Args:
            port: 0: any free one.
            host: a name or an address of this machine; "0.0.0.0": all of its addresses.

        Raises:
            ConfigurationError: it cannot be served there.
        """
        return LivePage(self._ledger, port, host)

    def reset(self) -> None:
        """Reset all figures to 0."""
        self._ledger.forget(self._part)

    def listener(
        self, callback: Callable[[StreamingQueryProgress, EnrichmentStatistics], None] | None = None
    ) -> StreamingQueryListener:
        """A listener for ``spark.streams.addListener``. It reports the figures of every micro-batch after its end.

        Args:
            callback: called with the progress and the figures, on a thread of Spark, one micro-batch after the other.
                Queries without this enrichment are skipped. Default: print the figures.

        Raises:
            ConfigurationError: the callback is not an ordinary function of two arguments.
        """
        if callback is not None:
            plain_function("callback", callback, "a function, or None", "the progress", "the figures")
        return _Listener(self, callback)

    @contextlib.contextmanager
    def progress(self, every: Duration = 5.0) -> Iterator[None]:
        """Show the job while the block runs: ``with metrics.progress():``.

        In a terminal one line moves, in a notebook a bar. Elsewhere, as in a file, a line is printed to standard error
        when more rows have come, and one at the end. Each shows the finished tasks of all running stages, of any job,
        and `statistics`.

        Args:
            every: minimum seconds, or a timedelta, between two lines. What moves does so once a second.

        Raises:
            ConfigurationError: `every` is not a duration, or is 0.
        """
        watch = Watch(positive_duration("every", every), self.statistics, self._tasks, display_here())
        try:
            yield
        finally:
            watch.stop()

    def _tasks(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage]
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


def reported(
    task: EnrichTask,
    spark: SparkSession,
    enricher: object,
    budget: Budget | None,
    metrics: object,
    trace: Trace | None = None,
) -> EnrichTask:
    """The task, which reports to metrics and a trace, each if it is given; the metrics show enricher and budget. Called
    when nothing can be refused any more: a refused enrichment clears no trace, and shows no lookup that never begins.
    """
    metrics, reporting = checked_metrics(metrics), None
    tracing = None if trace is None else trace_of_tasks(trace, spark)
    if metrics is not None:
        part = metrics._part or ""
        lookup = Lookup(describe(enricher, LONGEST_NAME), part, budget, trace)
        reporting = Reporting(metrics._destination, part, metrics._ledger.begin(lookup), metrics._live)
    return replace(task, reporting=reporting, tracing=tracing)


def checked_metrics(metrics: object) -> EnrichmentMetrics | None:
    """`metrics`. ConfigurationError: it is no EnrichmentMetrics."""
    if metrics is None or isinstance(metrics, EnrichmentMetrics):
        return metrics
    raise must_be("metrics", metrics, "an EnrichmentMetrics, as in EnrichmentMetrics(spark)")


class _Listener(StreamingQueryListener):
    def __init__(
        self,
        metrics: EnrichmentMetrics,
        callback: Callable[[StreamingQueryProgress, EnrichmentStatistics], None] | None,
    ) -> None:
        self._metrics = metrics
        self._callback = callback

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress, metrics = event.progress, self._metrics
        batch = micro_batch_of(progress)
        if not metrics._ledger.has(metrics._part, batch):
            return
        if self._callback is not None:
            self._callback(progress, metrics.statistics(progress))
            return
        for line in metrics._lines(batch):
            print(f"{progress.name or progress.id}, micro-batch {progress.batchId}: {line}")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Prints nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Prints nothing: all reports have been printed."""
