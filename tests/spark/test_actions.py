"""What docs/concepts.md says about actions: which calls Spark has made that a user may not expect, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, register_lookup
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1, kill_workers

pytestmark = pytest.mark.spark

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


def test_what_is_persisted_or_written_is_asked_for_once(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    def persisted(metrics: EnrichmentMetrics) -> None:
        found = enrich(numbers, DOUBLES, on="id", metrics=metrics).persist()
        assert found.count() == found.orderBy("double").count() == len(found.collect()) == ROWS
        found.unpersist()

    def written(metrics: EnrichmentMetrics) -> None:
        enrich(numbers, DOUBLES, on="id", metrics=metrics).write.parquet(str(tmp_path / "found"))
        found = spark.read.parquet(str(tmp_path / "found"))
        assert found.count() == len(found.collect()) == ROWS

    assert calls(spark, persisted) == ROWS
    assert calls(spark, written) == ROWS


def test_a_cache_answers_the_second_action_of_its_worker(spark: SparkSession, numbers: DataFrame) -> None:
    def act(metrics: EnrichmentMetrics) -> None:
        found = enrich(numbers.coalesce(1), DOUBLES, on="id", cache=Cache(max_rows=1234), metrics=metrics)
        assert found.count() == found.count() == found.count() == ROWS

    # Tests before this one may have left several, of which Spark takes any.
    kill_workers()
    assert calls(spark, act) <= 2 * ROWS, "there may be a second worker, with a cache of its own"


@FROM_4_1
def test_a_column_function_is_left_out_with_its_column(spark: SparkSession, numbers: DataFrame, tmp_path: Path) -> None:
    @async_udf("long")
    async def marked(key: int) -> int:
        (tmp_path / str(key)).touch()
        return key

    found = numbers.withColumn("marked", marked("id"))
    assert (found.count(), found.select("id").count()) == (ROWS, ROWS)
    assert [*tmp_path.iterdir()] == []
    found.where("id < 5").collect()
    assert len([*tmp_path.iterdir()]) == ROWS, "a filter behind it changes nothing"


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
