"""The example with an HTTP service: no row is lost or wrong, whatever the service does, and few requests are made."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import AIRPORT, SMALL_BATCHES, enriched, service
from tests.examples.programs import frames
from tests.spark.helpers import setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 8_000


def test_every_flight_comes_out_once_with_its_airport_and_the_truth_about_its_lookup(spark: SparkSession) -> None:
    from asyncio_operator.spark import EnrichmentMetrics

    data = read_data()
    flights = flights_of(spark, data["flights"], ROWS)
    metrics = EnrichmentMetrics(spark)
    [(name, size)] = SMALL_BATCHES.items()
    with service(data["airports"]) as airports, setting(spark, name, size):
        result = enriched(flights, airports.url, metrics).toArrow()
    told = result["lookup"].to_pylist()
    expected = expected_flights(frames(), ROWS)
    assert result.num_rows == ROWS
    assert result.drop_columns("lookup").cast(expected.schema).equals(expected)
    is_known = [name is not None for name in expected["dest_name"].to_pylist()]
    assert [each["status"] for each in told] == ["found" if known else "missing" for known in is_known]
    assert {each["source"] for each in told} >= {"call", "cache"}
    for each in told:
        assert (each["attempts"] == 0) == (each["latency_ms"] is None) == (each["source"] == "cache")
        assert each["error_type"] is None
    statistics = metrics.statistics()
    assert (statistics.rows, statistics.missing, statistics.failures) == (ROWS, is_known.count(False), 0)
    # Of the requests 10 % are answered by 503, from a seed, and there are at least as many as airports.
    assert statistics.retries > 0
    keys = len(set(expected["dest"].to_pylist()))
    assert keys < len(airports.requests) < ROWS / 10
    assert statistics.calls < ROWS / 10


def expected_flights(data: dict[str, pd.DataFrame], rows: int) -> pa.Table:
    """What a join in pandas gives."""
    airports = data["airports"][["faa", *AIRPORT]]
    airports.columns = ["dest", *(f"dest_{name}" for name in AIRPORT)]
    joined = data["flights"].head(rows).merge(airports, on="dest", how="left")
    return pa.Table.from_pandas(joined, preserve_index=False).replace_schema_metadata(None)


def test_it_tells_what_became_of_the_lookups_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("enrich_from_http", "--rows", "3000")
    assert re.search(r"^\|01-01 10:00\|UA 1545\| IAH\|George Bush", printed, re.MULTILINE)
    counts = re.findall(r"^\|\s*(found|missing)\|\s*(call|cache|shared)\|\s*(\d+)\|\s*(\d+)\|$", printed, re.MULTILINE)
    assert sum(int(count) for *_, count in counts) == 3000
    assert "3,000 rows, " in printed
    assert "The service got " in printed
