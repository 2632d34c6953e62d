"""A use of RDDs: every flight of an RDD with its airport, from a service, three ways.

    python -m examples.partitions
    python -m examples.partitions --rows 20000

A service has data of airports. First `plan` computes the cost of enriching the flights that left New York in 2013 with
their destinations; the latency is measured on a few hundred flights. Then the flights get their airports: some of them
with plain `mapPartitions`, which waits for each answer, as many with `map_partitions` and 20 requests at once, and all
of them with a cache in each task, which asks for each airport once. In order there is one result for each element, so
`zip` joins the results to the flights. The rest starts the service and Spark, and prints. Data: `data/`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asyncio_operator import AsyncFunction, Cache, ExponentialBackoff, Retry
from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import rows_of
from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    import aiohttp
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row

    from asyncio_operator.spark import EnrichmentPlan

LATENCY = 0.03
"""Seconds that the service takes for an answer."""

MEASURED = 500
"""Flights on which the latency is measured."""

WAITED_FOR = 400
"""Flights that get their airports without a cache."""

Airport = tuple[str, float]
"""Name, and altitude in metres."""


class Airports(AsyncFunction[str, Airport | None]):
    """The airport of a code, or None.

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

    async def invoke(self, code: str) -> Airport | None:
        """One request."""
        assert self.client is not None
        async with self.client.get(f"{self.url}/rows/{code}") as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            return airport_of(await response.json())

    async def close(self) -> None:
        """Close the client, also when the task fails or is cancelled."""
        if self.client is not None:
            await self.client.close()


def airport_of(answer: Mapping[str, Any]) -> Airport:
    """What an answer of the service says."""
    return answer["name"], round(answer["alt"] * 0.3048, 1)


def one_by_one(codes: RDD[str], url: str) -> RDD[Airport | None]:
    """The airport of each code, with plain `mapPartitions`: each request waits for the one before it."""

    def ask(codes: Iterable[str]) -> Iterator[Airport | None]:
        for code in codes:
            try:
                with urllib.request.urlopen(f"{url}/rows/{code}", timeout=10.0) as response:
                    yield airport_of(json.load(response))
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                yield None

    return codes.mapPartitions(ask)


def airports_of(codes: RDD[str], url: str, cache: Cache | None = None) -> RDD[Airport | None]:
    """The airport of each code, in their order."""
    from asyncio_operator.spark import map_partitions

    return map_partitions(
        codes,
        Airports(url),
        capacity=20,
        timeout=10.0,  # for a code, over all attempts
        retry=Retry(max_attempts=3, backoff=ExponentialBackoff(initial=0.05)),
        cache=cache,
    )


def joined(flights: RDD[Row], url: str) -> RDD[tuple[Row, Airport | None]]:
    """Each flight with the airport of its destination."""
    return flights.zip(airports_of(flights.map(lambda flight: flight.dest), url, Cache()))


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
    few = flights.limit(WAITED_FOR).repartition(2).cache()
    few.count()
    codes = few.rdd.map(lambda flight: flight.dest)

    def timed(what: str, ask: Callable[[], list[Any]]) -> list[Any]:
        before, begun = len(service.requests), time.monotonic()
        with step(f"Asking {what}"), job(spark):
            answers = ask()
        lines.append(f"{what:34} {len(answers):9,} {len(service.requests) - before:9,} {time.monotonic() - begun:8.1f}")
        return answers

    lines = [f"{'asked':34} {'flights':>9} {'requests':>9} {'seconds':>8}"]
    timed("with plain mapPartitions", one_by_one(codes, service.url).collect)
    timed("with map_partitions", airports_of(codes, service.url).collect)
    pairs = timed("with map_partitions and a cache", joined(flights.rdd, service.url).collect)
    print(f"\nThe plan of an enrichment, for which the service got {requests:,} requests:\n{expected}\n")
    print("\n".join(lines))
    found = [(airport[1], flight.dest, airport[0]) for flight, airport in pairs if airport is not None]
    print(f"\n{len(found):,} of {len(pairs):,} flights have an airport. The highest of them:")
    for metres, code, name in sorted(set(found), reverse=True)[:5]:
        print(f"{code}  {metres:7,.1f} m  {name}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="partitions",
        description="Plan an enrichment of flights, and join an RDD of flights to their airports in three ways.",
    )
    parser.add_argument("--rows", type=positive, help="the number of flights (default: all 336,776)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
