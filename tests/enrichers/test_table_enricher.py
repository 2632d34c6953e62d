"""`TableEnricher`: tables in memory, where they come from, and what becomes of them when they are loaded again."""

from __future__ import annotations

import asyncio
import datetime
import functools
import math
import traceback
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql.types import LongType, StructField, StructType

from asyncio_operator import ConfigurationError, Enricher, ResultError, Retry
from asyncio_operator.arrow.key_arrays import distinct, key_array, python_keys
from asyncio_operator.arrow.key_index import match
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.testing import FakeEnricher, check_enricher
from enrichers import FunctionEnricher
from enrichers.postgres import PostgresEnricher
from enrichers.table import TableEnricher
from tests.arrow.test_key_identity import COLUMNS, rows_of
from tests.enrichers.helpers import opened
from tests.servers import PostgresServer
from tests.spark.worker.tasks import chained

AIRPORTS = pa.table(
    {
        "faa": ["JFK", "LGA", "LGA", None, "EWR"],
        "name": ["Kennedy", "a", "b", "nobody's", None],
        "height": pa.array([4, 7, None, 1, 2], pa.int32()),
    }
)
KNOWN = {
    "JFK": {"name": "Kennedy", "height": 4},
    "LGA": [{"name": "a", "height": 7}, {"name": "b", "height": None}],
    "EWR": {"name": None, "height": 2},
}


def give_table() -> Any:
    return AIRPORTS


def give_rows() -> Any:
    return AIRPORTS.to_pylist()


async def give_later() -> Any:
    await asyncio.sleep(0.01)
    return AIRPORTS


@pytest.fixture
def path(tmp_path: Path) -> str:
    parquet.write_table(AIRPORTS, tmp_path / "airports.parquet")
    return str(tmp_path / "airports.parquet")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "airports").mkdir()
    for number in range(2):
        parquet.write_table(AIRPORTS.slice(3 * number, 3), tmp_path / "airports" / f"{number}.parquet")
    return tmp_path / "airports"


@pytest.mark.parametrize("name", ["path", "directory", "table", "give_table", "give_rows", "give_later"])
def test_every_source_keeps_the_contract(name: str, path: str, directory: Path) -> None:
    sources: dict[str, Any] = {"path": path, "directory": directory, "table": AIRPORTS}
    source = sources.get(name) or globals()[name]
    schema = "faa string, name string, height int" if name == "give_rows" else None
    every = None if name == "table" else 1000

    def make() -> Enricher:
        return TableEnricher(source, "faa", reload_every=every, schema=schema)

    assert make().schema() == pa.schema([("name", pa.string()), ("height", pa.int32())])
    assert make().key_schema() == pa.schema([("faa", pa.string())])
    check_enricher(make, known=KNOWN, missing=["XXX", 7, b"JFK"])


async def test_columns_are_chosen_and_may_be_of_the_key(path: str) -> None:
    for source in (path, give_table, give_rows):
        async with opened(TableEnricher(source, "faa", ["height", "faa"])) as enricher:
            assert await enricher.lookup("JFK") == {"height": 4, "faa": "JFK"}
            assert enricher.schema().names == ["height", "faa"]


rows_of_tables = st.lists(
    st.fixed_dictionaries(
        {"k": st.none() | st.integers(0, 5), "l": st.none() | st.text("ab", max_size=1), "v": st.integers(0, 9)}
    ),
    max_size=20,
)


@hypothesis.given(rows_of_tables, st.booleans())
def test_a_table_gives_what_a_search_gives(rows: list[dict[str, Any]], composite: bool) -> None:
    table = pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("l", pa.string()), ("v", pa.int64())]))
    names = ["l", "k"] if composite else ["k"]
    enricher = TableEnricher(table, names, ["v"])
    assert enricher.key_schema().names == names
    keys = [(text, k) if composite else k for k in (*range(7), None) for text in ("", "a", "b", "c", None)]

    def search(key: Any) -> Any:
        parts = key if composite else (key,)
        found = [{"v": row["v"]} for row in rows if None not in parts and tuple(row[n] for n in names) == parts]
        return found if len(found) > 1 else found[0] if found else None

    expected = [search(key) for key in keys]

    async def found() -> None:
        await enricher.open()
        assert [await enricher.lookup(key) for key in keys] == expected
        assert await enricher.lookup_many(keys) == expected
        assert await enricher.lookup_many(keys[::-1]) == expected[::-1]

    asyncio.run(found())


