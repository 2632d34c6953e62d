"""What the message of a `ConfigurationError` suggests for a type is run as it is written, and finds the rows."""

from __future__ import annotations

import ast
import math
import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from enrichers import PostgresEnricher, SqlEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import in_sqlite, opened
from tests.enrichers.test_postgres_columns import MISSES, in_columns
from tests.enrichers.test_postgres_lookup import KEYS as HELD
from tests.enrichers.test_postgres_lookup import TYPES as KEY_TYPES
from tests.mariadb_service import MariadbServer, mariadb

__all__ = ["mariadb"]

# -- PostgreSQL


UNUSABLE = [
    ("time", "'10:00:00.5'"),
    ("timetz", "'10:00+02'"),
    ("interval", "'1 day 02:00'"),
    ("inet", "'10.0.0.1/8'"),
    ("cidr", "'10.0.0.0/8'"),
    ("macaddr", "'08:00:2b:01:02:03'"),
    ("point", "'(1,2)'"),
    ("box", "'(1,2),(0,0)'"),
    ("money", "12.5"),
    ("tsvector", "'a b'"),
    ("int4range", "'[1,5)'"),
    ("int4multirange", "'{[1,2)}'"),
    ("bit(4)", "'1010'"),
    ("varbit", "'11'"),
    ("oid", "1"),
    ("regclass", "'pg_class'"),
    ("pair", "'(1,\"a,b\")'"),
    ("int2vector", "'1 2'"),
    ("interval[]", "'{1 day,NULL}'"),
    ("pair[]", "'{\"(1,a)\"}'"),
    ('odd."we\'ird {0} %s"', "'{[a,b)}'"),
    ("late", "'23:59'"),
    ("xml", "NULL"),
]

TYPES = """
    CREATE TYPE pair AS (a int, b text); CREATE DOMAIN late AS time;
    CREATE SCHEMA odd; CREATE TYPE odd."base" AS RANGE (SUBTYPE = text, MULTIRANGE_TYPE_NAME = odd."we'ird {0} %s");
"""


