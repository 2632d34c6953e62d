"""Laws of lookups in a real Spark (L3, L7, L8, R5, H1, H2, J2, X5): what only workers, jobs and streams show.

`alone` leaves one Python worker, so that jobs of one partition, one after the other, run in the same process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, ConfigurationError, Hedge, Journal, Retry
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, map_partitions, read_journal, register_lookup
from enrichers import FunctionEnricher
from tests.redis_service import RedisServer, needs_redis
from tests.spark.helpers import FROM_4_1, kill_workers, through_sql
from tests.spark.journals import SCHEMA, Calls, rows, sources

pytestmark = pytest.mark.spark


def keys(spark: SparkSession, count: int = 20) -> DataFrame:
    return spark.range(0, count, numPartitions=1)


# -- L8: whose caches they are


def test_L8_a_worker_asks_once_for_a_key_whatever_is_changed_but_the_specification(
    alone: SparkSession, calls: Calls
) -> None:
    metrics = EnrichmentMetrics(alone)
    others: list[dict[str, Any]] = [
        {},
        {"capacity": 3, "retry": Retry(5), "timeout": 7.0, "attempt_timeout": 5.0},
        {"mode": "unordered", "buffer": 1, "on_error": "null"},
        {"columns": ["t"], "prefix": "p_"},
    ]
    options: dict[str, Any] = {"on": "id", "cache": Cache(expire_after_write=3600), "status_column": "how"}
    first = enrich(keys(alone), calls.source(), metrics=metrics, **options)
    assert sources(first) == {("found", "call", 1, True): 20, ("missing", "call", 1, True): 2}
    options["cache"] = Cache(expire_after_write=3600.0)
    for more in others:
        again = enrich(keys(alone), calls.source(), metrics=metrics, **options, **more)
        assert sources(again) == {("found", "cache", 0, False): 20, ("missing", "cache", 0, False): 2}
    assert calls.counted() == {str(key): 1 for key in range(20)}
    figures = metrics.statistics()
    assert (figures.rows, figures.calls, figures.cache_hits, figures.shared) == (100, 20, 80, 0)
    assert (figures.found, figures.missing) == (90, 10)


# -- L7: on disk


def test_L7_what_was_kept_when_a_worker_dies_in_the_middle_of_a_task_is_there(
    alone: SparkSession, calls: Calls, tmp_path: Path
) -> None:
    known, died = calls.source().lookup, tmp_path / "died"

    async def look_up(key: int) -> Any:
        if key == 13 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        return await known(key)

    cache = Cache(store="rocksdb", directory=tmp_path / "cache")
    source = FunctionEnricher(look_up, SCHEMA)
    out = enrich(keys(alone), source, on="id", cache=cache, capacity=1, status_column="how")
    with pytest.raises(Exception, match=r"crashed|EOF"):
        out.collect()
    found = {row.id: (row.t, row.how.source) for row in out.collect() if row.x != 0}
    assert found == {key: (None if key in (3, 13) else f"t{key}", "cache" if key < 13 else "call") for key in range(20)}
    assert calls.counted() == {str(key): 1 for key in range(20)}


# -- a PostgreSQL in trouble


# Each takes five seconds. `make faults` runs the others.


# -- H1 and H2: hedged calls


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


def hedged_source() -> FunctionEnricher:
    return FunctionEnricher(slow_once(), "x bigint")


def hedged_column(keys: DataFrame) -> DataFrame:
    return keys.select(async_udf("x bigint", hedge=HEDGE)(slow_once())("id").alias("row")).select("row.x")


@pytest.mark.parametrize(
    "hedged",
    [
        lambda keys: enrich(keys, hedged_source(), on="id", hedge=HEDGE),
        pytest.param(lambda keys: through_sql(keys, hedged_source(), on="id", hedge=HEDGE), marks=FROM_4_1),
        pytest.param(hedged_column, marks=FROM_4_1),
        lambda keys: map_partitions(keys.rdd.map(lambda row: row.id), slow_once(), timeout=30, hedge=HEDGE),
    ],
    ids=["enrich", "register_lookup", "async_udf", "map_partitions"],
)
def test_H1_every_face_makes_a_slow_call_twice(spark: SparkSession, hedged: Callable[[DataFrame], Any]) -> None:
    rows = hedged(spark.range(0, 20, numPartitions=1)).collect()
    assert sorted(row["x"] for row in rows) == [*range(20)]


async def writes(value: int) -> int:
    """A function whose calls must not be made twice."""
    return value


writes.idempotent = False  # type: ignore[attr-defined]


@FROM_4_1
def test_H2_what_must_not_be_repeated_is_refused_on_the_driver(spark: SparkSession) -> None:
    refused = hedged_source()
    refused.idempotent = False
    for use in (
        lambda: enrich(spark.range(1), refused, on="id", hedge=HEDGE),
        lambda: register_lookup(spark, "refused", refused, hedge=HEDGE),
        lambda: async_udf("bigint", hedge=HEDGE)(writes),
        lambda: map_partitions(spark.sparkContext.parallelize([1]), writes, hedge=HEDGE),
    ):
        with pytest.raises(ConfigurationError, match="has idempotent = False; hedge makes slow calls twice"):
            use()


# -- L3, L8 and X5 with a Redis behind the caches: workers share answers


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(password="hunter2-Pass") as redis:
        yield redis


@pytest.mark.parametrize("store", ["heap", "redis", pytest.param("rocksdb", marks=pytest.mark.faults)])
def test_J2_L3_L8_a_journal_gets_the_answers_of_a_warm_cache_and_the_next_application_pays_for_none(
    alone: SparkSession, redis: RedisServer, tmp_path: Path, calls: Calls, journal: Journal, store: str
) -> None:
    more: dict[str, Any] = {"directory": tmp_path / "cache"} if store == "rocksdb" else {}
    cache = Cache(store=redis.url if store == "redis" else store, expire_after_write=600, max_rows=1000, **more)
    frame, source = keys(alone, 100), calls.source()
    expected = rows(enrich(frame, source, on="id", cache=cache))
    made, warm = len(calls.new()), time.time()
    if store != "heap":
        # A worker that dies leaves what is outside of it.
        kill_workers()
    for _ in range(2):
        assert rows(enrich(frame, source, on="id", cache=cache, journal=journal)) == expected
    more_calls = len(calls.new())
    # On a busy machine Redis may be late, and some keys are then called for.
    assert more_calls < made == 100 if store == "redis" else more_calls == 0
    kept = read_journal(alone, journal)
    answers = kept.select("id", "_time", "_attempts", "_latency_ms").distinct().collect()
    assert sorted(row.id for row in answers) == list(range(100))
    from_cache = [row for row in answers if row._attempts is None]
    assert len(from_cache) == 100 - more_calls
    assert all(row._time.timestamp() < warm and row._latency_ms is None for row in from_cache)
    assert alone.read.parquet(str(journal.path)).count() == kept.count(), "each answer is written once"
    assert rows(enrich(frame, source, on="id", journal=journal)) == expected
    assert calls.new() == []


@pytest.mark.parametrize("face", [enrich, pytest.param(through_sql, marks=FROM_4_1)], ids=["enrich", "register_lookup"])
def test_X5_a_server_that_is_away_costs_calls_and_fails_nothing_and_its_address_is_in_no_plan(
    spark: SparkSession, calls: Calls, face: Callable[..., DataFrame]
) -> None:
    away = Cache(store="redis://:hunter2@127.0.0.1:9/0", expire_after_write=600)
    frame = face(keys(spark, 10), calls.source(), on="id", cache=away, status_column="how")
    assert {status for status, *_ in sources(frame)} == {"found", "missing"}
    assert len(calls.new()) == 10
    assert "hunter2" not in frame._jdf.queryExecution().toString()