VALUES = pa.schema([(f"v{number}", data_type) for number, (data_type, _) in enumerate(COLUMNS.values())])
"""A column of every type."""


@hypothesis.given(st.data(), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3), st.booleans())
@hypothesis.settings(max_examples=40)
def test_A3_an_answer_in_columns_is_the_answer_in_rows(data: st.DataObject, names: list[str], added: bool) -> None:
    """For keys of every type, values of every type, and a column that is key and added."""
    size = data.draw(st.integers(0, 8))

    def values(name: str, size: int) -> pa.Array:
        data_type, drawn = COLUMNS[name]
        return rows_of(data_type, data.draw(st.lists(st.none() | drawn, min_size=size, max_size=size))).column(0)

    of_key = [f"k{number}" for number in range(len(names))]
    keys = [values(name, size) for name in names]
    others = [values(name, size) for name in COLUMNS]
    table = pa.table([*keys, *others], [*of_key, *VALUES.names])
    enricher = TableEnricher(table, of_key, [*VALUES.names, *of_key[:added]])
    asked, _ = distinct([values(name, data.draw(st.just(6))) for name in names])

    async def answers() -> tuple[Any, Any, Any]:
        await enricher.open()
        by_number = await enricher.lookup_rows(asked)
        return await enricher.lookup_many(python_keys(asked)), await enricher.lookup_columns(asked), by_number

    by_rows, by_columns, (whole, numbers, positions) = asyncio.run(answers())
    same = whole.take(pa.array(numbers)).select(enricher.schema().names)
    assert repr(same.to_pylist()) == repr(by_columns.select(enricher.schema().names).to_pylist())
    assert match(asked, key_array([by_columns[name].combine_chunks() for name in of_key])).tolist() == [*positions]
    assert {*by_columns.schema.names} == {*of_key, *VALUES.names}
    for name in enricher.schema().names:
        assert by_columns.schema.field(name).type == table.schema.field(name).type
    parts = [by_columns[name].combine_chunks() for name in of_key]
    found: list[list[Any]] = [[] for _ in range(len(asked))]
    rows = by_columns.select(enricher.schema().names).to_pylist()
    for position, row in zip(match(asked, key_array(parts)).tolist(), rows, strict=True):
        found[position].append(row)
    expected = [[] if row is None else row if isinstance(row, list) else [row] for row in by_rows]
    assert repr(found) == repr(expected)


async def test_values_that_python_cannot_hold_arrive_in_columns() -> None:
    late = pa.array([2**40, 5], pa.int64()).cast(pa.timestamp("s", "UTC"))
    enricher = TableEnricher(pa.table({"k": late, "at": late}), "k")
    await enricher.open()
    assert (await enricher.lookup_columns(late))["at"].combine_chunks() == late


async def test_keys_of_another_type_are_found_by_value() -> None:
    enricher = TableEnricher(pa.table({"k": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}), "k")
    await enricher.open()
    for keys in (pa.array([2, 2**40]), pa.array([2.0, 2.5]), pa.array([Decimal("2.00"), Decimal("2.50")])):
        assert (await enricher.lookup_columns(keys))["v"].to_pylist() == ["b"]
    with pytest.raises(TypeError, match="never equal"):
        await enricher.lookup_columns(pa.array(["2"]))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
