"""H1 to H3 in Spark: every face takes `hedge`, and the driver sees what was hedged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError, Hedge
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, map_partitions, register_lookup
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1

pytestmark = pytest.mark.spark

HEDGE = Hedge(0.1, extra=0.5)


def slow_once() -> Any:
    """A function whose first call for 7 takes a minute, in each process."""
    asked: set[int] = set()

    async def answer(key: int) -> dict[str, int]:
        if key == 7 and key not in asked:
            asked.add(key)
            await asyncio.sleep(60.0)
        return {"x": key}

    return answer


def source() -> FunctionEnricher:
    return FunctionEnricher(slow_once(), "x bigint")


def test_H3_the_status_and_the_metrics_count_the_copy(spark: SparkSession) -> None:
    metrics = EnrichmentMetrics(spark)
    keys = spark.range(0, 20, numPartitions=1)
    rows = enrich(keys, source(), on="id", hedge=HEDGE, status_column="lookup", metrics=metrics).collect()
    assert [row.x for row in rows] == [*range(20)]
    assert [row.id for row in rows if row.lookup.attempts == 2] == [7]
    figures = metrics.statistics()
    assert (figures.calls, figures.hedged, figures.hedges_won, figures.retries) == (21, 1, 1, 0)
    assert "21 calls, 1 calls hedged, 1 of these won" in str(figures)


@FROM_4_1
def test_H1_a_table_function_takes_it(spark: SparkSession) -> None:
    register_lookup(spark, "hedged", source(), hedge=HEDGE)
    spark.range(0, 20, numPartitions=1).createOrReplaceTempView("keys")
    rows = spark.sql("SELECT x FROM hedged(TABLE(keys), on => 'id')").collect()
    assert sorted(row.x for row in rows) == [*range(20)]


@FROM_4_1
def test_H1_a_column_function_takes_it(spark: SparkSession) -> None:
    answer = slow_once()

    @async_udf("bigint", hedge=HEDGE)
    async def plus(value: int) -> int:
        return (await answer(value))["x"] + 1  # type: ignore[no-any-return]

    rows = spark.range(0, 20, numPartitions=1).select(plus("id").alias("y")).collect()
    assert [row.y for row in rows] == [*range(1, 21)]


def test_H1_partitions_take_it(spark: SparkSession) -> None:
    rdd = map_partitions(spark.sparkContext.parallelize(range(20), 1), slow_once(), hedge=HEDGE)
    assert [row["x"] for row in rdd.collect()] == [*range(20)]


async def writes(value: int) -> int:
    """A function whose calls must not be made twice."""
    return value


writes.idempotent = False  # type: ignore[attr-defined]


@FROM_4_1
def test_H2_what_must_not_be_repeated_is_refused_on_the_driver(spark: SparkSession) -> None:
    refused = source()
    refused.idempotent = False
    for use in (
        lambda: enrich(spark.range(1), refused, on="id", hedge=HEDGE),
        lambda: register_lookup(spark, "refused", refused, hedge=HEDGE),
        lambda: async_udf("bigint", hedge=HEDGE)(writes),
        lambda: map_partitions(spark.sparkContext.parallelize([1]), writes, hedge=HEDGE),
    ):
        with pytest.raises(ConfigurationError, match="has idempotent = False; hedge makes slow calls twice"):
            use()
