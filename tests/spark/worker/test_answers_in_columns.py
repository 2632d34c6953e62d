"""A3 and A4: a task gives the same rows whether answers come as rows or in columns, whatever its options are."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.functions import date_format
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from asyncio_operator import Batching, Cache, Enricher, EnricherError, FunctionError, Retry
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.key_index import KeyIndex
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.options import LookupOptions, batching_of
from asyncio_operator.spark import enrich
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES
from asyncio_operator.spark.worker.rows import Enrichment, Layout
from enrichers import TableEnricher
from tests.keyed import key_batch
from tests.spark.worker.tasks import chained, rows_of, task_for

ADDED = pa.schema([("name", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
KEYS = pa.schema([("k", pa.int64())])


def row(key: int, copy: int) -> dict[str, Any]:
    return {"name": None if key % 5 == 0 else f"name {key}", "n": copy, "tags": ["a", None][: key % 3]}


def copies(key: int) -> int:
    """How many rows a key has; every third has none, and 13 fails."""
    if key == 13:
        raise EnricherError("thirteen", retryable=False)
    return 0 if key % 3 == 0 else 3 if key % 7 == 0 else 1


class InRows(Enricher):
    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch

    def schema(self) -> pa.Schema:
        return ADDED

    def key_schema(self) -> pa.Schema:
        return KEYS

    async def lookup_many(self, keys: Sequence[int]) -> Sequence[Any]:
        return [[row(key, copy) for copy in range(copies(key))] for key in keys]


class InColumns(InRows):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        found = [(key, copy) for key in reversed(keys.to_pylist()) for copy in range(copies(key))]
        table = pa.Table.from_pylist([row(*one) for one in found], ADDED)
        return table.append_column("k", pa.array([key for key, _ in found], pa.int64()))


class InMemory(InColumns):
    in_memory = True


class ByNumber(InMemory):
    """The rows of all keys in one table, in which those of a key are not neighbours."""

    def __init__(self, max_batch: int) -> None:
        super().__init__(max_batch)
        of_key = [(copy, key) for copy in range(3) for key in reversed(range(16)) if key != 13 and copy < copies(key)]
        self._index = KeyIndex(pa.array([key for _, key in of_key]))
        self._table = pa.Table.from_pylist([row(key, copy) for copy, key in of_key], ADDED)

    async def lookup_rows(self, keys: pa.Array) -> Any:
        if 13 in keys.to_pylist():
            copies(13)
        return self._table, *self._index.find(keys)


WAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "retry": {"retry": Retry(2)},
    "cache": {"cache": Cache(max_rows=5)},
    "small batches": {"batching": Batching(2)},
}


def rows(
    enricher: Enricher, keys: list[int | None], way: str, layout: dict[str, Any], *, fail: bool = False, **options: Any
) -> list[Any]:
    given = LookupOptions(**WAYS[way], timed=layout["status"], fail=fail, **options)
    batching = batching_of(enricher, given.batching if enricher.max_batch > 1 else None)
    made = LookupOptions(**WAYS[way] | {"batching": batching}, timed=layout["status"], fail=fail, **options)
    tables = None if enricher.lookup_columns is None else AnswerTables(KEYS, ADDED)
    task = replace(task_for(enricher, tables=tables, **layout), options=made)
    whole = pa.RecordBatch.from_pydict({"id": pa.array(keys, pa.int64())})
    found = rows_of(chained([task], [whole.slice(start, 4) for start in range(0, len(keys), 4)]))
    for one in found:
        if layout["status"]:
            # When a call was made depends on time.
            for name in ("latency_ms", "source", "attempts"):
                del one["status"][name]
    return found


@given(
    keys=st.lists(st.integers(0, 15) | st.none(), max_size=12),
    max_batch=st.sampled_from([1, 3, 100]),
    way=st.sampled_from(sorted(WAYS)),
    ordered=st.booleans(),
    layout=st.fixed_dictionaries({name: st.booleans() for name in ("inner", "drop_failed", "status")}),
)
def test_A3_A5_answers_in_columns_give_the_rows_that_answers_in_rows_give(
    keys: list[int | None], max_batch: int, way: str, ordered: bool, layout: dict[str, Any]
) -> None:
    if WAYS[way].get("batching") and max_batch == 1:
        way = "nothing"
    expected = rows(InRows(max_batch), keys, way, layout, ordered=ordered)
    for kind in (InColumns, InMemory, ByNumber):
        found = rows(kind(max_batch), keys, way, layout, ordered=ordered)
        assert (found if ordered else sorted(found, key=repr)) == (expected if ordered else sorted(expected, key=repr))


def test_A5_rows_are_remembered_also_if_the_enricher_says_that_it_is_in_memory() -> None:
    class RowsInMemory(InRows):
        in_memory = True
        asked: list[int] = []  # noqa: RUF012

        async def lookup_many(self, keys: Sequence[int]) -> Sequence[Any]:
            self.asked += keys
            return await super().lookup_many(keys)

    layout: dict[str, Any] = {"inner": False, "drop_failed": False, "status": False}
    rows(RowsInMemory(100), [1, 2, 4, 5, 1, 2, 4, 5], "nothing", layout, remember=60.0)
    assert RowsInMemory.asked == [1, 2, 4, 5]


WRONG: dict[str, Any] = {
    "returned None;": None,
    r"rows that are not all from 0 to 1": ([2], [0]),
    r"positions that are not all from 0 to 1": ([0], [2]),
    "positions that do not ascend": ([0, 1], [1, 0]),
    "or not one for each row": ([0, 1], [0]),
    "the table of lookup_rows has no column 'name'": ([0], [0]),
    "rows that are None; they must be a list of integers": (None, None),
    "positions that are .*0.5.*; they must be a list of integers": ([0], [0.5]),
    "rows that are 'ab'; they must be": ("ab", [0]),
    r"rows that are \[True, False\]; they must be": ([True, False], [0, 1]),
    r"rows that are \[\[0\], \[1, 1\]\]; they must be": ([[0], [1, 1]], [0]),
    r"rows that are .*; they must be": ([[0]], [0]),
}


@pytest.mark.parametrize("says", WRONG)
def test_A2_A6_a_wrong_answer_of_lookup_rows_says_what_is_wrong(says: str) -> None:
    given = WRONG[says] and (pa.table({"n": [1, 2]}), *WRONG[says])
    with pytest.raises(ResultError, match=says):
        AnswerTables(KEYS, ADDED).read_rows(given, pa.array([5, 6]))


def test_A3_a_table_in_memory_arrives_in_the_types_of_the_caller_and_from_several_chunks() -> None:
    own, wanted = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.float64())])
    for table in (pa.table({"n": [1, 2, 3]}), pa.table({"n": pa.chunked_array([[1], [2, 3]])})):
        for schema in (own, wanted):
            found = AnswerTables(KEYS, own, schema).read_rows((table, [2, 0, 1], [0, 2, 2]), pa.array([7, 8, 9]))
            answers = [None if one is None else one.answer() for one in found]
            assert answers == [{"n": 3}, None, [{"n": 1}, {"n": 2}]]
            assert [None if one is None else one.answer() for one in map(found.__getitem__, range(3))] == answers
            assert found.alone().table.column("n").type == schema.field("n").type


def test_A1_columns_that_are_not_declared_are_never_copied() -> None:
    # Arrow cannot take rows of this type.
    table = pa.table({"n": [1, 2, 3], "more": pa.array(["a", "b", "c"], pa.string_view())})
    tables = AnswerTables(KEYS, pa.schema([("n", pa.int64())]))
    first, second = (tables.read_rows((table, [2, 0], [0, 1]), pa.array([7, 8])) for _ in range(2))
    assert first.alone().table.to_pydict() == {"n": [3, 1]}
    assert first.table is second.table


def test_X9_wide_rows_of_a_table_in_memory_leave_in_pieces() -> None:
    width = OUTPUT_BYTES // 4
    table = pa.table({"text": ["a" * width, "b"]})
    found = ColumnAnswers(table, np.arange(3), np.array([1, 1, 0]), np.array([0, 1]))
    layout = Layout((0,), table.schema)
    enrichment = Enrichment(layout, lambda *_: pytest.fail("no answer is wrong"))
    batch = pa.RecordBatch.from_pydict({"k": [0, 1, 2] * 5})
    keys = key_batch(batch, [0])
    keys.outcomes = found  # type: ignore[assignment]  # as `OpenBatch` sets it
    [(parts, *_)] = [enrichment.leading(keys, 3)]
    texts = [part.column(1).to_pylist() for part in parts]
    assert [text for part in texts for text in part] == ["a" * width, "b", None] * 5
    assert max(sum(text is not None and len(text) > 1 for text in part) for part in texts) <= 4


class OfNulls(Enricher):
    optional_keys = ("b",)
    max_batch = 100

    def schema(self) -> pa.Schema:
        return pa.schema([("found", pa.string())])

    def key_schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int64()), ("b", pa.string())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        a, b = keys.flatten()
        return pa.table({"a": a, "b": b, "found": [f"{key['a']} {key['b']}" for key in keys.to_pylist()]})


@pytest.mark.parametrize("in_memory", [False, True])
def test_L1_A3_a_task_asks_for_a_null_in_an_optional_part(in_memory: bool) -> None:
    enricher = OfNulls()
    enricher.in_memory = in_memory
    frame = StructType([StructField("a", LongType()), StructField("b", StringType())])
    task, _ = enrich_task(frame, enricher, EnrichOptions(on=["a", "b"]))
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, 1, None, 1]), "b": ["x", None, "x", None]})
    found = [row["found"] for row in rows_of(chained([task], [batch]))]
    assert found == ["1 x", "1 None", None, "1 None"]


class Slow(InMemory):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        await asyncio.sleep(10)
        raise AssertionError


def test_R2_keys_of_a_batch_in_memory_pass_their_deadline_together() -> None:
    layout: dict[str, Any] = {"inner": False, "drop_failed": False, "status": False}
    [first, *_] = found = rows(Slow(100), [1, 2, None], "nothing", layout, ordered=True, timeout=0.01)
    assert first == {"id": 1, "name": None, "n": None, "tags": None}
    assert len(found) == 3


class Failing(InMemory):
    def __init__(self) -> None:
        super().__init__(1000)
        self.calls: list[int] = []

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.calls.append(len(keys))
        raise ValueError("whatever the key")


def test_O6_the_first_failure_in_memory_ends_the_task_at_once() -> None:
    failing = Failing()
    with pytest.raises(FunctionError, match=r"^Failing failed for key 0: ValueError: whatever the key"):
        rows(failing, [0, 1, 2, 4], "nothing", dict.fromkeys(("inner", "drop_failed", "status"), False), fail=True)
    assert failing.calls == [4, 2, 2, 1]


class Wrong(InColumns):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return pa.table({"k": keys})


def test_A2_a_wrong_table_is_no_reason_to_go_on_without_its_rows() -> None:
    tables = AnswerTables(KEYS, ADDED)
    task = task_for(Wrong(100), batching=Batching(100), remedy="; go on without", tables=tables)
    batch = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64())})
    with pytest.raises(FunctionError, match="has no column 'name'") as raised:
        rows_of(chained([task], [batch]))
    assert "go on" not in str(raised.value)


class Late(Enricher):
    """Dates that Python cannot hold."""

    max_batch = 10

    def schema(self) -> pa.Schema:
        return pa.schema([("day", pa.date32())])

    def key_schema(self) -> pa.Schema:
        return pa.schema([("k", pa.null())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return pa.table({"k": keys, "day": pa.array([3_000_000] * len(keys), pa.int32()).cast(pa.date32())})


class NeverNull(InRows):
    """Declares a column not to be nullable, and gives a null."""

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("name", pa.string(), nullable=False)])

    async def lookup_many(self, keys: Sequence[int]) -> Sequence[Any]:
        return [{"name": None if key == 2 else "one"} for key in keys]


class NeverNullInColumns(NeverNull):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        names = [None if key == 2 else "one" for key in keys.to_pylist()]
        return pa.table([keys, pa.array(names)], schema=pa.schema([*KEYS, *self.schema()]))


class NeverNullInMemory(NeverNullInColumns):
    in_memory = True


@pytest.mark.parametrize("kind", [NeverNull, NeverNullInColumns, NeverNullInMemory])
@pytest.mark.parametrize("cache", [None, Cache()], ids=["called", "cached"])
def test_A3_a_null_in_a_column_that_is_declared_without_nulls_arrives(kind: type[NeverNull], cache: Cache) -> None:
    task, _ = enrich_task(StructType([StructField("id", LongType())]), kind(10), EnrichOptions(on="id", cache=cache))
    batch = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int64())})
    assert [row["name"] for row in rows_of(chained([task], [batch]))] == ["one", None]


def test_A4_values_that_python_cannot_hold_arrive(spark: SparkSession) -> None:
    df = enrich(spark.range(3).withColumnRenamed("id", "k"), Late(), on="k", cache=Cache())
    assert {tuple(row) for row in df.select("k", date_format("day", "yyyy").alias("year")).collect()} == {
        (number, "+10183") for number in range(3)
    }


class Nanoseconds(Late):
    """Moments that are finer than Spark has them, for one key."""

    def schema(self) -> pa.Schema:
        return pa.schema([("at", pa.timestamp("ns"))])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        at = pa.array([1 if key == 2 else 1000 for key in keys.to_pylist()], pa.timestamp("ns"))
        return pa.table({"k": keys, "at": at})


class NanosecondsInMemory(Nanoseconds):
    in_memory = True


@pytest.mark.parametrize("kind", [Nanoseconds, NanosecondsInMemory])
@pytest.mark.parametrize("cache", [None, Cache()], ids=["called", "cached"])
def test_X12_a_value_that_spark_cannot_hold_is_an_error_of_its_key_alone(kind: type[Enricher], cache: Cache) -> None:
    options = EnrichOptions(on="id", cache=cache, on_error="null")
    task, _ = enrich_task(StructType([StructField("id", LongType())]), kind(), options)
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(5), pa.int64())})
    assert [row["id"] for row in rows_of(chained([task], [batch])) if row["at"] is None] == [2]


@pytest.mark.parametrize(("options", "found"), [({}, [1, 2]), ({"retry": 2}, [1, None])])
def test_A4_a_key_that_python_cannot_hold_finds_its_row_in_a_table_in_memory(
    options: dict[str, Any], found: list[Any]
) -> None:
    """Where an option needs the keys as objects it is a miss."""
    days = pa.array([0, 3_000_000], pa.int32()).cast(pa.date32())
    table = TableEnricher(pa.table({"day": days, "n": [1, 2]}), "day")
    task, _ = enrich_task(StructType([StructField("day", DateType())]), table, EnrichOptions(on="day", **options))
    batch = pa.RecordBatch.from_arrays([days], ["day"])
    assert [n for out in chained([task], [batch]) for n in out.column("n").to_pylist()] == found


class Zones(Enricher):
    """Rows by text and moment, with the names of the DataFrame's own columns."""

    max_batch = 10

    def schema(self) -> pa.Schema:
        return pa.schema([("seen", pa.int64())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        code, at = keys.flatten()
        return pa.table({"code": code, "at": at, "seen": at.cast(pa.int64())})


def test_A1_keys_without_a_schema_have_the_names_and_types_of_the_dataframe(spark: SparkSession) -> None:
    moments = [dt.datetime(2020, 1, 1, hour, tzinfo=dt.UTC) for hour in range(4)]
    df = spark.createDataFrame([("x", moment) for moment in moments], "code string, at timestamp")
    found = enrich(df, Zones(), on=["code", "at"]).select("at", "seen").collect()
    assert [int(row.at.timestamp() * 1e6) for row in found] == [row.seen for row in found]
