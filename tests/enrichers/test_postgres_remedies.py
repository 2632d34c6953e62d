"""What the message of a `ConfigurationError` suggests for a type is run as it is written, and finds the rows."""

from __future__ import annotations

import ast
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_columns import MISSES, in_columns

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
    ("char(3)", "'JFK'", "JFK"),
    ("char(4)", "'JFK'", "JFK"),
    ("iata", "'JFK'", "JFK"),
    ("iata_again", "'JFK'", "JFK"),
    ("bpchar", "'JFK'", "JFK"),
    ("varchar(3)", "'JFK'", "JFK"),
    ("text", "'\U0001f600 {x}'", "\U0001f600 {x}"),
    ("name", "'abc'", "abc"),
    ("int2", "5", 5),
    ("int8", "5", 5),
    ("float4", "0.5", 0.5),
    ("float8", "0.1", 0.1),
    ("numeric(10,2)", "1.50", Decimal("1.5")),
    ("bool", "true", True),
    ("bytea", "'\\x00ff'", b"\x00\xff"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("mood", "'ok''s'", "ok's"),
    ("date", "'9999-12-31'", date.max),
    ("date", "'0001-01-01'", date.min),
    ("timestamp(0)", "'9999-12-31 23:59:59'", datetime(9999, 12, 31, 23, 59, 59)),
    ("timestamptz", "'2020-01-01 00:00+02'", datetime(2019, 12, 31, 22, tzinfo=UTC)),
    ('"char"', "'a'", "a"),
    ("json", "'{\"a\": 1}'", '{"a": 1}'),
    ("jsonb", "'{\"a\": 1}'", '{"a": 1}'),
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
        CREATE TYPE mood AS ENUM ('ok''s'); CREATE DOMAIN iata AS char(3); CREATE DOMAIN iata_again AS iata;
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
