"""L1, L3 and X5 with a Redis behind the caches of a real Spark: workers and the driver's process share answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache
from asyncio_operator.spark import EnrichmentMetrics, enrich
from enrichers import FunctionEnricher
from tests.redis_service import RedisServer, needs_redis
from tests.spark.helpers import kill_workers

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(password="hunter2-Pass") as server:
        yield server


def counted(calls: Path) -> FunctionEnricher:
    async def look_up(key: Any) -> Any:
        number = key[0] if isinstance(key, tuple) else key
        with calls.open("a") as file:
            file.write(f"{key}\n")
        return [{"x": number, "name": str(key)}] * (number % 3) if number % 5 else None

    return FunctionEnricher(look_up, "x long, name string")


def rows(frame: DataFrame) -> list[Any]:
    return sorted((row.id, row.x, row.name, row.lookup.status, row.lookup.attempts) for row in frame.collect())


def test_L1_L3_L8_a_new_worker_finds_what_killed_ones_were_answered(
    alone: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    moment = "timestamp'2020-02-29 12:00:00.5 Europe/Berlin'"
    frame = alone.range(0, 200, numPartitions=1).selectExpr("id", "id % 2 + 1.50BD AS part", f"{moment} AS moment")
    cache = Cache(store=server.url, expire_after_write=600)
    metrics = EnrichmentMetrics(alone)
    keys = ["id", "part", "moment"]
    out = enrich(frame, counted(calls), on=keys, cache=cache, status_column="lookup", metrics=metrics)
    found = called = rows(out)
    made = [len(calls.read_text().splitlines())]
    # On a busy machine Redis may be late, and keys are then called for.
    while len(made) < 2 or (made[-1] > made[-2] and len(made) < 9):
        kill_workers()
        found = rows(out)
        assert [row[:4] for row in found] == [row[:4] for row in called]
        made.append(len(calls.read_text().splitlines()))
    assert made[0] == 200
    assert made[-1] == made[-2]
    assert {attempts for *_, attempts in found} == {0}
    figures = metrics.statistics()
    assert (figures.calls, figures.cache_hits + figures.calls) == (made[-1], 200 * len(made))
    # Law X5: the address is in no plan.
    assert server.password not in out._jdf.queryExecution().toString()


def test_a_server_that_is_away_costs_calls_and_fails_nothing(spark: SparkSession, tmp_path: Path) -> None:
    away = Cache(store="redis://:hunter2@127.0.0.1:9/0", expire_after_write=600)
    frame = enrich(spark.range(10), counted(tmp_path / "calls"), on="id", cache=away, status_column="lookup")
    assert {row.lookup.status for row in frame.collect()} == {"found", "missing"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 10
