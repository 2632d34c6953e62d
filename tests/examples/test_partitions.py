"""The example with an RDD and a plan: the plan is right and costs a sample, and each task asks for an airport once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from asyncio_operator import Cache
from asyncio_operator.testing import FakeService
from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import rows_of
from examples.partitions import MEASURED, airport_of, airports_of, joined, one_by_one, planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 8_000
JOINED = 1_000


def test_the_plan_is_right_and_each_flight_gets_its_airport(spark: SparkSession) -> None:
    data = read_data()
    known = rows_of(data["airports"])
    codes = sorted(set(data["flights"]["dest"][:ROWS].to_pylist()))
    flights = flights_of(spark, data["flights"], ROWS)
    with FakeService(known, latency=0.001) as service:
        told = planned(flights, service.url)
        assert (told.rows, told.null_keys, told.distinct_keys) == (ROWS, 0, len(codes))
        assert len(codes) <= told.cached_calls <= told.calls == told.lookups < ROWS / 10
        assert told.latency is not None
        assert told.cached_seconds is not None
        assert told.latency >= 0.001
        assert 0 < len(service.requests) <= MEASURED
        service.requests.clear()
        pairs = joined(flights.limit(JOINED).repartition(3).cache().rdd, service.url).collect()
        asked = Counter(request.path for request in service.requests)
    assert asked.keys() == {f"/rows/{flight.dest}" for flight, _ in pairs}
    assert max(asked.values()) <= 3  # once in each task
    assert len(pairs) == JOINED
    for flight, airport in pairs:
        row = known.get(flight.dest)
        assert airport == (None if row is None else airport_of(row))


def test_the_three_ways_give_the_same(spark: SparkSession) -> None:
    known = rows_of(read_data()["airports"])
    codes = spark.sparkContext.parallelize(["DEN", "LAX", "nowhere", "DEN"], 2)
    with FakeService(known, latency=0.001) as service:
        airports = one_by_one(codes, service.url).collect()
        assert airports_of(codes, service.url).collect() == airports
        assert airports_of(codes, service.url, Cache()).collect() == airports
    assert airports[0] == airports[3] == ("Denver Intl", 1655.4)
    assert airports[2] is None


def test_it_tells_the_plan_and_the_airports_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("partitions", "--rows", "3000")
    assert re.search(r"^3,000 rows in \d+ tasks, 2 at once: 0 without a key, \d+ distinct", printed, re.MULTILINE)
    assert re.search(r"^with plain mapPartitions +400 +400 ", printed, re.MULTILINE)
    assert re.search(r"^with map_partitions +400 +400 ", printed, re.MULTILINE)
    assert re.search(r"^with map_partitions and a cache +3,000 +\d{2,3} ", printed, re.MULTILINE)