async def test_L10_views_of_text_and_bytes_are_keys_and_values(kind: pa.DataType) -> None:
    column = pa.array(["a", "b"], pa.string()).cast(kind)
    a, b, z = ("a", "b", "z") if pa.types.is_string_view(kind) else (b"a", b"b", b"z")
    table = pa.table({"k": column, "j": [1, 2], "v": column})
    enricher = TableEnricher(table, key="k")
    assert enricher.schema().field("v").type == (pa.string() if isinstance(a, str) else pa.binary())
    async with Lookup(enricher) as lookup:
        assert [await lookup.get(key) for key in (a, z)] == [{"j": 1, "v": a}, None]
    async with Lookup(TableEnricher(table, key=["k", "j"])) as lookup:
        assert await lookup.get((b, 2)) == {"v": b}


async def test_columns_that_are_not_used_may_have_one_name() -> None:
    """As those of a join have."""
    table = pa.table([[1, 2], ["a", "b"], [3, 4], [5, 6]], names=["k", "v", "x", "x"])
    described = TableEnricher(table, "k", ["v"])
    described.schema()  # as the driver asks, before it sends the enricher to the workers
    for enricher in (TableEnricher(table, "k", ["v"]), described):
        await enricher.open()
        assert await enricher.lookup(2) == {"v": "b"}
        await enricher.close()


async def test_a_key_column_of_nulls_has_no_row() -> None:
    async with opened(TableEnricher(pa.table({"k": pa.nulls(2), "v": ["a", "b"]}), "k")) as enricher:
        assert await enricher.lookup_many([1, 2]) == [None, None]


async def test_the_schema_of_an_asynchronous_source_is_asked_for_within_a_running_loop() -> None:
    assert TableEnricher(give_later, "faa").schema().names == ["name", "height"]


def test_types_of_storage_become_types_of_spark(tmp_path: Path) -> None:
    """Text in a dictionary, partition columns, and the nanoseconds that Spark's own files have."""
    table = pa.table(
        {
            "k": pa.array(["a", "b"]).dictionary_encode(),
            "at": pa.array([1_000, 2_000_000], pa.timestamp("ns")),
            "part": ["x", "y"],
        }
    )
    parquet.write_to_dataset(table, tmp_path / "t", partition_cols=["part"])
    enricher = TableEnricher(tmp_path / "t", "k")
    assert enricher.schema() == pa.schema([("at", pa.timestamp("us")), ("part", pa.string())])
    assert enricher.key_schema() == pa.schema([("k", pa.string())])
    check_enricher(
        lambda: TableEnricher(tmp_path / "t", "k"),
        known={"b": {"at": datetime.datetime(1970, 1, 1, 0, 0, 0, 2000), "part": "y"}},
        missing=["c"],
    )


