"""The examples of docs/postgres.md run."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import SparkSession

from tests.enrichers.conftest import Database
from tests.enrichers.helpers import opened
from tests.pages import run_programs


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
    async with opened(names["latest"]) as latest:
        assert await latest.lookup("JFK") == {"temp": 2.5, "wind_speed": 3.0}
