"""What an enrichment has done, visible on the driver.

Every task reports its figures when it ends, through an accumulator of the SparkContext; percentiles come from merged
histograms, not from averages. Spark counts a task that it runs again as often as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.metrics import OperatorStatistics
from asyncio_operator.spark.figures import EnrichmentFigures


class _Adding(AccumulatorParam[EnrichmentFigures]):
    def zero(self, value: EnrichmentFigures) -> EnrichmentFigures:
        return EnrichmentFigures()

    def addInPlace(self, value1: EnrichmentFigures, value2: EnrichmentFigures) -> EnrichmentFigures:  # noqa: N802
        value1.add(value2)
        return value1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentStatistics(OperatorStatistics):
    """The fields of `OperatorStatistics`, and those of `EnrichmentFigures`.

    `admitted` and `emitted` are input rows. `latency` is that of keys, from their first call to their outcome, which is
    what `timeout` limits; `attempt_latency` is that of calls, which is what `attempt_timeout` limits. These are
    always 0: `in_flight`, `buffered` and `backing_off`, because tasks report when they end; `backpressure_seconds`,
    which is not measured here.
    """

    rows: int = 0
    found: int = 0
    missing: int = 0
    calls: int = 0
    cache_hits: int = 0
    shared: int = 0


class EnrichmentMetrics:
    """Collects the figures of every `enrich` that it is passed to.

    Args:
        spark: the session whose jobs will report.
    """

    def __init__(self, spark: SparkSession) -> None:
        try:
            context = spark.sparkContext
        except Exception as error:
            raise ConfigurationError(
                f"EnrichmentMetrics needs a classic Spark session, and was given {describe(spark)}. Spark Connect has "
                "no accumulators: use the status column there"
            ) from error
        self._accumulator: Accumulator[EnrichmentFigures] = context.accumulator(EnrichmentFigures(), _Adding())

    def statistics(self) -> EnrichmentStatistics:
        """The figures of all tasks that have ended."""
        figures = self._accumulator.value
        return EnrichmentStatistics(
            admitted=figures.rows,
            emitted=figures.rows,
            timeouts=figures.timeouts,
            failures=figures.failures,
            skipped=figures.skipped,
            latency=figures.latency.percentiles(),
            attempt_latency=figures.attempt_latency.percentiles(),
            rows=figures.rows,
            found=figures.found,
            missing=figures.missing,
            calls=figures.calls,
            retries=figures.retries,
            cache_hits=figures.cache_hits,
            shared=figures.shared,
        )

    def show(self) -> None:
        """Print the figures."""
        s = self.statistics()
        print(
            f"{s.rows:,} rows: {s.found:,} found, {s.missing:,} missing, {s.failures:,} failed "
            f"({s.timeouts:,} keys timed out, {s.skipped:,} rows dropped); {s.cache_hits:,} keys from the cache, "
            f"{s.shared:,} shared, {s.calls:,} calls, {s.retries:,} retries, "
            f"p50 {s.latency.p50 * 1000:.2f} ms, p95 {s.latency.p95 * 1000:.2f} ms, "
            f"p99 {s.latency.p99 * 1000:.2f} ms, max {s.latency.max * 1000:.2f} ms"
        )

    def reset(self) -> None:
        """Forget what was collected."""
        self._accumulator.value = EnrichmentFigures()

    def report(self, figures: EnrichmentFigures) -> None:
        """For tasks."""
        self._accumulator.add(figures)
