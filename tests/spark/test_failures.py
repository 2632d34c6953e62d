"""Laws X5 and X6: what fails the task, and what is hidden and counted."""

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


@pytest.mark.parametrize(("on_error", "kept", "skipped"), [("null", 30, 0), ("drop", 10, 20)])
def test_X6_what_is_hidden_is_counted_failures_by_rows_and_timeouts_by_keys(
    spark: SparkSession, on_error: Any, kept: int, skipped: int
) -> None:
    metrics = EnrichmentMetrics(spark)
    df = spark.range(0, 40, numPartitions=1).selectExpr("id % 4 AS k")
    found = enrich(df, mixed(), on="k", how="inner", on_error=on_error, timeout=0.3, metrics=metrics)
    assert len(found.collect()) == kept
    figures = metrics.statistics()
    assert (figures.rows, figures.found, figures.missing, figures.failures) == (40, 10, 10, 20)
    assert (figures.timeouts, figures.skipped, figures.calls) == (1, skipped, 4)
    assert 0 < figures.latency.p50 <= figures.latency.max


def test_X5_a_worker_that_dies_fails_the_job_and_the_next_one_works(spark: SparkSession, df: DataFrame) -> None:
    async def look_up(key: int) -> Any:
        os._exit(7)

    with (
        setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", 5),
        pytest.raises(Exception, match=r"crashed|EOF"),
    ):
        enrich(df, FunctionEnricher(look_up, "x long"), on="id").collect()
    assert enrich(df, mixed(), on="id", on_error="null", timeout=0.1).count() == 20
