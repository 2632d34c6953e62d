"""`plan` on a real Spark: its figures are those of the enrichment that follows, it asks for nothing, and it refuses
what `enrich` refuses."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import AdaptiveCapacity, Batching, Budget, ConfigurationError, Enricher, Limit, RateLimit
from asyncio_operator.spark import EnrichmentMetrics, enrich, plan
from asyncio_operator.testing import FakeEnricher
from enrichers import BlockingEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, SqlEnricher
from tests.pages import run_programs, section_of
from tests.servers import PostgresServer
from tests.spark.helpers import BATCH_SIZE, jobs, setting

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """2,000 rows in 2 partitions; 200 without a key, and 450 different keys, every one of them in both partitions."""
    return spark.range(0, 2000, numPartitions=2).selectExpr("id", "if(id % 10 = 3, null, id % 500) AS product")


def service(**options: Any) -> FakeEnricher:
    return FakeEnricher({key: {"price": key / 2} for key in range(400)}, **options)


class Unasked(FakeEnricher):
    """No process may open it."""

    async def open(self) -> None:
        os._exit(7)


def test_a_plan_counts_and_asks_for_nothing(orders: DataFrame) -> None:
    enricher = Unasked({1: {"price": 2.0}})
    told = plan(orders, enricher, on="product", latency=0.01, tasks_at_once=2)
    assert (told.rows, told.sampled_rows, told.tasks, told.tasks_at_once) == (2000, 2000, 2, 2)
    assert (told.null_keys, told.distinct_keys) == (200, 450)
    assert (told.lookups, told.calls, told.cached_lookups, told.cached_calls) == (900, 900, 900, 900)
    # 450 calls in each of two tasks, 100 at once.
    assert told.latency == 0.01
    assert told.seconds == pytest.approx(0.045)
    assert (enricher.calls, enricher.opened) == ([], 0)


@pytest.mark.parametrize(("max_batch", "remember", "calls"), [(1, 60, 900), (100, 60, 12), (1, 0, 1800), (100, 0, 24)])
def test_the_enrichment_asks_for_what_its_plan_says(
    spark: SparkSession, orders: DataFrame, max_batch: int, remember: float, calls: int
) -> None:
    metrics = EnrichmentMetrics(spark)
    with setting(spark, BATCH_SIZE, 250):
        told = plan(orders, service(max_batch=max_batch), on="product", remember=remember)
        df = enrich(orders, service(max_batch=max_batch), on="product", metrics=metrics, remember=remember)
        df.collect()
    figures = metrics.statistics()
    # 225 distinct keys in each of eight batches, 450 in each of two tasks. Those that are remembered, or are looked
    # up for the batch before just then, are shared.
    assert told.lookups == 1800
    assert told.calls == calls
    assert figures.calls <= told.calls
    if max_batch == 1:
        assert figures.calls + figures.shared == told.lookups


@pytest.mark.parametrize(("keys", "calls"), [(240_000, 240_000), (260_000, 520_000)])
def test_L12_a_plan_knows_how_many_keys_are_remembered(spark: SparkSession, keys: int, calls: int) -> None:
    df = spark.range(0, 2 * keys, numPartitions=1).selectExpr(f"id % {keys} AS product")
    assert plan(df, Unasked({1: {"price": 2.0}}), on="product").calls == calls


def test_time_follows_from_calls_latency_and_limits(spark: SparkSession) -> None:
    df = spark.range(0, 1000, numPartitions=1)
    known: dict[str, Any] = {"on": "id", "tasks_at_once": 8}
    assert plan(df, service(), latency=timedelta(milliseconds=20), **known).seconds == pytest.approx(0.2)
    slow = plan(df, service(), latency=0.02, rate_limit=RateLimit(100), capacity=AdaptiveCapacity(maximum=10), **known)
    assert slow.seconds == pytest.approx(9.02)
    batched = plan(df, service(max_batch=100), latency=0.02, capacity=1, batching=Batching(50), **known)
    assert batched.calls == 20
    assert batched.seconds == pytest.approx(0.4)
    assert plan(df, service(), **known).seconds is None


def test_the_latency_may_come_from_metrics(spark: SparkSession) -> None:
    metrics, df = EnrichmentMetrics(spark), spark.range(0, 100, numPartitions=1)
    with pytest.raises(ConfigurationError, match="which has no call yet"):
        plan(df, service(), on="id", latency=metrics)
    enrich(df, service(latency=0.05), on="id", metrics=metrics).collect()
    for latency in (metrics, metrics.statistics()):
        told = plan(df, service(), on="id", latency=latency).latency
        assert told is not None
        assert metrics.statistics().latency.p50 <= told <= metrics.statistics().latency.max


def test_V3_its_figures_are_a_table(orders: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(orders, service(), on="product", latency=0.01)
    made.show()
    assert capsys.readouterr().out == f"{made}\n"
    assert str(made) == (
        "2,000 rows in 2 tasks, 2 at once: 200 without a key, 450 distinct keys\n"
        "         without a cache  with a cache\n"
        "keys                 900           900\n"
        "calls                900           900\n"
        "seconds             0.04          0.04\n"
        "A call takes 10.00 ms."
    )
    assert "<caption" in made._repr_html_()


class Weighing(FakeEnricher):
    """A key weighs as many tokens as its number."""

    def weigh(self, keys: Any) -> dict[str, float]:
        return {"tokens": float(sum(keys))}


def test_G6_a_plan_says_that_a_call_can_never_start(spark: SparkSession) -> None:
    rows = spark.range(1, 21, numPartitions=1)
    for limit, never in ((20.0, False), (19.0, True)):
        made = plan(
            rows, Weighing({1: {"x": 1}}), on="id", budget=Budget("p", Limit(limit, 60.0, "tokens")), latency=0.01
        )
        assert (made.seconds is None) == never == ("it can never start" in " ".join(str(made).split()))


# -- what is refused


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"latency": 0}, "latency is 0; it must be more than 0 seconds"),
        ({"latency": "fast"}, "latency is 'fast'; it must be a number of seconds"),
        ({"tasks_at_once": 0}, "tasks_at_once is 0"),
        ({"sample": 0.1}, "sample is 0.1; it must be an int"),
        ({"time_out": 5}, "'time_out' is not an option of plan; did you mean 'timeout'"),
    ],
)
def test_X4_wrong_options_of_its_own_are_told(orders: DataFrame, wrong: dict[str, Any], says: str) -> None:
    before = jobs(orders.sparkSession)
    with pytest.raises(ConfigurationError, match=says):
        plan(orders, service(), on="product", **wrong)
    assert jobs(orders.sparkSession) == before


def test_X4_a_stream_cannot_be_planned(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match=r"df is a streaming DataFrame.*plan a batch of the same data"):
        plan(stream, service(), on="value")


def test_the_programs_of_the_page_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    run_programs("watch.md", "Estimate cost and time", spark=spark)
    text = section_of("watch.md", "Estimate cost and time")
    [printed] = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out.split() == printed.split()


class Pooled(FakeEnricher):
    """An enricher of two connections."""

    max_calls = 2


def test_a_plan_computes_with_the_calls_that_the_enricher_runs_at_once(spark: SparkSession) -> None:
    rows = spark.range(0, 200, numPartitions=1)
    told = plan(rows, Pooled({1: {"price": 1.0}}), on="id", latency=0.5)
    assert (told.calls, told.max_calls, told.calls_at_once, told.seconds) == (200, 2, 2, 50.0)
    assert "At most 2 calls at once in a task (the enricher's max_calls is 2)" in str(told)
    assert plan(rows, Pooled({1: {"price": 1.0}}), on="id", latency=0.5, capacity=1).seconds == 100.0
    assert plan(rows, service(), on="id", latency=0.5, capacity=20).seconds == 5.0


@pytest.mark.parametrize(
    ("enricher", "calls"),
    [
        (PostgresEnricher("postgresql://localhost/db", table="t", key="k"), 4),
        (PostgresEnricher("postgresql://localhost/db", table="t", key="k", pool_size=1), 1),
        (SqlEnricher("sqlite+aiosqlite:///x", table="t", key="k", pool_size=3), 3),
        (RedisEnricher("redis://localhost", schema="v string", kind="string", pool_size=7), 7),
        (BlockingEnricher(dict, "v string", max_workers=5), 5),
        (HttpEnricher("http://localhost/{key}", schema="v string", per_host=6), 6),
        (HttpEnricher("http://localhost/{key}", schema="v string"), None),
        (service(), None),
    ],
)
def test_enrichers_say_how_many_calls_they_run_at_once(enricher: Enricher, calls: int | None) -> None:
    assert enricher.max_calls == calls


def test_a_plan_of_distinct_keys_counts_each_once_and_repeats_the_rows(orders: DataFrame) -> None:
    told = plan(orders, service(), on="product", latency=0.01, strategy="distinct")
    assert (told.rows, told.null_keys, told.distinct_keys) == (2000, 200, 450)
    assert (told.lookups, told.calls, told.cached_calls) == (450, 450, 450)
    assert 'With strategy="distinct"' in told._repr_html_().replace("&quot;", '"')


def test_a_plan_says_when_a_join_costs_less(spark: SparkSession, postgres: PostgresServer) -> None:
    postgres.fetch("DROP TABLE IF EXISTS planned_join")
    postgres.fetch("CREATE TABLE planned_join (k bigint PRIMARY KEY, v text)")
    postgres.fetch("INSERT INTO planned_join SELECT g, g::text FROM generate_series(0, 99) g")
    enricher = PostgresEnricher(postgres.dsn, table="planned_join", key="k")
    assert plan(spark.range(60), enricher, on="id").table_rows is None  # The server has no statistics yet.
    postgres.fetch("ANALYZE planned_join")
    told = plan(spark.range(60), enricher, on="id")
    assert told.table_rows == 100
    assert "A join costs less: 60 distinct keys will be looked up in a table of about 100 rows" in str(told)
    assert told.join_program is not None
    compile(told.join_program, "join", "exec")
    assert "s3cret" not in told.join_program
    assert "(df['id'] == table['k'])" in told.join_program
    assert plan(spark.range(49), enricher, on="id").table_rows is None
