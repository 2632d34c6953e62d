"""Arrays of every element type hold what the server itself says of them (`to_json`), by rows and by columns."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import EnricherError
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_columns import MISSES, in_columns

TYPES = """
    CREATE SCHEMA "{0}_odd.";
    CREATE TYPE mood AS ENUM ('sad', 'ok''s', '{{x}}', 'a,"b\\c');
    CREATE TYPE "{0}_odd."."text" AS ENUM ('NULL', ' ');
    CREATE TYPE "{0}_odd."."We""ird {{0}} %s[]" AS ENUM ('x');
    CREATE DOMAIN iata AS char(3);
    CREATE DOMAIN "{0}_odd."."char" AS iata;
    CREATE DOMAIN price AS numeric(9,4);
    CREATE DOMAIN "{0}_odd."."numeric" AS price CHECK (VALUE > -100);
    CREATE DOMAIN short AS varchar(3);
    CREATE DOMAIN day AS date;
    CREATE DOMAIN "int4" AS "char";
    CREATE DOMAIN codes AS char(3)[];
    CREATE DOMAIN codes_again AS codes;
    CREATE DOMAIN feelings AS mood[];
"""
"""With names of types that the server has itself, with quotes, dots, blanks and braces."""

TEXTS = """ARRAY['a', NULL, '', 'x"y', 'null', 'NULL', 'a,b', '{z}', E'back\\\\slash', '\U0001f600', ' é ']"""

ARRAYS: list[tuple[str, str]] = [
    ("int2[]", "'{1,NULL,-32768}'"),
    ("int4[]", "'{1,NULL,-2147483648}'"),
    ("int4[]", "'[5:6]={7,8}'"),
    ("int4[3]", "'{1}'"),
    ("int8[]", "'{9223372036854775807,-9223372036854775808}'"),
    ("float4[]", "'{0.5,NaN,Infinity,-0,1e-45}'"),
    ("float8[]", "'{0.1,-Infinity,5e-324,NULL}'"),
    ("numeric[]", "'{1.10,1e-18,-5,NULL}'"),
    ("numeric[]", f"'{{1.5{40 * '0'}}}'"),
    ("numeric(10,2)[]", "'{1.10,-5,0}'"),
    ("numeric(5,-2)[]", "'{1200,-99900}'"),
    ("numeric(40,10)[]", "'{1.5}'"),
    ("numeric(60,40)[]", "'{1.5,1e-18}'"),
    ("text[]", TEXTS),
    ("varchar[]", TEXTS),
    ("varchar(3)[]", "ARRAY['abc', NULL, '', 'x\"y']"),
    ("char(3)[]", "'{JFK,LGA,EWR,A,NULL,\"\"}'"),
    ("char(12)[]", TEXTS),
    ("bpchar[]", "'{JFK,\"A  \"}'"),
    ("char[]", "'{J}'"),
    ('"char"[]', "'{J,\"\",NULL}'"),
    ("name[]", "'{abc,NULL}'"),
    ("uuid[]", "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11,NULL}'"),
    ("json[]", """ARRAY['{"b": 1,  "a": "x,\\"y"}'::json, 'null', NULL, '[1, 2]']"""),
    ("jsonb[]", """ARRAY['{"b": 1,  "a": "x,\\"y"}'::jsonb, '"text"', NULL]"""),
    ("bool[]", "'{t,f,NULL}'"),
    ("date[]", "'{0001-01-01,9999-12-31,NULL}'"),
    ("timestamp[]", "'{0001-01-01,9999-12-31 23:59:59.999999,NULL}'"),
    ("timestamp(0)[]", "'{2020-01-01 00:00:00.6}'"),
    ("timestamptz[]", "'{2020-01-01 00:00:00+02,9999-12-31 23:59:59.999999+00,NULL}'"),
    ("timestamptz(0)[]", "'{2020-01-01 00:00:00.6+02}'"),
    ("bytea[]", "ARRAY['\\x00ff5c22'::bytea, '', NULL]"),
    ("mood[]", """ARRAY['sad', 'ok''s', '{x}', 'a,"b\\c', NULL]"""),
    ('"{0}_odd."."text"[]', "ARRAY['NULL', ' ', NULL]"),
    ('"{0}_odd."."We""ird {{0}} %s[]"[]', "'{x}'"),
    ("iata[]", "'{JFK,A,NULL}'"),
    ('"{0}_odd."."char"[]', "'{JFK,A,NULL}'"),
    ("price[]", "'{1.25,NULL}'"),
    ('"{0}_odd."."numeric"[]', "'{1.25,-99,NULL}'"),
    ("short[]", "'{abc,NULL}'"),
    ("day[]", "'{2020-02-29,NULL}'"),
    ('{0}."int4"[]', "'{J,NULL}'"),
    ("codes", "'{JFK,A,NULL}'"),
    ("codes_again", "'{JFK,A,NULL}'"),
    ("feelings", "ARRAY['sad', 'ok''s', NULL]"),
]

TABLE = "SELECT id, v FROM t WHERE id = ANY ($1)"
GATHERED = """
    SELECT id, array_agg(e ORDER BY n) AS v FROM t, unnest(v) WITH ORDINALITY AS u (e, n)
    WHERE id = ANY ($1) GROUP BY id
