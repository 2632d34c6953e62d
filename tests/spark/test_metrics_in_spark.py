"""`EnrichmentMetrics` in a real Spark: parts, and what is reported while a job runs."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark import EnrichmentMetrics, EnrichmentStatistics, enrich
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher
from tests.spark.helpers import BATCH_SIZE, setting, wait_until
from tests.spark.test_streaming import finished, stream, write

pytestmark = pytest.mark.spark


def known_below(limit: int, column: str) -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        return {column: key} if key < limit else None

    return FunctionEnricher(look_up, f"{column} long")


@pytest.fixture
def metrics(spark: SparkSession) -> EnrichmentMetrics:
    return EnrichmentMetrics(spark)


def test_each_part_has_its_own_figures_and_all_count_in_the_whole(
    spark: SparkSession, metrics: EnrichmentMetrics, capsys: pytest.CaptureFixture[str]
) -> None:
    planes, airports = metrics.part("planes"), metrics.part("airports")
    unused = metrics.part("unused")
    once = enrich(spark.range(0, 40, numPartitions=2), known_below(30, "plane"), on="id", metrics=planes)
    enrich(once, known_below(10, "airport"), on="id", metrics=airports).collect()
    found = [one.statistics().found for one in (planes, airports, unused, metrics)]
    assert found == [30, 10, 0, 40]
    assert (metrics.statistics().rows, metrics.statistics().calls) == (80, 80)
    metrics.show()
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["planes", "airports", "unused", "total"]
    assert lines[:2] == [["rows", "40", "40", "0", "80"], ["found", "30", "10", "0", "40"]]
    assert [re.match(r"(\w+): (\d+) rows, (\d+) found", line).groups() for line in str(metrics).splitlines()] == [  # type: ignore[union-attr]
        ("planes", "40", "30"), ("airports", "40", "10"), ("unused", "0", "0"), ("total", "80", "40")
    ]  # fmt: skip
    planes.show()
    assert capsys.readouterr().out.split()[:7] == ["planes", "rows", "40", "found", "30", "missing", "10"]
    planes.reset()
    assert [one.statistics().rows for one in (planes, airports, metrics)] == [0, 40, 40]
    enrich(spark.range(1), known_below(10, "x"), on="id", metrics=metrics).collect()
    metrics.show()
    assert capsys.readouterr().out.split()[:5] == ["planes", "airports", "unused", "others", "total"]
    metrics.reset()
    assert [one.statistics().rows for one in (planes, airports, metrics)] == [0, 0, 0]


def test_V1_metrics_and_traces_that_are_dropped_are_gone(spark: SparkSession, metrics: EnrichmentMetrics) -> None:
    def used() -> list[ref[Any]]:
        other, trace = EnrichmentMetrics(spark), Trace()
        assert enrich(spark.range(4), known_below(3, "x"), on="id", metrics=other, trace=trace).count() == 4
        wait_until(lambda: trace.size > 0, 10, "the trace of its tasks")
        assert other.statistics().rows == 4
        return [ref(other._ledger), ref(trace)]

    enrich(spark.range(4), known_below(3, "x"), on="id", metrics=metrics).collect()
    before = len(_accumulatorRegistry)
    dropped = [*used(), *used()]
    gc.collect()
    assert [one() for one in dropped] == [None] * 4
    assert len(_accumulatorRegistry) == before
    assert metrics.statistics().rows == 4


def test_V3_metrics_without_parts_are_one_column_or_one_line_and_parts_may_have_the_names_of_other_columns(
    spark: SparkSession, metrics: EnrichmentMetrics, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(metrics) == "0 rows, 0 found, 0 missing, 0 failed, 0 calls", "no latencies of no calls"
    enrich(spark.range(4), known_below(3, "x"), on="id", metrics=metrics).collect()
    metrics.show()
    assert capsys.readouterr().out.split()[:6] == ["rows", "4", "found", "3", "missing", "1"]
    line = str(metrics)
    assert line.startswith("4 rows, 3 found, 1 missing, 0 failed, 4 calls, latency of keys: ")
    assert line == str(metrics) == str(metrics.statistics())
    assert "ms, max" in line
    for part in (metrics.part("total"), metrics.part("others")):
        enrich(spark.range(4), known_below(3, "x"), on="id", metrics=part).collect()
    metrics.show()
    head, rows, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["others", "total", "others", "total"]
    assert rows.split() == ["rows", "4", "4", "4", "12"]


def shown_while(metrics: EnrichmentMetrics, every: Any) -> None:
    with metrics.progress(every):
        raise AssertionError


ASKED: list[tuple[Callable[[EnrichmentMetrics, Any], Any], list[Any], str]] = [
    (EnrichmentMetrics.part, ["", None, 3, "two\nlines", "\x1b[31mred", "\ud800"], r"part\(.*must be text"),
    (EnrichmentMetrics.listener, [5, lambda: None, lambda progress: None], "callback is"),
    (shown_while, [0, -1, "5 s", None], "every is"),
    (EnrichmentMetrics.statistics, [0, "0"], "batch is .*must be the progress of a streaming query"),
    (EnrichmentMetrics.show, [{"batchId": 0}], "batch is .*must be the progress of a streaming query"),
]


@pytest.mark.parametrize(("ask", "wrong", "says"), ASKED)
def test_X4_what_metrics_do_not_take_is_told(metrics: EnrichmentMetrics, ask: Any, wrong: list[Any], says: str) -> None:
    for one in wrong:
        with pytest.raises(ConfigurationError, match=says):
            ask(metrics, one)
    with pytest.raises(ConfigurationError, match="a part cannot be divided again"):
        metrics.part("a").part("b")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Where keys are waited for; opened at the end, lest anything hangs."""
    gate = tmp_path / "open"
    yield gate
    gate.touch()


