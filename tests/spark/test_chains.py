"""Chains of lookups on a real Spark: one stage and one Python worker per task (laws C1 to C6)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import ConfigurationError
from asyncio_operator.spark import EnrichmentMetrics, StageLookups, enrich, enrich_with, lookups_of, plan
from asyncio_operator.spark.enrich import _chains
from asyncio_operator.spark.worker.versions import DESCRIPTION, described
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher, TableEnricher, enricher
from tests.spark.helpers import in_partitions, setting, wait_until

pytestmark = pytest.mark.spark


def lookup(column: str, calls: Path | None = None) -> FunctionEnricher:
    """Adds the key plus one; writes a byte for each call into a file of its own."""

    async def plus_one(key: int) -> Any:
        if calls is not None:
            with calls.open("ab") as file:
                file.write(b".")
        return {column: key + 1}

    return FunctionEnricher(plus_one, f"{column} long")


def stages(df: DataFrame) -> list[str]:
    """The Python stages of the plan that Spark will run, the first one last."""
    plan = df._jdf.queryExecution().executedPlan().toString()
    return [line for line in plan.splitlines() if "MapInArrow" in line]


def chained(df: DataFrame, count: int, first: str = "id") -> DataFrame:
    for number in range(count):
        df = enrich(df, lookup(f"c{number}"), on=first if not number else f"c{number - 1}")
    return df


@pytest.mark.parametrize("count", [1, 3])
def test_C1_a_chain_is_one_stage_with_a_label(spark: SparkSession, count: int) -> None:
    df = chained(spark.range(0, 30, 1, 2), count)
    [stage] = stages(df)
    names = ", ".join(f"FunctionEnricher(lookup.<locals>.plus_one, c{number})" for number in range(count))
    assert f"enrich: {names} ({count} lookup{'s' if count > 1 else ''})" in stage
    assert [tuple(row) for row in df.collect()] == [tuple(range(i, i + count + 1)) for i in range(30)]


def test_C1_transform_keeps_the_chain(spark: SparkSession) -> None:
    df = (
        spark.range(10)
        .transform(enrich_with(lookup("a"), on="id"))
        .transform(lambda same: same)
        .transform(enrich_with(lookup("b"), on="a"))
    )
    assert len(stages(df)) == 1
    assert [row.b for row in df.collect()] == list(range(2, 12))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "7"),
    ],
)
def test_C2_a_column_that_a_lookup_added_is_the_key_of_the_next_whatever_the_settings(
    spark: SparkSession, name: str, value: str
) -> None:
    """Between two links Spark does not convert the columns."""

    async def at(key: int) -> Any:
        import datetime

        return {"at": datetime.datetime.fromtimestamp(key, datetime.UTC), "text": f"t{key}"}

    async def back(key: Any) -> Any:
        when, text = key
        return {"seconds": int(when.timestamp()), "same": text}

    with setting(spark, name, value):
        base = spark.range(0, 20, 1, 2).selectExpr("id", "CAST(id AS string) AS kept")
        df = enrich(base, FunctionEnricher(at, "at timestamp, text string"), on="id")
        df = enrich(df, FunctionEnricher(back, "seconds long, same string"), on=["at", "text"])
        # It asks in columns, by a text that came from Spark and by one that a lookup added.
        table = pa.table({"text": [f"t{i}" for i in range(20)], "kept": [str(i) for i in range(20)], "n": range(20)})
        df = enrich(df, TableEnricher(table, key=["kept", "text"]), on=["kept", "text"])
        assert len(stages(df)) == 1
        rows = df.selectExpr("id", "kept", "unix_seconds(at) AS at", "seconds", "same", "n").collect()
    assert [tuple(row) for row in rows] == [(i, str(i), i, i, f"t{i}", i) for i in range(20)]


def test_C1_two_chains_may_have_the_same_beginning(spark: SparkSession) -> None:
    first = enrich(spark.range(10), lookup("a"), on="id")
    second, third = enrich(first, lookup("b"), on="a"), enrich(first, lookup("c"), on="id")
    assert [len(stages(df)) for df in (first, second, third)] == [1, 1, 1]
    assert [df.columns for df in (first, second, third)] == [["id", "a"], ["id", "a", "b"], ["id", "a", "c"]]
    assert [row.c for row in third.collect()] == list(range(1, 11))


OPERATIONS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "alias": lambda df: df.alias("x"),
    "withColumn": lambda df: df.withColumn("more", df.a),
    "select": lambda df: df.select("*"),
    "where": lambda df: df.where("id < 5"),
    "repartition": lambda df: df.repartition(2),
    "coalesce": lambda df: df.coalesce(1),
    "limit": lambda df: df.limit(5),
    "toDF": lambda df: df.toDF("id", "a"),
    "dropDuplicates": lambda df: df.dropDuplicates(),
    "hint": lambda df: df.hint("rebalance"),
    "union": lambda df: df.union(df),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_C3_any_operation_between_two_lookups_cuts_the_chain(spark: SparkSession, operation: str) -> None:
    between = OPERATIONS[operation](enrich(spark.range(10), lookup("a"), on="id"))
    after = enrich(between, lookup("b"), on="a")
    assert after.schema.names[-1] == "b"
    assert len(stages(after)) >= 2
    assert "2 lookups" not in str(stages(after))


@pytest.mark.parametrize("how", ["persist", "an equal plan", "localCheckpoint", "checkpoint"])
def test_C3_what_is_persisted_is_not_looked_up_again(spark: SparkSession, how: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    df = enrich(spark.range(0, 10, 1, 2), lookup("a", calls), on="id")
    made_before = enrich(df, lookup("b"), on="a")
    match how:
        case "persist":
            df.persist()
        case "an equal plan":
            type(df)(df._jdf, spark).persist()
        case "localCheckpoint":
            df = df.localCheckpoint()
        case "checkpoint":
            spark.sparkContext.setCheckpointDir(str(tmp_path / "checkpoints"))
            df = df.checkpoint()
    try:
        df.count()
        df.collect()
        before = calls.stat().st_size
        after = enrich(df, lookup("b"), on="a")
        assert "2 lookups" not in str(stages(after))
        assert [row.b for row in after.collect()] == list(range(2, 12))
        assert calls.stat().st_size == before >= 10
        assert "2 lookups" in str(stages(made_before))
    finally:
        df.unpersist()
    if "heckpoint" not in how:
        assert "2 lookups" in str(stages(enrich(df, lookup("b"), on="a")))


def test_C1_a_trace_shows_all_lookups_of_a_chain_with_their_labels(spark: SparkSession) -> None:
    trace = Trace()
    df = enrich(spark.range(0, 6, 1, 2), lookup("a"), on="id", trace=trace)
    df = enrich(df, lookup("b"), on="a", trace=trace)
    assert df.count() == 6
    values = sorted(life.value for life in trace.story().lives)
    first = [f"1 FunctionEnricher: {key}" for key in range(6)]
    assert values == sorted([*first, *(f"2 FunctionEnricher: {key}" for key in range(1, 7))])
    times = [event.time for event in trace.events()]
    assert times == sorted(times)
    alone = Trace()
    enrich(spark.range(3), lookup("a"), on="id", trace=alone).collect()
    assert sorted(life.value for life in alone.story().lives) == ["0", "1", "2"]


def test_C5_a_stream_of_two_lookups_is_one_stage_with_the_watermark_of_the_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    in_partitions(spark, [(i,) for i in range(20)], "id long", 2).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    stream = stream.selectExpr("id", "timestamp_seconds(id) AS at").withWatermark("at", "5 seconds")
    metrics = EnrichmentMetrics(spark)
    df = enrich(stream, lookup("a"), on="id", mode="unordered", event_time="at", metrics=metrics)
    df = enrich(df, lookup("b"), on="a", mode="unordered", event_time="at")
    assert df.schema["at"].metadata.get("spark.watermarkDelayMs") == 5000
    query = df.writeStream.format("memory").queryName("chain").trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
        assert query._jsq.explainInternal(False).count("MapInArrow enrich: ") == 1
        assert sorted(row.b for row in spark.table("chain").collect()) == list(range(2, 22))
    finally:
        query.stop()
    assert metrics.statistics().rows == 20


def test_a_chain_is_forgotten_with_its_dataframe(spark: SparkSession) -> None:
    gc.collect()
    before = len(_chains)
    first = enrich(spark.range(3), lookup("a"), on="id")
    second = enrich(first, lookup("b"), on="a")
    assert len(_chains) == before + 2
    del first
    gc.collect()
    assert len(_chains) == before + 1
    assert len(second.collect()) == 3
    del second
    gc.collect()
    assert len(_chains) == before


# -- what Spark and a notebook say about lookups


@enricher("price double")
async def price(product: str) -> dict[str, float]:
    return {"price": 1.0}


def test_the_lookups_of_a_stage_are_a_table_until_another_operation_ends_it(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1, "tea")], "id int, `<b>product` string")
    once = enrich(orders, price, on="<b>product", status_column="status", capacity=7)
    twice = enrich(once, price, on="<b>product", prefix="new_", how="inner", mode="unordered")
    first, second = lookups_of(twice).lookups
    assert (first.key, first.adds, first.how, first.mode) == (("<b>product",), ("price", "status"), "left", "ordered")
    assert (second.adds, second.how, second.mode, second.capacity) == (("new_price",), "inner", "unordered", "100")
    assert (first.capacity, first.keys_in_a_call) == ("7", 1)
    assert lookups_of(once).lookups == (first,)
    page = lookups_of(twice)._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;product" in page
    assert "new_price" in str(lookups_of(twice))
    assert lookups_of(twice.filter("id > 0")) == lookups_of(orders) == StageLookups(())
    assert str(StageLookups(())) == "no lookups"
    with pytest.raises(ConfigurationError, match="df is of type str"):
        lookups_of("orders")  # type: ignore[arg-type]


def descriptions(spark: SparkSession) -> set[str]:
    """What Spark's own UI says about the jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    texts = [jobs.apply(i).description() for i in range(jobs.size())]
    return {text.get() for text in texts if text.isDefined()}


def test_jobs_of_the_library_have_a_description_unless_the_user_has_set_one(spark: SparkSession) -> None:
    context = spark.sparkContext
    orders = spark.createDataFrame([("tea",)], "product string").coalesce(1)
    plan(orders, price, on="product")
    wait_until(lambda: "plan: sample of keys" in descriptions(spark), 20, "the job is known to the UI")
    assert context.getLocalProperty(DESCRIPTION) is None
    context.setJobDescription("of the user")
    try:
        with described(spark, "mine"):
            assert context.getLocalProperty(DESCRIPTION) == "of the user"
    finally:
        context._jsc.setLocalProperty(DESCRIPTION, None)
