"""What docs/concepts.md says about actions: which calls Spark has made that a user may not expect, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import EnrichmentMetrics, enrich, register_lookup
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1

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
