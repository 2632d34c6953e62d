"""Flights that left New York in 2013, enriched in Spark with their airports from a slow and unreliable HTTP service.

    python -m examples.enrich_from_http
    python -m examples.enrich_from_http --rows 20000

The service takes some milliseconds for an answer, and sometimes 100. It sometimes answers 503, and it answers 429 with
Retry-After to clients that send too many requests. Still, every flight gets its destination and the status of its
lookup. `enriched`, below, does the enrichment. The rest starts the service and Spark, and prints. Data: `data/`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from examples.enrich_flights import PARTITIONS, flights_of, read_data
from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from asyncio_operator.spark import EnrichmentMetrics
    from asyncio_operator.testing import FakeService

AIRPORT = ("name", "lat", "lon", "alt", "tzone")
"""The fields of an airport in the service's answers."""

REQUESTS_PER_SECOND = 100
"""The rate limit of the service."""

SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
"""Makes several batches from a few thousand rows, to show what the cache does."""


def enriched(flights: DataFrame, url: str, metrics: EnrichmentMetrics) -> DataFrame:
    """The flights with their destination and the source of the answer: one row for each flight, in the same order."""
    from asyncio_operator import Cache, ExponentialBackoff, RateLimit, Retry
    from asyncio_operator.spark import enrich
    from enrichers import HttpEnricher

    airports = HttpEnricher(
        url + "/rows/{faa}",
        key="faa",
        schema="name string, lat double, lon double, alt int, tzone string",
    )
    return enrich(
        flights,
        airports,
        on={"dest": "faa"},
        prefix="dest_",
        # For both tasks together: a little less than the 100 a second that the service allows.
        rate_limit=RateLimit(95),
        # After 503 a retry waits for the back-off, after 429 for Retry-After. 404 is a miss.
        retry=Retry(max_attempts=10, backoff=ExponentialBackoff(initial=0.02, maximum=1.0)),
        # For a key, all attempts and the waits between them included.
        timeout=30.0,
        # Airports seldom change, and an unknown one may be added soon.
        cache=Cache(expire_after_write=3600, missing_ttl=60),
        on_error="null",
        status_column="lookup",
        metrics=metrics,
    )


def service(airports: pa.Table, requests_per_second: int = REQUESTS_PER_SECOND) -> FakeService:
    """The service. Inside the `with` block it runs on a thread: ``GET /rows/JFK`` returns a JSON object."""
    from asyncio_operator.testing import FakeService

    def latency(random: random.Random) -> float:
        return 0.1 if random.random() < 0.05 else random.uniform(0.002, 0.008)

    return FakeService(
        rows_of(airports), latency=latency, errors={503: 0.1}, retry_after=None, rate_limit=requests_per_second
    )


def rows_of(airports: pa.Table) -> dict[str, Mapping[str, Any]]:
    """Airports by their codes, as JSON values."""
    return {row["faa"]: {name: row[name] for name in AIRPORT} for row in airports.to_pylist()}


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("enrich-from-http"))
    with step("Reading the flights"):
        data = read_data()
    with step("Starting the service and Spark"):
        airports = stage.enter(service(data["airports"]))
        spark = stage.enter(local_spark(directory, spark__app__name="enrich-from-http", **SMALL_BATCHES))
        from asyncio_operator.spark import EnrichmentMetrics
    metrics = EnrichmentMetrics(spark)
    with step("Handing the flights to Spark"):
        flights = flights_of(spark, data["flights"], options.rows).cache()
        count = flights.count()
    result = enriched(flights, airports.url, metrics).cache()
    started = time.perf_counter()
    with step(f"Enriching {count:,} flights in {PARTITIONS} partitions; tasks done:"), job(spark):
        result.count()
    seconds = time.perf_counter() - started
    show(result)
    print(metrics)
    print(f"The service got {len(airports.requests):,} requests, at most {airports.most_at_once} at once.")
    print(f"{count:,} rows in {seconds:.1f} s.")


def show(result: DataFrame) -> None:
    """Print a sample of rows, and a table of the outcomes of their lookups."""
    print()
    result.orderBy("time_hour", "sched_dep_time", "carrier", "flight").selectExpr(
        "date_format(time_hour, 'MM-dd HH:mm') AS hour_utc",
        "concat(carrier, ' ', flight) AS flight",
        "dest",
        "dest_name",
        "round(dest_lat, 2) AS dest_lat",
        "round(dest_lon, 2) AS dest_lon",
        "lookup.status",
        "lookup.source",
        "lookup.attempts",
        "round(lookup.latency_ms, 1) AS latency_ms",
    ).show(10, truncate=18)
    columns = ("lookup.status", "lookup.source", "lookup.attempts")
    result.groupBy(*columns).count().orderBy("status", "source", "attempts").show(50)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="enrich_from_http", description="Enrich flights with airports from a slow, failing, limiting HTTP service."
    )
    parser.add_argument("--rows", type=positive, help="the number of flights (default: all 336,776)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
