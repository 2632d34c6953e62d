"""Law X12 for decimals: a row gets what its source holds, or an error of its key names column, value and remedy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.arrow.answer_tables import AnswerTables, ask
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.enricher import as_schema
from asyncio_operator.lookup import Lookup
from enrichers import PostgresEnricher, SqlEnricher, TableEnricher
from enrichers.http.answers import Answers, UnreadableError
from enrichers.redis import RedisEnricher
from enrichers.sql.column_types import values_of
from enrichers.typed import MisfitError
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import in_sqlite
from tests.enrichers.test_postgres_columns import MISSES, in_columns
from tests.numbers import fitted, numbers

FREE = pa.decimal128(38, 18)
ALWAYS = [
    Decimal(text)
    for text in ("1e19", "99999999999999999999", "1e20", "1e30", "-1e30", "1e38", "1e40", "1e100", "1e-18", "-1e-19")
]


async def first(enricher: PostgresEnricher, keys: list[Any]) -> Any:
    """The values of the first key, or the text of the error."""
    try:
        return [*(await in_columns(enricher, keys))[0][0].values()]
    except EnricherError as error:
        return str(error)


@pytest.mark.parametrize("column", ["n", "m", "a"])
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(numbers, max_size=8))
async def test_X12_a_numeric_of_postgres_arrives_as_it_is(
    database: Database, column: str, drawn: list[Decimal]
) -> None:
    texts = [*map(str, [*ALWAYS, *drawn]), "NaN", "Infinity", "-Infinity"]
    small = [text if _holds(text, 60, 2) else "0" for text in texts]
    pairs = enumerate(zip(texts, small, strict=True))
    rows = ", ".join(f"({i}, '{text}', '{m}', ARRAY['{text}']::numeric[])" for i, (text, m) in pairs)
    await database.execute(
        "DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, n numeric, m numeric(60,2), a numeric[]);"
        f"INSERT INTO t VALUES {rows}"
    )
    kind = pa.decimal128(38, 2) if column == "m" else FREE
    async with database.enricher(table="t", key="id", columns=[column]) as enricher:
        for i, text in enumerate(small if column == "m" else texts):
            wanted = fitted(_rounded(text) if column == "m" else Decimal(text), kind)
            for keys in ([i], [i, *MISSES]):
                found = await first(enricher, keys)
                if wanted is not None:
                    assert found == [[wanted] if column == "a" else wanted]
                else:
                    shown = "array<decimal(38,18)>" if column == "a" else f"decimal(38,{kind.scale})"
                    for words in (f"the column '{column}' holds ", f"which does not fit {shown}; ", f"key {i}: "):
                        assert words in found
                    assert ('columns={"' + column + '": "double"}' in found) == (column != "a")


def _rounded(text: str) -> Decimal:
    number = Decimal(text)
    return number if not number.is_finite() else Decimal(f"{number:.2f}")


def _holds(text: str, precision: int, scale: int) -> bool:
    number = Decimal(text)
    return number.is_nan() or (number.is_finite() and abs(number) < Decimal(10) ** (precision - scale) - 1)


async def test_X12_a_numeric_key_of_postgres_finds_no_other_row(database: Database) -> None:
    values = {"18960114910927365649.471927446130393088": "other", "7.000": "seven", "1e30": "large"}
    rows = ", ".join(f"({number}, 1, '{value}')" for number, value in values.items())
    await database.execute(f"CREATE TABLE k (n numeric, i int, v text); INSERT INTO k VALUES {rows}")
    async with database.enricher(table="k", key=["n", "i"]) as enricher:
        for number, value in values.items():
            for others in ([], [(Decimal(7), i) for i in MISSES]):
                assert await first(enricher, [(Decimal(number), 1), *others]) == [value]


NO_DECIMALS: list[Any] = [math.nan, Decimal("NaN"), math.inf, Decimal("-Infinity")]
KEYS: list[Any] = [*NO_DECIMALS, 10**39, 1e50, -1e-39, 1e37, 0.05, 7, *map(Decimal, ("1e28", "1e38", "1e39", "1.50"))]
KEYS += map(Decimal, ("0", "1e-19", "1e-38", "1e-39", "1e-41", "1e-100", "1e49", "1e130000", "1200", "99900"))


SOURCES: list[dict[str, Any]] = [
    {"table": "t", "key": "k", "columns": ["v"]},
    {"table": "t", "key": ["i", "k"], "columns": ["v"]},
    {"table": "t", "key": "k", "columns": ["k", "v"]},
    {"query": "SELECT * FROM t WHERE k = ANY ($1)", "key": "k"},
]


@pytest.mark.parametrize(
    "kind", ["numeric", "numeric(10,2)", "numeric(50,10)", "numeric(90,40)", "numeric(3,-2)", "numeric(2,2)", "exact"]
)
async def test_X12_a_key_that_a_numeric_can_hold_is_found_or_an_error_of_it_alone(
    database: Database, kind: str
) -> None:
    await database.execute(f"CREATE DOMAIN exact AS numeric(38,18); CREATE TABLE t (i int, k {kind}, v text)")
    held = [await inserted(database, key) for key in KEYS]
    for source in SOURCES:
        enricher = PostgresEnricher(database.dsn, **source)
        arrow = enricher.key_schema().field("k").type
        async with Lookup(enricher) as lookup:
            keys = KEYS if source["key"] == "k" else [(1, key) for key in KEYS]
            answers: list[Any] = await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)
        for key, row, answer in zip(KEYS, held, answers, strict=True):
            if row is not None and fitted(exactly(key), arrow) is None:
                assert isinstance(answer, EnricherError), key
                assert "the numeric column 'k' may hold it, but keys of a lookup are numbers with at" in str(answer)
                assert f"{key!r}: the" in str(answer) or f"{key!r}): the" in str(answer)
            else:
                assert (answer if answer is None else answer["v"]) == row, key


SIZES = ["numeric", "numeric(10,2)", "numeric(38,30)", "numeric(50,10)", "numeric(2,2)", "float8"]


@pytest.mark.parametrize(("kind", "parts"), [*((kind, parts) for kind in SIZES for parts in (1, 2)), ("float4", 1)])
async def test_X12_a_number_that_sqlalchemy_can_ask_postgres_for_is_found_or_an_error_of_it_alone(
    database: Database, kind: str, parts: int
) -> None:
    await database.execute(f"CREATE TABLE t (i int, k {kind}, v text)")
    held = [await inserted(database, key) for key in KEYS]
    url = database.server.tcp_dsn().partition("?")[0].replace("postgresql://", "postgresql+asyncpg://")
    table = (database.name, "t")
    enricher = SqlEnricher(url, table=table, key=["i", "k"][-parts:], columns=["v"])
    arrow = enricher.key_schema().field("k").type
    async with Lookup(enricher) as lookup:
        keys = KEYS if parts == 1 else [(1, key) for key in KEYS]
        answers = await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)
    for key, row, answer in zip(KEYS, held, answers, strict=True):
        if row is not None and kind.startswith("numeric") and fitted(exactly(key), arrow) is None:
            assert isinstance(answer, EnricherError), key
            assert "the column 'k' holds" in str(answer)
            assert "does not fit decimal(" in str(answer)
            assert "name another type for it with schema=" in str(answer)
        else:
            assert answer == (None if row is None else {"v": row}), key
    await database.execute("DELETE FROM t WHERE k::numeric > 1e300 AND k::numeric < 'Infinity'")
    async with Lookup(SqlEnricher(url, table=table, key="k", columns=["v"], schema="k double, v string")) as lookup:
        for key in (math.nan, 1e37, 1e50):
            row = held[KEYS.index(key)]
            assert await lookup.get(key) == (None if row is None else {"v": row})


@pytest.mark.parametrize(("kind", "fits"), [("REAL", True), ("NUMERIC", False), ("DECIMAL(10,2)", False)])
async def test_X12_infinity_in_sqlite_is_found_or_an_error_of_it_alone(tmp_path: Path, kind: str, fits: bool) -> None:
    rows = [(math.inf, "inf"), (1.5, "1.5"), (math.nan, "null")]
    create = f"CREATE TABLE t (k {kind}, v text)"
    url = in_sqlite(tmp_path / "t.db", create, "INSERT INTO t VALUES (?, ?)", rows=rows)
    async with Lookup(SqlEnricher(url, table="t", key="k")) as lookup:
        keys = [math.inf, Decimal("Infinity"), 1.5, -math.inf, math.nan, Decimal("NaN"), Decimal("1e400")]
        answers = await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)
    assert answers[2:] == [{"v": "1.5"}, None, None, None, None]
    for answer in answers[:2]:
        assert answer == {"v": "inf"} if fits else "key inf: the column 'k' holds inf" in str(answer)


def exactly(key: Any) -> Decimal:
    """A key as the number that it means."""
    return Decimal(repr(key)) if isinstance(key, float) else Decimal(key)


async def inserted(database: Database, key: Any) -> str | None:
    """The value of a key's row, which is inserted if the column takes the key as it is."""
    number = f"'{exactly(key)}'::numeric"
    try:
        await database.execute(
            f"INSERT INTO t SELECT 1, x, x FROM (VALUES ({number})) AS n (x) "
            "WHERE NOT EXISTS (SELECT FROM t WHERE k = x); DELETE FROM t WHERE k <> v::numeric"
        )
        return next((v for [v] in await database.fetch(f"SELECT v FROM t WHERE k = {number}")), None)
    except asyncpg.NumericValueOutOfRangeError:
        return None


