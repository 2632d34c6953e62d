"""Names and keys that somebody chose with bad intent, or without any: no injection, a clear error of one key."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, EnricherError
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import opened
from tests.servers import PostgresServer

NAMES = [
    '"; DROP TABLE victim; --',
    "'; DROP TABLE victim; --",
    'a"b',
    "a'b",
    "a\\b",
    "a b",
    "a\nb",
    "$1",
    "{0}",
    "{",
    "%s",
    ":x",
    "select",
    "Ünïcødé 日本",
    "\U0001f600",
    "a.b",
    "-- ",
    "/*",
    "k0",
    "t",
    "problem",
    "__class__",
    "x" * 63,
]

VALUES = [
    "'; DROP TABLE victim; --",
    "') OR 1=1 --",
    "{a,b}",
    "NULL",
    "",
    '"',
    "'",
    "\\",
    "\\x00",
    "a\nb\rc\t",
    "$1",
    "Ünïcødé 日本 \U0001f600",
    "\u200b\u202e",
    "a" * 1_000_000,
    "日" * 400_000,
]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_is_a_name_and_nothing_else(database: Database, name: str) -> None:
    """As a table, a key column and a column, of a table and of a query, for one key column and for two."""
    await database.execute("CREATE TABLE victim (id int)")
    table, column, value = quoted(name), quoted(name), quoted(f"{name}!"[-60:])
    await database.execute(f"CREATE TABLE {table} ({column} int, {value} numeric, w int)")
    await database.execute(f"INSERT INTO {table} VALUES (1, 2.5, 3)")
    added = f"{name}!"[-60:]
    query = f"SELECT * FROM {table} WHERE {column} = ANY ($1)"
    sources: list[dict[str, Any]] = [{"table": [name]}, {"query": query}]
    for source in sources:
        async with database.enricher(key=name, columns=[added, "w"], **source) as enricher:
            assert await enricher.lookup_many([1, 2]) == [{added: pytest.approx(2.5), "w": 3}, None]
    async with database.enricher(table=[name], key=["w", name]) as enricher:
        assert await enricher.lookup((3, 1)) == {added: pytest.approx(2.5)}
    assert await database.fetch("SELECT count(*) FROM victim")


@pytest.mark.parametrize("name", ['"; DROP TABLE victim; --', "x\ny", "{0}", "no such"])
async def test_a_name_that_is_not_there_is_told_and_harms_nobody(database: Database, name: str) -> None:
    await database.execute("CREATE TABLE victim (id int, v int)")
    wrong: list[dict[str, Any]] = [
        {"table": [name], "key": "id"},
        {"table": "victim", "key": name},
        {"table": "victim", "key": "id", "columns": [name]},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError):
            PostgresEnricher(database.dsn, **options).schema()
    assert await database.fetch("SELECT count(*) FROM victim")


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32])
async def test_a_name_that_the_server_would_cut_finds_no_other_table(database: Database, name: str) -> None:
    shorter = name.encode()[:63].decode(errors="ignore")
    await database.execute(f"CREATE TABLE {quoted(shorter)} (id int, v int)")
    assert PostgresEnricher(database.dsn, table=[shorter], key="id").schema().names == ["v"]
    for table in ([name], [name, "t"], f"{name}.t"):
        with pytest.raises(ConfigurationError, match="of more than 63 bytes"):
            PostgresEnricher(database.dsn, table=table, key="id")


@pytest.mark.parametrize("source", ["table", "query", "two"])
async def test_every_key_is_a_value_and_nothing_else(database: Database, source: str) -> None:
    await database.execute("CREATE TABLE victim (id int); CREATE TABLE t (k text, l int DEFAULT 1, v int)")
    for number, value in enumerate(VALUES):
        await database.fetch("INSERT INTO t (k, v) VALUES ($1, $2)", value, number)
    options: dict[str, dict[str, Any]] = {
        "table": {"table": "t", "key": "k"},
        "query": {"query": "SELECT k, v FROM t WHERE k = ANY ($1)", "key": "k"},
        "two": {"table": "t", "key": ["k", "l"]},
    }
    async with database.enricher(**options[source], columns=["v"]) as enricher:
        asked = [(value, 1) if source == "two" else value for value in [*VALUES, *(f"{value}?" for value in VALUES)]]
        expected = [{"v": number} for number in range(len(VALUES))] + [None] * len(VALUES)
        assert await enricher.lookup_many(asked) == expected
        assert [await enricher.lookup(key) for key in asked] == expected
    assert await database.fetch("SELECT count(*) FROM victim")


UNHELD = ["a\0b", "\0", "\ud800", "a" * 1_000_000 + "\0"]
FOREIGN = ["日", "日本", "café😀", *(f"{number}日" for number in range(60))]
"""What LATIN1 lacks."""


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
async def test_L9_X12_a_text_that_the_database_cannot_hold_is_a_miss_and_others_come_as_they_are(
    postgres: PostgresServer, encoding: str
) -> None:
    """By rows and in columns, alone and among others. A query that refuses such a text is asked like a table."""
    row = {"v": "né 7", "w": ["é", None, "a7"]}
    await postgres.run(f"CREATE DATABASE foreign_texts ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    dsn = postgres.socket_dsn("foreign_texts")
    try:
        columns = "'é' AS k, 'é'::char(3) AS c, 1 AS l, 'né ' || 7 AS v, ARRAY['é', NULL, 'a7'] AS w"
        await postgres.run(f"CREATE TABLE t AS SELECT {columns}", database="foreign_texts")
        sources: list[dict[str, Any]] = [
            *({"table": "t", "key": key} for key in ("k", "c", ["l", "k"])),
            {"query": "SELECT k, v, w FROM t WHERE k = ANY ($1)", "key": "k"},
        ]
        for source in sources:
            two = isinstance(source["key"], list)
            async with opened(PostgresEnricher(dsn, **source, columns=["v", "w"], pool_size=1)) as enricher:
                for texts in (["é"], FOREIGN, ["é", *FOREIGN], [UNHELD[0]], ["x", *UNHELD, "é", *FOREIGN]):
                    keys = [(1, text) if two else text for text in texts]
                    expected = [row if text == "é" else None for text in texts]
                    assert await enricher.lookup_many(keys) == expected
                    assert [await enricher.lookup(key) for key in keys] == expected
                    held = pa.array([text for text in texts if text != "\ud800"], pa.string())
                    if two:
                        numbers = pa.array([1] * len(held), pa.int32())
                        held = pa.StructArray.from_arrays([numbers, held], names=["l", "k"])
                    table = await enricher.lookup_columns(held)
                    assert table.select(["v", "w"]).to_pylist() == [row] * texts.count("é")
        async with opened(PostgresEnricher(dsn, table="t", key="l", columns=["v", "w"])) as enricher:
            table = await enricher.lookup_columns(pa.array(range(100), pa.int32()))
            assert table.select(["v", "w"]).to_pylist() == [row], "the server answers in columns"
    finally:
        await postgres.run("DROP DATABASE foreign_texts (FORCE)")


async def test_X14_text_of_a_row_that_is_no_text_is_an_error_of_that_key_and_no_miss(database: Database) -> None:
    """The server says the same of it as of a key."""
    query = r"SELECT k, convert_from('\x53fc', 'UTF8') AS v FROM unnest($1::text[]) AS k WHERE k <> ''"
    async with database.enricher(query=query, key="k", pool_size=1) as enricher:
        with pytest.raises(EnricherError, match="invalid byte sequence") as caught:
            await enricher.lookup("é")
        assert (caught.value.retryable, caught.value.any_key, caught.value.code) == (False, False, "22021")


async def test_L9_a_number_of_more_digits_than_a_numeric_has_is_a_miss_and_no_other_number(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT k, 1 AS v FROM unnest(ARRAY[1, 10::numeric ^ 131071]) AS k")
    async with database.enricher(table="t", key="k") as enricher:
        keys = [1, 10**131_071, 10**131_072, 10**262_144, Decimal("1E+262144"), Decimal("1E-16383"), math.inf]
        assert await enricher.lookup_many(keys) == [{"v": 1}, {"v": 1}, None, None, None, None, None]


async def test_a_query_with_a_zero_byte_is_refused(database: Database) -> None:
    with pytest.raises(ConfigurationError):
        PostgresEnricher(database.dsn, query="SELECT 1 AS id\0", key="id").schema()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=20, unique=True))
async def test_any_text_finds_itself(database: Database, texts: list[str]) -> None:
    query = "SELECT k, k AS v FROM unnest($1::text[]) AS k"
    async with opened(PostgresEnricher(database.dsn, query=query, key="k", pool_size=1)) as enricher:
        assert await enricher.lookup_many(texts) == [{"v": text} for text in texts]
