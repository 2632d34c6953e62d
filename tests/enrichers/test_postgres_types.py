"""Values of PostgreSQL by rows and by columns: arrays, casts, and columns that get another type while a job runs."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, EnricherError, ResultError
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_columns import MISSES, in_columns

# -- arrays


ARRAY_TYPES = """
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


@pytest.mark.parametrize("form", ["table", "query", "gathered"])
async def test_X12_an_array_is_what_the_server_says_of_it(database: Database, form: str) -> None:
    names = {f"v{i}": name.format(database.name) for i, (name, _) in enumerate(ARRAYS)}
    literals = [f"({literal})::{name}" for name, (_, literal) in zip(names.values(), ARRAYS, strict=True)]
    values = [literals, *([text] * len(names) for text in ("'{}'", "NULL", "'{NULL,NULL}'"))]
    await database.execute(f"""
        {ARRAY_TYPES.format(database.name)}; SET TIME ZONE 'UTC';
        CREATE TABLE t (id int, {", ".join(f"{v} {name}" for v, name in names.items())});
        INSERT INTO t VALUES {", ".join(f"({key}, {', '.join(row)})" for key, row in enumerate(values, 1))};
    """)
    texts = (f"to_json({v}{'::text[]' * name.startswith('json')})::text" for v, name in names.items())
    rows = await database.fetch(f"SELECT {', '.join(texts)} FROM t ORDER BY id")
    expected = [[said(text, name) for text, name in zip(row, names.values(), strict=True)] for row in rows]
    again = (f"(SELECT array_agg(e ORDER BY n) FROM unnest({v}) WITH ORDINALITY u (e, n)) AS {v}" for v in names)
    query = f"SELECT id, {'*' if form == 'query' else ', '.join(again)} FROM t WHERE id = ANY ($1)"
    source: dict[str, Any] = {"table": "t"} if form == "table" else {"query": query.replace("id, *", "*")}
    # The server aggregates no row, of an empty array or null, to null.
    keys = [1, 4] if form == "gathered" else [1, 2, 3, 4]
    try:
        async with database.enricher(key="id", **source) as enricher:
            columns = [rows[0] for rows in await in_columns(enricher, keys)]
            many = [rows[0] for rows in (await in_columns(enricher, [*keys, *MISSES]))[: len(keys)]]
            singly = [await enricher.lookup(key) for key in keys]
            answers: list[Any] = [await enricher.lookup_many(keys), singly, columns, many]
            for answer in answers:
                for key, row in zip(keys, answer, strict=True):
                    assert [as_json(value) for value in row.values()] == expected[key - 1]
    finally:
        await database.execute(f'DROP SCHEMA "{database.name}_odd." CASCADE')


# -- casts


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

