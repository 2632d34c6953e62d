"""Laws X5 and X6: what fails the task, what is hidden and counted, and what the status column tells."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import EnrichmentMetrics, enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import setting

pytestmark = pytest.mark.spark


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.range(0, 20, numPartitions=1)


def test_X5_what_is_no_exception_fails_the_task_and_never_hangs_it(df: DataFrame) -> None:
    async def look_up(key: int) -> Any:
        await asyncio.sleep(0.01 if key % 2 else 0)
        if key == 7:
            raise SystemExit(3)
        return {"x": key}

    out = enrich(df, FunctionEnricher(look_up, "x long, y string"), on="id", on_error="null", timeout=None)
    with pytest.raises(PythonException, match=r"FunctionEnricher\(.*look_up, x, y\) failed for key 7: SystemExit"):
        out.collect()
    assert df.count() == 20


def mixed() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        match key % 4:
            case 0:
                return {"x": key}
            case 1:
                return None
            case 2:
                raise ValueError(f"not {key}")
        return await asyncio.sleep(3600)

    return FunctionEnricher(look_up, "x long")


@pytest.mark.parametrize(
    ("mode", "how", "on_error", "statuses"),
    [
        ("ordered", "left", "null", ["found", "missing", "failed", "timed_out"]),
        ("unordered", "inner", "null", ["found", "failed", "timed_out"]),
        ("unordered", "left", "drop", ["found", "missing"]),
        ("ordered", "inner", "drop", ["found"]),
    ],
)
def test_X6_what_is_hidden_is_counted_and_told_row_by_row(
    spark: SparkSession, df: DataFrame, mode: Any, how: Any, on_error: Any, statuses: list[str]
) -> None:
    metrics = EnrichmentMetrics(spark)
    out = enrich(
        df,
        mixed(),
        on="id",
        how=how,
        mode=mode,
        on_error=on_error,
        timeout=0.5,
        status_column="how",
        metrics=metrics,
    )
    rows = out.collect()
    assert sorted(row.id for row in rows) == [
        i for i in range(20) if ["found", "missing", "failed", "timed_out"][i % 4] in statuses
    ]
    for row in rows:
        kind = ["found", "missing", "failed", "timed_out"][row.id % 4]
        assert (row.how.status, row.how.source, row.how.attempts) == (kind, "call", 1)
        assert row.x == (row.id if kind == "found" else None)
        assert row.how.latency_ms >= (500 if kind == "timed_out" else 0)
        assert row.how.error_type == {"failed": "ValueError", "timed_out": "ElementTimeoutError"}.get(kind)
        assert (row.how.error_message is None) == (kind in ("found", "missing"))
        if kind == "failed":
            assert row.how.error_message == f"not {row.id}"
    figures = metrics.statistics()
    assert (figures.rows, figures.found, figures.missing, figures.failures) == (20, 5, 5, 10)
    assert (figures.timeouts, figures.skipped, figures.calls) == (5, 10 if on_error == "drop" else 0, 20)
    assert 0 < figures.latency.p50 <= figures.latency.max


def test_X6_failures_count_rows_and_timeouts_count_keys(spark: SparkSession) -> None:
    metrics = EnrichmentMetrics(spark)
    df = spark.range(0, 40, numPartitions=1).selectExpr("id % 4 AS k")
    enrich(df, mixed(), on="k", on_error="null", timeout=0.3, metrics=metrics).collect()
    figures = metrics.statistics()
    assert (figures.failures, figures.timeouts, figures.calls) == (20, 1, 4)


def test_X5_a_worker_that_dies_fails_the_job_and_the_next_one_works(spark: SparkSession, df: DataFrame) -> None:
    async def look_up(key: int) -> Any:
        os._exit(7)

    with (
        setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", 5),
        pytest.raises(Exception, match=r"crashed|EOF"),
    ):
        enrich(df, FunctionEnricher(look_up, "x long"), on="id").collect()
    assert enrich(df, mixed(), on="id", on_error="null", timeout=0.1).count() == 20