def waiting(gate: Path, first: int) -> FunctionEnricher:
    """Keys from `first` on wait for the gate."""
    is_open = gate.exists

    async def look_up(key: int) -> Any:
        for _ in range(6000):
            if key < first or is_open():
                return {"x": key}
            await asyncio.sleep(0.02)
        raise TimeoutError

    return FunctionEnricher(look_up, "x long")


def test_figures_and_a_line_about_the_tasks_that_have_ended_come_while_others_run(
    spark: SparkSession, metrics: EnrichmentMetrics, gate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = enrich(spark.range(0, 40, numPartitions=4), waiting(gate, 30), on="id", timeout=None, metrics=metrics)
    told = ""

    def is_told(what: str) -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return re.search(what, told) is not None

    with ThreadPoolExecutor(1) as pool:
        with metrics.progress(every=0.05):
            job = pool.submit(out.collect)
            try:
                wait_until(lambda: metrics.statistics().rows == 30, 60, "three of four tasks have reported")
                wait_until(lambda: is_told(r"\d+ s, [0-3] of 4 tasks: 30 rows, 30 found"), 60, "a line about them")
                assert not job.done()
            finally:
                gate.touch()
            assert len(job.result()) == 40
        told += capsys.readouterr().err
        out.collect()
    assert metrics.statistics().rows == 80
    assert capsys.readouterr().err == "", "something is told after the block has ended"
    # Only the last line may say what the one before it has said.
    *rows, last = [int(number) for number in re.findall(r"(\d+) rows,", told)]
    assert rows == sorted(set(rows))
    assert last == 40


def test_V1_figures_move_while_a_task_runs(spark: SparkSession, metrics: EnrichmentMetrics, gate: Path) -> None:
    out = enrich(spark.range(0, 600, numPartitions=1), waiting(gate, 300), on="id", timeout=None, metrics=metrics)
    with setting(spark, BATCH_SIZE, 100), ThreadPoolExecutor(1) as pool:
        job = pool.submit(out.collect)
        try:
            wait_until(lambda: metrics.statistics().rows == 300, 60, "half of the only task")
            wait_until(lambda: metrics.statistics().in_flight == 100, 60, "its calls")
            assert metrics.statistics().calls == 400
            assert metrics.statistics().latency.max > 0
            assert not job.done()
        finally:
            gate.touch()
        assert len(job.result()) == 600
    figures = metrics.statistics()
    assert (figures.rows, figures.calls, figures.in_flight) == (600, 600, 0)


def test_V1_a_task_that_spark_ends_early_has_told_its_figures(spark: SparkSession, metrics: EnrichmentMetrics) -> None:
    async def look_up(key: int) -> Any:
        await asyncio.sleep(0.001)
        return {"x": key}

    df = spark.range(0, 100_000, numPartitions=1)
    out = enrich(df, FunctionEnricher(look_up, "x long"), on="id", capacity=10, metrics=metrics)
    with setting(spark, BATCH_SIZE, 10):
        assert len(out.limit(5).collect()) == 5
    wait_until(lambda: metrics.statistics().rows > 0, 60, "its figures")
    figures = metrics.statistics()
    assert 5 <= figures.rows <= figures.calls < 100_000
    assert figures.rows == figures.found


# -- micro-batches: each has its own figures, complete, however late they are looked at


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


def run(out: DataFrame, name: str = "q") -> StreamingQuery:
    return finished(out.writeStream.format("noop").queryName(name).trigger(availableNow=True).start())


def figures(statistics: EnrichmentStatistics) -> tuple[int, int, int, int]:
    return statistics.rows, statistics.found, statistics.missing, statistics.calls


EXPECTED = [(30, 27, 3, 30), (1, 0, 1, 1), (70, 63, 7, 70), (5, 4, 1, 5)]


def in_two_tasks(spark: SparkSession, files: Path) -> DataFrame:
    return stream(spark, files).repartition(2)


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[list[StreamingQueryListener]]:
    """Listeners to be removed."""
    listeners: list[StreamingQueryListener] = []
    yield listeners
    for listener in listeners:
        spark.streams.removeListener(listener)


def test_a_listener_is_told_the_figures_of_every_micro_batch_of_this_enrichment_whatever_another_one_raises(
    spark: SparkSession,
    files: Path,
    metrics: EnrichmentMetrics,
    listening: list[StreamingQueryListener],
    capsys: pytest.CaptureFixture[str],
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
    query = run(
        enrich(in_two_tasks(spark, files), tenths_unknown(), on="id", mode="unordered", metrics=metrics), "this"
    )
    # They are there after the query too.
    assert [figures(metrics.statistics(progress)) for progress in query.recentProgress] == EXPECTED
    assert all(metrics.statistics(progress).latency.max > 0 for progress in query.recentProgress)
    assert figures(metrics.statistics()) == tuple(map(sum, zip(*EXPECTED, strict=True)))
    metrics.show(query.recentProgress[2])
    assert capsys.readouterr().out.split()[:6] == ["rows", "70", "found", "63", "missing", "7"]
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
