"""A table of PostgreSQL in Spark, compared with what an expert writes by hand, and with Spark's own reader and a join.

Server, Spark and its two tasks share one machine, so the server takes its part of the time of both sides. CPU is that
of the Python workers alone. The sides run in turns, and the median of the turns is taken, as in `spark`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from glob import glob
from statistics import median
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator.spark import enrich
from benchmarks import Rows
from benchmarks.measuring import in_turns, pair, seconds_of
from enrichers import PostgresEnricher, TableEnricher
from examples.stage import ProblemError, embedded_postgres, local_spark, workspace
from tests.faults.proxy import Proxy

KEYS = 400_000
BATCH = 1_000
POOL = 4

S19_TABLE = f"""
    CREATE TABLE s19 AS
        SELECT i::int8 AS id, 'name ' || i AS name, i * 1.5::float8 AS price, (i % 7)::int4 AS kind,
               timestamptz '2026-01-01 00:00:00Z' + i * interval '1 second' AS changed
        FROM generate_series(1, {KEYS}) AS i;
    ALTER TABLE s19 ADD PRIMARY KEY (id);
    ANALYZE s19;
"""

S21_ROWS, S21_KEYS, S21_TURNS = 1_000_000, 200_000, 3

S21_TABLE = f"""
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE TABLE s21 AS
        SELECT i AS number, 'k' || i % 100 AS code,
            i % 2 = 0 AS c_bool, (i % 1000)::int2 AS c_int2, i AS c_int4, i::int8 * 1000 AS c_int8,
            (i / 7.0)::float4 AS c_float4, i / 7.0::float8 AS c_float8, (i * 0.25)::numeric(12, 2) AS c_numeric,
            'text number ' || i AS c_text, md5(i::text)::varchar(40) AS c_varchar, (i % 99)::text::char(4) AS c_char,
            decode(md5(i::text), 'hex') AS c_bytea, DATE '2020-01-01' + i % 3000 AS c_date,
            TIMESTAMP '2020-01-01' + i * interval '1 min' AS c_timestamp,
            TIMESTAMPTZ '2020-01-01Z' + i * interval '1 min' AS c_timestamptz,
            md5(i::text)::uuid AS c_uuid, jsonb_build_object('n', i, 't', 'x') AS c_jsonb,
            ARRAY[i, i + 1, i + 2] AS c_ints, ARRAY['a' || i, NULL, 'b'] AS c_texts
        FROM generate_series(0, {S21_KEYS - 1}) AS i;
    ALTER TABLE s21 ADD PRIMARY KEY (number, code);
    ANALYZE s21;
"""
"""18 columns of every type that Spark has; two of them are arrays."""

DRIVERS = ("/usr/share/java/postgresql.jar", "~/.m2/repository/org/postgresql/postgresql/*/postgresql-*.jar")
"""Where Debian's libpostgresql-jdbc-java and Maven put the JDBC driver."""

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
            seconds, cpu = in_turns(ours, theirs)
    what = "PostgreSQL, 400,000 keys, enrich / mapInArrow by hand"
    yield "S19", f"{what}, time", *seconds, "<= 0.8"
    yield "S19", f"{what}, CPU of the workers", *cpu, "<= 0.8"


def s21() -> Rows:
    """1,000,000 rows, and 200,000 keys of a number and a text in no order, each about five times: 18 columns of a table
    in PostgreSQL, compared with Spark's own reader and a broadcast join. A task remembers the answers in 64 MB, so it
    asks for some keys more than once. Also: each key once (`strategy="distinct"`), and the whole table in memory.

    The reader speaks TCP, and the server a socket, so a proxy in this process passes on its bytes.
    """
    driver = _driver()
    with workspace("benchmark") as directory, embedded_postgres(directory) as dsn:
        asyncio.run(_execute(dsn, S21_TABLE))
        parts = urlsplit(dsn)
        socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        with Proxy(socket) as proxy, local_spark(directory, spark__jars=driver) as spark:
            number = F.abs(F.xxhash64("id")) % S21_KEYS
            rows = spark.range(0, S21_ROWS, 1, 2).select(number.cast("int").alias("number"))
            rows = rows.select("number", F.concat(F.lit("k"), F.col("number") % 100).alias("code"))
            keys = ["number", "code"]
            asked = PostgresEnricher(dsn, table="s21", key=keys, pool_size=POOL)
            ours = enrich(rows, asked, on=keys)
            once = enrich(rows, asked, on=keys, strategy="distinct")
            held = enrich(rows, TableEnricher(asked, key=keys), on=keys)
            read = {"driver": "org.postgresql.Driver", "user": parts.username or "", "fetchsize": "10000"}
            table = spark.read.jdbc(f"jdbc:postgresql://{proxy.host}:{proxy.port}{parts.path}", "s21", properties=read)
            theirs = rows.join(F.broadcast(table), keys, "left")
            times = [[seconds_of(side) for side in (ours, once, held, theirs)] for _ in range(1 + S21_TURNS)][1:]
    *sides, joined = (median(turn) for turn in zip(*times, strict=True))
    for how, seconds in zip(("enrich", 'strategy="distinct"', "TableEnricher of the table"), sides, strict=True):
        what = f"PostgreSQL, 1,000,000 rows, 200,000 keys, 18 columns, {how} / read.jdbc and a broadcast join"
        yield "S21", what, *pair(seconds, joined), "<= 2"


def _driver() -> str:
    """The JDBC driver of PostgreSQL.

    Raises:
        ProblemError: there is none.
    """
    found = [path for pattern in DRIVERS for path in sorted(glob(os.path.expanduser(pattern)))]
    if not found:
        raise ProblemError(f"S21 needs the JDBC driver of PostgreSQL, at {' or '.join(DRIVERS)}")
    return found[-1]


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
