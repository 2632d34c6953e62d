"""`enrich` in Spark on two cores: its overhead, a real table, skew and memory. `peers` compares other ways.

The sink is Spark's own ``noop``, made for benchmarks: it reads every column of every row and keeps none, so only the
way through Python and back is measured. Each side has a warm-up (Python workers start, the JVM compiles code). Then the
sides run in turns, and the median of the turns is taken. The input is made or cached before.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from asyncio_operator import Cache
from asyncio_operator.spark import enrich
from benchmarks import Rows
from benchmarks.measuring import in_turns, pair, passed, peak_memory, seconds_of, worker_loop
from enrichers import FunctionEnricher, PostgresEnricher, TableEnricher
from examples.enrich_flights import flights_of, read_data, tables
from examples.stage import embedded_postgres, local_spark, workspace

ROWS = 2_000_000
TABLE_ROWS = 1_000_000
LARGEST_BATCH = 10_000
TURNS = 7

CACHED = 100_000
"""Keys of a cache, as many as it keeps by default."""

SKEWED_ROWS = 100_000
CAPACITY = 100
BATCH_SIZES = (100, 10_000)

Batches = Iterator[pa.RecordBatch]

ANSWER = {"answer": 1}


def s5() -> Rows:
    """2,000,000 rows with distinct keys, and a function that returns at once, compared with rows that only pass
    through."""
    with _session() as spark:
        rows = spark.range(0, ROWS, 1, 2)
        ours = enrich(rows, FunctionEnricher(_at_once, "answer long"), on="id")
        theirs = rows.mapInArrow(passed, rows.schema)
        times, floor = _in_turns(ours, theirs), _in_turns(rows.mapInArrow(_awaited, ours.schema), theirs)
    yield "S5", "enrich, function at once / identity mapInArrow", *pair(*times), "<= 2.5"
    yield "", "await in a list comprehension / identity mapInArrow", *pair(*floor), ""


def s6() -> Rows:
    """336,776 flights and their planes in PostgreSQL, compared with null columns of the same schema."""
    with _flights() as (flights, dsn, schema):
        planes = PostgresEnricher(dsn, table=(schema, "planes"), key="tailnum")
        ours = enrich(flights, planes, on="tailnum", prefix="plane_")
        cached = enrich(flights, planes, on="tailnum", prefix="plane_", cache=Cache())
        theirs = flights.mapInArrow(_append_nulls(planes.schema()), ours.schema)
        times = _in_turns(ours, theirs)
        times_cached = _in_turns(cached, theirs)
        floor = _in_turns(_with_ready_values(flights, ours), theirs)
    yield "S6", "flights and planes in PostgreSQL / null columns", *pair(*times), "<= 1.2"
    yield "S6", "the same with a cache, full from the turn before", *pair(*times_cached), "<= 1.2"
    yield "", "columns of ready values / null columns", *pair(*floor), ""


def s7() -> Rows:
    """Skewed latencies, ordered, with small Arrow batches compared with large ones."""
    with _session() as spark:
        rates: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
        for _turn in range(3):
            for size in BATCH_SIZES:
                rates[size].append(_rate(spark, size))
    small, large = (statistics.median(rates[size]) for size in BATCH_SIZES)
    yield "S7", "skew, 100 / 10,000 rows per Arrow batch", f"{small:,.0f}/s", f"{large:,.0f}/s", small / large, ">= 0.9"


def s8() -> Rows:
    """Peak memory of a Python worker, which measures itself at its end, with ten times the rows in one partition."""
    peaks: dict[int, list[float]] = {5_000_000: [], 500_000: []}
    with _session(spark__python__worker__reuse="false") as spark:
        for _turn in range(3):
            for count, measured in peaks.items():
                rows = spark.range(0, count, 1, 1)
                enriched = enrich(rows, FunctionEnricher(peak_memory, "peak double"), on="id")
                measured.append(enriched.agg({"peak": "max"}).collect()[0][0])
    many, few = (statistics.median(measured) for measured in peaks.values())
    yield "S8", "worker's memory, 5,000,000 / 500,000 rows", f"{many:.0f} MB", f"{few:.0f} MB", many / few, "<= 1.1"


def s11() -> Rows:
    """A hit of a full cache in memory, with one column and four: microseconds per distinct key of a batch, compared
    with null columns. Every answer is an object of its own, and no key comes twice in a batch."""
    with _session() as spark:
        rows = spark.range(0, ROWS, 1, 2).select((F.col("id") % CACHED).alias("id"))
        for function, ddl in ((_one_column, "n long"), (_four_columns, "name string, born int, price double, n long")):
            source = FunctionEnricher(function, ddl)
            ours = enrich(rows, source, on="id", cache=Cache())
            nulls = rows.mapInArrow(_append_nulls(source.schema(), ""), ours.schema)
            columns = f"columns: {len(source.schema())}"
            for what, frame, target in (
                ("hit in memory", ours, "<= 0.4"),
                ("ready values", _with_ready_values(rows, ours), ""),
            ):
                more, bare = _in_turns(frame, nulls)
                # Two tasks run at a time.
                cost = (more - bare) * 2 / ROWS * 1e6
                what = f"microseconds per distinct key: {what}, {columns}"
                yield "S11" if target else "", what, f"{cost:.2f} us", "", cost, target


@contextlib.contextmanager
def _flights() -> Iterator[tuple[DataFrame, str, str]]:
    """The flights in Spark, and the connection string and schema of their tables in PostgreSQL."""
    data = read_data()
    with (
        workspace("benchmark") as directory,
        embedded_postgres(directory) as dsn,
        tables(dsn, data, keep=False) as schema,
        _session() as spark,
    ):
        flights = flights_of(spark, data["flights"], None).coalesce(2).cache()
        assert flights.count() == len(data["flights"])
        yield flights, dsn, schema


def s13() -> Rows:
    """The flights with planes, airports and weather in one chain, compared with null columns of the same schema in one
    pass, and with three separate stages."""
    with _flights() as (flights, dsn, schema):
        chain, cut = _chained(flights, dsn, schema), _chained(flights, dsn, schema, whole=False)
        added = pa.schema(
            [pa.field(f.name, to_arrow_type(f.dataType)) for f in chain.schema.fields[len(flights.columns) :]]
        )
        nulls = flights.mapInArrow(_append_nulls(added, ""), chain.schema)
        times, stages = _in_turns(chain, nulls), _in_turns(chain, cut)
        floor = _in_turns(_with_ready_values(flights, chain), nulls)
    yield "S13", "planes, airports and weather chained / null columns", *pair(*times), "<= 1.5"
    yield "S13", "the same / three separate stages", *pair(*stages), "<= 0.25"
    yield "", "columns of ready values / null columns", *pair(*floor), ""


def demo_memory() -> Rows:
    """Peak memory of the Python workers of `make demo`, with one of its lookups and with all three, compared with an
    identity `mapInArrow`. Linux only."""
    peaks = {lookups: _peak_of_workers(lookups) for lookups in (0, 1, 3)}
    for lookups, what in ((1, "planes"), (3, "planes, airports and weather")):
        ours, theirs = peaks[lookups], peaks[0]
        what = f"worker's memory, flights with {what} / passed through"
        yield "", what, f"{ours:.0f} MB", f"{theirs:.0f} MB", ours / theirs, ""


def _peak_of_workers(lookups: int) -> float:
    """Peak MB of the largest Python worker of a session, after two runs of the flights with this number of lookups."""
    with _flights() as (flights, dsn, schema):
        frame = _chained(flights, dsn, schema, lookups) if lookups else flights.mapInArrow(passed, flights.schema)
        for _turn in range(2):
            seconds_of(frame)
        return max(map(_peak_of_worker, psutil.Process().children(recursive=True)))


def _peak_of_worker(process: psutil.Process) -> float:
    """MB. 0 for any other process."""
    try:
        if "pyspark.daemon" not in process.cmdline():
            return 0.0
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (psutil.Error, OSError):
        return 0.0
    return max((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM")), default=0.0)


def _chained(flights: DataFrame, dsn: str, schema: str, lookups: int = 3, *, whole: bool = True) -> DataFrame:
    """The flights with up to three lookups, in one stage or in one each."""
    planes = ["year", "manufacturer", "model", "seats"]
    weather = ["temp", "wind_speed", "precip", "visib"]
    sources: tuple[tuple[str, list[str], dict[str, str], list[str]], ...] = (
        ("planes", ["tailnum"], {"tailnum": "tailnum"}, planes),
        ("airports", ["faa"], {"dest": "faa"}, ["name", "lat", "lon"]),
        ("weather", ["origin", "time_hour"], {"origin": "origin", "time_hour": "time_hour"}, weather),
    )
    for table, key, on, columns in sources[:lookups]:
        source = PostgresEnricher(dsn, table=(schema, table), key=key, columns=columns)
        flights = enrich(flights, source, on=on, prefix=f"{table}_")
        # An operation between two lookups ends the chain.
        flights = flights if whole else flights.select("*")
    return flights


def s15() -> Rows:
    """2,000,000 rows and a table of 1,000,000 in memory, compared with null columns of the same schema. Also: columns
    of values that are not looked up."""
    with workspace("benchmark") as directory, local_spark(directory) as spark:
        # A quarter of the keys are not in the table, and no two neighbours are.
        rows = spark.range(0, ROWS, 1, 2).select((F.col("id") * 7_919 % (TABLE_ROWS * 4 // 3)).alias("number"))
        path = directory / "table.parquet"
        parquet.write_table(_table(TABLE_ROWS), path)
        ours = enrich(rows, TableEnricher(path, key="number"), on="number")
        nulls = rows.mapInArrow(_append_nulls(TableEnricher(path, key="number").schema(), ""), ours.schema)
        times, floor = _in_turns(ours, nulls), _in_turns(_with_ready_values(rows, ours), nulls)
    yield "S15", "a table of 1,000,000 rows in memory / null columns", *pair(*times), "<= 1.3"
    yield "", "columns of ready values / null columns", *pair(*floor), ""


def as_of() -> Rows:
    """2,000,000 rows with times and a table of 1,000,000 rows in memory, with one version of each key and with five:
    compared with one version without `as_of` (S15), with null columns, and with Spark's join and window function, whose
    rows must be the same."""
    with workspace("benchmark") as directory, local_spark(directory) as spark:
        moment = "timestamp_micros(pmod(xxhash64(id), 1000000) * 1000000L)"

        def made(versions: int) -> tuple[DataFrame, Path]:
            path, keys = directory / f"table{versions}.parquet", TABLE_ROWS // versions
            numbers = pa.array(np.arange(TABLE_ROWS) % keys)
            parquet.write_table(_table(TABLE_ROWS).set_column(0, "number", numbers), path)
            rows = spark.range(0, ROWS, 1, 2).selectExpr(f"id * 7919 % {keys * 4 // 3} AS number", f"{moment} AS at")
            return rows, path

        tables = {versions: made(versions) for versions in (1, 5)}
        rows, path = tables[1]
        plain = enrich(rows, TableEnricher(path, key="number"), on="number")
        for versions, (rows, path) in tables.items():
            source = TableEnricher(path, key="number")
            ours = enrich(rows, source, on="number", as_of=("at", "changed"))
            nulls = rows.mapInArrow(_append_nulls(source.schema(), ""), ours.schema)
            joined = _joined_as_of(rows, spark.read.parquet(str(path)))
            what = f"as_of, versions a key: {versions}"
            assert _told(ours) == _told(joined)
            seconds, cpu = in_turns(ours, plain)
            yield "", f"{what} / one version without as_of, time", *seconds, "<= 2"
            yield "", f"{what} / one version without as_of, CPU of the workers", *cpu, "<= 2"
            yield "", f"{what} / null columns", *pair(*_in_turns(ours, nulls)), ""
            yield "", f"{what} / join and window", *pair(seconds_of(ours), seconds_of(joined)), ""


def _joined_as_of(rows: DataFrame, table: DataFrame) -> DataFrame:
    """Rows with the version of their time, found by Spark."""
    rows = rows.withColumn("row", F.monotonically_increasing_id())
    versions = table.withColumnRenamed("number", "key")
    candidates = rows.join(versions, (rows.number == versions.key) & (versions.changed <= rows["at"]), "left")
    latest = Window.partitionBy("row").orderBy(F.col("changed").desc_nulls_last())
    return candidates.withColumn("nr", F.row_number().over(latest)).where("nr = 1").drop("nr", "row", "key")


def _told(rows: DataFrame) -> Any:
    names = ("number", "at", "name", "price", "stock", "changed")
    return rows.select(F.count("*"), F.count("name"), F.sum(F.xxhash64(*names) % (1 << 31))).first()


def strategies() -> Rows:
    """Flights and planes with both strategies, with the flights' own columns and with a hundred; and a join with the
    planes as a DataFrame."""
    data = read_data()
    with (
        workspace("benchmark") as directory,
        embedded_postgres(directory) as dsn,
        tables(dsn, data, keep=False) as schema,
        _session() as spark,
    ):
        planes = PostgresEnricher(dsn, table=(schema, "planes"), key="tailnum")
        names = [f"plane_{name}" for name in data["planes"].column_names]
        table = spark.createDataFrame(data["planes"].rename_columns(names))
        flights = flights_of(spark, data["flights"], None)
        for columns in (len(flights.columns), 100):
            more = {f"more{i}": F.col("flight") + i for i in range(columns - len(flights.columns))}
            wide = flights.withColumns(more).coalesce(2).cache()
            assert wide.count() == len(data["flights"])
            ours = enrich(wide, planes, on="tailnum", prefix="plane_", strategy="distinct")
            inline = enrich(wide, planes, on="tailnum", prefix="plane_")
            join = wide.join(F.broadcast(table), wide.tailnum == table.plane_tailnum, "left")
            yield "", f"distinct / inline, {columns} columns", *pair(*_in_turns(ours, inline)), ""
            yield "", f"distinct / broadcast join, {columns} columns", *pair(*_in_turns(ours, join)), ""
            wide.unpersist()


# -- measuring


@contextlib.contextmanager
def _session(**options: str) -> Iterator[SparkSession]:
    with workspace("benchmark") as directory, local_spark(directory, **options) as spark:
        yield spark


def _in_turns(ours: DataFrame, theirs: DataFrame) -> tuple[float, float]:
    """The median times, after two turns that do not count."""
    times = [(seconds_of(ours), seconds_of(theirs)) for _ in range(2 + TURNS)][2:]
    return statistics.median(ours for ours, _ in times), statistics.median(theirs for _, theirs in times)


def _rate(spark: SparkSession, batch_size: int) -> float:
    """Rows per second of two tasks, with skewed latencies."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch_size)
    rows = spark.range(0, SKEWED_ROWS, 1, 2)
    return SKEWED_ROWS / seconds_of(enrich(rows, FunctionEnricher(_call, "answer long"), on="id", capacity=CAPACITY))


