"""Laws of lookups in a real Spark (L2, L3, L6 to L9, R1, R5, X7, X10): what only workers, jobs and streams show.

Calls are counted in files, which all processes share. `alone` leaves one Python worker, so that jobs of one partition,
one after the other, run in the same process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from asyncio_operator import Cache, ConfigurationError, EnricherError, FixedBackoff, Hedge, Journal, Retry
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, map_partitions, read_journal, register_lookup
from enrichers import FunctionEnricher, PostgresEnricher
from tests.redis_service import RedisServer, needs_redis
from tests.servers import PostgresServer
from tests.spark.helpers import FROM_4_1, GONE, Hanging, in_partitions, kill_workers, through_sql, wait_until

pytestmark = pytest.mark.spark


class Source:
    """A source that notes every call, and does what a file tells it.

    Args:
        directory: of the files.
        name: of the source; another name is another specification.
    """

    def __init__(self, directory: Path, name: str = "a") -> None:
        self.calls_file = directory / f"calls-{name}"
        self.down = directory / "down"
        self.wrong = directory / "wrong"
        self.name = name

    def enricher(self) -> FunctionEnricher:
        """Made anew: `x` is the key, `n` how often it has been asked for."""
        calls, down, wrong, name = self.calls_file, self.down, self.wrong, self.name

        async def look_up(key: int) -> Any:
            with calls.open("a") as file:
                file.write(f"{os.getpid()} {key}\n")
            if down.exists():
                raise EnricherError("the source is down")
            if wrong.exists() and key == 3:
                return {"x": "three"}
            return {"x": key, "source": name} if key % 5 else None

        return FunctionEnricher(look_up, "x long, source string")

    def calls(self) -> list[tuple[int, int]]:
        """Process and key of every call."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text().splitlines()
        return [(int(pid), int(key)) for pid, key in map(str.split, lines)]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def keys(spark: SparkSession, count: int = 20) -> DataFrame:
    return spark.range(0, count, numPartitions=1)


def how(rows: list[Row]) -> Counter[tuple[str, str, int]]:
    """Status, source and attempts of rows."""
    return Counter((row.how.status, row.how.source, row.how.attempts) for row in rows)


def job(spark: SparkSession, source: Source, cache: Cache, count: int = 20, **options: Any) -> list[Row]:
    return enrich(keys(spark, count), source.enricher(), on="id", cache=cache, status_column="how", **options).collect()


FROM_CALLS = {("found", "call", 1): 16, ("missing", "call", 1): 4}
FROM_THE_CACHE = {("found", "cache", 0): 16, ("missing", "cache", 0): 4}


# -- L8: whose caches they are


def test_L8_a_worker_asks_once_for_a_key_whatever_is_changed_but_the_specification(
    alone: SparkSession, source: Source
) -> None:
    cache = Cache(expire_after_write=3600)
    metrics = EnrichmentMetrics(alone)
    assert how(job(alone, source, cache, metrics=metrics)) == FROM_CALLS
    others: list[dict[str, Any]] = [
        {},
        {"capacity": 3, "retry": Retry(5), "timeout": 7.0, "attempt_timeout": 5.0},
        {"mode": "unordered", "buffer": 1, "on_error": "null"},
        {"columns": ["source"], "prefix": "p_"},
    ]
    for options in others:
        assert how(job(alone, source, Cache(expire_after_write=3600.0), metrics=metrics, **options)) == FROM_THE_CACHE
    assert len(source.calls()) == 20
    figures = metrics.statistics()
    assert (figures.rows, figures.calls, figures.cache_hits, figures.shared) == (100, 20, 80, 0)
    assert (figures.found, figures.missing) == (80, 20)


def test_L8_every_worker_has_a_cache_of_its_own(spark: SparkSession, source: Source) -> None:
    df = in_partitions(spark, [(key,) for key in [*range(20)] * 2], "id long", 2)
    for _ in range(5):
        enrich(df, source.enricher(), on="id", cache=Cache()).collect()
    calls = Counter(source.calls())
    assert set(calls.values()) == {1}, "a worker has asked twice for a key"
    assert {key for _, key in calls} == set(range(20))


# -- L7: on disk