@pytest.mark.parametrize("kind", ["numeric", "numeric(10,2)"])
async def test_X12_a_double_of_a_dataframe_that_only_a_numeric_can_hold_is_an_error_of_it_alone(
    database: Database, kind: str
) -> None:
    await database.execute(
        f"CREATE TABLE t (i int, k {kind}, v text); INSERT INTO t VALUES (1, 'NaN', 'a'), (1, 1.5, 'b')"
    )
    for names in (["k"], ["i", "k"]):
        async with database.enricher(table="t", key=names, columns=["v"]) as enricher:
            tables = AnswerTables(enricher.key_schema(), enricher.schema())
            for number in (math.nan, 1e50):
                keys = pa.array([1.5, number])
                if len(names) > 1:
                    keys = pa.StructArray.from_arrays([pa.array([1, 1]), keys], ["0", "1"])
                if kind == "numeric" or math.isnan(number):
                    with pytest.raises(EnricherError, match="the numeric column 'k' may hold it") as raised:
                        await ask(enricher, tables, ArrowKeys(keys))
                    shown = repr(number) if len(names) == 1 else f"(1, {number!r})"
                    assert f"key {shown}: the" in str(raised.value)
                    assert (raised.value.retryable, raised.value.any_key) == (False, False)
                    keys = keys[:1]
                answers = [*await ask(enricher, tables, ArrowKeys(keys))]
                rows = [None if answer is None else answer.answer() for answer in answers]
                assert rows == [{"v": "b"}, None][: len(keys)]