# -- measured functions; they are sent to the workers by name


async def _at_once(key: int) -> dict[str, int]:
    return ANSWER


def _awaited(batches: Batches) -> Batches:
    """What `enrich` does with a function, without a limit, an order, a timeout, sharing or a check."""
    with worker_loop() as runner:
        for batch in batches:
            answers = runner.run(_answers(batch.column(0).to_pylist()))
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(answers)], names=["id", "answer"])


async def _answers(keys: list[int]) -> list[int]:
    return [(await _at_once(key))["answer"] for key in keys]


async def _one_column(key: int) -> dict[str, Any]:
    return {"n": key}


async def _four_columns(key: int) -> dict[str, Any]:
    return {"name": f"name {key}", "born": 1815, "price": key * 0.5, "n": key}


def _latency(key: int) -> float:
    """Seconds that the service takes for a key."""
    return 0.2 if key % 200 == 199 else 0.002


async def _call(key: int) -> dict[str, int]:
    await asyncio.sleep(_latency(key))
    return ANSWER


def _table(rows: int) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "number": numbers,
            "name": [f"name {number}" for number in range(rows)],
            "price": numbers * 0.5,
            "stock": numbers.astype(np.int32),
            "changed": pa.array(numbers * 1_000_000).cast(pa.timestamp("us", "UTC")),
        }
    )


def _with_ready_values(rows: DataFrame, enriched: DataFrame) -> DataFrame:
    """Rows with the columns that a lookup adds, without the lookup: every batch gets the values of the first rows. No
    lookup can be faster."""
    ready = (
        enriched.limit(LARGEST_BATCH)
        .toArrow()
        .combine_chunks()
        .to_batches()[0]
        .select(enriched.columns[len(rows.columns) :])
    )

    def append(batches: Batches) -> Batches:
        for batch in batches:
            added = ready.slice(0, batch.num_rows)
            names = [*batch.schema.names, *added.schema.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added.columns], names=names)

    return rows.mapInArrow(append, enriched.schema)


def _append_nulls(schema: pa.Schema, prefix: str = "plane_") -> Callable[[Batches], Batches]:
    def append(batches: Batches) -> Batches:
        for batch in batches:
            nulls = [pa.nulls(batch.num_rows, field.type) for field in schema]
            names = [*batch.schema.names, *(prefix + field.name for field in schema)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], names=names)

    return append
