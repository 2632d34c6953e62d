"""Laws of lookups in a real Spark (L2, L3, L6 to L9, R1, R5, X7, X10): what only workers, jobs and streams show.

Calls are counted in files, which all processes share. `alone` leaves one Python worker, so that jobs of one partition,
one after the other, run in the same process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from asyncio_operator import Cache, EnricherError, FixedBackoff, Retry
from asyncio_operator.spark import EnrichmentMetrics, enrich
from enrichers import FunctionEnricher, PostgresEnricher
from tests.servers import PostgresServer
from tests.spark.helpers import GONE, Hanging, in_partitions, wait_until

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


def test_L8_unequal_enrichers_and_unequal_caches_share_nothing(alone: SparkSession, source: Source) -> None:
    other = Source(source.calls_file.parent, "b")
    for cache in (Cache(), Cache(max_rows=5000), Cache(expire_after_write=3600)):
        for one in (source, other):
            for expected in (FROM_CALLS, FROM_THE_CACHE):
                rows = job(alone, one, cache)
                assert how(rows) == expected
                assert {row.source for row in rows} == {one.name, None}
    assert len(source.calls()) == len(other.calls()) == 60


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


# -- L2, R1, R5: sharing, retries, limits of attempts


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
