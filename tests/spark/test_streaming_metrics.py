"""`EnrichmentMetrics` per micro-batch: each has its own figures, complete, however late they are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from asyncio_operator.spark import EnrichmentMetrics, EnrichmentStatistics, enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import wait_until
from tests.spark.test_streaming import finished, stream, write

pytestmark = pytest.mark.spark

SIZES = [30, 1, 70, 5]
"""Rows of the files, each a micro-batch; every tenth key is unknown."""


def tenths_unknown() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        return {"x": key} if key % 10 else None

    return FunctionEnricher(look_up, "x long")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for size in SIZES:
        write(tmp_path / "in", ({"n": n, "id": n} for n in range(size)))
    return tmp_path / "in"


@pytest.fixture
def metrics(spark: SparkSession) -> EnrichmentMetrics:
    return EnrichmentMetrics(spark)


def run(out: DataFrame, name: str = "q") -> StreamingQuery:
    return finished(out.writeStream.format("noop").queryName(name).trigger(availableNow=True).start())


def figures(statistics: EnrichmentStatistics) -> tuple[int, int, int, int]:
    return statistics.rows, statistics.found, statistics.missing, statistics.calls


EXPECTED = [(30, 27, 3, 30), (1, 0, 1, 1), (70, 63, 7, 70), (5, 4, 1, 5)]


def in_two_tasks(spark: SparkSession, files: Path) -> DataFrame:
    return stream(spark, files).repartition(2)


def test_the_figures_of_each_micro_batch_are_there_after_the_query(
    spark: SparkSession, files: Path, metrics: EnrichmentMetrics, capsys: pytest.CaptureFixture[str]
) -> None:
    query = run(enrich(in_two_tasks(spark, files), tenths_unknown(), on="id", mode="unordered", metrics=metrics))
    assert [figures(metrics.statistics(progress)) for progress in query.recentProgress] == EXPECTED
    assert all(metrics.statistics(progress).latency.max > 0 for progress in query.recentProgress)
    assert figures(metrics.statistics()) == tuple(map(sum, zip(*EXPECTED, strict=True)))
    metrics.show(query.recentProgress[2])
    assert capsys.readouterr().out.split()[:6] == ["rows", "70", "found", "63", "missing", "7"]


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[list[StreamingQueryListener]]:
    """Listeners to be removed."""
    listeners: list[StreamingQueryListener] = []
    yield listeners
    for listener in listeners:
        spark.streams.removeListener(listener)


def test_a_listener_is_told_the_figures_of_every_micro_batch_of_this_enrichment_whatever_another_one_raises(
    spark: SparkSession, files: Path, metrics: EnrichmentMetrics, listening: list[StreamingQueryListener]
) -> None:
    told: list[tuple[str, int, tuple[int, int, int, int]]] = []
    failed: list[int] = []

    def tell(progress: StreamingQueryProgress, statistics: EnrichmentStatistics) -> None:
        told.append((progress.name or "", progress.batchId, figures(statistics)))

    def fail(progress: StreamingQueryProgress, statistics: EnrichmentStatistics) -> None:
        failed.append(statistics.rows)
        raise ValueError("the callback of a test fails, as it should")

    listening += [metrics.listener(fail), metrics.listener(tell)]
    for listener in listening:
        spark.streams.addListener(listener)
    run(stream(spark, files), "other")
    run(enrich(in_two_tasks(spark, files), tenths_unknown(), on="id", metrics=metrics), "this")
    wait_until(lambda: len(told) >= len(SIZES) <= len(failed), 30, "the listeners have been told of all")
    assert told == [("this", number, expected) for number, expected in enumerate(EXPECTED)]
    assert failed == SIZES


def test_a_listener_without_a_callback_prints_a_line_for_every_part(
    spark: SparkSession,
    files: Path,
    metrics: EnrichmentMetrics,
    listening: list[StreamingQueryListener],
    capsys: pytest.CaptureFixture[str],
) -> None:
    listening += [metrics.listener(), metrics.part("second").listener()]
    for listener in listening:
        spark.streams.addListener(listener)
    once = enrich(stream(spark, files), tenths_unknown(), on="id", prefix="a_", metrics=metrics.part("first"))
    run(enrich(once, tenths_unknown(), on="id", metrics=metrics.part("second")), "twice")
    told = ""

    def lines() -> list[str]:
        nonlocal told
        told += capsys.readouterr().out
        return told.splitlines()

    wait_until(lambda: len(lines()) >= 16, 30, "the listeners have printed all")
    for name, factor in (("first: ", 1), ("total: ", 2), ("", 1)):
        starts = [f"twice, micro-batch {n}: {name}{factor * size} rows" for n, size in enumerate(SIZES)]
        assert [next(line for line in lines() if line.startswith(start)) for start in starts]
    assert len(lines()) == 16


def test_in_foreach_batch_the_figures_are_complete_when_the_write_returns(
    spark: SparkSession, files: Path, metrics: EnrichmentMetrics, tmp_path: Path
) -> None:
    upstream, inside = metrics.part("upstream"), metrics.part("inside")
    seen: list[list[int]] = []

    def save(df: DataFrame, batch: int) -> None:
        out = enrich(df, tenths_unknown(), on="id", prefix="again_", metrics=inside)
        out.write.parquet(str(tmp_path / "out" / f"batch={batch}"))
        seen.append([one.statistics().rows for one in (upstream, inside)])

    df = enrich(in_two_tasks(spark, files), tenths_unknown(), on="id", metrics=upstream)
    query = finished(df.writeStream.foreachBatch(save).trigger(availableNow=True).start())
    sums = [sum(SIZES[: n + 1]) for n in range(len(SIZES))]
    assert seen == [[n, n] for n in sums]
    for one in (upstream, inside):
        assert [figures(one.statistics(progress)) for progress in query.recentProgress] == EXPECTED