def test_L7_what_was_kept_when_a_worker_dies_in_the_middle_of_a_task_is_there(
    alone: SparkSession, source: Source, tmp_path: Path
) -> None:
    calls, died = source.calls_file, tmp_path / "died"

    async def look_up(key: int) -> Any:
        if key == 13 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        with calls.open("a") as file:
            file.write(f"{os.getpid()} {key}\n")
        return {"x": key}

    cache = Cache(store="rocksdb", directory=tmp_path / "cache")
    out = enrich(
        keys(alone), FunctionEnricher(look_up, "x long"), on="id", cache=cache, capacity=1, status_column="how"
    )
    with pytest.raises(Exception, match=r"crashed|EOF"):
        out.collect()
    rows = out.collect()
    assert [(row.x, row.how.source) for row in rows] == [(key, "cache" if key < 13 else "call") for key in range(20)]
    assert sorted(key for _, key in source.calls()) == list(range(20))


def test_L7_two_tasks_at_a_time_have_a_directory_each(spark: SparkSession, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()

    async def look_up(key: int) -> Any:
        # Both tasks are there before one of them ends.
        (here / str(os.getpid())).touch()
        for _ in range(600):
            if len(list(here.iterdir())) >= 2:
                return {"pid": os.getpid()}
            await asyncio.sleep(0.05)
        raise EnricherError("the other task has not come")

    cache = Cache(store="rocksdb", directory=tmp_path / "cache")
    df = spark.range(0, 20, numPartitions=2)
    pids = {row.pid for row in enrich(df, FunctionEnricher(look_up, "pid long"), on="id", cache=cache).collect()}
    assert len(pids) == 2
    locks = [
        {Path(file.path).name for file in psutil.Process(pid).open_files() if file.path.startswith(str(tmp_path))}
        for pid in pids
    ]
    assert sorted(name for files in locks for name in files if name.endswith(".lock")) == ["0.lock", "1.lock"]
    # Of RocksDB's files, which are called alike, none is open in both.
    logs = [
        {file.path for file in psutil.Process(pid).open_files() if str(tmp_path / "cache") in file.path} for pid in pids
    ]
    assert len(logs[0]) > 1 < len(logs[1])
    assert not logs[0] & logs[1]


# -- L3, L6, L9: what is kept, and what stands in


def test_L6_what_has_expired_stands_in_while_the_source_is_down_and_the_status_says_so(
    alone: SparkSession, source: Source
) -> None:
    cache = Cache(expire_after_write=0.001, stale_if_error=True)
    assert how(job(alone, source, cache)) == FROM_CALLS
    source.down.touch()
    metrics = EnrichmentMetrics(alone)
    rows = job(alone, source, cache, retry=Retry(2, FixedBackoff(0.01)), metrics=metrics)
    assert how(rows) == {("found", "stale", 2): 16, ("missing", "stale", 2): 4}
    assert {(row.how.error_type, row.how.error_message) for row in rows} == {("EnricherError", "the source is down")}
    assert [row.x for row in rows] == [key if key % 5 else None for key in range(20)]
    figures = metrics.statistics()
    assert (figures.failures, figures.cache_hits, figures.calls, figures.retries) == (0, 0, 40, 20)
    rows = job(alone, source, cache, count=22, on_error="null")
    assert [row.id for row in rows if row.how.status == "failed"] == [20, 21]
    source.down.unlink()
    assert how(job(alone, source, cache)) == FROM_CALLS


# -- a PostgreSQL in trouble


def killed_and_started(server: PostgresServer) -> None:
    server.kill()
    time.sleep(0.5)
    server.start()


def connections_cut(server: PostgresServer) -> None:
    for _ in range(3):
        server.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trouble'")
        time.sleep(0.3)


def silent_for_a_while(server: PostgresServer) -> None:
    server.pause()
    time.sleep(2.0)
    server.resume()


# Each takes five seconds. `make faults` runs the others.
@pytest.mark.parametrize(
    "trouble",
    [
        killed_and_started,
        *(pytest.param(one, marks=pytest.mark.faults) for one in (connections_cut, silent_for_a_while)),
    ],
)
def test_R5_a_server_in_trouble_loses_no_row(
    alone: SparkSession, own_postgres: PostgresServer, tmp_path: Path, trouble: Callable[[PostgresServer], None]
) -> None:
    own_postgres.fetch("CREATE TABLE t AS SELECT i AS k, 2 * i AS twice FROM generate_series(0, 999) AS i")
    slow = PostgresEnricher(
        f"{own_postgres.dsn}&application_name=trouble",
        query="SELECT t.k, twice, pg_sleep(0.005)::text AS slept FROM t WHERE t.k = ANY ($1)",
        key="k",
        max_batch=20,
        pool_size=2,
    )
    metrics = EnrichmentMetrics(alone)
    out = enrich(
        keys(alone, 1000).selectExpr("cast(id AS int) AS id"),
        slow,
        on="id",
        capacity=2,
        retry=Retry(100, FixedBackoff(0.2)),
        attempt_timeout=1.0,
        timeout=60,
        cache=Cache(store="rocksdb", directory=tmp_path / "cache"),
        status_column="how",
        metrics=metrics,
    )
    # The server dies with the thread that has started it, so the trouble is made on this one.
    with ThreadPoolExecutor(1) as pool:
        collected = pool.submit(out.collect)
        wait_until(lambda: len(own_postgres.fetch(BUSY)) > 0, 30, "statements run")
        trouble(own_postgres)
        rows = collected.result()
    assert [(row.id, row.twice) for row in rows] == [(key, 2 * key) for key in range(1000)]
    assert {row.how.status for row in rows} == {"found"}
    assert max(row.how.attempts for row in rows) > 1
    assert metrics.statistics().retries > 0
    own_postgres.kill()
    assert {row.how.source for row in out.collect()} == {"cache"}


BUSY = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'trouble' AND state = 'active'"


# -- X7: ends


@pytest.mark.parametrize("end", ["enough rows", "failure"])
def test_X7_with_caches_and_retries_a_task_that_ends_early_leaves_nothing_but_what_it_has_learnt(
    alone: SparkSession, server: Hanging, tmp_path: Path, end: str
) -> None:
    port, fail = server.port, end == "failure"

    async def look_up(key: int) -> Any:
        if key < 3:
            return {"x": key}
        if key == 40 and fail:
            await asyncio.sleep(0.3)
            raise ValueError("enough")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.Event().wait()
        finally:
            writer.close()

    enricher = FunctionEnricher(look_up, "x long")
    options: dict[str, Any] = {
        "cache": Cache(store="rocksdb", directory=tmp_path / "cache", refresh_after=3600),
        "retry": Retry(2, on=(OSError,)),
        "timeout": None,
        "status_column": "how",
    }
    out = enrich(keys(alone, 60), enricher, on="id", **options)
    if fail:
        with pytest.raises(Exception, match="failed for key 40: ValueError: enough"):
            out.collect()
    else:
        assert [row.x for row in out.limit(3).collect()] == [0, 1, 2]
    assert server.ever > 0
    wait_until(lambda: server.open == 0, GONE, f"no running lookup; there are {server.open} of {server.ever}")
    # Where Spark has thrown the worker away, the next one takes its directory over.
    assert how(enrich(keys(alone, 3), enricher, on="id", **options).collect()) == {("found", "cache", 0): 3}


# -- H1 to H3: hedged calls, which the driver counts


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


def test_H3_the_status_and_the_metrics_count_the_copy(spark: SparkSession) -> None:
    metrics = EnrichmentMetrics(spark)
    keys = spark.range(0, 20, numPartitions=1)
    rows = enrich(keys, hedged_source(), on="id", hedge=HEDGE, status_column="lookup", metrics=metrics).collect()
    assert [row.x for row in rows] == [*range(20)]
    assert [row.id for row in rows if row.lookup.attempts == 2] == [7]
    figures = metrics.statistics()
    assert (figures.calls, figures.hedged, figures.hedges_won, figures.retries) == (21, 1, 1, 0)
    assert "21 calls, 1 calls hedged, 1 of these won" in str(figures)


def hedged_column(keys: DataFrame) -> DataFrame:
    return keys.select(async_udf("x bigint", hedge=HEDGE)(slow_once())("id").alias("row")).select("row.x")


@pytest.mark.parametrize(
    "hedged",
    [
        pytest.param(lambda keys: through_sql(keys, hedged_source(), on="id", hedge=HEDGE), marks=FROM_4_1),
        pytest.param(hedged_column, marks=FROM_4_1),
        lambda keys: map_partitions(keys.rdd.map(lambda row: row.id), slow_once(), timeout=30, hedge=HEDGE),
    ],
    ids=["register_lookup", "async_udf", "map_partitions"],
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


# -- L1, L3 and X5 with a Redis behind the caches: workers share answers


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(password="hunter2-Pass") as redis:
        yield redis


def counted(calls: Path) -> FunctionEnricher:
    async def look_up(key: Any) -> Any:
        number = key[0] if isinstance(key, tuple) else key
        with calls.open("a") as file:
            file.write(f"{key}\n")
        return [{"x": number, "name": str(key)}] * (number % 3) if number % 5 else None

    return FunctionEnricher(look_up, "x long, name string")


def sorted_rows(frame: DataFrame) -> list[Any]:
    return sorted((row.id, row.x, row.name, row.lookup.status, row.lookup.attempts) for row in frame.collect())


def test_L1_L3_L8_a_new_worker_finds_what_killed_ones_were_answered(
    alone: SparkSession, redis: RedisServer, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    moment = "timestamp'2020-02-29 12:00:00.5 Europe/Berlin'"
    frame = alone.range(0, 200, numPartitions=1).selectExpr("id", "id % 2 + 1.50BD AS part", f"{moment} AS moment")
    cache = Cache(store=redis.url, expire_after_write=600)
    metrics = EnrichmentMetrics(alone)
    keys = ["id", "part", "moment"]
    out = enrich(frame, counted(calls), on=keys, cache=cache, status_column="lookup", metrics=metrics)
    found = called = sorted_rows(out)
    made = [len(calls.read_text().splitlines())]
    # On a busy machine Redis may be late, and keys are then called for.
    while len(made) < 2 or (made[-1] > made[-2] and len(made) < 9):
        kill_workers()
        found = sorted_rows(out)
        assert [row[:4] for row in found] == [row[:4] for row in called]
        made.append(len(calls.read_text().splitlines()))
    assert made[0] == 200
    assert made[-1] == made[-2]
    assert {attempts for *_, attempts in found} == {0}
    figures = metrics.statistics()
    assert (figures.calls, figures.cache_hits + figures.calls) == (made[-1], 200 * len(made))


@pytest.mark.parametrize("store", ["heap", "redis", pytest.param("rocksdb", marks=pytest.mark.faults)])
def test_J2_a_journal_gets_the_answers_of_a_warm_cache_and_the_next_application_pays_for_none(
    alone: SparkSession, redis: RedisServer, tmp_path: Path, store: str
) -> None:
    calls = tmp_path / "calls"
    more: dict[str, Any] = {"directory": tmp_path / "cache"} if store == "rocksdb" else {}
    cache = Cache(store=redis.url if store == "redis" else store, expire_after_write=600, max_rows=1000, **more)
    frame, source, journal = alone.range(0, 100, numPartitions=1), counted(calls), Journal(tmp_path / "journal")
    expected = sorted_rows(enrich(frame, source, on="id", cache=cache, status_column="lookup"))
    made, warm = len(calls.read_text().splitlines()), time.time()
    if store != "heap":
        # A worker that dies leaves what is outside of it.
        kill_workers()
    for _ in range(2):
        found = sorted_rows(enrich(frame, source, on="id", cache=cache, journal=journal, status_column="lookup"))
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
    found = sorted_rows(enrich(frame, source, on="id", journal=journal, status_column="lookup"))
    assert [row[:4] for row in found] == [row[:4] for row in expected]
    assert len(calls.read_text().splitlines()) == asked


@pytest.mark.parametrize("face", [enrich, pytest.param(through_sql, marks=FROM_4_1)], ids=["enrich", "register_lookup"])
def test_X5_a_server_that_is_away_costs_calls_and_fails_nothing_and_its_address_is_in_no_plan(
    spark: SparkSession, tmp_path: Path, face: Callable[..., DataFrame]
) -> None:
    away = Cache(store="redis://:hunter2@127.0.0.1:9/0", expire_after_write=600)
    frame = face(spark.range(10), counted(tmp_path / "calls"), on="id", cache=away, status_column="lookup")
    assert {row.lookup.status for row in frame.collect()} == {"found", "missing"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 10
    assert "hunter2" not in frame._jdf.queryExecution().toString()
