"""`columns` as a mapping: the server casts, by rows and by columns the same; what is wrong is found on the driver."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, EnricherError
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_columns import MISSES, in_columns

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
    return repr(dict(row)).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


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
