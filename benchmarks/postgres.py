"""Lookups in PostgreSQL compared with plain asyncpg: one key at a time, and a thousand in one statement.

The other side is hand-written code with a pool: the statement with the same columns, and its records as asyncpg returns
them. It does not assign rows to keys, does not find keys without a row, and does not accept keys that the column cannot
hold. Its pool is minimal. The default of `asyncpg.create_pool` resets the session after each statement, which is a
second round trip; it is shown as a row without a target.

Server and client are on one machine with a local socket, so the client's own work is most visible. A batch has 1,000
keys in random order, a tenth of them without a row. The sides run in turns; each figure is the median of the turns.
`s14` measures CPU time of the client process instead, because the server's share is the same on both sides.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any

import asyncpg
import pyarrow as pa

from asyncio_operator.arrow.columns import columns
from benchmarks import Rows
from benchmarks.measuring import worker_loop
from enrichers import PostgresEnricher
from examples.stage import embedded_postgres, workspace

ROWS = 100_000
SINGLE_KEYS = 3_000
BATCHES, BATCH = 20, 1_000
AT_ONCE = 20
TURNS = 9
POOL = 4

TABLE = f"""
    DROP TABLE IF EXISTS benchmark;
    CREATE TABLE benchmark AS
        SELECT i AS id, 'name ' || i AS name, i * 1.5::float8 AS price, i % 7 AS kind, i % 2 = 0 AS even
        FROM generate_series(1, {ROWS}) AS i;
    ALTER TABLE benchmark ADD PRIMARY KEY (id);
    ANALYZE benchmark;
"""

COLUMNS = "name, price, kind, even, id"
ONE = f"SELECT {COLUMNS} FROM benchmark WHERE id = $1"
MANY = f"SELECT {COLUMNS} FROM benchmark WHERE id = ANY ($1)"

Side = Callable[[], Awaitable[object]]


def postgres() -> Rows:
    """Lookups of single keys, one by one and concurrent, and of batches, compared with asyncpg alone."""
    with workspace("benchmark") as directory, embedded_postgres(directory) as dsn, worker_loop() as runner:
        yield from runner.run(_measured(dsn))


async def _measured(dsn: str) -> list[tuple[str | float, ...]]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    enricher = PostgresEnricher(dsn, table="benchmark", key="id", pool_size=POOL)
    await enricher.open()
    bare = await asyncpg.create_pool(dsn, min_size=POOL, max_size=POOL, reset=_leave)
    usual = await asyncpg.create_pool(dsn, min_size=POOL, max_size=POOL)
    chance = random.Random(1)
    keys = [chance.randrange(1, ROWS * 10 // 9) for _ in range(SINGLE_KEYS)]
    batches = [chance.sample(range(1, ROWS * 10 // 9), BATCH) for _ in range(BATCHES)]

    async def one(lookup: Callable[..., Awaitable[object]], *sql: str) -> None:
        for key in keys:
            await lookup(*sql, key)

    async def some(lookup: Callable[..., Awaitable[object]], *sql: str) -> None:
        left = iter(keys)

        async def lane() -> None:
            for key in left:
                await lookup(*sql, key)

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))

    async def many(lookup: Callable[..., Awaitable[object]], *sql: str) -> None:
        for batch in batches:
            await lookup(*sql, batch)

    async def in_a_dictionary(sql: str, batch: list[int]) -> list[Any]:
        rows = {record["id"]: dict(record) for record in await bare.fetch(sql, batch)}
        return [rows.get(key) for key in batch]

    lookup, lookup_many = enricher.lookup, enricher.lookup_many
    rows = [
        await _row("one key after the other / bare pool", "<= 1.15", SINGLE_KEYS, one, (lookup,), (bare.fetch, ONE)),
        await _row("the same / asyncpg's own pool", "", SINGLE_KEYS, one, (lookup,), (usual.fetch, ONE)),
        await _row(f"{AT_ONCE} keys at once / bare pool", "", SINGLE_KEYS, some, (lookup,), (bare.fetch, ONE)),
        await _row(
            f"batches of {BATCH:,} / = ANY", "<= 1.3", BATCHES * BATCH, many, (lookup_many,), (bare.fetch, MANY)
        ),
        await _row(
            "the same / and its rows by key", "", BATCHES * BATCH, many, (lookup_many,), (in_a_dictionary, MANY)
        ),
    ]
    for opened in (enricher, bare, usual, connection):
        await opened.close()
    return rows


S14_TABLE = f"""
    DROP TABLE IF EXISTS s14;
    CREATE TABLE s14 AS
        SELECT i::int8 AS id, 'name ' || i AS name, md5(i::text) AS code, i % 1000 AS kind, i * 1.5::float8 AS price,
            i / 7.0::float8 AS weight, 'place ' || i % 7 AS place,
            '2024-01-01Z'::timestamptz + i * interval '1 min' AS at, i AS number
        FROM generate_series(1, {2 * ROWS}) AS i;
    ALTER TABLE s14 ADD PRIMARY KEY (id);
    ANALYZE s14;
