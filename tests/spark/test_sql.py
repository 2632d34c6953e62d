"""Table functions of SQL give the rows that `enrich` gives: laws X1 to X3, X5 to X7 and X10."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Cache
from asyncio_operator.spark import EnrichmentMetrics, enrich, register_lookup
from enrichers import FunctionEnricher
from tests.spark.helpers import BATCH_SIZE, Hanging, assert_nothing_is_left, hanging_from, setting, through_sql
from tests.spark.test_pass_through import known_columns
from tests.spark.test_rows import enricher

pytestmark = pytest.mark.spark


def ten_times() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        return {"x": 10 * key}

    return FunctionEnricher(look_up, "x long")


@pytest.mark.parametrize("clause", ["", "PARTITION BY id % 3", "WITH SINGLE PARTITION"])
def test_X1_X9_rows_of_many_batches_come_whole(spark: SparkSession, clause: str) -> None:
    out = through_sql(spark.range(0, 30_000, numPartitions=2), ten_times(), clause, on="id")
    [row] = out.selectExpr("count(*)", "count(DISTINCT id)", "count_if(x = 10 * id)").collect()
    assert tuple(row) == (30_000, 30_000, 30_000)


@pytest.mark.parametrize("large", [False, True], ids=["", "large_types"])
def test_X3_every_type_passes_through(spark: SparkSession, large: bool) -> None:
    df = spark.range(0, 6, numPartitions=1)
    df = df.selectExpr("id", *known_columns(df), "id AS `a.b`", "id AS `c``d`", "id AS ID2", "id AS id2")
    with setting(spark, BATCH_SIZE, 2), setting(spark, "spark.sql.execution.arrow.useLargeVarTypes", large):
        got = through_sql(df, enricher(), on="id", on_error="null", prefix="the `x`.", columns=["x"])
        expected = enrich(df, enricher(), on="id", on_error="null", prefix="the `x`.", columns=["x"])
        assert got.schema == expected.schema
        assert list(map(repr, got.collect())) == list(map(repr, expected.collect()))


def test_X6_the_options_are_those_of_enrich(spark: SparkSession) -> None:
    """As SQL writes them: figures, statuses, and a cache for what comes again in a later Arrow batch."""
    metrics = EnrichmentMetrics(spark)
    register_lookup(
        spark, "with_all", enricher(), cache=Cache(max_rows=71), on="nowhere", timeout=1e-9, metrics=metrics
    )
    spark.range(0, 21, numPartitions=1).selectExpr("id", "nullif(id % 7, 0) AS k").createOrReplaceTempView("few")
    query = """
        SELECT id, the_x, s.status, s.source
        FROM with_all(
            TABLE(few), ON => array('k'), how => 'inner', TIMEOUT => INTERVAL '10' SECOND, attempt_timeout => 5.5,
            on_error => 'null', prefix => 'the_', columns => array('x'), capacity => 1, buffer => 1,
            mode => 'ordered', status_column => 's')
    """
    options: dict[str, Any] = {"how": "inner", "on_error": "null", "prefix": "the_", "status_column": "s"}
    with setting(spark, BATCH_SIZE, 7):
        got = spark.sql(query).collect()
        out = enrich(spark.table("few"), enricher(), on="k", capacity=1, buffer=1, cache=Cache(max_rows=72), **options)
        assert got == out.selectExpr("id", "the_x", "s.status", "s.source").collect()
    assert {(row.status, row.source) for row in got} == {("found", "call"), ("found", "cache"), ("failed", "call")}
    figures = metrics.statistics()
    assert (figures.rows, figures.found, figures.failures, figures.cache_hits) == (21, 9, 3, 10)


@pytest.mark.parametrize("clause", [pytest.param("", marks=pytest.mark.faults), "PARTITION BY id"])
def test_X7_a_query_that_has_enough_rows_ends_although_the_others_hang(
    spark: SparkSession, server: Hanging, clause: str
) -> None:
    df = spark.range(0, 60, numPartitions=1)
    with setting(spark, "spark.sql.shuffle.partitions", 1):
        out = through_sql(df, hanging_from(server.port, first=3), clause, on="id", timeout=None)
        assert out.limit(3).collect() == [(0, 0), (1, 1), (2, 2)]
    assert_nothing_is_left(spark, server)


def test_X10_a_stream_is_a_table_too(spark: SparkSession, tmp_path: Any) -> None:
    spark.range(0, 6, 1, 2).write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/in")
    query = through_sql(stream, ten_times(), on="id").writeStream.format("memory").queryName("streamed")
    query.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    assert sorted(spark.table("streamed").collect()) == [(i, 10 * i) for i in range(6)]
