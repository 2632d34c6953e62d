"""The example with an RDD and a plan: the plan is right and costs a sample, and each airport is asked for once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from asyncio_operator.testing import FakeService
from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import rows_of
from examples.partitions import MEASURED, airports_of, planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 8_000


def test_the_plan_is_right_and_each_airport_is_asked_for_once(spark: SparkSession) -> None:
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
        found = airports_of(spark.sparkContext.parallelize(codes, 3), service.url).collect()
        assert sorted(request.path for request in service.requests) == [f"/rows/{code}" for code in codes]
    assert {code for code, _, _ in found} == set(codes) & set(known)
    assert ("DEN", "Denver Intl", 1655.4) in found


def test_it_tells_the_plan_and_the_airports_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("partitions", "--rows", "3000")
    assert re.search(r"^3,000 rows in \d+ tasks, 2 at once: 0 without a key, \d+ distinct", printed, re.MULTILINE)
    assert re.search(r"^Asked with map_partitions: \d+ requests, \d+ airports found\.$", printed, re.MULTILINE)
