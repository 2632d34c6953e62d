"""A table of PostgreSQL in Spark, compared with what an expert writes by hand, and with Spark's own reader and a join.

Server, Spark and its two tasks share one machine, so the server takes its part of the time of both sides. CPU is that
of the Python workers alone. The sides run in turns, and the median of the turns is taken, as in `spark`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from statistics import median

import asyncpg
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator.spark import enrich
from benchmarks import Rows
from benchmarks.measuring import seconds_of
from enrichers import PostgresEnricher
from examples.stage import embedded_postgres, local_spark, workspace

KEYS = 400_000
BATCH = 1_000
POOL = 4
TURNS = 5

S19_TABLE = f"""
    CREATE TABLE s19 AS
        SELECT i::int8 AS id, 'name ' || i AS name, i * 1.5::float8 AS price, (i % 7)::int4 AS kind,
               timestamptz '2026-01-01 00:00:00Z' + i * interval '1 second' AS changed
        FROM generate_series(1, {KEYS}) AS i;
    ALTER TABLE s19 ADD PRIMARY KEY (id);
    ANALYZE s19;
"""

Batches = Iterator[pa.RecordBatch]


def s19() -> Rows:
    """400,000 distinct keys, in no order, of a table of as many rows, compared with `mapInArrow` by hand: one statement
    for 1,000 keys, all statements of a batch at once on a pool of 4, and records into columns."""
    with workspace("benchmark") as directory, embedded_postgres(directory) as dsn:
        asyncio.run(_execute(dsn, S19_TABLE))
        with local_spark(directory) as spark:
            rows = spark.range(0, KEYS, 1, 2).select((F.col("id") * 7_919 % KEYS + 1).alias("id"))
            ours = enrich(rows, PostgresEnricher(dsn, table="s19", key="id", pool_size=POOL), on="id")
            theirs = rows.mapInArrow(_by_hand(dsn), ours.schema)
            seconds, cpu = _in_turns(ours, theirs)
    what = "PostgreSQL, 400,000 keys, enrich / mapInArrow by hand"
    yield "S19", f"{what}, time", *seconds, "<= 0.8"
    yield "S19", f"{what}, CPU of the workers", *cpu, "<= 0.8"


def _by_hand(dsn: str) -> Callable[[Batches], Batches]:
    names = ["name", "price", "kind", "changed"]
    types = [pa.string(), pa.float64(), pa.int32(), pa.timestamp("us", "UTC")]
    statement = f"SELECT id, {', '.join(names)} FROM s19 WHERE id = ANY ($1)"

    async def fetched(pool: asyncpg.Pool[asyncpg.Record], keys: list[int]) -> dict[int, asyncpg.Record]:
        parts = [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
        results = await asyncio.gather(*(pool.fetch(statement, part) for part in parts))
        return {record["id"]: record for records in results for record in records}

    def looked_up(batches: Batches) -> Batches:
        with asyncio.Runner() as runner:
            pool = runner.run(_pool(dsn))
            for batch in batches:
                keys = batch.column(0).to_pylist()
                found = runner.run(fetched(pool, keys))
                records = [found.get(key) for key in keys]
                added = [
                    pa.array([record and record[name] for record in records], kind)
                    for name, kind in zip(names, types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays([batch.column(0), *added], names=["id", *names])
            runner.run(pool.close())

    return looked_up


async def _pool(dsn: str) -> asyncpg.Pool[asyncpg.Record]:
    return await asyncpg.create_pool(dsn, min_size=POOL, max_size=POOL)


async def _execute(dsn: str, statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statements)
    await connection.close()


Pair = tuple[str, str, float]


def _in_turns(ours: DataFrame, theirs: DataFrame) -> tuple[Pair, Pair]:
    """The median times, and CPU of the workers, after a turn that does not count."""
    turns = [[_measured(side) for side in (ours, theirs)] for _ in range(1 + TURNS)][1:]
    seconds, cpu = ([median(turn[side][i] for turn in turns) for side in range(2)] for i in range(2))
    return _pair(*seconds), _pair(*cpu)


def _measured(side: DataFrame) -> tuple[float, float]:
    before = _worker_seconds()
    seconds = seconds_of(side)
    return seconds, _worker_seconds() - before


def _pair(ours: float, theirs: float) -> Pair:
    return f"{ours:.2f} s", f"{theirs:.2f} s", ours / theirs


def _worker_seconds() -> float:
    """The CPU that the Python workers of Spark have used, those included that have ended."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
