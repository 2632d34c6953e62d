"""How jobs end: what leaves nothing behind (X7), what is hidden and counted (X6), and which calls Spark makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, register_lookup
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1, Hanging, assert_nothing_is_left, hanging_from, hangs_from, through_sql

pytestmark = pytest.mark.spark

# Each takes seconds, and both end in the same way.
MODES = ["ordered", pytest.param("unordered", marks=pytest.mark.faults)]


# Of many rows, the input is still being sent when Spark has enough.
@pytest.mark.parametrize("rows", [60, 200_000])
@pytest.mark.parametrize("mode", MODES)
def test_X7_a_job_that_has_enough_rows_ends_although_the_others_hang_without_a_timeout(
    spark: SparkSession, server: Hanging, mode: Any, rows: int
) -> None:
    df = spark.range(0, rows, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    assert (out.limit(3).collect() if mode == "ordered" else out.take(3)) == [(0, 0), (1, 1), (2, 2)]
    assert_nothing_is_left(spark, server)


def by_enrich(df: DataFrame, port: int, mode: Any = "ordered") -> DataFrame:
    return enrich(df, hanging_from(port, first=3, fails=40), on="id", timeout=None, mode=mode)


def by_sql(df: DataFrame, port: int) -> DataFrame:
    return through_sql(df, hanging_from(port, first=3, fails=40), on="id", timeout=None)


def by_udf(df: DataFrame, port: int) -> DataFrame:
    return df.select(async_udf("long", timeout=None)(hangs_from(port, first=3, fails=40))("id"))


@pytest.mark.parametrize(
    ("face", "told"),
    [
        (by_enrich, "failed for key 40: ValueError: enough"),
        (partial(by_enrich, mode="unordered"), "failed for key 40: ValueError: enough"),
        pytest.param(by_sql, "failed for key 40: ValueError: enough", marks=FROM_4_1),
        (by_udf, r"ask failed for arguments \(40,\): ValueError: enough"),
    ],
    ids=["ordered", "unordered", "sql", "async_udf"],
)
def test_X7_a_failing_task_leaves_nothing(
    spark: SparkSession, server: Hanging, face: Callable[[DataFrame, int], DataFrame], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        face(spark.range(0, 60, numPartitions=1), server.port).collect()
    assert_nothing_is_left(spark, server)


@pytest.mark.parametrize("mode", MODES)
def test_X7_a_task_that_fails_behind_enrich_leaves_nothing(spark: SparkSession, server: Hanging, mode: Any) -> None:
    df = spark.range(0, 200_000, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    with pytest.raises(Exception, match="behind"):
        out.selectExpr("if(x = 1, raise_error('behind'), x)").collect()
    assert_nothing_is_left(spark, server)


# -- laws X5 and X6


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
    found = enrich(df, mixed(), on="k", how="inner", on_error=on_error, timeout=1, metrics=metrics)
    assert len(found.collect()) == kept
    figures = metrics.statistics()
    assert (figures.rows, figures.found, figures.missing, figures.failures) == (40, 10, 10, 20)
    assert (figures.timeouts, figures.skipped, figures.calls) == (1, skipped, 4)
    assert 0 < figures.latency.p50 <= figures.latency.max


# -- what docs/concepts.md says about actions


ROWS = 20


async def double_of(key: int) -> dict[str, int]:
    return {"double": 2 * key}


DOUBLES = FunctionEnricher(double_of, "double long")


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=2)


def calls(spark: SparkSession, action: Callable[[EnrichmentMetrics], Any]) -> int:
    metrics = EnrichmentMetrics(spark)
    action(metrics)
    return metrics.statistics().calls


ACTIONS: dict[str, tuple[Callable[[DataFrame], Any], int]] = {
    "count": (lambda found: found.count(), ROWS),
    "other columns": (lambda found: found.select("id").collect(), ROWS),
    "a filter on another column": (lambda found: found.where("id < 5").collect(), ROWS),
    "orderBy": (lambda found: found.orderBy("double").collect(), 2 * ROWS),
    "twice in one query": (lambda found: found.union(found).collect(), 2 * ROWS),
    "two actions": (lambda found: (found.count(), found.collect()), 2 * ROWS),
    "no action": (lambda found: (found.schema, found.explain(), found.rdd.getNumPartitions()), 0),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_spark_leaves_no_call_out(spark: SparkSession, numbers: DataFrame, action: str) -> None:
    do, expected = ACTIONS[action]
    assert calls(spark, lambda metrics: do(enrich(numbers, DOUBLES, on="id", metrics=metrics))) == expected


@FROM_4_1
def test_a_table_function_is_asked_for_every_row_of_its_table(spark: SparkSession, numbers: DataFrame) -> None:
    def act(metrics: EnrichmentMetrics, query: str) -> None:
        register_lookup(spark, "with_double", DOUBLES, on="id", metrics=metrics)
        spark.sql(query).collect()

    numbers.createOrReplaceTempView("numbers")
    for query, expected in {
        "SELECT count(*) FROM with_double(TABLE(numbers))": ROWS,
        "SELECT id FROM with_double(TABLE(numbers)) WHERE id < 5": ROWS,
        "SELECT id FROM with_double(TABLE(SELECT * FROM numbers WHERE id < 5))": 5,
    }.items():
        assert calls(spark, lambda metrics, query=query: act(metrics, query)) == expected  # type: ignore[misc]