def refusal(dsn: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        PostgresEnricher(dsn, **options).schema()
    return str(caught.value)


def suggested(text: str, argument: str) -> Any:
    found = re.search(
        rf"with {argument}=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[.*?\]|\{{.*?\}}(?= \(|, or |$))", text
    )
    assert found, text
    return ast.literal_eval(found[1])


async def found(database: Database, key: Any, **options: Any) -> dict[str, Any]:
    """The row of a key, by rows and by columns."""
    strangers = [key if isinstance(key, tuple | str) else number for number in MISSES]
    name = options.pop("name", "id")
    async with database.enricher(key=name, **options) as enricher:
        row = await enricher.lookup(key)
        assert isinstance(row, dict), options
        [[in_few], *_] = await in_columns(enricher, [key])
        [[in_many], *_] = await in_columns(enricher, [key, *strangers] if type(key) is int else [key])
        assert row == in_few == in_many
        return row


async def test_X4_the_way_that_a_message_names_for_a_type_works(database: Database) -> None:
    await database.execute("DROP SCHEMA IF EXISTS odd CASCADE")
    columns = ", ".join(f'"c {number}" {kind}' for number, (kind, _) in enumerate(UNUSABLE))
    values = ", ".join(f"({literal})::{kind}" for kind, literal in UNUSABLE)
    await database.execute(f"{TYPES}; CREATE TABLE t (id int, v int, {columns}); INSERT INTO t VALUES (1, 2, {values})")
    names = [f"c {number}" for number in range(len(UNUSABLE))]
    texts = ", ".join(f'"{name}"::text' for name in names)
    [record] = await database.fetch(f"SELECT {texts} FROM t")
    expected = dict(zip(names, record, strict=True))
    try:
        text = refusal(database.dsn, table="t", key="id")
        assert all(f"the column {name!r} of type " in text for name in names)
        assert "the column 'c 2' of type interval" in text
        assert suggested(text, "columns") == ["v"]
        assert await found(database, 1, table="t", columns=suggested(text, "columns")) == {"v": 2}
        assert await found(database, 1, query=suggested(text, "query")) == {"v": 2, **expected}
        text = refusal(database.dsn, table="t", key="id", columns=names)
        assert await found(database, 1, table="t", columns=suggested(text, "columns")) == expected
        query = "SELECT * FROM t WHERE id = ANY ($1)"
        text = refusal(database.dsn, query=query, key="id", columns=names)
        assert '"c 0"::text AS "c 0"' in text
        assert await found(database, 1, query=query, columns=suggested(text, "columns")) == expected
        for name in names:
            text = refusal(database.dsn, table="t", key="id", columns=[name])
            mapping = suggested(text, "columns")
            assert mapping == {name: "string"}
            assert await found(database, 1, table="t", columns=mapping) == {name: expected[name]}
            assert await found(database, 1, query=suggested(text, "query")) == {name: expected[name]}
            assert await found(database, 1, table="t", columns={"x": f"`{name}` string"}) == {"x": expected[name]}
    finally:
        await database.execute("DROP SCHEMA odd CASCADE")


KEYS: list[tuple[str, str, Any]] = [
    *((kind, literal, hits[0]) for kind, literal, hits, _ in HELD if literal != "'NaN'" and hits[0] != math.inf),
    *((kind, "'JFK'", "JFK") for kind in ("char(4)", "bpchar", "iata", "iata_again")),
    ("text", "'\U0001f600 {x}'", "\U0001f600 {x}"),
    ("timestamp(0)", "'9999-12-31 23:59:59'", datetime(9999, 12, 31, 23, 59, 59)),
    ('"char"', "'a'", "a"),
    *((kind, "'{\"a\": 1}'", '{"a": 1}') for kind in ("json", "jsonb")),
    ("int4[]", "'{1,2}'", "{1,2}"),
    ("char(3)[]", "'{JFK}'", "{JFK}"),
    ("inet", "'10.0.0.1'", "10.0.0.1/32"),
    ("time", "'10:00'", "10:00:00"),
    ("money", "1.5", "$1.50"),
    ("bit(4)", "'1010'", "1010"),
]


@pytest.mark.parametrize(("kind", "literal", "key"), KEYS, ids=[f"{kind} {literal}" for kind, literal, _ in KEYS])
async def test_X4_the_query_that_a_message_suggests_finds_keys_of_every_type(
    database: Database, kind: str, literal: str, key: Any
) -> None:
    await database.execute(f"""
        {KEY_TYPES}; CREATE DOMAIN word AS varchar(3); CREATE DOMAIN iata AS char(3); CREATE DOMAIN iata_again AS iata;
        CREATE TABLE t ("k ey" {kind}, n int, late interval); INSERT INTO t VALUES (({literal})::{kind}, 1, '1 day');
    """)
    query = suggested(refusal(database.dsn, table="t", key="k ey"), "query")
    assert await found(database, key, name="k ey", query=query) == {"n": 1, "late": "1 day"}
    query = suggested(refusal(database.dsn, table="t", key=["n", "k ey"]), "query")
    assert await found(database, (1, key), name=["n", "k ey"], query=query) == {"late": "1 day"}
    try:
        PostgresEnricher(database.dsn, table="t", key="k ey", columns=["n"]).schema()
    except ConfigurationError as error:
        query = suggested(str(error), "query")
        assert await found(database, key, name="k ey", query=query) == {"n": 1}


async def test_X4_a_key_of_a_query_is_cast_where_the_message_says(database: Database) -> None:
    await database.execute("CREATE TABLE t (ip inet, n int); INSERT INTO t VALUES ('10.0.0.1', 1)")
    text = refusal(database.dsn, query="SELECT ip, n FROM t WHERE ip = ANY ($1)", key="ip")
    [(selected, compared)] = re.findall(r"where it is compared: (.*), (.*)$", text)
    query = f"SELECT {selected}, n FROM t WHERE {compared}"
    assert await found(database, "10.0.0.1/32", name="ip", query=query) == {"n": 1}


# -- SQLAlchemy


def refusal_of(url: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        SqlEnricher(url, **options).schema()
    return str(raised.value)


async def found_by(url: str, *keys: Any, **options: Any) -> list[Any]:
    """The rows by what the message suggests, with `key` and `columns` as they were."""
    text = refusal_of(url, **options)
    suggested = re.search(r"Spark has no counterpart for the columns .* table=: query=(.*), schema=(.*)$", text)
    assert suggested is not None, text
    query, schema = map(ast.literal_eval, suggested.groups())
    async with opened(SqlEnricher(url, **{**options, "table": None, "query": query, "schema": schema})) as enricher:
        return list(await enricher.lookup_many(keys))


MARIADB = [
    ("time(3)", "'-12:00:01.5'", "-12:00:01.500"),
    ("inet4", "'10.0.0.1'", "10.0.0.1"),
    ("inet6", "'::1'", "::1"),
    ("bit(9)", "b'100000001'", Decimal(257)),
    ("bit(64)", "~0", Decimal(2**64 - 1)),
    ("point", "point(1, 2.5)", "POINT(1 2.5)"),
    ("geometry", "point(1, 2.5)", "POINT(1 2.5)"),
    ("linestring", "linestring(point(0, 0), point(1, 2))", "LINESTRING(0 0,1 2)"),
    ("polygon", "polyfromtext('POLYGON((0 0,1 0,1 1,0 0))')", "POLYGON((0 0,1 0,1 1,0 0))"),
    ("geometrycollection", "geometrycollection(point(1, 2))", "GEOMETRYCOLLECTION(POINT(1 2))"),
]


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
@pytest.mark.parametrize(("kind", "literal", "value"), MARIADB)
async def test_X4_the_query_for_a_type_of_mariadb_finds_every_column(
    mariadb: MariadbServer, dialect: str, kind: str, literal: str, value: Any
) -> None:
    url = mariadb.url_with(dialect=dialect)
    await mariadb.execute(
        f"CREATE OR REPLACE TABLE `un usual` (`a b` decimal(9,2), n bigint unsigned, v {kind}, f float, "
        "`q%` text CHARACTER SET latin1, `w :x` date, y year, z binary(2))",
        f"INSERT INTO `un usual` VALUES (1.5, {2**64 - 1}, {literal}, 16777216, 'é', '2024-02-29', 2024, X'ff00')",
    )
    table = {"table": ["un usual"], "key": "a b"}
    [row, none] = await found_by(url, Decimal("1.5"), Decimal(2), **table)
    assert none is None
    assert {name: str(one) for name, one in row.items()} == {
        "n": str(2**64 - 1),
        "v": str(value),
        "f": "16777216.0",
        "q%": "é",
        "w :x": "2024-02-29",
        "y": "2024",
        "z": repr(b"\xff\0"),
    }
    assert await found_by(url, Decimal("1.5"), columns=["v"], **table) == [{"v": value}]
    assert await found_by(url, Decimal("1.5"), columns=["f", "v"], **table) == [{"f": 16777216.0, "v": value}]
    assert f"'v' of type {kind.partition('(')[0]}" in refusal_of(url, **table).lower()


@pytest.mark.parametrize(("kind", "literal", "value"), MARIADB)
async def test_X4_the_query_for_a_key_of_mariadb_finds_every_column(
    mariadb: MariadbServer, kind: str, literal: str, value: Any
) -> None:
    await mariadb.execute(
        f"CREATE OR REPLACE TABLE kt (n int, k {kind}, f float, s varchar(9) CHARACTER SET latin1)",
        f"INSERT INTO kt VALUES (7, {literal}, 0.5, 'é')",
    )
    wanted = {"n": 7, "f": 0.5, "s": "é"}
    assert await found_by(mariadb.url, value, table="kt", key="k") == [wanted]
    assert await found_by(mariadb.url, value, table="kt", key="k", columns=["s"]) == [{"s": "é"}]
    assert await found_by(mariadb.url, value, table="kt", key="k", columns=["k", "n"]) == [{"k": value, "n": 7}]
    several = [(value, "é", 0.5), (value, "e", 0.5)]
    assert await found_by(mariadb.url, *several, table="kt", key=["k", "s", "f"]) == [{"n": 7}, None]
    assert "columns=" not in refusal_of(mariadb.url, table="kt", key="k"), "another choice does not help with a key"


async def test_X4_the_query_for_a_type_of_sqlite_finds_every_column(tmp_path: Path) -> None:
    columns = 't TIME, any, "c :d%" TEXT, d DATE, made TIMESTAMP, n NUMERIC(9,2), ok BOOLEAN, f REAL'
    row = ("10:00:00", 5, "x", "2024-02-29", "2024-02-29 12:00:00", 1.5, 1, 0.1)
    insert = f'INSERT INTO "a ""b" VALUES ({", ".join("?" * len(row))})'
    url = in_sqlite(tmp_path / "t.db", f'CREATE TABLE "a ""b" ({columns})', insert, rows=[row])
    made = datetime(2024, 2, 29, 12)
    values = ["10:00:00", "5", "x", made.date(), made, Decimal("1.5"), True, 0.1]
    whole = dict(zip(["t", "any", "c :d%", "d", "made", "n", "ok", "f"], values, strict=True))
    for key in (["t"], ["any"], ["c :d%"], ["d"], ["made", "t"], ["n"], ["ok"], ["f", "c :d%"]):
        chosen = {"table": ['a "b'], "key": key}
        asked = tuple(whole[name] for name in key) if len(key) > 1 else whole[key[0]]
        assert await found_by(url, asked, **chosen) == [{name: whole[name] for name in whole if name not in key}]
        assert await found_by(url, asked, **chosen, columns=["any", "f"]) == [{"any": "5", "f": 0.1}]
    others = re.search(
        r"choose the other columns, with columns=(\[.*?\]), or", refusal_of(url, table=['a "b'], key="f")
    )
    assert others is not None
    assert SqlEnricher(url, table=['a "b'], key="f", columns=ast.literal_eval(others[1])).schema().names == [
        name for name in whole if name not in ("t", "any", "f")
    ]


POSTGRES = [*(case for case in UNUSABLE if not case[0].startswith(("odd", "late"))), ("int[]", "'{1,2}'")]
"""Those of the server's own types, and an array: SQLAlchemy has no counterpart for one either."""

SQL_KEYS = [
    ("int", "5", 5),
    ("numeric(10,2)", "1.50", Decimal("1.5")),
    ("text", "'a'", "a"),
    ("char(5)", "'ab'", "ab"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("mood", "'ok'", "ok"),
    ("jsonb", "'{\"a\": 1}'", '{"a": 1}'),
    ("time", "'10:00:00.5'", "10:00:00.5"),
    ("bit(4)", "'1010'", "1010"),
]


async def test_X4_the_query_for_a_type_of_postgres_finds_every_column(database: Database) -> None:
    names = [f"c {number}" for number in range(len(POSTGRES))]
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in zip(names, POSTGRES, strict=True))
    values = ", ".join(f"({literal})::{kind}" for kind, literal in POSTGRES)
    keys = ", ".join(f"k{number} {kind}" for number, (kind, _, _) in enumerate(SQL_KEYS))
    await database.execute(
        f"CREATE TYPE pair AS (a int, b text); CREATE TYPE mood AS ENUM ('ok', 'bad');"
        f'CREATE TABLE t ("v :%" varchar(9), {keys}, {columns});'
        f"INSERT INTO t VALUES ('x', {', '.join(literal for _, literal, _ in SQL_KEYS)}, {values})"
    )
    url = database.server.tcp_dsn().partition("?")[0].replace("postgresql://", "postgresql+asyncpg://")
    table = (database.name, "t")
    casts = ", ".join(f'"{name}"::text' for name in names)
    [record] = await database.fetch(f"SELECT {casts} FROM t")
    texts = {"v :%": "x", **dict(zip(names, record, strict=True))}
    for number, (_, _, value) in enumerate(SQL_KEYS):
        chosen = {"table": table, "columns": [*texts]}
        assert await found_by(url, value, **chosen, key=f"k{number}") == [texts]
        if number:
            assert await found_by(url, (5, value), **chosen, key=["k0", f"k{number}"]) == [texts]
    [row] = await found_by(url, 5, table=table, key="k0")
    assert row.keys() == {*texts, *(f"k{number}" for number in range(1, len(SQL_KEYS)))}
    assert {name: row[name] for name in texts} == texts


async def test_X4_a_table_that_is_only_a_key_says_so_before_it_suggests(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE ko (k time)", "INSERT INTO ko VALUES ('10:00')")
    assert "it has no column besides the key; name the ones you want" in refusal_of(mariadb.url, table="ko", key="k")
    assert await found_by(mariadb.url, "10:00:00", table="ko", key="k", columns=["k"]) == [{"k": "10:00:00"}]
