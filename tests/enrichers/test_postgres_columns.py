"""Answers in columns: the same as by rows, for every type, and for values that rows cannot hold."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from re import sub
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncio_operator import EnricherError, ResultError
from asyncio_operator.arrow.answer_tables import AnswerTables, ask
from asyncio_operator.arrow.columns import columns
from enrichers import PostgresEnricher
from enrichers.postgres.columns import MARKS, MOST_COLUMNS
from enrichers.postgres.enricher import MOST_AS_ROWS
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_lookup import KEYS, TYPES, VALUES

MISSES = range(10**6, 10**6 + MOST_AS_ROWS + 1)
"""Integer keys without a row: with them a batch is too large to be asked for as rows."""


def listed(rows: Any) -> list[dict[str, Any]]:
    return [] if rows is None else [rows] if isinstance(rows, dict) else list(rows)


async def in_columns(enricher: PostgresEnricher, keys: Sequence[Any]) -> list[list[dict[str, Any]]]:
    answers = await ask(enricher, AnswerTables(enricher.key_schema(), enricher.schema()), keys)
    return [[] if answer is None else listed(answer.answer()) for answer in answers]


async def in_rows(enricher: PostgresEnricher, keys: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """The same by rows, in the types of the columns."""
    schema = enricher.schema()
    answers = [listed(rows) for rows in await enricher.lookup_many(keys)]
    return [pa.table(columns(rows, schema), schema=schema).to_pylist() for rows in answers]


def shown(answers: list[list[dict[str, Any]]]) -> list[str]:
    """Text that tells -0.0 from 0.0, and equates NaN with NaN. The rows of a table have no order."""
    return [repr(sorted(map(repr, rows))) for rows in answers]


async def outcome(answer: Any, enricher: PostgresEnricher, keys: Sequence[Any]) -> Any:
    """The answer of the first key, or the error of the batch."""
    try:
        return shown((await answer(enricher, keys))[:1])
    except EnricherError as error:
        return "holds" in str(error), error.retryable, error.any_key, error.overload


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
moments = st.datetimes(datetime.min, datetime.max) | st.sampled_from([datetime.min, datetime.max])

LITERALS: dict[str, st.SearchStrategy[Any]] = {
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1) | st.just(MARKS[4]),
    "int8": st.integers(-(2**63), 2**63 - 1) | st.just(MARKS[8]),
    "float4": st.floats(width=32),
    "float8": st.floats(),
    "numeric": st.decimals("-1e15", "1e15", places=18),
    "numeric(10,2)": st.decimals("-99999999", "99999999", places=2),
    "numeric(3,-2)": st.integers(-99900, 99900),
    "numeric(60,40)": st.decimals("-1e10", "1e10", places=18),
    "text": texts,
    "varchar(5)": texts,
    "char(5)": texts,
    "name": texts,
    '"char"': st.sampled_from(["", "a", "~", "\\200"]),
    "bool": st.booleans(),
    "date": moments.map(datetime.date),
    "timestamp": moments,
    "timestamptz": moments.map(lambda moment: f"{moment}+00"),
    "uuid": st.uuids(),
    "json": st.sampled_from(['{"b": 1,  "a": "\U0001f600"}', "null", '"x"']),
    "jsonb": st.sampled_from(['{"b": 1,  "a": 2}', "null", '"x"']),
    "mood": st.sampled_from(["sad", "ok"]),
    "bytea": st.binary(max_size=5).map(lambda value: "\\x" + value.hex()),
    "price": st.decimals("-9999", "9999", places=4),
}
"""Values of every type, as text that the server reads."""


def array_literal(elements: list[Any]) -> str:
    """The text of an array of these elements."""
    quoted = ("NULL" if e is None else '"' + sub(r'(["\\\\])', r"\\\1", str(e)) + '"' for e in elements)
    return f"{{{','.join(quoted)}}}"


LITERALS |= {
    f"{name}[]": st.lists(st.none() | values, max_size=4).map(array_literal) for name, values in LITERALS.items()
}

_UNFIT = [
    *(("numeric", text) for text in ("NaN", "Infinity", "1e20", "1e-19")),
    ("numeric(10,2)", "NaN"),
    *((name, text) for name in ("date", "timestamp", "timestamptz") for text in ("infinity", "-infinity")),
]
UNFIT = [
    *_UNFIT,
    *((f"{name}[]", array_literal([None, text])) for name, text in _UNFIT),
    *((f"{name}[]", "{{1,2},{3,4}}") for name in ("int2", "numeric", "numeric(10,2)", "text", "bytea", "name")),
]
"""Values that no column can hold, and their types."""


@settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 4),
            texts,
            st.fixed_dictionaries({name: st.none() | values for name, values in LITERALS.items()}),
            st.just({}) | st.just({}) | st.sampled_from(UNFIT).map(lambda unfit: dict([unfit])),
        ),
        max_size=8,
    )
)
async def test_A3_columns_and_rows_give_the_same_answer_for_every_type(
    database: Database, rows: list[tuple[int, str, dict[str, Any], dict[str, str]]]
) -> None:
    names = ", ".join(f"v{number} {name}" for number, name in enumerate(LITERALS))
    exists = await database.fetch(f"SELECT FROM pg_tables WHERE schemaname = '{database.name}'")
    await database.execute("TRUNCATE t" if exists else f"{TYPES}; CREATE TABLE t (id int, k text, {names})")
    parameters = ", ".join(f"${number}::text::{name}" for number, name in enumerate(["int", "text", *LITERALS], 1))
    for number, k, values, unfit in rows:
        given = [(values | unfit)[name] for name in LITERALS]
        texts = (None if value is None else str(value) for value in given)
        await database.fetch(f"INSERT INTO t VALUES ({parameters})", str(number), k, *texts)
    async with database.enricher(table="t", key="id") as enricher:
        for key in range(5):
            expected = await outcome(in_rows, enricher, [key])
            assert await outcome(in_columns, enricher, [key, *MISSES]) == expected
            assert await outcome(in_columns, enricher, [key]) == expected
    async with database.enricher(table="t", key=["k", "id"], columns=["v0", "v8", "k"]) as enricher:
        keys = [*{(k, number) for number, k, *_ in rows}, *(("no", key) for key in MISSES)]
        assert shown(await in_columns(enricher, keys)) == shown(await in_rows(enricher, keys))


@pytest.mark.parametrize(
    ("name", "element"), [("int4", "i"), ("text", "repeat('é', (i % 3)::int)"), ("date", "DATE '20000-01-01'")]
)
async def test_A3_arrays_of_a_column_need_no_rows(database: Database, name: str, element: str) -> None:
    """Short and long ones, with nulls and without, more than are read in rounds; a date that Python cannot hold too."""
    await database.execute(f"""
        CREATE TABLE t AS SELECT n AS id, (
            SELECT array_agg(CASE WHEN n % 2 = 0 OR i % 5 > 0 THEN {element} END ORDER BY i)
            FROM generate_series(1, CASE n WHEN 7 THEN 3000 ELSE n % 4 END) AS i
        ) AS v FROM generate_series(1, 60) AS n""")
    shown = "v" if name != "date" else "(SELECT array_agg(e - '1970-01-01') FROM unnest(v) AS e)"
    expected = {row["id"]: row["v"] for row in await database.fetch(f"SELECT id, {shown} AS v FROM t")}
    kind = pa.list_({"int4": pa.int32(), "text": pa.string(), "date": pa.date32()}[name])
    async with database.enricher(table="t", key="id") as enricher:
        table = await enricher.lookup_columns(pa.array(range(1, 61), pa.int32()))
        table.validate(full=True)
        assert table.schema.field("v").type == kind
        column = table["v"].cast(pa.list_(pa.int32())) if name == "date" else table["v"]
        assert dict(zip(table["id"].to_pylist(), column.to_pylist(), strict=True)) == expected


@pytest.mark.parametrize("form", ["table", "query"])
async def test_A3_values_at_the_ends_of_every_type_are_the_same(database: Database, form: str) -> None:
    await database.execute(TYPES)
    source: dict[str, Any] = {"table": "t"} if form == "table" else {"query": "SELECT * FROM t WHERE id = ANY ($1)"}
    for name, literals, values in VALUES:
        await database.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int, v {name})")
        for number, literal in enumerate([*literals, "NULL"]):
            await database.execute(f"INSERT INTO t VALUES ({number}, ({literal})::{name})")
        async with database.enricher(key="id", **source) as enricher:
            keys = [*range(len(literals) + 1), *MISSES]
            table = await enricher.lookup_columns(pa.array(keys, pa.int32()))
            assert table.schema == pa.schema([*enricher.schema(), *enricher.key_schema()])
            found = {row["id"]: row["v"] for row in table.to_pylist()}
            assert found == dict(enumerate([*values, None])), name
            rows = await enricher.lookup_many(keys[: len(found)])
            assert rows == [{"v": value} for value in [*values, None]], name
            assert pa.array([row["v"] for row in rows], enricher.schema().field("v").type).to_pylist() == [
                *values,
                None,
            ]


@pytest.mark.parametrize("count", [1, MOST_AS_ROWS + 1])
@pytest.mark.parametrize(
    ("name", "literal"),
    [
        ("date", "10000-01-01"),
        ("date", "5874897-12-31"),
        ("date", "0044-03-15 BC"),
        ("date", "4713-01-01 BC"),
        ("timestamp", "294246-12-31 23:59:59.999999"),
        ("timestamp", "0044-03-15 BC"),
        ("timestamptz", "20000-02-29 00:00:00.000001+00"),
        ("timestamptz", "4713-01-01 00:00:00+00 BC"),
    ],
)
async def test_A4_a_date_that_python_cannot_hold_arrives_and_is_found(
    database: Database, name: str, literal: str, count: int
) -> None:
    await database.execute(f"CREATE TABLE t (id int, v {name}); INSERT INTO t VALUES (1, '{literal}'), (2, NULL)")
    since_1970 = "v - '1970-01-01'" if name == "date" else "extract(epoch FROM v) * 1000000"
    [[expected]] = await database.fetch(f"SELECT ({since_1970})::int8 FROM t WHERE id = 1")
    async with database.enricher(table="t", key="id") as enricher:
        kind, number = enricher.schema().field("v").type, pa.int32() if name == "date" else pa.int64()
        table = await enricher.lookup_columns(pa.array([1, *MISSES][:count], pa.int32()))
        assert table["v"].cast(number).to_pylist() == [expected]
        with pytest.raises(EnricherError):
            await enricher.lookup(1)
    numbers = pa.array([expected, *range(count - 1)], number)
    for key in ("v", ["v", "id"]):
        async with database.enricher(table="t", key=key, columns=["id"]) as enricher:
            keys = numbers.cast(kind)
            if key != "v":
                keys = pa.StructArray.from_arrays(
                    [keys, pa.array([1] * count, pa.int32())], enricher.key_schema().names
                )
            table = await enricher.lookup_columns(keys)
            assert (table["id"].to_pylist(), table["v"].cast(number).to_pylist()) == ([1], [expected])


BEYOND = [
    ("date", "'infinity'", "infinity"),
    ("date", "'-infinity'", "-infinity"),
    ("date", "'10000-01-01'", "10000-01-01"),
    ("date", "'0044-03-15 BC'", "BC"),
    ("timestamp", "'infinity'", "infinity"),
    ("timestamp", "'294276-12-31'", "294276"),
    ("timestamptz", "'-infinity'", "-infinity"),
    ("timestamptz", "'4713-01-01 00:00+00 BC'", "BC"),
    ("numeric", "'NaN'", "NaN"),
    ("numeric", "'Infinity'", "Infinity"),
    ("numeric", "1e20", "100000000000000000000"),
    ("numeric", "0.0000000000000000001", "0.0000000000000000001"),
    ("numeric(5,2)", "'NaN'", "NaN"),
    ("numeric(50,10)", "1e28", "1000000"),
    ("numeric(60,40)", "1e-19", "0.0000000000000000001"),
    ("char(3)[]", "'{{JFK},{LGA}}'", "{{JFK},{LGA}}"),
    ("mood[]", "'{{sad}}'", "{{sad}}"),
    ("codes", "'{{JFK}}'", "{{JFK}}"),
    ("day[]", "'{2020-01-01,infinity}'", "infinity"),
    ("timestamp[]", "'{-infinity}'", "infinity"),
    ("numeric(5,2)[]", "'{1,NaN}'", "NaN"),
    ("price[]", "'{NaN}'", "NaN"),
    ("numeric[]", "'{1e20}'", "100000000000000000000"),
]
"""Values that no row can hold, and no column either but for finite dates, and how messages show them."""


@pytest.mark.parametrize(("name", "literal", "shown"), BEYOND)
async def test_A3_a_value_that_spark_cannot_hold_is_an_error_of_its_key_alone(
    database: Database, name: str, literal: str, shown: str
) -> None:
    await database.execute(f"{TYPES}; CREATE DOMAIN codes AS char(3)[]; CREATE DOMAIN day AS date")
    await database.execute(f"CREATE TABLE t (id int, w int, v {name}); INSERT INTO t VALUES (1, 1, {literal}::{name})")
    await database.execute("INSERT INTO t VALUES (2, 2, NULL)")
    for source in ({"table": "t"}, {"query": "SELECT * FROM t WHERE id = ANY ($1)"}):
        async with database.enricher(key="id", **source) as enricher:
            asked: list[Awaitable[Any]] = [enricher.lookup_many([2, 1])]
            if "10000" not in literal and "BC" not in literal:
                asked += (enricher.lookup_columns(pa.array(keys, pa.int32())) for keys in ([1], [*MISSES, 1]))
            for answer in asked:
                with pytest.raises(EnricherError) as caught:
                    await answer
                assert (caught.value.retryable, caught.value.any_key) == (False, False), "the batch is split"
                assert all(piece in str(caught.value) for piece in ("key 1:", "column 'v' holds", shown))
            assert await enricher.lookup_many([2]) == [{"w": 2, "v": None}]


def exact(key: Any, kind: pa.DataType) -> bool:
    """Whether a key is of the Python type of its column, as the keys of a DataFrame are."""
    classes: dict[pa.DataType, Any] = {
        pa.float32(): float,
        pa.float64(): float,
        pa.bool_(): bool,
        pa.binary(): bytes,
        pa.date32(): date,
    }
    expected = classes.get(kind) or {"s": str, "i": int, "d": Decimal, "t": datetime}[str(kind)[0]]
    return type(key) is expected and not (isinstance(key, Decimal) and key.is_nan())


@pytest.mark.parametrize(("name", "literal", "hits", "misses"), KEYS)
async def test_L9_A3_a_key_of_every_type_finds_its_row_in_each_way_and_is_never_cast_to_the_column(
    database: Database, name: str, literal: str, hits: list[Any], misses: list[Any]
) -> None:
    await database.execute(f"{TYPES}; CREATE DOMAIN word AS varchar(3); CREATE TABLE t (k {name}, l int, v int)")
    await database.execute(f"INSERT INTO t VALUES (({literal})::{name}, 1, 5), (NULL, 1, 7)")
    cast = "text[]::" if name in ("date", "timestamp") else ""
    kind = "text" if name in ("mood", "name", "word") else "numeric" if name.startswith(("numeric", "price")) else name
    array = f"$2::{cast}{kind}[]"
    query = f"SELECT t.* FROM unnest($1::int[], {array}) AS a (l, k) JOIN t ON t.l = a.l AND t.k::{kind} = a.k"
    # Where nothing is cast the server chooses the type of the parameter, so keys that do not fit it are not sent.
    parameter = "$1::int8[]" if name == "int4" else array.replace("$2", "$1") if cast or kind != name else "$1"
    one = f"SELECT * FROM t WHERE k::{kind} = ANY ({parameter})"
    keys = [*hits, *misses, None]
    expected = [{"v": 5}] * len(hits) + [None] * (len(misses) + 1)
    for source in (
        *({"table": "t", "key": "k"}, {"table": "t", "key": ["l", "k"]}),
        *({"query": one, "key": "k"}, {"query": query, "key": ["l", "k"]}),
    ):
        async with database.enricher(**source, columns=["v"]) as enricher:
            asked = keys if source["key"] == "k" else [(1, key) for key in keys]
            if source.get("query") != query:
                assert await enricher.lookup_many(asked) == expected
                assert [await enricher.lookup(key) for key in asked] == expected
            same = [key for key in keys if exact(key, enricher.key_schema().field("k").type)]
            for count in (0, MOST_AS_ROWS) if same else ():
                asked = same
                if source["key"] != "k":
                    asked = [(place, key) for place in (1, 2, *MISSES[:count]) for key in same]
                assert shown(await in_columns(enricher, asked)) == shown(await in_rows(enricher, asked)), source


async def test_A1_several_rows_of_a_key_keep_the_order_of_a_query_also_in_parallel(database: Database) -> None:
    await database.execute(
        "CREATE TABLE t AS SELECT i % 100 AS id, i AS v, i::text AS w FROM generate_series(1, 30000) AS i"
    )
    await database.execute("ANALYZE t")
    eager = "&".join(
        f"{name}=0" for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size")
    )
    query = "SELECT * FROM t WHERE id = ANY ($1) ORDER BY hashint4(v)"
    dsn = f"{database.dsn}&{eager}&max_parallel_workers_per_gather=4"
    async with database.enricher(query=query, key="id", dsn=dsn) as enricher:
        keys = pa.array(range(60), pa.int32())
        table = await enricher.lookup_columns(keys)
        expected = await database.fetch(query, keys.to_pylist())
        assert table.to_pylist() == [{"v": row["v"], "w": row["w"], "id": row["id"]} for row in expected]


async def test_A1_a_key_is_given_back_as_it_was_asked(database: Database) -> None:
    """The server writes UUIDs in one way, and adds blanks to a char(n)."""
    await database.execute(
        "CREATE TABLE t AS SELECT md5(i::text)::uuid AS k, i::char(5) AS c, i AS v FROM generate_series(1, 40) AS i"
    )
    [[first]] = await database.fetch("SELECT k::text FROM t WHERE v = 7")
    keys = [first.upper(), first, "{" + first + "}", "no uuid", first[::-1]]
    misses = [f"{number:032x}" for number in MISSES]
    async with database.enricher(table="t", key="k", columns=["v"]) as enricher:
        for more in ([], misses):
            table = await enricher.lookup_columns(pa.array(keys + more))
            assert sorted(table["k"].to_pylist()) == sorted(keys[:3])
            assert await in_columns(enricher, keys + more) == [[{"v": 7}]] * 3 + [[]] * (2 + len(more))
    async with database.enricher(table="t", key=["c", "k"], columns=["v", "c"]) as enricher:
        keys = [(c, k) for c in ("7", "7   ", "7      ") for k in (first, first.upper())]
        for extra in ([], [("8", miss) for miss in misses]):
            answers = await in_columns(enricher, keys + extra)
            assert [[row["v"] for row in rows] for rows in answers] == [[7]] * 6 + [[]] * len(extra)


@pytest.mark.parametrize("kind", ["int4", "int8", "float8"])
async def test_a_value_with_the_bits_of_a_mark_is_no_null(database: Database, kind: str) -> None:
    width = 4 if kind == "int4" else 8
    value = f"{MARKS[width]}" if kind != "float8" else "-1.4075e-320"
    await database.execute(f"CREATE TABLE t (id int, v {kind}); INSERT INTO t VALUES (1, {value}), (2, NULL), (3, 5)")
    async with database.enricher(table="t", key="id") as enricher:
        keys = [1, 2, 3, *MISSES]
        assert shown(await in_columns(enricher, keys)) == shown(await in_rows(enricher, keys))


async def test_an_answer_larger_than_the_server_allows_is_asked_for_as_rows(database: Database) -> None:
    await database.execute("""
        CREATE SEQUENCE s;
        CREATE FUNCTION large() RETURNS int LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('s') = 1 THEN RAISE 'too large' USING ERRCODE = '54000'; END IF;
                RETURN 5;
            END $$;
        CREATE VIEW t AS SELECT i AS id, large() AS v FROM generate_series(1, 1) AS i""")
    async with database.enricher(table="t", key="id") as enricher:
        assert (await in_columns(enricher, [1, *MISSES]))[0] == [{"v": 5}]


async def test_a_table_of_very_many_columns_is_answered_as_rows(database: Database) -> None:
    names = ", ".join(f"v{number} int" for number in range(MOST_COLUMNS))
    await database.execute(f"CREATE TABLE t (id int, {names}); INSERT INTO t (id, v7) VALUES (1, 2)")
    async with database.enricher(table="t", key="id") as enricher:
        [[row], *others] = await in_columns(enricher, [1, *MISSES])
        assert (row["v7"], row["v8"], len(row), others[0]) == (2, None, MOST_COLUMNS, [])


async def test_keys_of_another_type_and_no_keys(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS l, 3 AS v")
    async with database.enricher(table="t", key="id") as enricher:
        for keys in (pa.array(["1"]), pa.array([{"id": 1}])):
            with pytest.raises(EnricherError, match=r"the key is id int\b") as caught:
                await enricher.lookup_columns(keys)
            assert (caught.value.retryable, caught.value.any_key) == (False, True)
        for keys in (pa.array([], pa.int32()), pa.array([None], pa.int32())):
            assert await enricher.lookup_columns(keys) == (await enricher.lookup_columns(pa.array([9], pa.int32())))
    async with database.enricher(table="t", key=["id", "l"]) as enricher:
        with pytest.raises(EnricherError, match=r"the key is id int, l int\b"):
            await enricher.lookup_columns(pa.array([1], pa.int32()))


@pytest.mark.parametrize("stranger", ["upper(k)", "NULL"])
async def test_A2_a_query_that_changes_its_keys_is_an_error_and_no_miss(database: Database, stranger: str) -> None:
    query = f"SELECT {stranger} AS k, 1 AS v FROM unnest($1::text[]) AS k"
    async with database.enricher(query=query, key="k") as enricher:
        assert await enricher.lookup_many([None]) == [None]
        for keys in (["a"], ["a", None]):
            with pytest.raises(EnricherError, match=r"not asked for, such as ('A'|None)"):
                await enricher.lookup_many(keys)
        for keys in (["a"], [f"a{number}" for number in MISSES] + ["a"]):
            with pytest.raises(ResultError, match=r"not asked for|is null"):
                await in_columns(enricher, keys)
    query = "SELECT 'infinity'::date AS k, 1 AS v FROM unnest($1::text[]) AS k"
    async with database.enricher(query=query, key="k") as enricher:
        days = [date(2020, 1, 1) + timedelta(days=number) for number in range(MOST_AS_ROWS + 1)]
        for days_asked in (days, days[:1]):
            with pytest.raises((EnricherError, ResultError), match=r"not asked for|is null"):
                await in_columns(enricher, days_asked)


async def test_an_error_in_columns_names_the_enricher_and_the_keys(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS v FROM generate_series(0, 99) AS i")
    async with database.enricher(query="SELECT id, 10 / v AS v FROM t WHERE id = ANY ($1)", key="id") as enricher:
        with pytest.raises(EnricherError, match=r"PostgresEnricher\(query=.*99 keys from 0 to 98: .*divides by zero"):
            await in_columns(enricher, range(99))
        with pytest.raises(EnricherError, match=r"PostgresEnricher\(query=.*, key 0: .*divides by zero"):
            await in_columns(enricher, [0])
