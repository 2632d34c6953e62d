"""The examples of docs/postgres.md run, and its table of types is that of the code."""

from __future__ import annotations

import asyncio
import re

import pytest
from pyspark.sql import SparkSession

from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.pages import DOCS, run_programs

TEXT = (DOCS / "postgres.md").read_text(encoding="utf-8")


@pytest.mark.spark
async def test_the_examples_run(spark: SparkSession, database: Database) -> None:
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
    await names["latest"].open()
    assert await names["latest"].lookup("JFK") == {"temp": 2.5, "wind_speed": 3.0}
    await names["latest"].close()


def test_every_option_is_documented_with_its_default() -> None:
    documented = {row[0]: row[1] for row in re.findall(r"\| `(\w+)` \| (.*?) ?\|", TEXT)}
    fields = PostgresEnricher.__dataclass_fields__
    options = [name for name in fields if not name.startswith("_")]
    assert [*documented][: len(options)] == [
        *("dsn", "table", "query", "key", "columns"),
        *("pool_size", "max_batch", "connect_timeout", "statement_cache_size"),
    ]
    assert {*options} <= {*documented}
    for name in ("pool_size", "max_batch", "connect_timeout", "statement_cache_size"):
        assert float(documented[name].removesuffix(" s")) == fields[name].default
