"""A budget in Spark: all faces and lookups that name it share it, in any number of tasks."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Budget, ConfigurationError, Journal, Limit, RateLimit
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, map_partitions, register_lookup
from enrichers import FunctionEnricher
from tests.redis_service import RedisServer, needs_redis
from tests.spark.helpers import FROM_4_1, wait_until
from tests.spark.journals import Calls

pytestmark = pytest.mark.spark


async def look_up(key: int) -> Any:
    return {"x": key}


async def double(value: int) -> int:
    return 2 * value


SOURCE = FunctionEnricher(look_up, "x long")


def used(budget: Budget, unit: str = "calls") -> float:
    return budget.statistics().units[unit].used


@FROM_4_1
def test_G1_all_faces_and_lookups_of_a_chain_share_a_budget(spark: SparkSession) -> None:
    budget = Budget("faces", Limit(1000, 60.0), Limit(900, 60.0, "keys"))
    rows = spark.range(0, 10, numPartitions=2)
    chain = enrich(enrich(rows, SOURCE, on="id", budget=budget), SOURCE, on="id", prefix="y_", budget=budget)
    assert [row.y_x for row in chain.collect()] == list(range(10))
    register_lookup(spark, "with_a_budget", SOURCE, on="id", budget=budget)
    rows.createOrReplaceTempView("rows_for_a_budget")
    assert spark.sql("SELECT * FROM with_a_budget(TABLE(rows_for_a_budget))").count() == 10
    doubled = async_udf("long", budget=budget)(double)
    assert [row.d for row in rows.select(doubled("id").alias("d")).collect()] == [2 * key for key in range(10)]
    assert map_partitions(rows.rdd.map(lambda row: row.id), double, budget=budget).sum() == 90
    wait_until(lambda: used(budget) == 50, 5, "50 calls")
    assert used(budget, "keys") == 50
    assert budget.statistics().units["calls"].allowed == 1000


def test_G6_a_spend_limit_ends_the_job_whatever_on_error_says_and_what_was_paid_is_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls, rows = Calls(tmp_path / "calls"), spark.range(10, 50, numPartitions=1)
    options: dict[str, Any] = {"on": "id", "capacity": 1, "journal": Journal(tmp_path / "journal"), "remember": None}
    budget = Budget("spends", spend={"calls": 20.0})
    with pytest.raises(Exception, match=r"BudgetExceeded.*the budget 'spends': spend limit 20 calls"):
        enrich(rows, calls.source(), budget=budget, on_error="null", **options).collect()
    assert used(budget) <= 20
    paid = calls.new()
    assert len(paid) == 20
    found = enrich(rows, calls.source(), budget=Budget("spends the rest", spend={"calls": 20.0}), **options)
    assert len(found.select("id").distinct().collect()) == 40
    assert calls.new() == sorted({str(key) for key in range(10, 50)} - {*paid})


def test_G1_one_name_with_other_limits_in_a_chain_is_refused(spark: SparkSession) -> None:
    one = enrich(spark.range(5), SOURCE, on="id", budget=Budget("same", Limit(10)))
    with pytest.raises(Exception, match=r"the budget 'same' is .* in an earlier lookup of this DataFrame"):
        enrich(one, SOURCE, on="id", prefix="y_", budget=Budget("same", Limit(20)))


def test_G1_one_name_with_other_limits_is_refused_on_the_driver_while_tasks_use_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    over = tmp_path / "over"

    async def slow(key: int) -> Any:
        for _ in iter(over.exists, True):
            await asyncio.sleep(0.02)
        return {"x": key}

    used_now = Budget("used now", Limit(10))
    running = enrich(spark.range(2, numPartitions=1), FunctionEnricher(slow, "x long"), on="id", budget=used_now)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(running.collect)
        wait_until(lambda: used_now.statistics().workers == 1, 20, "a worker")
        with pytest.raises(ConfigurationError, match=r"'used now': it is in use with 10 calls .* 20 calls .* here"):
            enrich(spark.range(5), SOURCE, on="id", budget=Budget("used now", Limit(20)))
        over.touch()
        done.result()
    assert enrich(spark.range(5), SOURCE, on="id", budget=Budget("used now", Limit(20))).count() == 5


def test_G10_a_budget_in_redis_is_kept_there_and_shows_no_secret(spark: SparkSession) -> None:
    needs_redis()
    with RedisServer() as server:
        budget = Budget("there", Limit(1000, 60.0), coordinator=server.url)
        out = enrich(spark.range(0, 30, numPartitions=2), SOURCE, on="id", budget=budget)
        assert out.count() >= 0
        assert [row.x for row in out.collect()] == list(range(30))
        wait_until(lambda: used(budget) >= 30, 5, "30 calls")
        assert server.password not in str(out._jdf.queryExecution()) + repr(budget)


async def noted(_key: int) -> Any:
    return {"at": time.time()}


async def noted_at(_value: int) -> float:
    return time.time()


def through_sql(rows: DataFrame, **options: Any) -> list[float]:
    register_lookup(rows.sparkSession, "noted", FunctionEnricher(noted, "at double"), on="id", **options)
    rows.createOrReplaceTempView("rows_to_note")
    return [row.at for row in rows.sparkSession.sql("SELECT at FROM noted(TABLE(rows_to_note))").collect()]


def through_udf(rows: DataFrame, **options: Any) -> list[float]:
    when = async_udf("double", **options)(noted_at)
    # Two columns of one function: they share its limit.
    found = rows.select(when("id").alias("at"), when("id").alias("also")).collect()
    return [at for row in found for at in (row.at, row.also)]


def through_enrich(rows: DataFrame, **options: Any) -> list[float]:
    return [row.at for row in enrich(rows, FunctionEnricher(noted, "at double"), on="id", **options).collect()]


def through_rdd(rows: DataFrame, **options: Any) -> list[float]:
    return map_partitions(rows.rdd.map(lambda row: row.id), noted_at, **options).collect()


BESIDE = Budget("beside a rate limit", Limit(1000, 60.0))


@pytest.mark.parametrize(
    ("starts", "budget"), [(through_enrich, None), (through_sql, BESIDE), (through_udf, BESIDE), (through_rdd, None)]
)
@FROM_4_1
def test_G13_a_rate_limit_is_for_all_tasks_together(spark: SparkSession, starts: Any, budget: Budget | None) -> None:
    begun = time.monotonic()
    times = sorted(starts(spark.range(0, 24, numPartitions=4), rate_limit=RateLimit(6, per=0.5), budget=budget))
    # Half a window less, for a note that comes later than its start.
    for first, last in zip(times, times[6:], strict=False):
        assert last - first >= 0.5 - 0.1, "two tasks had a limit each"
    assert times[-1] - times[0] >= (len(times) / 6 - 1.5) * 0.5
    assert time.monotonic() - begun < 60


async def priced(key: int) -> Any:
    return {"x": key} if key % 5 else None


PRICED = FunctionEnricher(priced, "x long", weigh=lambda keys: {"usd": 0.01})


def test_G12_the_job_ends_well_and_what_was_paid_is_in_the_output(spark: SparkSession) -> None:
    """Whatever `how` and `on_error` say. A row that has no answer for want of money is no miss, and keeps its place."""
    for number, (how, on_error) in enumerate([("inner", "drop"), ("required", "fail")]):
        keys = spark.range(1, 401, numPartitions=2).where("id % 5 != 0") if how == "required" else None
        rows = spark.range(0, 200, numPartitions=2) if keys is None else keys
        spec, metrics = Budget(f"null {number}", spend={"usd": 1.0}, on_spent="null"), EnrichmentMetrics(spark)
        options: dict[str, Any] = {"how": how, "on_error": on_error, "status_column": "s", "metrics": metrics}
        found = enrich(rows, PRICED, on="id", budget=spec, remember=None, **options).collect()
        over = [row for row in found if row.s.status == "over_budget"]
        paid = [row for row in found if row.s.status == "found"]
        assert {(row.x, row.s.error_type, row.s.attempts, row.s.source) for row in over} == {
            (None, "BudgetExceeded", 0, "call")
        }
        assert all(row.x == row.id for row in paid)
        count = rows.count()
        assert len(over) == count - 100
        assert len(found) == (count if how != "inner" else len(over) + len(paid))
        assert "spend limit 1 usd, already spent 1 usd" in over[0].s.error_message
        figures = metrics.statistics()
        assert figures.calls == 100
        assert figures.failures == len(over)
        unit = spec.statistics().units["usd"]
        assert unit.used == pytest.approx(1.0)
        assert unit.refused == len(over)