"""


def s14() -> Rows:
    """The client's CPU time for each key: answers in columns, and in rows, compared with asyncpg's `fetch`."""
    with workspace("benchmark") as directory, embedded_postgres(directory) as dsn, worker_loop() as runner:
        yield from runner.run(_cpu(dsn))


async def _cpu(dsn: str) -> list[tuple[str | float, ...]]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(S14_TABLE)
    enricher = PostgresEnricher(dsn, table="s14", key="id", pool_size=1)
    schema = enricher.schema()
    await enricher.open()
    own = await asyncpg.connect(dsn)
    chance = random.Random(1)
    fetch = f"SELECT {', '.join(schema.names)}, id FROM s14 WHERE id = ANY ($1)"
    rows = []
    for size in (BATCH, 100):
        batches = [chance.sample(range(1, 2 * ROWS + 1), size) for _ in range(BATCHES * BATCH // size)]
        arrays = [pa.array(batch, pa.int64()) for batch in batches]

        async def bare(batches: list[list[int]] = batches) -> None:
            for batch in batches:
                await own.fetch(fetch, batch)

        async def in_columns(arrays: list[pa.Array] = arrays) -> None:
            for array in arrays:
                await enricher.lookup_columns(array)

        async def in_rows(batches: list[list[int]] = batches) -> None:
            for batch in batches:
                columns([row for row in await enricher.lookup_many(batch) if isinstance(row, dict)], schema)

        what = f"PostgreSQL, batches of {size:,}, 8 columns, CPU of the client for a key"
        target = "<= 1.0" if size == BATCH else ""
        rows.append(await _cpu_row(f"{what}, in columns / fetch", target, in_columns, bare))
        rows.append(await _cpu_row(f"{what}, as rows and then columns / fetch", "", in_rows, bare))
    for opened in (enricher, own, connection):
        await opened.close()
    return rows


async def _cpu_row(what: str, target: str, ours: Side, theirs: Side) -> tuple[str | float, ...]:
    """Medians of turns; each turn asks for the same number of keys."""
    turns = [[await _cpu_seconds(side) for side in (ours, theirs)] for _ in range(1 + TURNS)][1:]
    mine, others = (median(seconds) / (BATCHES * BATCH) * 1e6 for seconds in zip(*turns, strict=True))
    return "S14", what, f"{mine:.2f} us", f"{others:.2f} us", median(one / other for one, other in turns), target


async def _cpu_seconds(side: Side) -> float:
    gc.collect()
    started = process_time()
    await side()
    return process_time() - started


async def _row(
    what: str, target: str, keys: int, work: Callable[..., Awaitable[None]], ours: Any, theirs: Any
) -> tuple[str | float, ...]:
    sides: list[Side] = [lambda: work(*ours), lambda: work(*theirs)]
    turns = [[await _seconds(side) for side in sides] for _ in range(1 + TURNS)][1:]
    mine, others = (median(seconds) / keys * 1e6 for seconds in zip(*turns, strict=True))
    ratio = median(one / other for one, other in turns)
    return "", f"PostgreSQL, {what}", f"{mine:.2f} us", f"{others:.2f} us", ratio, target


async def _seconds(side: Side) -> float:
    gc.collect()
    started = perf_counter()
    await side()
    return perf_counter() - started


async def _leave(_connection: Any) -> None:
    """Replaces the reset of a session, and does nothing."""