def test_a_schema_converts_mappings_and_casts_tables() -> None:
    schema = "k int, price decimal(10,2), day date"
    day = datetime.date(2024, 2, 29)
    rows = [{"k": 1, "price": "1.5", "day": "2024-02-29", "other": object()}]
    table = pa.table({"day": [day], "k": pa.array([1], pa.int64()), "price": [Decimal("1.500")]})
    for source in (rows.copy, table):
        expected: Any = {1: {"price": Decimal("1.50"), "day": day}}
        check_enricher(functools.partial(TableEnricher, source, "k", schema=schema), known=expected, missing=[2])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"source": 7}, "source is 7"),
        ({"source": ""}, "source is ''"),
        ({"source": [""]}, r"source is \[''\]"),
        ({"source": lambda path: path}, "source is .* it must take no arguments"),
        ({"reload_every": 5}, "never changes"),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        TableEnricher(**{"source": AIRPORTS, "key": "faa"} | arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"key": "FAA"}, "did you mean 'faa'"),
        ({"columns": ["nam"]}, "did you mean 'name'"),
        ({"key": ["faa", "name", "height"]}, "nothing to add"),
        ({"source": "/no/such/file.parquet"}, "cannot be read: FileNotFoundError"),
        ({"source": "file://me:sEcReT@host/x?secret_key=sEcReT"}, "cannot be read"),
        ({"source": "nfs://me:sEcReT@host/x"}, "cannot be read as Parquet"),
        ({"source": lambda: 1 // 0}, "ZeroDivisionError"),
        ({"source": lambda: "text"}, "the source gave 'text'"),
        ({"source": lambda: [1]}, "it must be a mapping"),
        ({"source": list}, "no column 'faa'"),
        ({"source": pa.table([["x"], [1], [2]], names=["faa", "n", "n"])}, "several columns 'n'"),
        ({"source": pa.table([["x"], ["y"], [2]], names=["faa", "faa", "n"])}, "several columns 'faa'"),
    ],
)
def test_what_is_wrong_with_a_source_is_found_on_the_driver(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        TableEnricher(**{"source": AIRPORTS, "key": "faa"} | arguments).schema()
    assert "sEcReT" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("schema", [None, "faa string, name string"])
async def test_a_path_that_is_not_of_parquet_is_told_what_is_taken(tmp_path: Path, schema: Any) -> None:
    (tmp_path / "airports.csv").write_text("faa,name\nJFK,Kennedy\n")
    enricher = TableEnricher(tmp_path / "airports.csv", "faa", schema=schema)
    told = "a Parquet file or directory: for any other format, such as CSV, .* source=lambda: pyarrow.csv.read_csv"
    with pytest.raises(ConfigurationError, match=told):
        await enricher.open()
    if schema is None:
        with pytest.raises(ConfigurationError, match=told) as raised:
            enricher.schema()
        assert str(raised.value).count("TableEnricher(") == 1
    await enricher.close()


def test_repr_shows_where_the_table_is_from_and_no_secret() -> None:
    assert repr(TableEnricher(AIRPORTS, "faa")) == "TableEnricher(<table of 5 rows>, key=['faa'])"
    assert repr(TableEnricher(give_table, "k", ["v"])) == "TableEnricher(give_table, key=['k'], columns=['v'])"
    uri = "s3://ACCESS:sEcReT@bucket/planes?secret_key=sEcReT"
    assert repr(TableEnricher(uri, "k")) == "TableEnricher('s3://***@bucket/planes?***', key=['k'])"


async def test_the_source_may_be_another_enrichers_table(postgres: PostgresServer) -> None:
    await postgres.run(
        "DROP TABLE IF EXISTS whole; CREATE TABLE whole (id int, part text, name text, price numeric(6,2), "
        "PRIMARY KEY (id, part)); INSERT INTO whole VALUES (1, 'a', 'tea', 2.50), (1, 'b', NULL, NULL)"
    )
    source = PostgresEnricher(postgres.dsn, table="whole", key=["id", "part"])
    table = TableEnricher(source, key=["id", "part"])
    assert table.schema() == source.schema()
    assert table.key_schema() == source.key_schema()
    await table.open()
    assert await table.lookup_many([(1, "a"), (1, "b"), (2, "a")]) == [
        {"name": "tea", "price": Decimal("2.50")},
        {"name": None, "price": None},
        None,
    ]
    await table.close()
    assert "whole" in repr(table)


def test_an_enricher_without_a_whole_table_is_no_source() -> None:
    with pytest.raises(ConfigurationError, match="has no `async def rows"):
        TableEnricher(FakeEnricher({1: {"a": 1}}), key="id")


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
async def test_a_zone_is_neither_invented_nor_lost(zone: str | None) -> None:
    moment = datetime.datetime(2020, 1, 1, tzinfo=None if zone is None else datetime.UTC)
    table = pa.table({"k": [1], "at": pa.array([moment], pa.timestamp("us", zone))})
    right, wrong = ("timestamp_ntz", "timestamp") if zone is None else ("timestamp", "timestamp_ntz")
    async with opened(TableEnricher(table, "k", schema=f"k long, at {right}")) as enricher:
        assert await enricher.lookup(1) == {"at": moment}
    enricher = TableEnricher(table, "k", schema=f"k long, at {wrong}")
    told = rf"column 'at' is {right} in the table and {wrong} in schema=.*declare it as {right}"
    with pytest.raises(ConfigurationError, match=told):
        await enricher.open()
    await enricher.close()


NANOSECONDS = pa.table({"k": [1, 2, 2, 3], "v": pa.array([1000, 1000, 1001, None], pa.timestamp("ns"))})


@pytest.mark.parametrize(
    ("source", "schema"),
    [
        (NANOSECONDS, None),
        (NANOSECONDS.to_pylist, None),
        (lambda: [{"k": k, "v": v} for k, v in ((1, 5), (2, 6), (2, "six"), (3, None))], "k long, v int"),
        (lambda: pa.table({"k": ["1", "2", "2", "3"], "v": ["5", "6", "six", None]}), "k long, v int"),
        (Path("nanoseconds"), None),
    ],
    ids=["moments", "mappings", "rows", "texts", "files"],
)
def test_X12_a_value_that_does_not_fit_is_an_error_of_its_key_alone(source: Any, schema: Any, tmp_path: Path) -> None:
    """On the driver too, where a function is called for its types."""
    if isinstance(source, Path):
        source = tmp_path / source
        source.mkdir()
        for part in range(2):
            parquet.write_table(NANOSECONDS[2 * part : 2 * part + 2], source / f"{part}.parquet")
    enricher = TableEnricher(source, "k", schema=schema)
    for retry in (None, Retry(1)):  # By `lookup_rows`, and by `lookup_columns`.
        options = EnrichOptions(on="id", on_error="null", retry=retry)
        task, _ = enrich_task(StructType([StructField("id", LongType())]), enricher, options)
        batch = pa.RecordBatch.from_pydict({"id": pa.array([1, 2, 3, 4], pa.int64())})
        found = [row["v"] for out in chained([task], [batch]) for row in out.to_pylist()]
        assert [value is None for value in found] == [False, True, True, True]
    with pytest.raises(
        ResultError, match=r"^TableEnricher\(.*, key 2: .*column 'v'.*; correct it, or declare another type"
    ):
        enricher.try_lookup(2)
    assert enricher.try_lookup(3) == {"v": None}


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)],
        [datetime.datetime(2024, 1, 1, 5), datetime.datetime(2024, 1, 1, 5, tzinfo=datetime.UTC)],
        [datetime.datetime(2024, 1, 1, 5, tzinfo=datetime.UTC), None, datetime.datetime(2024, 1, 1, 5)],
        [b"a", "a"],
    ],
    ids=["cut", "zone", "no zone", "text"],
)
def test_X12_values_of_two_types_are_refused_where_arrow_would_change_one(values: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="column 'v' has values of several types: "):
        TableEnricher(lambda: [{"k": i, "v": value} for i, value in enumerate(values)], "k").schema()