CASTS: list[tuple[str, str, str, pa.DataType, Any]] = [
    ("numeric", "1::numeric / 7", "double", pa.float64(), 1 / 7),
    ("numeric", "1::numeric / 7", "float", pa.float32(), 0.1428571492433548),
    ("numeric", "1::numeric / 7", "decimal(10,4)", pa.decimal128(10, 4), Decimal("0.1429")),
    ("numeric", "1::numeric / 7", "decimal(38,18)", pa.decimal128(38, 18), Decimal("0.142857142857142857")),
    ("numeric", "'NaN'", "double", pa.float64(), float("nan")),
    ("numeric(10,2)", "12.50", "int", pa.int32(), 13),
    ("numeric(10,2)", "12.50", "string", pa.string(), "12.50"),
    ("int8", "9007199254740993", "double", pa.float64(), 9007199254740992.0),
    ("int8", "7", "smallint", pa.int16(), 7),
    ("int4", "1", "boolean", pa.bool_(), True),
    ("int4", "7", "bigint", pa.int64(), 7),
    ("float8", "2.5", "long", pa.int64(), 2),
    ("text", "'12.5'", "decimal(5,1)", pa.decimal128(5, 1), Decimal("12.5")),
    ("text", "'2024-02-29'", "date", pa.date32(), date(2024, 2, 29)),
    ("timestamp", "'2024-02-29 23:59:59'", "date", pa.date32(), date(2024, 2, 29)),
    ("timestamp", "'2024-02-29 12:00'", "timestamp", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ("timestamptz", "'2024-02-29 12:00+02'", "timestamp_ntz", pa.timestamp("us"), datetime(2024, 2, 29, 10)),
    ("date", "'2024-02-29'", "timestamp_ntz", pa.timestamp("us"), datetime(2024, 2, 29)),
    ("char(5)", "'ab'", "string", pa.string(), "ab   "),
    ("char(3)[]", "'{a,JFK}'", "array<string>", pa.list_(pa.string()), ["a  ", "JFK"]),
    ("text", "' é\U0001f600 '", "string", pa.string(), " é\U0001f600 "),
    ("bytea", "'\\xff00'", "binary", pa.binary(), b"\xff\x00"),
    ("uuid", f"'{UUID}'", "string", pa.string(), UUID),
    ("jsonb", "'1.5'", "double", pa.float64(), 1.5),
    ("numeric[]", "ARRAY[1::numeric / 7, NULL]", "array<double>", pa.list_(pa.float64()), [1 / 7, None]),
    ("numeric[]", "'{1.005}'", "array<decimal(6,2)>", pa.list_(pa.decimal128(6, 2)), [Decimal("1.01")]),
    ("int4[]", "'{1}'", "array<string>", pa.list_(pa.string()), ["1"]),
    ("interval", "'1 day 02:00'", "string", pa.string(), "1 day 02:00:00"),
    ("money", "12.5", "decimal(10,2)", pa.decimal128(10, 2), Decimal("12.50")),
    ("mood", "'ok''s'", "string", pa.string(), "ok's"),
    ("price", "1.25", "double", pa.float64(), 1.25),
]

MORE = "CREATE TYPE mood AS ENUM ('ok''s'); CREATE DOMAIN price AS numeric(9,4)"

FORMS: dict[str, dict[str, Any]] = {
    "table": {"table": "t"},
    "query": {"query": "SELECT * FROM t WHERE id = ANY ($1);"},
}


def shown(row: Mapping[str, Any]) -> str:
    """Text that equates NaN with NaN, and the names of UTC."""
    return (
        repr(dict(row))
        .replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
        .replace("<UTC>", "datetime.timezone.utc")
    )


@pytest.mark.parametrize("form", FORMS)
async def test_X12_the_server_casts_to_the_type_that_was_asked_for(database: Database, form: str) -> None:
    dsn = f"{database.dsn}&timezone=UTC"
    columns = ", ".join(f'"v {number}" {kind}' for number, (kind, *_) in enumerate(CASTS))
    values = ", ".join(f"({literal})::{kind}" for kind, literal, *_ in CASTS)
    await database.execute(f"{MORE}; CREATE TABLE t (id int, {columns}); INSERT INTO t VALUES (1, {values})")
    await database.execute("INSERT INTO t (id) VALUES (2)")
    renamed = {f"r{number}": f"`v {number}` {wanted}" for number, (_, _, wanted, *_) in enumerate(CASTS)}
    same = {f"v {number}": wanted for number, (_, _, wanted, *_) in enumerate(CASTS)}
    scalars: Mapping[str, str]
    for mapping in (renamed, same, {name: text for name, text in renamed.items() if "array" not in text}):
        async with database.enricher(dsn=dsn, key="id", columns=mapping, **FORMS[form]) as enricher:
            cases = [case for case, text in zip(CASTS, renamed.values(), strict=True) if text in mapping.values()]
            cases = cases or CASTS
            assert enricher.schema() == pa.schema([(name, case[3]) for name, case in zip(mapping, cases, strict=True)])
            scalars = dict(zip(mapping, (case[4] for case in cases), strict=True))
            [row, empty] = await enricher.lookup_many([1, 2])
            assert shown(pa.Table.from_pylist([row], enricher.schema()).to_pylist()[0]) == shown(scalars)
            assert empty == dict.fromkeys(mapping)
            for keys in ([1, 2], [1, 2, *MISSES]):
                [[in_column], [nothing], *_] = await in_columns(enricher, keys)
                assert shown(in_column) == shown(scalars)
                assert nothing == empty


async def test_X12_one_column_may_be_cast_in_several_ways_and_stay_as_it_is(database: Database) -> None:
    await database.execute("CREATE TABLE t (id int, n numeric); INSERT INTO t VALUES (1, 2.5)")
    mapping = {"a": "n double", "b": "n double", "n": "string", "c": "n int", "id": "string"}
    async with database.enricher(table="t", key="id", columns=mapping) as enricher:
        assert enricher.key_schema() == pa.schema([("id", pa.string())])
        row = await enricher.lookup("1")
        assert row == {"a": 2.5, "b": 2.5, "n": "2.5", "c": 3, "id": "1"}
        for keys in (["1"], ["1", *map(str, MISSES)]):
            assert (await in_columns(enricher, keys))[0] == [row]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "value", "wanted", "words"),
    [
        ("text", "n/a", "int", "does not cast to int .*invalid input syntax"),
        ("text", "2024-02-30", "date", "does not cast to date .*out of range"),
        ("numeric", "1e12", "decimal(5,2)", "does not cast to decimal\\(5,2\\) .*overflow"),
        ("numeric", "1e400", "double", r"does not cast to double \("),
        ("int8", "3000000000", "int", "does not cast to int .*out of range"),
        ("numeric", "NaN", "decimal(5,2)", "does not fit decimal\\(5,2\\)"),
        ("text", "infinity", "date", "does not fit date"),
    ],
)
async def test_X12_a_value_without_its_cast_is_an_error_of_its_key(
    database: Database, form: str, kind: str, value: str, wanted: str, words: str
) -> None:
    await database.execute(f"CREATE TABLE t (id int, a int, v {kind}); INSERT INTO t VALUES (1, 5, '{value}')")
    await database.execute("INSERT INTO t VALUES (2, 6, NULL)")
    mapping = {"a": "double", "made": f"v {wanted}"}
    async with database.enricher(key="id", columns=mapping, **FORMS[form]) as enricher:
        held = value if "e" not in value else "1" + 12 * "0"
        for answer in (lambda: enricher.lookup_many([1]), lambda: in_columns(enricher, [1])):
            with pytest.raises(EnricherError, match=rf"key 1: the column 'made' holds '?{held}.*{words}") as caught:
                await answer()
            assert (caught.value.retryable, caught.value.any_key) == (False, False)
        with pytest.raises(EnricherError) as caught:
            await in_columns(enricher, [1, *MISSES])
        assert not caught.value.any_key
        assert await enricher.lookup(2) == {"a": 6.0, "made": None}


