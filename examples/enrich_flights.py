"""All 336,776 flights that left New York in 2013, enriched in Spark with three tables of a real PostgreSQL.

    make demo                                                       with a PostgreSQL that it brings along
    make demo ARGS="--dsn postgresql://user:secret@host/database"   with yours; it makes a schema and drops it again

Every flight gets its plane (by ``tailnum``; some flights have none, and some planes are unknown), its destination (by
``dest``) and the weather at its departure (by the composite key ``origin`` and ``time_hour``). `enriched`, below, does
the enrichment. The rest starts servers, loads tables and prints. Data: `data/`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.stage import (
    ProblemError,
    Stage,
    embedded_postgres,
    job,
    local_spark,
    positive,
    require_java,
    run,
    step,
    workspace,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from asyncio_operator.spark import EnrichmentMetrics

DATA = Path(__file__).resolve().parent / "data"
"""The flights from New York in 2013, with planes, airports and weather; its README tells where they come from."""

DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "build" / "enriched_flights.parquet"

PARTITIONS = 16

DSN_VARIABLE = "ENRICH_FLIGHTS_DSN"

TABLES = {
    "planes": """tailnum text PRIMARY KEY, year int, type text, manufacturer text, model text, engines int, seats int,
        speed int, engine text""",
    "airports": """faa text PRIMARY KEY, name text, lat double precision, lon double precision, alt int, tz int,
        dst text, tzone text""",
    "weather": """origin text, year int, month int, day int, hour int, temp double precision, dewp double precision,
        humid double precision, wind_dir double precision, wind_speed double precision, wind_gust double precision,
        precip double precision, pressure double precision, visib double precision, time_hour timestamptz,
        PRIMARY KEY (origin, time_hour)""",
}


def database() -> str:
    """The connection string. Workers read it from their environment, so no password is inside the job."""
    return os.environ[DSN_VARIABLE]


def enriched(flights: DataFrame, schema: str, metrics: dict[str, EnrichmentMetrics]) -> DataFrame:
    """The flights with their planes, airports and weather, one row for each flight, in the order of the flights.

    The three enrichments are a chain: one Python stage, with a process per core.
    """
    from asyncio_operator.spark import enrich_with
    from enrichers import PostgresEnricher

    planes = PostgresEnricher(
        database,
        table=(schema, "planes"),
        key="tailnum",
        columns=["year", "manufacturer", "model", "seats"],
    )
    airports = PostgresEnricher(database, table=(schema, "airports"), key="faa", columns=["name", "lat", "lon"])
    weather = PostgresEnricher(
        database,
        table=(schema, "weather"),
        key=["origin", "time_hour"],
        columns=["temp", "wind_speed", "precip", "visib"],
    )
    return (
        flights.transform(enrich_with(planes, on="tailnum", prefix="plane_", metrics=metrics["planes"]))
        .transform(enrich_with(airports, on={"dest": "faa"}, prefix="dest_", metrics=metrics["airports"]))
        .transform(enrich_with(weather, on=["origin", "time_hour"], metrics=metrics["weather"]))
    )


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    part = stage.enter(output(options.output, replace=options.output == DEFAULT_OUTPUT))
    directory = stage.enter(workspace("enrich-flights"))
    with step("Reading the flights"):
        data = read_data()
    if options.dsn is None:
        with step("Starting PostgreSQL"):
            dsn = stage.enter(embedded_postgres(directory))
    else:
        dsn = options.dsn
    with step("Loading planes, airports and weather into it"):
        # A PostgreSQL that was started for the demo is removed at the end with its data.
        schema = stage.enter(tables(dsn, data, keep=options.keep or options.dsn is None))
    if options.dsn is not None:
        print(f"  into the schema {schema}, which is {'kept' if options.keep else 'dropped at the end'}")
    os.environ[DSN_VARIABLE] = dsn
    with step("Starting Spark"):
        spark = stage.enter(local_spark(directory, spark__app__name="enrich-flights"))
        from asyncio_operator.spark import EnrichmentMetrics
    metrics = {name: EnrichmentMetrics(spark) for name in TABLES}
    with step("Handing the flights to Spark"):
        flights = flights_of(spark, data["flights"], options.rows).cache()
        count = flights.count()
    with step("Planning three lookups, with the types of their columns from PostgreSQL"):
        rows = enriched(flights, schema, metrics)
    started = time.perf_counter()
    with step(f"Enriching {count:,} flights; tasks done:"), job(spark):
        # Kept in memory, so that writing is timed apart.
        rows.persist().count()
    seconds = time.perf_counter() - started
    with step("Writing Parquet; tasks done:"), job(spark):
        rows.write.parquet(str(part))
    with stage.whole():
        commit(part, options.output)
    show(spark.read.parquet(str(options.output)))
    show_figures(metrics)
    print(f"{count:,} rows in {seconds:.1f} s, {count / seconds:,.0f} rows a second, with three lookups each.")
    print(f"Parquet: {options.output}")


def read_data() -> dict[str, pa.Table]:
    """The flights, planes, airports and weather of `DATA`."""
    import pyarrow.parquet as pq

    return {name: pq.read_table(DATA / f"{name}.parquet") for name in ("flights", *TABLES)}


def flights_of(spark: SparkSession, flights: pa.Table, rows: int | None) -> DataFrame:
    """The flights, or the first `rows` of them, as a DataFrame. `time_hour` is an instant, as in PostgreSQL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    given: Any = flights.slice(0, rows)
    if spark.version.startswith("3."):
        # PySpark takes an Arrow table since 4.0.
        given = list(zip(*(column.to_pylist() for column in given.columns), strict=True))
    return spark.createDataFrame(given, from_arrow_schema(flights.schema)).coalesce(PARTITIONS)


