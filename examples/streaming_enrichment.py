"""Flights that left New York in 2013 as a stream of files, enriched with their planes, written to Parquet, in Spark.

    python -m examples.streaming_enrichment
    python -m examples.streaming_enrichment --rows 50000 --directory /tmp/flights

Each micro-batch reads two files and prints a line about its lookups. A plane is looked up once and then found in the
cache, and connections stay open, because both belong to the Python workers and not to a micro-batch. With `--directory`
the files, the output and the checkpoint are kept there. Kill the program at any time and start it again with the same
directory: it continues, and every flight is in the output once. `enriched`, below, does the enrichment. The rest starts
a PostgreSQL and Spark, writes files, and prints. Data: `data/`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from examples.enrich_flights import DSN_VARIABLE, database, read_data, tables
from examples.stage import (
    ProblemError,
    Stage,
    cause,
    embedded_postgres,
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
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from asyncio_operator.spark import EnrichmentMetrics, EnrichmentStatistics

FILES_PER_MICRO_BATCH = 2
"""One for each of Spark's two cores."""

ROWS_PER_FILE = 10_000

LINE = "{:>6}{:>10}{:>10}{:>10}{:>9}{:>12}{:>9}{:>9}{:>9}"

LISTENER_TIMEOUT = 10.0
"""Seconds within which Spark reports the last micro-batch."""


def enriched(flights: DataFrame, schema: str, metrics: EnrichmentMetrics) -> DataFrame:
    """The flights with their planes, one row for each flight. The result for a stream is a stream."""
    from asyncio_operator import Cache, Retry
    from asyncio_operator.spark import enrich
    from enrichers import PostgresEnricher

    planes = PostgresEnricher(
        database,
        table=(schema, "planes"),
        key="tailnum",
        columns=["year", "manufacturer", "model", "seats"],
    )
    return enrich(
        flights,
        planes,
        on="tailnum",
        prefix="plane_",
        # A miss is cached for a minute, so a plane that is added later is found. Known planes are cached for an hour.
        cache=Cache(expire_after_write=3600, missing_ttl=60),
        # A restart of the database does not end the query.
        retry=Retry(max_attempts=5),
        metrics=metrics,
    )


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    """The files of a directory as a stream. A stream of files needs its schema."""
    schema = spark.read.parquet(str(directory)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_MICRO_BATCH).parquet(str(directory))


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    own = stage.enter(workspace("streaming-enrichment"))
    directory: Path = options.directory or own
    with step("Reading the flights"):
        data = read_data()
    with step("Starting PostgreSQL, and loading planes into it"):
        os.environ[DSN_VARIABLE] = stage.enter(embedded_postgres(own))
        schema = stage.enter(tables(os.environ[DSN_VARIABLE], data, keep=True))
    with step("Starting Spark"):
        spark = stage.enter(local_spark(own, spark__app__name="streaming-enrichment"))
    if (directory / "in").exists():
        print(f"Going on with the files in {directory / 'in'}")
    else:
        with step("Writing flights into files"):
            write_files(data["flights"].slice(0, options.rows), directory / "in")
    query(spark, schema, directory)
    written = spark.read.parquet(str(directory / "out"))
    show(written)
    print(f"{written.count():,} flights are in the output" + (f", {directory / 'out'}" if options.directory else "."))


def query(spark: SparkSession, schema: str, directory: Path) -> None:
    """Run the query until all files are done, and print a line for every micro-batch."""
    from pyspark.errors import StreamingQueryException

    from asyncio_operator.spark import EnrichmentMetrics

    metrics = EnrichmentMetrics(spark)
    reported = threading.Semaphore(0)

    def tell(progress: StreamingQueryProgress, s: EnrichmentStatistics) -> None:
        counts = (f"{n:,}" for n in (s.rows, s.found, s.missing, s.calls, s.cache_hits))
        times = (f"{seconds * 1000:.1f}" for seconds in (s.latency.p50, s.latency.p99))
        print(LINE.format(progress.batchId, *counts, *times, f"{progress.batchDuration / 1000:.1f}"), flush=True)
        reported.release()

    spark.streams.addListener(metrics.listener(tell))
    print(LINE.format("batch", "rows", "found", "missing", "calls", "from cache", "p50 ms", "p99 ms", "seconds"))
    started = time.perf_counter()
    running = (
        enriched(stream(spark, directory / "in"), schema, metrics)
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        # Read all existing files, then end. A query that runs on has processingTime="10 seconds" here.
        .trigger(availableNow=True)
        .start()
    )
    try:
        running.awaitTermination()
    except StreamingQueryException as error:
        raise ProblemError(f"the query failed: {cause(error)}") from error
    seconds = time.perf_counter() - started
    for _ in running.recentProgress:
        reported.acquire(timeout=LISTENER_TIMEOUT)
    print(metrics)
    print(f"{len(running.recentProgress)} micro-batches in {seconds:.1f} s")


def write_files(flights: pa.Table, directory: Path) -> None:
    """Write the numbered flights to files of `ROWS_PER_FILE` rows: all of them, or none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = flights.add_column(0, "number", pa.array(range(flights.num_rows), pa.int64()))
    part = directory.with_name("in.part")
    part.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, flights.num_rows, ROWS_PER_FILE)):
        pq.write_table(table.slice(start, ROWS_PER_FILE), part / f"{number:04}.parquet")
    part.rename(directory)


def show(written: DataFrame) -> None:
    """Print a sample of rows."""
    print()
    written.orderBy("number").selectExpr(
        "number",
        "date_format(time_hour, 'MM-dd HH:mm') AS hour_utc",
        "concat(carrier, ' ', flight) AS flight",
        "tailnum",
        "plane_year",
        "plane_manufacturer",
        "plane_model",
        "plane_seats",
    ).show(10, truncate=18)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="streaming_enrichment", description="Enrich a stream of flights with their planes from a PostgreSQL."
    )
    parser.add_argument("--rows", type=positive, help="the number of flights (default: all 336,776)")
    parser.add_argument(
        "--directory",
        type=lambda text: Path(text).resolve(),
        help="keep files, output and checkpoint here, and go on with what is here; otherwise nothing is kept",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
