"""A budget in Spark: all faces and lookups that name it share it, in any number of tasks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

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


def test_G6_a_spend_limit_ends_the_job_whatever_on_error_says(spark: SparkSession) -> None:
    budget = Budget("spends", spend={"calls": 20.0})
    out = enrich(spark.range(0, 100, numPartitions=2), SOURCE, on="id", budget=budget, on_error="null", remember=None)
    with pytest.raises(Exception, match=r"BudgetExceeded.*the budget 'spends' may spend 20 calls"):
        out.collect()
    assert used(budget) <= 20


def test_G6_with_a_journal_what_was_paid_before_the_spend_limit_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    calls, rows = Calls(tmp_path / "calls"), spark.range(10, 50, numPartitions=1)
    options: dict[str, Any] = {"on": "id", "capacity": 1, "journal": Journal(tmp_path / "journal"), "remember": None}
    with pytest.raises(Exception, match=r"BudgetExceeded.*may spend 20 calls"):
        enrich(rows, calls.source(), budget=Budget("spends and keeps", spend={"calls": 20.0}), **options).collect()
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


def test_scope_job_limits_all_tasks_together(spark: SparkSession) -> None:
    async def slow(key: int) -> Any:
        await asyncio.sleep(0.01)
        return {"x": key}

    source, rows = FunctionEnricher(slow, "x long"), spark.range(0, 60, numPartitions=2)
    metrics = EnrichmentMetrics(spark)
    out = enrich(rows, source, on="id", scope="job", capacity=1, rate_limit=RateLimit(1000), metrics=metrics)
    assert [row.x for row in out.collect()] == list(range(60))
    assert metrics.statistics().calls == 60
    # One call at a time, and two tasks: one of them always waits.
    assert metrics.statistics().budget_seconds > 0.1