@contextlib.contextmanager
def tables(dsn: str, data: dict[str, pa.Table], keep: bool) -> Iterator[str]:
    """Makes a schema with the loaded tables, and yields its name. It is dropped at the end unless `keep` is set."""
    import asyncio

    from enrichers import PostgresEnricher

    # `schema` checks the connection. Its error says in a sentence what is wrong, without the password.
    PostgresEnricher(dsn, query="SELECT key, 1 AS one FROM unnest($1::text[]) AS key", key="key").schema()
    schema = f"enrich_flights_{secrets.token_hex(4)}"
    asyncio.run(load(dsn, schema, data))
    try:
        yield schema
    finally:
        statement = f"DROP SCHEMA {schema} CASCADE"
        try:
            if not keep:
                asyncio.run(execute(dsn, statement))
        except Exception as error:
            failed = f"\nThe schema could not be dropped ({type(error).__name__}); please do so:"
            print(failed, statement, file=sys.stderr)


async def load(dsn: str, schema: str, data: dict[str, pa.Table]) -> None:
    """Make the schema and fill it, all or nothing."""
    import io

    from pyarrow import csv

    try:
        connection = await connect(dsn)
        try:
            async with connection.transaction():
                await connection.execute(f"CREATE SCHEMA {schema}")
                for name, columns in TABLES.items():
                    await connection.execute(f"CREATE TABLE {schema}.{name} ({columns})")
                    rows = io.BytesIO()
                    csv.write_csv(data[name], rows)
                    rows.seek(0)
                    await connection.copy_to_table(name, schema_name=schema, source=rows, format="csv", header=True)
                    await connection.execute(f"ANALYZE {schema}.{name}")
        finally:
            await connection.close(timeout=5)
    except Exception as error:
        # The error's own words, and its cause, might contain the password.
        raise ProblemError(f"the tables could not be loaded into the PostgreSQL ({type(error).__name__})") from None


async def execute(dsn: str, statement: str) -> None:
    """Run one statement."""
    connection = await connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close(timeout=5)


async def connect(dsn: str) -> Any:
    """A connection for loading and dropping tables. Lookups have their own."""
    import asyncpg

    return await asyncpg.connect(dsn, timeout=10, command_timeout=60)


@contextlib.contextmanager
def output(path: Path, replace: bool) -> Iterator[Path]:
    """Yields a temporary path beside `path`. If it still exists at the end, it is removed."""
    if path.exists() and not replace:
        raise ProblemError(f"{path} exists already; name another --output, or remove it")
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        part.rmdir()
    except OSError as error:
        raise ProblemError(f"nothing can be written to {path.parent}: {error.strerror}") from error
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def commit(part: Path, path: Path) -> None:
    """Move the written files to their place."""
    if path.exists():
        shutil.rmtree(path)
    part.rename(path)


def show(written: DataFrame) -> None:
    """Print a sample of rows."""
    print()
    written.orderBy("time_hour", "sched_dep_time", "carrier", "flight").selectExpr(
        "date_format(time_hour, 'MM-dd HH:mm') AS hour_utc",
        "concat(carrier, ' ', flight) AS flight",
        "tailnum",
        "plane_year",
        "plane_manufacturer",
        "plane_model",
        "origin",
        "dest",
        "dest_name",
        "temp",
        "round(wind_speed, 1) AS wind_speed",
    ).show(10, truncate=18)


def show_figures(metrics: dict[str, EnrichmentMetrics]) -> None:
    """Print the figures of each lookup."""
    columns = "{:<10}{:>10}{:>10}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}"
    print(columns.format("lookup", "rows", "found", "missing", "calls", "p50 ms", "p95 ms", "p99 ms", "max ms"))
    for name, collected in metrics.items():
        s = collected.statistics()
        latency = (f"{seconds * 1000:.1f}" for seconds in (s.latency.p50, s.latency.p95, s.latency.p99, s.latency.max))
        print(columns.format(name, f"{s.rows:,}", f"{s.found:,}", f"{s.missing:,}", f"{s.calls:,}", *latency))
    print()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="enrich_flights", description="Enrich the flights of New York in 2013 with three tables of a PostgreSQL."
    )
    parser.add_argument(
        "--dsn",
        help="use this PostgreSQL, postgresql://user:password@host:port/database, instead of one started for it; a "
        "schema is made there, and dropped at the end (the password may also come from PGPASSWORD or ~/.pgpass)",
    )
    parser.add_argument("--keep", action="store_true", help="with --dsn: do not drop the schema")
    parser.add_argument("--rows", type=positive, help="the number of flights (default: all 336,776)")
    parser.add_argument(
        "--output",
        type=lambda text: Path(text).resolve(),
        default=DEFAULT_OUTPUT,
        help=f"where to write the Parquet; it must not exist (default: {DEFAULT_OUTPUT}, which is replaced)",
    )
    options = parser.parse_args(arguments)
    if options.keep and options.dsn is None:
        parser.error("--keep goes with --dsn: a PostgreSQL started for the demo ends with it")
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
