"""Looking keys up: every type as a value and as a key, rows, misses, indexes."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.arrow.answer_tables import AnswerTables, ask
from asyncio_operator.lookup import Lookup
from enrichers import PostgresEnricher, span_attributes
from enrichers.postgres.arrow_keys import asked_keys
from enrichers.postgres.columns import PART
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import opened

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
BERLIN = ZoneInfo("Europe/Berlin")
NAN = math.nan

VALUES: list[tuple[str, list[str], list[Any]]] = [
    ("int2", ["-32768", "32767"], [-32768, 32767]),
    ("int4", ["-2147483648", "2147483647"], [-(2**31), 2**31 - 1]),
    ("int8", ["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
    ("float4", ["'0.1'", "'Infinity'"], [0.10000000149011612, math.inf]),
    ("float8", ["'0.1'", "'-Infinity'"], [0.1, -math.inf]),
    ("numeric", ["0.000000000000000001", "99999999999999999999"], [Decimal("1E-18"), Decimal(10**20 - 1)]),
    ("numeric", ["1.5" + 40 * "0"], [Decimal("1.5")]),
    ("numeric(10,2)", ["1.5", "-99999999.99"], [Decimal("1.50"), Decimal("-99999999.99")]),
    ("numeric(3,-2)", ["12345", "99900"], [Decimal(12300), Decimal(99900)]),
    ("numeric(50,10)", ["1.5", "9999999999999999999999999999"], [Decimal("1.5"), Decimal(10**28 - 1)]),
    ("numeric(60,40)", ["1.5", "1e-18"], [Decimal("1.5"), Decimal("1e-18")]),
    ("text", ["''", "'naïve 日本 \U0001f600'"], ["", "naïve 日本 \U0001f600"]),
    ("varchar(3)", ["'abc'", "' a '"], ["abc", " a "]),
    ("char(3)", ["'a'", "'abc'"], ["a  ", "abc"]),
    ("name", ["'abc'"], ["abc"]),
    ('"char"', ["'x'"], ["x"]),
    ("bool", ["true", "false"], [True, False]),
    ("date", ["'0001-01-01'", "'9999-12-31'"], [date.min, date.max]),
    ("timestamp", ["'0001-01-01'", "'9999-12-31 23:59:59.999999'"], [datetime.min, datetime.max]),
    ("timestamptz", ["'2024-03-31 03:30+02'"], [datetime(2024, 3, 31, 1, 30, tzinfo=UTC)]),
    ("uuid", [f"'{UUID.upper()}'"], [UUID]),
    ("json", ['\'{"b": 1,  "a": 2}\''], ['{"b": 1,  "a": 2}']),
    ("jsonb", ['\'{"b": 1,  "a": null}\''], ['{"a": null, "b": 1}']),
    ("mood", ["'ok'"], ["ok"]),
    ("bytea", ["'\\x00ff'"], [b"\x00\xff"]),
    ("price", ["1.5"], [Decimal("1.5000")]),
]

TYPES = "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN price AS numeric(9,4)"

KEYS: list[tuple[str, str, list[Any], list[Any]]] = [
    ("int2", "7", [7, Decimal(7), 7.0], [8, 2**15, 2**40, 2**63, 2**80, 7.5, NAN, math.inf, Decimal("7.5")]),
    ("int4", "7", [7], [8, 2**31, 2**40, -(2**63) - 1]),
    ("int8", "-9223372036854775808", [-(2**63)], [2**63, -(2**63) - 1, 1e300, 10**400]),
    ("float4", "0.1", [0.10000000149011612], [0.1, 1e300, 10**400, NAN]),
    ("float8", "0.1", [0.1, Decimal("0.1")], [0.10000000149011612, 0, NAN]),
    ("float8", "'NaN'", [NAN, float("nan")], [0.0, math.inf]),
    ("float8", "'Infinity'", [math.inf, Decimal("Infinity")], [-math.inf, 10**400, Decimal("1E+400"), Decimal("NaN")]),
    ("float8", "0", [0, 0.0, -0.0], [1]),
    ("numeric", "1.50", [Decimal("1.5"), Decimal("1.500"), 1.5], [Decimal("1.51"), 1, 2**80, 10**400]),
    ("numeric(4,2)", "1.50", [Decimal("1.5"), 1.5], [Decimal("1.501"), Decimal("1.499"), 12345, NAN]),
    ("numeric", "'NaN'", [Decimal("NaN"), NAN], [0]),
    ("text", "'a'", ["a"], ["A", "a ", " a", "", "ab"]),
    ("varchar(3)", "'abc'", ["abc"], ["abcd", "abc ", "ab"]),
    ("char(3)", "'ab'", ["ab", "ab ", "ab     "], ["abcd", "a", " ab"]),
    ("name", "'abc'", ["abc"], ["ab", "a" * 100]),
    ("bool", "true", [True], [False]),
    ("date", "'2020-02-29'", [date(2020, 2, 29)], [date(2020, 3, 1), date.min, date.max]),
    ("date", "'9999-12-31'", [date.max], [date.min]),
    ("date", "'0001-01-01'", [date.min], [date.max]),
    ("timestamp", "'9999-12-31 23:59:59.999999'", [datetime.max], [datetime.min]),
    ("timestamp", "'2024-10-27 02:30:00.000001'", [datetime(2024, 10, 27, 2, 30, 0, 1)], [datetime(2024, 10, 27)]),
    (
        "timestamptz",
        "'2024-10-27 00:30Z'",
        [datetime(2024, 10, 27, 0, 30, tzinfo=UTC), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)],
        [datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))],
    ),
    ("timestamptz", "'1880-01-01 12:00Z'", [datetime(1880, 1, 1, 12, tzinfo=UTC).astimezone(BERLIN)], []),
    ("uuid", f"'{UUID}'", [UUID, UUID.upper(), f"{{{UUID}}}", uuid.UUID(UUID)], ["x", "", str(uuid.UUID(int=1))]),
    ("mood", "'ok'", ["ok"], ["sad", "OK", "no such label", "x" * 200]),
    ("bytea", "'\\x00ff'", [b"\x00\xff", bytearray(b"\x00\xff")], [b"", b"\x00"]),
    ("price", "1.5", [Decimal("1.5")], [Decimal("1.50001")]),
    ("word", "'abc'", ["abc"], ["abcdef"]),
]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("int4", ["1", b"1", True, date(2020, 1, 1), (1,), None.__class__]),
        ("text", [1, b"a", UUID and uuid.UUID(UUID)]),
        ("numeric", ["1.5", False]),
        ("float8", ["1.5", True]),
        ("bool", [1, "true"]),
        ("date", [datetime(2020, 1, 1), "2020-01-01"]),
        ("timestamp", [date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)]),
        ("timestamptz", [datetime(2020, 1, 1), 5]),
        ("uuid", [5, UUID.encode()]),
        ("bytea", ["a", 5]),
    ],
)
async def test_a_key_of_a_type_that_cannot_match_is_an_error_that_names_it(
    database: Database, name: str, keys: list[Any]
) -> None:
    await database.execute(f"CREATE TABLE t (k {name}, v int)")
    async with database.enricher(table="t", key="k") as enricher:
        for key in keys:
            with pytest.raises(EnricherError) as caught:
                await enricher.lookup(key)
            assert caught.value.retryable is False
            assert all(text in str(caught.value) for text in (repr(key), type(key).__name__, '"t"'))
            with pytest.raises(EnricherError, match=re.escape(str(caught.value))):
                await ask(enricher, AnswerTables(enricher.key_schema(), enricher.schema()), [key])


@pytest.mark.parametrize("key", ["k", ["l", "k"]])
async def test_A3_a_uuid_finds_its_row_in_a_lookup_beside_a_key_of_a_wrong_type(database: Database, key: Any) -> None:
    await database.execute(f"CREATE TABLE t (k uuid, l int, v int); INSERT INTO t VALUES ('{UUID}', 1, 5)")
    keys: list[Any] = [uuid.UUID(UUID), UUID, 7, "x", uuid.UUID(int=1)]
    asked = keys if key == "k" else [(1, one) for one in keys]
    async with Lookup(PostgresEnricher(database.dsn, table="t", key=key, columns=["v"])) as lookup:
        answers = await asyncio.gather(*map(lookup.get, asked), return_exceptions=True)
    assert [answers[i] for i in (0, 1, 3, 4)] == [{"v": 5}, {"v": 5}, None, None]
    assert "a key of type int cannot be compared with a column of type text" in str(answers[2])


async def test_keys_of_several_columns_must_have_as_many_parts(database: Database) -> None:
    await database.execute("CREATE TABLE t (a int, b int, v int)")
    async with database.enricher(table="t", key=["a", "b"]) as enricher:
        for key in [(1,), (1, 2, 3), 5, ()]:
            with pytest.raises(EnricherError) as caught:
                await enricher.lookup(key)
            assert "a int, b int" in str(caught.value)


async def test_a_query_may_take_several_arrays(database: Database) -> None:
    await database.execute("CREATE TABLE t (a int, b text, v int); INSERT INTO t VALUES (1, 'x', 5), (1, 'y', 6)")
    query = "SELECT t.* FROM t JOIN unnest($1::int[], $2::text[]) AS k (a, b) USING (a, b)"
    with pytest.raises(ConfigurationError, match=r"\$1 is taken for integer\[\]"):
        PostgresEnricher(database.dsn, query=query, key=["b", "a"]).schema()
    async with database.enricher(query=query, key=["a", "b"]) as enricher:
        assert await enricher.lookup_many([(1, "x"), (1, "y"), (2, "x"), (2**40, "x")]) == [
            {"v": 5},
            {"v": 6},
            None,
            None,
        ]


async def test_rows_are_plain_dictionaries_in_the_order_of_the_schema(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS a, 2 AS b, 3 AS c, 4 AS d")
    async with database.enricher(table="t", key="c", columns=["d", "c", "a"]) as enricher:
        row = await enricher.lookup(3)
        assert type(row) is dict
        assert [*row.items()] == [("d", 4), ("c", 3), ("a", 1)]
        assert enricher.schema().names == ["d", "c", "a"]
    async with opened(PostgresEnricher(database.dsn, table="t", key=["c", "a"])) as enricher:
        assert await enricher.lookup((3, 1)) == {"b": 2, "d": 4}
        assert enricher.key_schema().names == ["c", "a"]


async def test_a_thousand_keys_are_one_query(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i::text AS v FROM generate_series(1, 2000) AS i")
    async with database.enricher(
        table="t", key="id", pool_size=1, dsn=f"{database.dsn}&application_name=one"
    ) as enricher:
        answers = await enricher.lookup_many(range(1001, 3001))
        assert answers == [{"v": str(i)} if i <= 2000 else None for i in range(1001, 3001)]
        [[query]] = await database.fetch("SELECT query FROM pg_stat_activity WHERE application_name = 'one'")
        assert "ANY ($1::int8[])" in query


INDEXED = [
    ("int4", "i", range(1, 900)),
    ("int8", "i", range(1, 900)),
    ("varchar(20)", "i::text", [str(i) for i in range(1, 900)]),
    ("text", "md5(i::text)", ["a" * 32] * 300),
    ("char(20)", "i::text", [str(i) for i in range(1, 900)]),
    ("uuid", "md5(i::text)::uuid", [UUID] * 300),
    ("numeric(12,2)", "i", [Decimal(i) for i in range(1, 900)]),
    ("float4", "i", [float(i) for i in range(1, 900)]),
    ("date", "'2020-01-01'::date + i % 20000", [date(2020, 1, i) for i in range(1, 32)]),
    ("timestamp", "'2020-01-01'::timestamp + i * interval '1 h'", [datetime(2020, 1, 1, i) for i in range(24)]),
    (
        "timestamptz",
        "'2020-01-01Z'::timestamptz + i * interval '1 h'",
        [datetime(2020, 1, 1, i, tzinfo=UTC) for i in range(24)],
    ),
    ("mood", "CASE WHEN i > 5 THEN 'ok' ELSE 'sad' END::mood", ["sad"] * 3),
    ("bytea", "decode(md5(i::text), 'hex')", [b"x"] * 300),
]


async def test_an_index_on_the_key_is_used(database: Database) -> None:
    columns = [f"({expression})::{name} AS k{i}" for i, (name, expression, _) in enumerate(INDEXED)]
    indexes = "; ".join(f"CREATE INDEX ON t (k{i}); CREATE INDEX ON t (n, k{i})" for i in range(len(INDEXED)))
    await database.execute(f"""
        {TYPES}; CREATE TABLE t AS SELECT {", ".join(columns)}, i AS n, i AS v FROM generate_series(1, 50000) AS i;
        {indexes}; ANALYZE t""")
    for i, (_, _, keys) in enumerate(INDEXED):
        cases: list[tuple[Any, list[Any]]] = [(f"k{i}", [*dict.fromkeys(keys)]), (["n", f"k{i}"], [*enumerate(keys)])]
        for key, asked in cases:
            async with database.enricher(table="t", key=key, columns=["v"]) as enricher:
                statement = enricher._description
                assert statement is not None
                arrays = statement.arrays(statement.canonical([*asked]))
                single = statement.call(statement.canonical(asked[:1]))
                assert single is not None
                types = enricher.key_schema().types
                packed = _structs(asked, enricher) if len(types) > 1 else pa.array(asked, types[0])
                literals = asked_keys(packed, statement.key_schema, [part.column for part in statement.key]).literals()
                statements = ((statement.sql, arrays), single, (statement.packed, literals))
                for options, (sql, parameters) in itertools.product(("", "(GENERIC_PLAN)"), statements):
                    plan = "\n".join(row[0] for row in await database.fetch(f"EXPLAIN {options} {sql}", *parameters))
                    assert "Seq Scan on t" not in plan, plan
                    assert "Index" in plan, plan


def _structs(keys: Any, enricher: PostgresEnricher) -> pa.Array:
    fields = [*enricher.key_schema()]
    columns = zip(*keys, strict=True)
    return pa.StructArray.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], fields=fields
    )


async def test_what_a_column_grows_by_while_a_stream_runs_is_found(database: Database) -> None:
    """A label that an enum got after the statement was made."""
    await database.execute(f"{TYPES}; CREATE TABLE t (m mood, v int)")
    async with database.enricher(table="t", key="m") as enricher:
        assert await enricher.lookup("new") is None
        await database.execute("ALTER TYPE mood ADD VALUE 'new'")
        await database.execute("INSERT INTO t VALUES ('new', 1)")
        assert await enricher.lookup("new") == {"v": 1}


@pytest.mark.parametrize("name", ["e{x}", "e{0}", "{}", "e}"])
async def test_an_enum_may_have_braces_in_its_name(database: Database, name: str) -> None:
    await database.execute(f"""CREATE TYPE "{name}" AS ENUM ('a'); CREATE TABLE t (m "{name}", v int)""")
    await database.execute("INSERT INTO t VALUES ('a', 1)")
    async with database.enricher(table="t", key="m") as enricher:
        assert await enricher.lookup_many(["a", "b"]) == [{"v": 1}, None]


async def test_a_wide_table_is_prepared_once_per_connection(database: Database) -> None:
    """Its statement is longer than what asyncpg keeps prepared by default."""
    columns = ", ".join(f"a_column_with_a_long_name_{i} date" for i in range(300))
    await database.execute(f"CREATE TABLE t (id int, {columns}); INSERT INTO t (id) VALUES (1)")
    query = "SELECT name FROM pg_prepared_statements WHERE statement LIKE 'SELECT CASE%'"
    async with database.enricher(table="t", key="id", pool_size=1) as enricher:
        assert enricher._runtime is not None
        await enricher.lookup(1)
        first = await enricher._runtime[0].fetch(query)
        await enricher.lookup(1)
        assert len(first) == 1
        assert await enricher._runtime[0].fetch(query) == first


async def test_rows_gives_the_whole_table_with_its_keys(database: Database) -> None:
    await database.execute("CREATE TABLE t (a int, b text, v numeric(5,2))")
    await database.execute(
        "INSERT INTO t VALUES (1, 'x', 1.5), (1, 'x', 2), (2, 'y', NULL), (NULL, 'z', 3), (3, NULL, 4)"
    )
    async with database.enricher(table="t", key=["b", "a"]) as enricher:
        found = [(row["b"], row["a"], row["v"]) for row in (await enricher.rows()).to_pylist()]
        assert sorted(found, key=str) == [("x", 1, Decimal("1.50")), ("x", 1, Decimal("2.00")), ("y", 2, None)]
    async with database.enricher(table="t", key="a", columns=["a", "b"]) as enricher:
        assert sorted((await enricher.rows())["a"].to_pylist()) == [1, 1, 2, 3]
        assert {"a": 3, "b": None} in (await enricher.rows()).to_pylist()
    async with database.enricher(query="SELECT * FROM t WHERE a = ANY ($1)", key="a") as enricher:
        with pytest.raises(ConfigurationError, match="name a table or a view"):
            await enricher.rows()


async def test_X12_the_rows_of_a_large_table_come_in_columns_each_once(database: Database) -> None:
    await database.execute(f"""
        CREATE TABLE t (k numeric, l date, v int[], d date);
        INSERT INTO t
            SELECT i, '2020-01-01', ARRAY[i, NULL], '20000-01-01' FROM generate_series(1, {2 * PART + 1}) AS i;
        INSERT INTO t VALUES (-1, 'infinity', '{{}}', NULL), (-2, NULL, NULL, NULL)""")
    async with database.enricher(table="t", key=["k", "l"]) as enricher:
        table = await enricher.rows()
        table.validate(full=True)
        assert table.column_names == ["k", "l", "v", "d"]
        assert sorted(map(int, table["k"].to_pylist())) == [*range(1, 2 * PART + 2)]
        assert pc.all(pc.equal(pc.list_element(table["v"], 0), table["k"].cast(pa.int32()))).as_py()
        assert {*table["d"].cast(pa.int32()).to_pylist()} == {6_585_322}
        for values, told in {
            "(7, '2020-01-01', '{{1},{2}}')": r"2020, 1, 1\)\): the column 'v' holds \{\{1\},\{2\}\}",
            "(7, '2020-01-01', NULL, 'infinity')": r"2020, 1, 1\)\): the column 'd' holds infinity",
            "('NaN', '2020-01-01')": "the column 'k' holds NaN",
        }.items():
            await database.execute(f"DELETE FROM t; INSERT INTO t VALUES {values}")
            with pytest.raises(EnricherError, match=told):
                await enricher.rows()


small = st.integers(-3, 6)
words = st.sampled_from(["", "a", "A", "a ", "b"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(small | st.none(), words | st.none(), small), max_size=20), keys=st.data())
def test_L1_any_table_answers_as_a_dictionary_would_and_a_null_matches_nothing(
    postgres: Any, rows: list[Any], keys: st.DataObject
) -> None:
    async def ask(key: str | list[str], asked: list[Any]) -> list[Any]:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute("CREATE TABLE IF NOT EXISTS model (a int, b text, v int); TRUNCATE model")
        await connection.executemany("INSERT INTO model VALUES ($1, $2, $3)", rows)
        await connection.close()
        async with opened(PostgresEnricher(postgres.dsn, table="model", key=key, columns=["v"])) as enricher:
            answers = await enricher.lookup_many(asked)
        return list(answers)

    def model(values: list[int]) -> Any:
        found = [{"v": value} for value in values]
        return found[0] if len(found) == 1 else found or None

    one = keys.draw(st.lists(small | st.none(), max_size=8))
    two = keys.draw(st.lists(st.tuples(small | st.none(), words | st.none()), max_size=8))
    answers = [ask("a", one), ask(["a", "b"], two)]

    async def both() -> list[Any]:
        return [_sorted(await answer) for answer in answers]

    assert asyncio.run(both()) == [
        _sorted([model([v for a, _, v in rows if a == k and k is not None]) for k in one]),
        _sorted([model([v for a, b, v in rows if (a, b) == k and None not in k]) for k in two]),
    ]


def _sorted(answers: list[Any]) -> list[Any]:
    """The rows of a table have no order."""
    return [sorted(answer, key=lambda row: row["v"]) if isinstance(answer, list) else answer for answer in answers]


async def test_V4_its_spans_name_the_server_the_table_and_no_secret(database: Database) -> None:
    await database.execute("CREATE TABLE planes (id int PRIMARY KEY, seats int)")
    async with opened(PostgresEnricher(database.dsn, table="planes", key="id")) as enricher:
        found = enricher.call_attributes()
    assert (found["db.system.name"], found["db.query.summary"]) == ("postgresql", "SELECT planes")


def test_V4_a_connection_string_gives_a_span_its_server_and_database_only() -> None:
    dsn = "postgresql://ada:s3cret@db.example:5433/shop?sslmode=require&password=s3cret"
    assert span_attributes.database("postgresql", dsn, "SELECT") == {
        "db.system.name": "postgresql",
        "db.operation.name": "SELECT",
        "server.address": "db.example",
        "server.port": 5433,
        "db.namespace": "shop",
    }
    several = span_attributes.database("mssql", "mssql+aioodbc://a:1,b:2/x", "SELECT", "dbo.t")
    assert several["db.system.name"] == "microsoft.sql_server"
    assert "server.address" not in several
