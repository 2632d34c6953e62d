"""A use of RDDs: calls for elements that are not rows, with any number of results each.

    .venv/bin/python examples/partitions.py
    .venv/bin/python examples/partitions.py --rows 20000

A service has data of airports. First `plan` computes the cost of enriching the flights that left New York in 2013 with
their destinations; the latency is measured on a few hundred flights. Then `map_partitions` requests each airport once,
with the function `Airports` below, which has its own client in every task. The rest starts the service and Spark, and
prints. Data: `data/`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from asyncio_operator import AsyncFunction, Cache, ExponentialBackoff, Retry
from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import rows_of
from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    import aiohttp
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from asyncio_operator.spark import EnrichmentPlan

LATENCY = 0.01
"""Seconds that the service takes for an answer."""

MEASURED = 500
"""Flights on which the latency is measured."""

Airport = tuple[str, str, float]
"""Code, name, and altitude in metres."""


class Airports(AsyncFunction[str, list[Airport]]):
    """The airport of a code, or none.

    Args:
        url: of the service. Only this is sent to the workers, which make the client.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make a client, once for each task."""
        import aiohttp

        self.client = aiohttp.ClientSession()

    async def invoke(self, code: str) -> list[Airport]:
        """One request."""
        assert self.client is not None
        async with self.client.get(f"{self.url}/rows/{code}") as response:
            if response.status == 404:
                return []
            response.raise_for_status()
            airport: dict[str, Any] = await response.json()
            return [(code, airport["name"], round(airport["alt"] * 0.3048, 1))]

    async def close(self) -> None:
        """Close the client, also when the task fails or is cancelled."""
        if self.client is not None:
            await self.client.close()


def airports_of(codes: RDD[str], url: str) -> RDD[Airport]:
    """The airports of codes. Unknown codes have none."""
    from asyncio_operator.spark import map_partitions

    return map_partitions(
        codes,
        Airports(url),
        flatten=True,  # each item of a list is a result
        mode="unordered",
        capacity=20,
        timeout=10.0,  # for a code, over all attempts
        retry=Retry(max_attempts=3, backoff=ExponentialBackoff(initial=0.05)),
    )


def planned(flights: DataFrame, url: str) -> EnrichmentPlan:
    """The plan of enriching the flights. Only the measurement sends requests to the service."""
    from asyncio_operator.spark import EnrichmentMetrics, enrich, plan
    from enrichers import HttpEnricher

    airports = HttpEnricher(url + "/rows/{faa}", key="faa", schema="name string, alt int")
    metrics = EnrichmentMetrics(flights.sparkSession)
    enrich(flights.limit(MEASURED), airports, on={"dest": "faa"}, metrics=metrics).collect()
    return plan(flights, airports, on={"dest": "faa"}, cache=Cache(), latency=metrics, capacity=20)


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("partitions"))
    with step("Reading the flights"):
        data = read_data()
    with step("Starting the service and Spark"):
        from asyncio_operator.testing import FakeService

        service = stage.enter(FakeService(rows_of(data["airports"]), latency=LATENCY))
        spark = stage.enter(local_spark(directory, spark__app__name="partitions"))
    with step("Handing the flights to Spark"):
        flights = flights_of(spark, data["flights"], options.rows).cache()
        flights.count()
    with step("Planning, without asking for more than a sample"), job(spark):
        expected = planned(flights, service.url)
    requests = len(service.requests)
    codes = flights.select("dest").distinct().rdd.map(lambda row: row.dest)
    with step("Asking for each airport once"), job(spark):
        found = sorted(airports_of(codes, service.url).collect())
    print(f"\nThe plan of an enrichment, for which the service got {requests:,} requests:\n{expected}\n")
    print(f"Asked with map_partitions: {len(service.requests) - requests:,} requests, {len(found):,} airports found.")
    for code, name, metres in sorted(found, key=lambda airport: -airport[2])[:5]:
        print(f"{code}  {metres:7,.1f} m  {name}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="partitions",
        description="Plan an enrichment of flights, and ask a service for their airports from an RDD.",
    )
    parser.add_argument("--rows", type=positive, help="the number of flights (default: all 336,776)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
