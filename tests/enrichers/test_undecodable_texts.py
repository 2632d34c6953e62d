"""Stored texts whose bytes are not of their encoding: the error of their key names the column, its bytes and a way that
works. No other key pays for it, and a key that the database cannot hold stays a miss."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.lookup import Lookup
from enrichers import PostgresEnricher, SqlEnricher
from tests.servers import PostgresServer

BAD = "convert_from('\\x53fcdf', 'SQL_ASCII')"


@pytest.fixture
async def dsn(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database in SQL_ASCII. The key 7 has text in LATIN1, 8 in UTF-8, and both an ASCII one."""
    server = await asyncpg.connect(postgres.dsn)
    await server.execute("CREATE DATABASE undecodable ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    connection = await asyncpg.connect(postgres.socket_dsn("undecodable"))
    await connection.execute(
        "CREATE TABLE t AS SELECT i AS id, 'k' || i AS k, 'plain' AS a, '\\u0008 ' || i AS \"v %\" "
        "FROM generate_series(1, 100) i"
    )
    await connection.execute(f'UPDATE t SET "v %" = {BAD} WHERE id = 7; UPDATE t SET "v %" = \'Süß\' WHERE id = 8')
    await connection.close()
    yield postgres.socket_dsn("undecodable")
    await server.execute("DROP DATABASE undecodable (FORCE)")
    await server.close()


async def answers(enricher: PostgresEnricher | SqlEnricher, keys: list[object]) -> list[object]:
    async with Lookup(enricher) as lookup:
        return await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("key", ["id", "k", ["k", "id"]])
async def test_X12_text_of_postgres_that_is_not_utf8_is_an_error_of_its_key_that_says_what_to_do(
    dsn: str, key: str | list[str], count: int
) -> None:
    keys: list[object] = [7, *range(8, 7 + count)] if key == "id" else [f"k{n}" for n in range(7, 7 + count)]
    if isinstance(key, list):
        keys = [(f"k{n}", n) for n in range(7, 7 + count)]
    bad, *others = await answers(PostgresEnricher(dsn, table="t", key=key, columns=["a", "v %"]), keys)
    assert all(isinstance(row, dict) for row in others[:93])
    assert isinstance(bad, EnricherError)
    assert (bad.retryable, bad.any_key, bad.code) == (False, False, "22021")
    text = str(bad)
    assert f"(table=\"t\"), key {keys[0]!r}: the column 'v %' holds b'S\\xfc\\xdf'" in text
    assert "cannot take" not in text
    expressions = re.findall(r"(?:as|as bytes,) (convert\w*\(.*?\) AS \"v %\")", text)
    assert len(expressions) == 2, text
    for expression, value in zip(expressions, [b"S\xfc\xdf", "Süß"], strict=True):
        query = f"SELECT id, {expression} FROM t WHERE id = ANY ($1)"
        rows = await answers(PostgresEnricher(dsn, query=query, key="id"), [7, 1])
        other = "\\u0008 1"
        assert rows == [{"v %": value}, {"v %": other if isinstance(value, str) else other.encode()}]
    rest = PostgresEnricher(dsn, table="t", key="id", columns=["a"])
    assert await answers(rest, [7]) == [{"a": "plain"}]


async def test_L9_a_key_that_the_database_cannot_hold_is_a_miss_beside_text_that_cannot_be_read(dsn: str) -> None:
    found = await answers(PostgresEnricher(dsn, table="t", key="k", columns=["v %"]), ["k7", "k\0", "é", "k1"])
    assert [type(one) for one in found] == [EnricherError, type(None), type(None), dict]


@pytest.mark.parametrize(
    "value", ["convert_from('\\x53fc', 'UTF8')", "(('{\"a\": \"\\u0000\"}' || left(k, 0))::json) ->> 'a'"]
)
async def test_X12_text_that_a_query_cannot_compute_is_not_called_a_key(postgres: PostgresServer, value: str) -> None:
    query = f"SELECT k, 1 AS one, {value} AS v FROM unnest($1::text[]) AS k WHERE k <> ''"
    for key in ("é", "x"):
        [bad] = await answers(PostgresEnricher(postgres.dsn, query=query, key="k"), [key])
        assert f"key {key!r}: a text of its rows cannot be sent as UTF-8 (" in str(bad)


async def test_X12_a_client_encoding_that_is_not_utf8_is_refused(dsn: str) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        with pytest.raises(ConfigurationError, match=r"client_encoding is not UTF8.*: leave client_encoding out of it"):
            PostgresEnricher(f"{dsn}&client_encoding={encoding}", table="t", key="id")
    for encoding in ("utf-8", "UTF8", "'utf8'"):
        enricher = PostgresEnricher(f"{dsn}&client_encoding={encoding}", table="t", key="id")
        assert enricher.schema().names == ["k", "a", "v %"]


async def test_X12_the_same_through_sqlalchemy(dsn: str, postgres: PostgresServer) -> None:
    url = postgres.tcp_dsn("undecodable").replace("postgresql://", "postgresql+asyncpg://")
    bad, good = await answers(SqlEnricher(url, table="t", key="id", columns=["v %"]), [7, 8])
    assert good == {"v %": "Süß"}
    assert "table='t'), key 7: a text of its rows is not UTF-8" in str(bad)
    assert await answers(SqlEnricher(url, table="t", key="k", columns=["id"]), ["k\0", "k7"]) == [None, {"id": 7}]
    found = re.search(r"as in (convert_from.* AS v) ", str(bad))
    assert found is not None
    expression = re.sub(r"\bv\b", '"v %"', found[1])
    query = f"SELECT id, {expression} FROM t WHERE id IN :keys"
    enricher = SqlEnricher(url, query=query, key="id", schema="id int, `v %` string")
    assert await answers(enricher, [7]) == [{"v %": "Süß"}]


async def test_X12_text_of_sqlite_that_is_not_utf8_is_an_error_of_its_key_that_says_what_to_do(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE t (id INTEGER, v TEXT)")
        connection.execute("INSERT INTO t VALUES (7, CAST(x'53fcdf' AS TEXT)), (8, 'Süß')")
    connection.close()
    url = f"sqlite+aiosqlite:///{tmp_path / 't.db'}"
    bad, good = await answers(SqlEnricher(url, table="t", key="id"), [7, 8])
    assert good == {"v": "Süß"}
    assert isinstance(bad, EnricherError)
    assert (bad.retryable, bad.any_key) == (False, False)
    text = str(bad)
    assert "table='t'), key 7: a text of its rows is not UTF-8" in text
    found = re.search(r"CAST\((\w+) AS BLOB\) AS \1", text)
    assert found, text
    query = "SELECT id, CAST(v AS BLOB) AS v FROM t WHERE id IN :keys"
    enricher = SqlEnricher(url, query=query, key="id", schema="id long, v binary")
    assert await answers(enricher, [7, 8]) == [{"v": b"S\xfc\xdf"}, {"v": "Süß".encode()}]