BAD: list[tuple[Any, str]] = [
    ({"n": "duoble"}, r"columns\['n'\] is 'duoble', which is not a type of Spark; it must be .*'created_at timestamp'"),
    ({"n": "created_at"}, "which is not a type of Spark"),
    ({"n": ""}, "which is not a type of Spark"),
    ({"n": "a double, b int"}, "which is not a type of Spark"),
    ({"n": "a b c"}, "which is not a type of Spark"),
    ({"n": "decimal(50,2)"}, "which is not a type of Spark"),
    ({"n": "double; DROP TABLE t"}, "which is not a type of Spark"),
    ({"n": None}, r"columns\['n'\] is None; it must be a type of Spark"),
    ({"n": float}, r"it must be a type of Spark"),
    ({"n": "tinyint"}, "PostgreSQL has no such type to cast to: use smallint"),
    ({"n": "map<string,int>"}, "PostgreSQL has no such type"),
    ({"n": "struct<a: int>"}, "PostgreSQL has no such type"),
    ({"n": "array<array<int>>"}, "PostgreSQL has no such type"),
    ({"id": "other int"}, "'id' is a key column, so it cannot be made of 'other'"),
    ({}, "it must be a name, or a list"),
    ({1: "int"}, "it must be a name, or a list"),
]


@pytest.mark.parametrize(("columns", "words"), BAD)
def test_X4_a_mapping_of_columns_that_is_none_is_refused_where_it_is_given(columns: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PostgresEnricher("postgresql://host/db", table="t", key="id", columns=columns)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": "nn double"}, "there is no column 'nn'; did you mean 'n'"),
        ({"made": "double"}, "there is no column 'made'"),
        (
            {"a": "p double"},
            "column 'p' of type point cannot be cast to double: the server has no such cast; take it as",
        ),
        ({"n": "date"}, "column 'n' of type integer cannot be cast to date: the server has no such cast"),
        ({"b": "t binary"}, "column 't' of type text cannot be cast to binary: .*convert_to"),
    ],
)
async def test_X4_a_column_or_a_cast_that_does_not_exist_is_found_on_the_driver(
    database: Database, form: str, columns: dict[str, str], words: str
) -> None:
    await database.execute("CREATE TABLE t (id int, n int, p point, t text)")
    with pytest.raises(ConfigurationError, match=words):
        PostgresEnricher(database.dsn, key="id", columns=columns, **FORMS[form]).schema()


def test_L8_a_mapping_of_columns_is_part_of_the_specification() -> None:
    def make(**columns: str) -> PostgresEnricher:
        return PostgresEnricher("postgresql://host/db", table="t", key="id", columns=columns)

    enricher = make(n="double", made="created_at timestamp")
    assert "columns={'n': 'double', 'made': 'created_at timestamp'}" in repr(enricher)
    assert pickle.loads(pickle.dumps(enricher)) == enricher == make(n="double", made="created_at timestamp")
    assert dataclasses.replace(enricher, pool_size=2).columns == enricher.columns
    assert hash(enricher) == hash(make(n="double", made="created_at timestamp"))
    assert enricher != make(made="created_at timestamp", n="double")


# -- changes