async def test_L9_a_number_beyond_the_range_of_a_column_of_floats_is_a_miss() -> None:
    async with Lookup(TableEnricher(pa.table({"k": [math.inf, 1.0], "v": ["infinity", "one"]}), "k")) as lookup:
        misses = [10**400, Decimal(10) ** 400, Decimal("1E+400"), Decimal("-1E+400")]
        assert [await lookup.get(key) for key in misses] == [None] * 4
        hits = [math.inf, Decimal("Infinity")]
        assert [await lookup.get(key) for key in hits] == [{"v": "infinity"}] * 2


# -- in Spark


async def look_up(key: int) -> None:
    return None


@pytest.mark.parametrize("status", [None, "status"])
def test_L12_rows_in_memory_are_not_remembered_because_they_may_be_loaded_again(
    tmp_path: Path, status: str | None
) -> None:
    parquet.write_table(pa.table({"id": [1], "v": [2]}), tmp_path / "table.parquet")
    schema = StructType([StructField("id", LongType())])
    options = EnrichOptions(on="id", status_column=status)
    for enricher, seconds in (
        (TableEnricher(tmp_path / "table.parquet", "id"), 0.0),
        (FunctionEnricher(look_up, "v long"), 60.0),
    ):
        task, _ = enrich_task(schema, enricher, options)
        assert task.options.remember == seconds
