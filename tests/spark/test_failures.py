"""Laws X5 and X6: what fails the task, what is hidden and counted, and what the status column tells."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, Journal
from asyncio_operator.spark import EnrichmentMetrics, enrich, register_lookup
from enrichers import FunctionEnricher, PostgresEnricher
from tests.servers import PostgresServer
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


# -- a PostgreSQL


TABLES = """
    DROP SCHEMA IF EXISTS shop CASCADE;
    CREATE SCHEMA shop;
    CREATE TABLE shop.customers (id int PRIMARY KEY, name text);
    CREATE TABLE shop.numbers (n numeric, name text);
    INSERT INTO shop.numbers VALUES (1e30, 'large'), (1e-30, 'fine'), ('NaN', 'none');
"""


@pytest.fixture
def shop(postgres: PostgresServer) -> PostgresServer:
    async def run() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(TABLES)
        await connection.close()

    asyncio.run(run())
    return postgres


def test_X12_a_double_that_only_a_numeric_can_hold_is_an_error_of_its_key_also_in_sql(
    spark: SparkSession, shop: PostgresServer, tmp_path: Path
) -> None:
    numbers = PostgresEnricher(shop.dsn, table="shop.numbers", key="n")
    df = spark.sql("SELECT explode(array(1e30D, 1e50D, 7D)) AS n").coalesce(1)
    faces: list[dict[str, Any]] = [
        {},
        {"cache": Cache()},
        {"journal": Journal(str(tmp_path))},
        {"strategy": "distinct"},
    ]
    for options in faces:
        rows = enrich(df, numbers, on="n", on_error="null", status_column="status", **options).collect()
        assert {row.n: (row.name, row.status.status) for row in rows if row.n in (1e30, 7.0)} == {
            1e30: ("large", "found"),
            7.0: (None, "missing"),
        }
        [failed] = [row.status for row in rows if row.n not in (1e30, 7.0)]
        assert failed.status == "failed"
        assert "the numeric column 'n' may hold it" in failed.error_message
    with pytest.raises(PythonException, match="the numeric column 'n' may hold it"):
        enrich(df, numbers, on="n").collect()
    register_lookup(spark, "numbers_of", numbers)
    df.createOrReplaceTempView("doubles")
    with pytest.raises(PythonException, match="the numeric column 'n' may hold it"):
        spark.sql("SELECT * FROM numbers_of(TABLE(doubles), on => 'n')").collect()


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_X5_a_variable_that_only_the_driver_has_is_told_as_such(
    spark: SparkSession, shop: PostgresServer, monkeypatch: pytest.MonkeyPatch, on_error: Any
) -> None:
    monkeypatch.setenv("ONLY_ON_THE_DRIVER", shop.dsn)
    customers = PostgresEnricher(lambda: os.environ["ONLY_ON_THE_DRIVER"], table="shop.customers", key="id")
    with pytest.raises(PythonException) as failed:
        enrich(spark.range(10), customers, on="id", on_error=on_error).collect()
    assert "could not be opened: ConfigurationError: dsn: the function" in str(failed.value)
    assert "no environment variable 'ONLY_ON_THE_DRIVER': give it to the executors" in str(failed.value)
    assert "spark.executorEnv.ONLY_ON_THE_DRIVER=" in str(failed.value)
    assert "for key" not in str(failed.value)