CHANGES = [
    ("int", "1", "bigint", "integer", "bigint"),
    ("bigint", "1", "double precision", "bigint", "double precision"),
    ("real", "1", "double precision", "real", "double precision"),
    ("int", "1", "text", "integer", "text"),
    ("text", "'1'", "int USING v::int", "text", "integer"),
    ("text", "'1'", "varchar(5)", "text", "character varying"),
    ("numeric(10,2)", "1", "double precision", "numeric", "double precision"),
    ("date", "'2020-01-01'", "timestamp", "date", "timestamp without time zone"),
    ("timestamp", "'2020-01-01'", "timestamptz", "timestamp without time zone", "timestamp with time zone"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "text", "uuid", "text"),
    ("json", "'1'", "jsonb", "json", "jsonb"),
    ("bool", "true", "int USING v::int", "boolean", "integer"),
    ("int", "1", "int[] USING ARRAY[v]", "integer", "integer[]"),
    ("int[]", "'{1}'", "int USING v[1]", "integer[]", "integer"),
    ("int[]", "'{1}'", "bigint[]", "integer[]", "bigint[]"),
    ("price", "1", "numeric(9,4)", "price", "numeric"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "literal", "changed", "before", "after"), CHANGES)
async def test_A2_X12_a_changed_type_is_the_same_error_for_few_keys_and_for_many(
    database: Database, form: str, kind: str, literal: str, changed: str, before: str, after: str
) -> None:
    await database.execute(f"CREATE DOMAIN price AS numeric(9,4); CREATE TABLE t (id int, n int, v {kind})")
    await database.execute(f"INSERT INTO t SELECT i, i, {literal} FROM generate_series(1, 200) AS i")
    counts = (1, 10, 100)
    async with database.enricher(key="id", **FORMS[form]) as enricher:
        for count in counts:  # the statements are prepared
            assert len(await in_columns(enricher, range(1, count + 1))) == count
        await database.execute(f"ALTER TABLE t ALTER v TYPE {changed}")
        said = set()
        for count in counts:
            keys = range(1, count + 1)
            for answer in (enricher.lookup_many, lambda keys: in_columns(enricher, keys)):
                with pytest.raises(EnricherError) as caught:
                    await answer(keys)
                said.add(str(caught.value))
                assert (caught.value.retryable, caught.value.any_key) == (False, True)
        [words] = said
        assert f"the type of the column 'v' has changed from {before} to {after}; start the job again" in words


async def test_A2_X12_a_key_that_changes_its_type_is_named_too(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS v FROM generate_series(1, 200) AS i")
    async with database.enricher(table="t", key="id") as enricher:
        await database.execute("ALTER TABLE t ALTER id TYPE bigint")
        for count in (1, 10, 100):
            with pytest.raises(EnricherError, match="column 'id' has changed from integer to bigint"):
                await in_columns(enricher, range(count))


async def test_A2_X12_a_column_that_the_server_casts_may_change(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS v FROM generate_series(1, 200) AS i")
    async with database.enricher(table="t", key="id", columns={"v": "double"}) as enricher:
        await database.execute("ALTER TABLE t ALTER v TYPE text")
        for count in (1, 10, 100):
            assert await in_columns(enricher, range(1, count + 1)) == [[{"v": float(i)}] for i in range(1, count + 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "value"), [("numeric(12,4)", "1.2345"), *(("numeric", value) for value in ("1e-61", "1e37"))]
)
@pytest.mark.parametrize("array", [False, True])
async def test_X12_a_value_of_more_digits_than_the_column_had_is_the_same_error_everywhere(
    database: Database, form: str, kind: str, value: str, array: bool
) -> None:
    brackets, value = ("[]", f"{{{value}}}") if array else ("", value)
    await database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v numeric(10,2){brackets})")
    await database.execute("INSERT INTO t (id) SELECT generate_series(1, 200)")
    async with database.enricher(key="id", **FORMS[form]) as enricher:
        await database.execute(f"ALTER TABLE t ALTER v TYPE {kind}{brackets}; UPDATE t SET v = '{value}' WHERE id = 1")
        for count in (1, 10, 100):
            with pytest.raises(ResultError, match=r"key 1: the column 'v' holds .*, which does not fit") as caught:
                await in_columns(enricher, range(1, count + 1))
            assert (caught.value.retryable, caught.value.any_key) == (False, False)


@pytest.mark.parametrize("count", [1, 100])
async def test_X12_a_query_gives_columns_by_their_names_whatever_stands_before_them(
    database: Database, count: int
) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS a, -i AS b FROM generate_series(1, 200) AS i")
    query = "SELECT * FROM t WHERE id = ANY ($1)"
    async with database.enricher(query=query, key="id", columns=["b"]) as enricher:
        await database.execute("ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 7")
        assert (await in_columns(enricher, range(1, count + 1)))[0] == [{"b": -1}]
        await database.execute("ALTER TABLE t DROP b; ALTER TABLE t ADD c int DEFAULT 8")
        with pytest.raises(EnricherError, match=r"column t\.b does not exist"):
            await in_columns(enricher, range(1, count + 1))
