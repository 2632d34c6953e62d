"""L1, L3 and X5 with a Redis behind the caches of a real Spark: workers and the driver's process share answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, Journal
from asyncio_operator.spark import EnrichmentMetrics, enrich, read_journal
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


@pytest.mark.parametrize("store", ["heap", "redis", pytest.param("rocksdb", marks=pytest.mark.faults)])
def test_J2_a_journal_gets_the_answers_of_a_warm_cache_and_the_next_application_pays_for_none(
    alone: SparkSession, server: RedisServer, tmp_path: Path, store: str
) -> None:
    calls = tmp_path / "calls"
    more: dict[str, Any] = {"directory": tmp_path / "cache"} if store == "rocksdb" else {}
    cache = Cache(store=server.url if store == "redis" else store, expire_after_write=600, max_rows=1000, **more)
    frame, source, journal = alone.range(0, 100, numPartitions=1), counted(calls), Journal(tmp_path / "journal")
    expected = rows(enrich(frame, source, on="id", cache=cache, status_column="lookup"))
    made, warm = len(calls.read_text().splitlines()), time.time()
    if store != "heap":
        # A worker that dies leaves what is outside of it.
        kill_workers()
    for _ in range(2):
        found = rows(enrich(frame, source, on="id", cache=cache, journal=journal, status_column="lookup"))
        assert [row[:4] for row in found] == [row[:4] for row in expected]
    asked = len(calls.read_text().splitlines())
    if store != "redis":
        # On a busy machine Redis may be late, and keys are then called for.
        assert asked == made
    kept = read_journal(alone, journal)
    answers = kept.select("id", "_time", "_attempts", "_latency_ms").distinct().collect()
    assert sorted(row.id for row in answers) == list(range(100))
    from_cache = [row for row in answers if row._attempts is None]
    assert len(from_cache) == 100 - (asked - made)
    assert all(row._time.timestamp() < warm and row._latency_ms is None for row in from_cache)
    assert alone.read.parquet(str(journal.path)).count() == kept.count(), "each answer is written once"
    found = rows(enrich(frame, source, on="id", journal=journal, status_column="lookup"))
    assert [row[:4] for row in found] == [row[:4] for row in expected]
    assert len(calls.read_text().splitlines()) == asked


def test_a_server_that_is_away_costs_calls_and_fails_nothing(spark: SparkSession, tmp_path: Path) -> None:
    away = Cache(store="redis://:hunter2@127.0.0.1:9/0", expire_after_write=600)
    frame = enrich(spark.range(10), counted(tmp_path / "calls"), on="id", cache=away, status_column="lookup")
    assert {row.lookup.status for row in frame.collect()} == {"found", "missing"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 10