"""


def as_json(value: Any) -> Any:
    """A value as `to_json` of the server shows it, in a session in UTC."""
    match value:
        case list():
            return [as_json(element) for element in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case datetime(tzinfo=None) | date():
            return value.isoformat()
        case datetime():
            return value.astimezone(UTC).isoformat()
        case bytes():
            return "\\x" + value.hex()
    return value


def said(text: str | None, name: str) -> Any:
    """What the server says, as values that compare with those of the enricher."""
    if text is None:
        return None
    values = json.loads(text, parse_float=Decimal if "float" not in name else float)
    if name.startswith("float4"):
        return [pa.scalar(v, pa.float32()).as_py() if isinstance(v, float) else v for v in values]
    return values


@pytest.mark.parametrize(("name", "literal"), ARRAYS, ids=[name for name, _ in ARRAYS])
async def test_X12_an_array_is_what_the_server_says_of_it(database: Database, name: str, literal: str) -> None:
    name = name.format(database.name)
    await database.execute(f"""
        {TYPES.format(database.name)}; SET TIME ZONE 'UTC'; CREATE TABLE t (id int, v {name});
        INSERT INTO t VALUES (1, ({literal})::{name}), (2, '{{}}'), (3, NULL), (4, '{{NULL,NULL}}');
    """)
    shown = "to_json(v)" if not name.startswith("json") else "to_json(v::text[])"
    rows = await database.fetch(f"SELECT id, {shown}::text FROM t ORDER BY id")
    expected = {key: said(text, name) for key, text in rows}
    try:
        for source in ({"table": "t"}, {"query": TABLE}, {"query": GATHERED}):
            gathered = source.get("query") == GATHERED
            keys = [1, 4] if gathered else [1, 2, 3, 4]
            async with database.enricher(key="id", **source) as enricher:
                columns = [rows[0] for rows in await in_columns(enricher, keys)]
                many = [rows[0] for rows in (await in_columns(enricher, [*keys, *MISSES]))[: len(keys)]]
                singly = [await enricher.lookup(key) for key in keys]
                answer: Any
                for answer in (await enricher.lookup_many(keys), singly, columns, many):
                    assert [as_json(row["v"]) for row in answer] == [expected[key] for key in keys]
    finally:
        await database.execute(f'DROP SCHEMA "{database.name}_odd." CASCADE')


@pytest.mark.parametrize(
    ("name", "literal", "shown"),
    [
        ("char(3)[]", "'{{JFK},{LGA}}'", "{{JFK},{LGA}}"),
        ("mood[]", "'{{sad}}'", "{{sad}}"),
        ("codes", "'{{JFK}}'", "{{JFK}}"),
        ("day[]", "'{2020-01-01,infinity}'", "infinity"),
        ("timestamp[]", "'{-infinity}'", "infinity"),
        ("numeric(5,2)[]", "'{1,NaN}'", "NaN"),
        ("price[]", "'{NaN}'", "NaN"),
        ("numeric[]", "'{1e20}'", "100000000000000000000"),
    ],
)
async def test_X12_an_array_that_spark_cannot_hold_is_an_error_of_its_key(
    database: Database, name: str, literal: str, shown: str
) -> None:
    types = TYPES.format(database.name)
    await database.execute(f"{types}; CREATE TABLE t (id int, v {name}); INSERT INTO t VALUES (1, {literal})")
    await database.execute("INSERT INTO t VALUES (2, NULL)")
    try:
        async with database.enricher(table="t", key="id") as enricher:
            for keys in ([1], [1, 2], [1, *MISSES]):
                for ask in (enricher.lookup_many, lambda keys: in_columns(enricher, keys)):
                    with pytest.raises(EnricherError, match=r"key 1: the column 'v' holds ") as caught:
                        await ask(keys)
                    assert shown in str(caught.value)
                    assert (caught.value.retryable, caught.value.any_key) == (False, False)
            assert await enricher.lookup(2) == {"v": None}
    finally:
        await database.execute(f'DROP SCHEMA "{database.name}_odd." CASCADE')