async def test_X12_a_whole_table_says_which_value_its_keys_cannot_hold_and_its_remedy_works(database: Database) -> None:
    await database.execute("CREATE TABLE t (k numeric, v text); INSERT INTO t VALUES ('NaN', 'a'), (1e50, 'b')")
    table = TableEnricher(PostgresEnricher(database.dsn, table="t", key="k"), key="k")
    with pytest.raises(EnricherError, match=r"all rows: the column 'k' holds NaN, which does not fit") as raised:
        await table.open()
    assert str(raised.value).endswith('; pass columns={"k": "double"}, or convert it in a query')
    columns = {"k": "double", "v": "string"}
    table = TableEnricher(PostgresEnricher(database.dsn, table="t", key="k", columns=columns), key="k")
    async with Lookup(table) as lookup:
        assert await lookup.get(1e50) == {"v": "b"}
        assert await lookup.get(Decimal("NaN")) == {"v": "a"}


async def test_X12_the_remedies_for_such_a_key_find_its_row(database: Database) -> None:
    await database.execute("CREATE TABLE t (k numeric, v text); INSERT INTO t VALUES ('NaN', 'a'), (1e50, 'b')")
    query = "SELECT k::text AS k, v FROM t WHERE k = ANY ($1::text[]::numeric[])"
    sources: list[dict[str, Any]] = [{"table": "t"}, {"query": "SELECT * FROM t WHERE k = ANY ($1)"}]
    for table in sources:
        async with Lookup(
            PostgresEnricher(database.dsn, key="k", columns={"k": "double", "v": "string"}, **table)
        ) as by:
            assert [await by.get(key) for key in (1e50, 10**50)] == 2 * [{"k": 1e50, "v": "b"}]
            for key in (math.nan, Decimal("NaN")):
                row = await by.get(key)
                assert isinstance(row, dict)
                assert row["v"] == "a"
    async with Lookup(PostgresEnricher(database.dsn, key="k", table="t")) as by:
        with pytest.raises(
            EnricherError, match=r"cannot be compared with a column of type number; the key is k numeric$"
        ):
            await by.get("NaN")
    async with Lookup(PostgresEnricher(database.dsn, key="k", query=query)) as by:
        assert [await by.get(key) for key in ("NaN", f"1{50 * '0'}", "7")] == [{"v": "a"}, {"v": "b"}, None]


