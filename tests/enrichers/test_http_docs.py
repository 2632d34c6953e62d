"""The examples of docs/http.md run, and its table of statuses is that of the code."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.testing import FakeRequest, FakeService
from enrichers.http.errors import cause_of_status
from tests.enrichers.helpers import failure, opened
from tests.pages import DOCS, run_programs

TEXT = (DOCS / "http.md").read_text(encoding="utf-8")

JFK = {"name": "Kennedy", "lat": 40.6, "lon": -73.8}


def api(sent: FakeRequest) -> Any:
    """The service of the page."""
    match (sent.path, sent.query):
        case ("/airports/JFK" | "/airports/LGA", _):
            return JFK
        case ("/airports", {"codes": ["JFK,XXX"]}):
            return {"JFK": JFK}
        case ("/airports", _):
            return {"airports": [{"name": code} for code in sent.json()["codes"]]}
        case ("/weather/JFK", {"at": ["5"], "units": ["metric"]}):
            return {"temp": 1.5, "wind": 7}
        case ("/addresses/7", _):
            return {"zip": 12345, "street": "Main"}
        case ("/graphql", _):
            return {"data": {"airport": JFK | {"name": sent.json()["variables"]["code"]}}}
        case ("/quotes/ABC", _):
            return {"quote": {"price": 1.5}}
        case ("/quotes/XYZ", _):
            return {"error": "busy"}
    return None


@pytest.mark.spark
async def test_the_examples_run(spark: SparkSession) -> None:
    flights = spark.createDataFrame([("JFK",), ("XXX",)], "dest string").coalesce(1)
    async with FakeService(handler=api) as service:
        names = run_programs("http.md", API=service.url, flights=flights)
        rows = await asyncio.to_thread(names["flights_with_airports"].collect)
        assert [(row.dest, row.name) for row in rows] == [("JFK", "Kennedy"), ("XXX", None)]
        expected: dict[str, tuple[Any, Any]] = {
            "airports": ("JFK", JFK),
            "weather": (("JFK", 5), {"temp": 1.5, "wind": 7.0}),
            "addresses": (7, {"zip": "12345", "street": "Main"}),
            "graph": ("EWR", JFK | {"name": "EWR"}),
            "quotes": ("ABC", {"price": 1.5}),
        }
        for name, (key, row) in expected.items():
            async with opened(names[name]) as enricher:
                assert await enricher.lookup(key) == row
        async with opened(names["quotes"]) as quotes:
            error = await failure(quotes, "XYZ")
        assert "the exchange says busy" in str(error)
        assert error.retryable is True
        for name, answers in {"many": [JFK, None], "posted": [{"name": "JFK"}, {"name": "XXX"}]}.items():
            async with opened(names[name]) as enricher:
                assert await enricher.lookup_many(["JFK", "XXX"]) == answers
        assert service.requests[-1].method == "POST"
    assert names["topics"].weigh(["three words here"]) == {"tokens": 25}


def test_the_table_of_statuses_is_that_of_the_code() -> None:
    checked = []
    for row, retryable, overload in re.findall(
        r"^\| ([\d, ]+)\S* .*?\| (True|False) \| (True)? ?\|", TEXT, re.MULTILINE
    ):
        for status in re.findall(r"\d+", row):
            cause = cause_of_status(int(status))
            assert (cause.retryable, cause.overload) == (retryable == "True", overload == "True"), status
            checked.append(status)
    assert len(checked) == 14
