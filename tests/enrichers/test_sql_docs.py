"""The examples of docs/sources.md about SQL run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.enrichers.helpers import opened
from tests.pages import run_programs


@pytest.mark.spark
async def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    flights = spark.createDataFrame([("N10156",), ("XXX",)], "tailnum string").coalesce(1)
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            CREATE TABLE planes (tailnum TEXT PRIMARY KEY, year INTEGER, seats INTEGER);
            INSERT INTO planes VALUES ('N10156', 2004, 55), ('N102UW', 1998, 182);
            CREATE TABLE weather (origin TEXT, temp REAL);
            INSERT INTO weather VALUES ('JFK', 1.5), ('JFK', 2.5);
        """)
    names = run_programs("sources.md", "SQL databases", URL=f"sqlite+aiosqlite:///{path}", flights=flights, os=os)
    rows = await asyncio.to_thread(names["flights_with_planes"].collect)
    assert [tuple(row) for row in rows] == [("N10156", 2004, 55), ("XXX", None, None)]
    async with opened(names["latest"]) as latest:
        assert await latest.lookup("JFK") == {"temp": 2.5}
