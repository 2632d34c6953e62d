"""The query that a message of `SqlEnricher` suggests for a type is run as it is written, and finds every column."""

from __future__ import annotations

import ast
import contextlib
import re
import sqlite3
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from enrichers import SqlEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import opened
from tests.enrichers.test_postgres_remedies import UNUSABLE
from tests.mariadb_service import MariadbServer, mariadb

__all__ = ["mariadb"]


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        SqlEnricher(url, **options).schema()
    return str(raised.value)


async def found(url: str, *keys: Any, **options: Any) -> list[Any]:
    """The rows by what the message suggests, with `key` and `columns` as they were."""
    text = refusal(url, **options)
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
    ("multipoint", "geomfromtext('MULTIPOINT(0 0,1 2)')", "MULTIPOINT(0 0,1 2)"),
    ("multilinestring", "geomfromtext('MULTILINESTRING((0 0,1 2))')", "MULTILINESTRING((0 0,1 2))"),
    ("multipolygon", "geomfromtext('MULTIPOLYGON(((0 0,1 0,1 1,0 0)))')", "MULTIPOLYGON(((0 0,1 0,1 1,0 0)))"),
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
    [row, none] = await found(url, Decimal("1.5"), Decimal(2), **table)
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
    assert await found(url, Decimal("1.5"), columns=["v"], **table) == [{"v": value}]
    assert await found(url, Decimal("1.5"), columns=["f", "v"], **table) == [{"f": 16777216.0, "v": value}]
    assert f"'v' of type {kind.partition('(')[0]}" in refusal(url, **table).lower()


@pytest.mark.parametrize(("kind", "literal", "value"), MARIADB)
async def test_X4_the_query_for_a_key_of_mariadb_finds_every_column(
    mariadb: MariadbServer, kind: str, literal: str, value: Any
) -> None:
    await mariadb.execute(
        f"CREATE OR REPLACE TABLE kt (n int, k {kind}, f float, s varchar(9) CHARACTER SET latin1)",
        f"INSERT INTO kt VALUES (7, {literal}, 0.5, 'é')",
    )
    wanted = {"n": 7, "f": 0.5, "s": "é"}
    assert await found(mariadb.url, value, table="kt", key="k") == [wanted]
    assert await found(mariadb.url, value, table="kt", key="k", columns=["s"]) == [{"s": "é"}]
    assert await found(mariadb.url, value, table="kt", key="k", columns=["k", "n"]) == [{"k": value, "n": 7}]
    several = [(value, "é", 0.5), (value, "e", 0.5)]
    assert await found(mariadb.url, *several, table="kt", key=["k", "s", "f"]) == [{"n": 7}, None]
    assert "columns=" not in refusal(mariadb.url, table="kt", key="k"), "another choice does not help with a key"


async def test_X4_the_query_for_a_type_of_sqlite_finds_every_column(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute(
            'CREATE TABLE "a ""b" (t TIME, any, "c :d%" TEXT, d DATE, made TIMESTAMP, n NUMERIC(9,2), '
            "ok BOOLEAN, f REAL)"
        )
        row = ("10:00:00", 5, "x", "2024-02-29", "2024-02-29 12:00:00", 1.5, 1, 0.1)
        connection.execute(f'INSERT INTO "a ""b" VALUES ({", ".join("?" * len(row))})', row)
        connection.commit()
    url = f"sqlite+aiosqlite:///{tmp_path / 't.db'}"
    made = datetime(2024, 2, 29, 12)
    values = ["10:00:00", "5", "x", made.date(), made, Decimal("1.5"), True, 0.1]
    whole = dict(zip(["t", "any", "c :d%", "d", "made", "n", "ok", "f"], values, strict=True))
    for key in (["t"], ["any"], ["c :d%"], ["d"], ["made", "t"], ["n"], ["ok"], ["f", "c :d%"]):
        chosen = {"table": ['a "b'], "key": key}
        asked = tuple(whole[name] for name in key) if len(key) > 1 else whole[key[0]]
        assert await found(url, asked, **chosen) == [{name: whole[name] for name in whole if name not in key}]
        assert await found(url, asked, **chosen, columns=["any", "f"]) == [{"any": "5", "f": 0.1}]
    others = re.search(r"choose the other columns, with columns=(\[.*?\]), or", refusal(url, table=['a "b'], key="f"))
    assert others is not None
    assert SqlEnricher(url, table=['a "b'], key="f", columns=ast.literal_eval(others[1])).schema().names == [
        name for name in whole if name not in ("t", "any", "f")
    ]


POSTGRES = [*(case for case in UNUSABLE if not case[0].startswith(("odd", "late"))), ("int[]", "'{1,2}'")]
"""Those of the server's own types, and an array: SQLAlchemy has no counterpart for one either."""

KEYS = [
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
    keys = ", ".join(f"k{number} {kind}" for number, (kind, _, _) in enumerate(KEYS))
    await database.execute(
        f"CREATE TYPE pair AS (a int, b text); CREATE TYPE mood AS ENUM ('ok', 'bad');"
        f'CREATE TABLE t ("v :%" varchar(9), {keys}, {columns});'
        f"INSERT INTO t VALUES ('x', {', '.join(literal for _, literal, _ in KEYS)}, {values})"
    )
    url = database.server.tcp_dsn().partition("?")[0].replace("postgresql://", "postgresql+asyncpg://")
    table = (database.name, "t")
    casts = ", ".join(f'"{name}"::text' for name in names)
    [record] = await database.fetch(f"SELECT {casts} FROM t")
    texts = {"v :%": "x", **dict(zip(names, record, strict=True))}
    for number, (_, _, value) in enumerate(KEYS):
        chosen = {"table": table, "columns": [*texts]}
        assert await found(url, value, **chosen, key=f"k{number}") == [texts]
        if number:
            assert await found(url, (5, value), **chosen, key=["k0", f"k{number}"]) == [texts]
    [row] = await found(url, 5, table=table, key="k0")
    assert row.keys() == {*texts, *(f"k{number}" for number in range(1, len(KEYS)))}
    assert {name: row[name] for name in texts} == texts


async def test_X4_a_table_that_is_only_a_key_says_so_before_it_suggests(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE ko (k time)", "INSERT INTO ko VALUES ('10:00')")
    assert "it has no column besides the key; name the ones you want" in refusal(mariadb.url, table="ko", key="k")
    assert await found(mariadb.url, "10:00:00", table="ko", key="k", columns=["k"]) == [{"k": "10:00:00"}]
