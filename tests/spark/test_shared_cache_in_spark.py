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

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(password="hunter2-Pass") as server:
        yield server


def counted(calls: Path) -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        with calls.open("a") as file:
            file.write(f"{key}\n")
        return [{"x": key, "name": str(key)}] * (key % 3) if key % 5 else None

    return FunctionEnricher(look_up, "x long, name string")


def rows(frame: DataFrame) -> list[Any]:
    return sorted((row.id, row.x, row.lookup.status, row.lookup.attempts) for row in frame.collect())


def test_L1_L3_workers_with_other_memories_share_the_answers(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    frame, enricher = spark.range(0, 200, numPartitions=2), counted(calls)
    metrics = EnrichmentMetrics(spark)

    def enriched(cache: Cache) -> DataFrame:
        return enrich(frame, enricher, on="id", cache=cache, status_column="lookup", metrics=metrics)

    again = enriched(Cache(store=server.url, expire_after_write=600))
    found = called = rows(again)
    made = [len(calls.read_text().splitlines())]
    # Another option of the cache has another memory, and the same answers in Redis. A busy one may be late.
    while len(made) < 2 or (made[-1] > made[-2] and len(made) < 9):
        again = enriched(Cache(store=server.url, expire_after_write=600, max_rows=9_000 + len(made)))
        found = rows(again)
        assert [row[:3] for row in found] == [row[:3] for row in called]
        made.append(len(calls.read_text().splitlines()))
    assert made[-1] == made[-2]
    assert {attempts for *_, attempts in found} == {0}
    figures = metrics.statistics()
    assert (figures.calls, figures.cache_hits + figures.calls) == (made[-1], 200 * len(made))
    # Law X5: the address is in no plan.
    assert server.password not in again._jdf.queryExecution().toString()


def test_a_server_that_is_away_costs_calls_and_fails_nothing(spark: SparkSession, tmp_path: Path) -> None:
    away = Cache(store="redis://:hunter2@127.0.0.1:9/0", expire_after_write=600)
    frame = enrich(spark.range(10), counted(tmp_path / "calls"), on="id", cache=away, status_column="lookup")
    assert {row.lookup.status for row in frame.collect()} == {"found", "missing"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 10
