"""What `SqlEnricher` finds in MariaDB: every digit, every character, and 199 of 200 keys if a row is bad."""

from __future__ import annotations

import pytest

from asyncio_operator import ConfigurationError
from enrichers import SqlEnricher
from tests.enrichers.test_sql_mariadb import opened
from tests.mariadb_service import MariadbServer, mariadb

__all__ = ["mariadb"]

FLOATS = [
    "0.1",
    "16777216",
    "-16777215",
    "1234567",
    "123456.789",
    "1e-10",
    "3.4e38",
    "20240229",
    "0.30000001",
    "-1e-38",
]


@pytest.mark.parametrize("kind", ["float", "float(24)", "float unsigned", "float(30,4)", "double", "real"])
@pytest.mark.parametrize("schema", [None, "id {0}, v {0}, n int"])
async def test_X12_every_digit_of_a_float_comes_and_finds_its_row(
    mariadb: MariadbServer, kind: str, schema: str | None
) -> None:
    fits = [n for n in FLOATS if not (n[0] == "-" and "unsigned" in kind) and not ("e" in n and "," in kind)]
    rows = [f"({number}, {number}, {i})" for i, number in enumerate(fits)]
    await mariadb.execute(
        "SET SESSION sql_mode = ''",
        f"CREATE OR REPLACE TABLE fl (id {kind}, v {kind}, n int)",
        f"INSERT INTO fl VALUES {', '.join(rows)}",
    )
    stored = await mariadb.fetch("SELECT id + 0e0, n FROM fl")
    with_schema = {} if schema is None else {"schema": schema.format("double")}
    async with opened(mariadb, table="fl", columns=["v", "n"], **with_schema) as enricher:
        found = await enricher.lookup_many([key for key, _ in stored])
        assert found == [{"v": key, "n": n} for key, n in stored]
        if kind == "float":
            assert await enricher.lookup(0.1) is None, "the server finds nothing either: no float is 0.1"
    async with opened(mariadb, table="fl", key=["n", "id"], columns=["v"], **with_schema) as enricher:
        assert await enricher.lookup_many([(n, key) for key, n in stored]) == [{"v": key} for key, _ in stored]


async def test_X12_a_query_that_would_cut_a_float_is_refused_with_what_works(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE fq (id int, v float)", "INSERT INTO fq VALUES (1, 16777216)")
    query = "SELECT id, {} FROM fq WHERE id IN :keys"
    advised = ""
    for kind in ("double", "float", "decimal(20,2)"):
        with pytest.raises(ConfigurationError, match="sends six digits only") as raised:
            SqlEnricher(mariadb.url, query=query.format("v"), key="id", schema=f"id int, v {kind}").schema()
        advised = str(raised.value)
    advised = advised.partition("as in ")[2]
    async with opened(mariadb, table=None, query=query.format(advised), schema="id int, v double") as enricher:
        assert await enricher.lookup(1) == {"v": 16777216.0}


HELD = {
    "utf8mb3": "aé日",
    "latin1": "aé\x81€",
    "ascii": "a",
    "cp1251": "aж",
    "gbk": "aé日",
    "ucs2": "aé日",
    "utf16": "aé日\U0001f600",
    "koi8r": "aж",
    "sjis": "a日",
    "utf8mb4": "aé日\U0001f600",
}


@pytest.mark.parametrize("characters", HELD)
async def test_L9_a_text_that_the_character_set_of_its_column_cannot_hold_is_a_miss(
    mariadb: MariadbServer, characters: str
) -> None:
    keys = ["a", "é", "日", "\U0001f600", "ж", "\x81", "€", "\0", "x" * 100_000, "\ud800"]
    held = [key for key in keys if key in HELD[characters]]
    rows = ", ".join(f"(CONVERT(X'{key.encode().hex()}' USING utf8mb4), {i})" for i, key in enumerate(held))
    kind = f"varchar(20) CHARACTER SET {characters}"
    await mariadb.execute(f"CREATE OR REPLACE TABLE cs (id {kind}, v int, INDEX (id))", f"INSERT INTO cs VALUES {rows}")
    expected = [{"v": held.index(key)} if key in held else None for key in keys]
    query = {"table": None, "query": "SELECT id, v FROM cs WHERE id IN :keys", "schema": "id string, v int"}
    for options in ({"table": "cs"}, query):
        async with opened(mariadb, **options) as enricher:
            assert await enricher.lookup_many(keys) == expected
            assert [await enricher.lookup(key) for key in keys] == expected
    async with opened(mariadb, table="cs", key=["id", "v"], columns=["v"]) as enricher:
        pairs = [(key, held.index(key) if key in held else 0) for key in keys]
        assert await enricher.lookup_many(pairs) == expected


@pytest.mark.parametrize("charset", ["utf8", "utf8mb3", "utf8mb4"])
async def test_X12_every_character_comes_whatever_mysql_calls_utf8(mariadb: MariadbServer, charset: str) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE em (id varchar(9), v varchar(9)) CHARACTER SET utf8mb4")
    await mariadb.execute("INSERT INTO em VALUES ('\U0001f600', 'a'), ('b', '\U0001f600')")
    asked, expected = ["\U0001f600", "b", "\U0001f601"], [{"v": "a"}, {"v": "\U0001f600"}, None]
    for options in ({"url": f"{mariadb.url}?charset={charset}"}, {"connect_args": {"charset": charset}}):
        async with opened(mariadb, table="em", **options) as enricher:
            assert await enricher.lookup_many(asked) == expected
    with pytest.raises(ConfigurationError, match=r"character set latin1.*charset=utf8mb4"):
        SqlEnricher(f"{mariadb.url}?charset=latin1", table="em", key="id").schema()
