"""The examples of docs/sources.md about SQL run, and its table of options is that of the code."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from enrichers import SqlEnricher
from tests.pages import run_programs, section_of

TEXT = section_of("sources.md", "SQL databases")


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
    await names["latest"].open()
    assert await names["latest"].lookup("JFK") == {"temp": 2.5}
    await names["latest"].close()


def test_every_option_is_documented_with_its_default() -> None:
    documented = {row[0]: row[1] for row in re.findall(r"\| `([a-z_]+)` \| (.*?) ?\|", TEXT)}
    parameters = inspect.signature(SqlEnricher).parameters
    assert [*documented][: len(parameters)] == [*("url", "table", "query", "key", "columns"), *[*parameters][5:]]
    assert {*parameters} <= {*documented}
    for name in ("pool_size", "max_batch", "connect_timeout"):
        assert float(documented[name].removesuffix(" s")) == parameters[name].default