HTTP = Answers(as_schema("n decimal(38,18)"), None, None)


def of_redis(kind: Any) -> Callable[[Any], Any]:
    return RedisEnricher("redis://host", schema="n decimal(38,18)", kind=kind)._conversion()


WAYS: dict[str, Callable[[str], Any]] = {
    "a number of HTTP": lambda text: HTTP.found(HTTP.parse(f'{{"n": {text}}}'.encode(), "")),
    "a text of HTTP": lambda text: HTTP.found(HTTP.parse(f'{{"n": "{text}"}}'.encode(), "")),
    "a value of Redis": lambda text: of_redis("string")(text.encode()),
    "a hash of Redis": lambda text: of_redis("hash")({b"n": text.encode()}),
    "an object of Redis": lambda text: of_redis("json")(f'{{"n": {text}}}'.encode()),
    "SQL": lambda text: {"n": values_of([None, Decimal(text)], pa.field("n", FREE))[1]},
}


@pytest.mark.parametrize("way", WAYS)
@given(number=numbers | st.sampled_from(ALWAYS))
@example(number=Decimal("12345678901234567890.123456789012345678"))
def test_X12_a_number_of_a_source_arrives_as_it_is(way: str, number: Decimal) -> None:
    wanted = fitted(number, FREE)
    for text in (str(number), f"{number:f}"):
        if wanted is None:
            with pytest.raises(
                (MisfitError, UnreadableError), match=r"'n' holds .*, which does not fit decimal\(38,18\): "
            ):
                WAYS[way](text)
        else:
            assert WAYS[way](text) == {"n": wanted}


@pytest.mark.parametrize("where", ["table", "parquet"])
@pytest.mark.parametrize("given_type", [pa.decimal128(38, 0), pa.decimal256(76, 0), pa.string(), pa.float64()])
async def test_X12_a_number_of_a_table_arrives_as_it_is(tmp_path: Path, given_type: pa.DataType, where: str) -> None:
    def made(value: int) -> Any:
        as_given = {pa.string(): str, pa.float64(): float}.get(given_type, Decimal)
        table = pa.table({"id": [1], "n": pa.array([as_given(value)], given_type)})
        if where == "table":
            return table
        from pyarrow import parquet

        parquet.write_table(table, tmp_path / "t.parquet")
        return str(tmp_path / "t.parquet")

    for value in (10**19, 10**20 - 1 if given_type != pa.float64() else 10**18):
        enricher = TableEnricher(made(value), key="id", schema="id bigint, n decimal(38,18)")
        async with Lookup(enricher) as lookup:
            assert await lookup.get(1) == {"n": Decimal(value)}
    for value in (10**20, 10**30, -(10**30), 3 * 10**37):
        with pytest.raises((ConfigurationError, EnricherError), match="does not fit"):
            async with Lookup(TableEnricher(made(value), key="id", schema="id bigint, n decimal(38,18)")) as lookup:
                await lookup.get(1)
