"""A1 to A5: what `lookup_columns` gets and may return, for `Lookup` and for the defaults of `Enricher`."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Batching, Cache, ConfigurationError, Enricher, EnricherError, ResultError, Retry
from asyncio_operator.arrow.answer_tables import AnswerTables, ask
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.lookup import Lookup

ROWS = pa.schema([("name", pa.string()), ("n", pa.int32())])


class Columns(Enricher):
    """Rows of even keys, two of multiples of 4; records the arrays that it gets."""

    max_batch = 100

    def __init__(self, answer: Callable[[Any], Any] | None = None, keys: pa.Schema | None = None) -> None:
        self.answer = answer or rows_of
        self.keys = keys or pa.schema([("k", pa.int32())])
        self.asked: list[pa.Array] = []

    def schema(self) -> pa.Schema:
        return ROWS

    def key_schema(self) -> pa.Schema:
        return self.keys

    async def lookup_columns(self, keys: pa.Array) -> Any:
        self.asked.append(keys)
        return self.answer(keys)


class Refusing(Columns):
    """Refuses keys from 2**40 on, which its type does not hold and its source may have; others are misses."""

    def respell(self, keys: Sequence[Any]) -> Sequence[Any]:
        if max(keys) >= 2**40:
            raise EnricherError(f"the source may have {max(keys)}", retryable=False)
        return [*keys]


@pytest.mark.parametrize("in_arrow", [False, True])
def test_A1_a_key_that_does_not_fit_may_be_refused_and_no_other_key_of_its_batch_fails(in_arrow: bool) -> None:
    enricher, keys = Refusing(), [2, 2**35, 2**40, 3]
    tables = AnswerTables(enricher.key_schema(), ROWS)
    with pytest.raises(EnricherError, match=f"the source may have {2**40}"):
        asyncio.run(ask(enricher, tables, ArrowKeys(pa.array(keys)) if in_arrow else keys))
    assert not enricher.asked
    keys.remove(2**40)
    found = asyncio.run(ask(enricher, tables, ArrowKeys(pa.array(keys)) if in_arrow else keys))
    assert [answer is not None for answer in found] == [True, False, False]
    answers = looked_up(enricher, 2, 2**35, 2**40, 3)
    assert answers[:2] == [{"name": "2", "n": 2}, None]
    assert isinstance(answers[2], EnricherError)
    assert answers[3] is None


def test_X12_the_batch_of_a_value_that_does_not_fit_its_column_is_split() -> None:
    tables = AnswerTables(None, ROWS, pa.schema([("name", pa.string()), ("n", pa.int8())]))
    enricher = Columns(lambda keys: pa.table({"key": keys, "n": pa.array([1, 300], pa.int32()), "name": ["a", "b"]}))
    with pytest.raises(ResultError, match="column 'n'") as raised:
        asyncio.run(ask(enricher, tables, [1, 2]))
    assert not raised.value.any_key


def rows_of(keys: pa.Array) -> pa.Table:
    found = [key for key in reversed(keys.to_pylist()) if key % 2 == 0 for _ in range(2 if key % 4 == 0 else 1)]
    numbers = pa.array(found, pa.int32())
    return pa.table({"n": numbers, "other": found, "k": numbers, "name": numbers.cast(pa.string())})


def looked_up(enricher: Enricher, *keys: Any, **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with Lookup(enricher, **options) as lookup:
            return await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)

    return asyncio.run(run())


def row(key: int) -> dict[str, Any]:
    return {"name": str(key), "n": key}


def test_A1_keys_that_do_not_fit_the_type_are_misses_and_are_not_asked() -> None:
    enricher = Columns()
    keys = [2, 2**40, "text", 1, 4, None, 6.0, 6]
    assert looked_up(enricher, *keys) == [row(2), None, None, None, [row(4), row(4)], None, row(6), row(6)]
    [asked] = enricher.asked
    assert asked.type == pa.int32()
    assert asked.to_pylist() == [2, 1, 4, 6]


def test_A1_nothing_is_asked_if_no_key_fits() -> None:
    enricher = Columns()
    assert looked_up(enricher, 2**40, "text") == [None, None]
    assert enricher.asked == []


def test_A1_several_key_columns_are_a_struct_and_match_whatever_the_zone() -> None:
    moment = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    later = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))

    def answer(keys: pa.Array) -> pa.Table:
        code, at = keys.flatten()
        return pa.table({"code": code, "at": at, "name": code, "n": pa.array(range(len(keys)), pa.int32())})

    keys = pa.schema([("code", pa.string()), ("at", pa.timestamp("us", "Europe/Berlin"))])
    enricher = Columns(lambda asked: answer(asked).set_column(1, "at", asked.field(1).cast(keys.field(1).type)), keys)
    assert looked_up(enricher, ("a", moment), ("b", moment), ("a", later), ("a", "no time")) == [
        {"name": "a", "n": 0},
        {"name": "b", "n": 1},
        {"name": "a", "n": 0},
        None,
    ]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([Decimal("1.10"), Decimal("-2.00")], getattr(pa, "decimal32", pa.decimal128)(5, 2)),
        pa.array([Decimal("1.10"), Decimal("-2.00")], getattr(pa, "decimal64", pa.decimal128)(12, 2)),
        pa.array([Decimal("1.10"), Decimal("-2.00")], pa.decimal256(40, 2)),
        pa.array([1, 2**40]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.int64())),
        pa.array([b"a", b"b"], pa.large_binary()).dictionary_encode(),
    ],
    ids=lambda keys: str(keys.type),
)
def test_A1_keys_may_have_any_type_that_can_be_a_key(keys: pa.Array, parts: int) -> None:
    """The keys are asked in the declared type, and matched in the table."""
    names = ["k", "l"][:parts]

    def answer(asked: pa.Array) -> pa.Table:
        columns = asked.flatten() if parts > 1 else [asked]
        assert [column.type for column in columns] == [keys.type] * parts
        table = pa.table(dict.fromkeys(names, keys) | {"name": ["x", "y"], "n": pa.array([1, 2], pa.int32())})
        return table.filter([value in columns[0].to_pylist() for value in keys.to_pylist()])

    enricher = Columns(answer, pa.schema([(name, keys.type) for name in names]))
    asked = [value if parts == 1 else (value, value) for value in keys.to_pylist()]
    assert [found["n"] for found in looked_up(enricher, *asked)] == [1, 2]


@pytest.mark.parametrize("cache", [None, Cache()], ids=["called", "cached"])
@pytest.mark.parametrize(
    "value",
    [pa.array([2_932_900], pa.int32()).cast(pa.date32()), pa.array([b"\xff"]).view(pa.string())],
    ids=["date", "text"],
)
def test_A3_a_value_that_python_cannot_hold_is_an_error_that_names_key_and_column(
    value: pa.Array, cache: Cache | None
) -> None:
    class Distant(Columns):
        def schema(self) -> pa.Schema:
            return pa.schema([("n", pa.int64()), ("distant", value.type)])

    enricher = Distant(lambda keys: pa.table({"k": keys, "n": pa.array([1]), "distant": value}))
    for retry in (None, Retry(2, if_result=lambda row: False)):
        [error] = looked_up(enricher, 7, cache=cache, retry=retry)
        assert isinstance(error, ResultError)
        assert "column 'distant'" in str(error)
        assert retry or "key 7" in str(error)


def test_A1_a_column_that_is_key_and_added_stands_once() -> None:
    enricher = Columns(lambda keys: pa.table({"n": keys, "name": ["x"] * len(keys)}), pa.schema([("n", pa.int32())]))
    assert looked_up(enricher, 5) == [{"name": "x", "n": 5}]


@pytest.mark.parametrize("width", [10, 1], ids=["batches", "single"])
def test_L1_A3_a_null_in_an_optional_part_is_asked_for_in_columns_as_in_rows(width: int) -> None:
    class Optional(Columns):
        optional_keys = ("b",)
        max_batch = width

    asked: list[Any] = []

    def answer(keys: pa.Array) -> pa.Table:
        a, b = (part.take(pa.array(range(len(part)))[::-1]) for part in keys.flatten())
        asked.extend(zip(a.to_pylist(), b.to_pylist(), strict=True))
        return pa.table({"a": a, "b": b, "n": a.cast(pa.int32()), "name": [f"{one}" for one in b.to_pylist()]})

    enricher = Optional(answer, pa.schema([("a", pa.int64()), ("b", pa.int8())]))
    keys = [(1, None), (1, 0), (2, None), (None, 1), (1, None), (3, 1000), (3, "x"), (3, -1)]
    found = looked_up(enricher, *keys)
    names = [None if one is None else (one["n"], one["name"]) for one in found]
    assert names == [(1, "None"), (1, "0"), (2, "None"), None, (1, "None"), None, None, (3, "-1")]
    assert sorted(asked, key=str) == [(1, 0), (1, None), (2, None), (3, -1)]
    rows: Any = asyncio.run(enricher.lookup_many([(1, None), (1, 0), (3, 1000)]))
    assert [one and one["name"] for one in rows] == ["None", "0", None]


def wrong(**columns: Any) -> Callable[[Any], Any]:
    def answer(keys: pa.Array) -> pa.Table:
        right = {"k": keys, "name": ["x"] * len(keys), "n": keys}
        return pa.table({name: value for name, value in (right | columns).items() if value is not None})

    return answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (wrong(k=pa.array([1, 7], pa.int32())), "a row for key 7, which was not asked for"),
        (wrong(k=pa.array([1, None], pa.int32())), "key column 'k' is null"),
        (wrong(name=None), "has no column 'name'; its columns are ['k', 'n']"),
        (wrong(k=None), "has no column 'k'; its columns are ['name', 'n']; key_schema() gives the names and types"),
        (wrong(n=[1, 2]), "column 'n' of the table of lookup_columns is int64; it must be int32"),
        (
            wrong(k=["1", "2"]),
            "column 'k' of the table of lookup_columns is string; it must be int32: cast it there; key_schema() gives",
        ),
        (lambda keys: [{"k": 1}], "returned list; it must return a pyarrow.Table"),
        (lambda keys: pa.Table.from_arrays([keys, keys], ["k", "k"]), "has 2 columns 'k'"),
    ],
)
def test_A2_a_wrong_table_is_an_error_of_the_whole_batch_which_is_neither_split_nor_retried(
    answer: Callable[[Any], Any], message: str
) -> None:
    enricher = Columns(answer)
    errors = looked_up(enricher, 1, 2, retry=Retry(3), batching=Batching(2))
    assert [type(error) for error in errors] == [ResultError] * 2
    assert all(f"Columns: {message}" in str(error) or message in str(error) for error in errors), errors
    assert len(enricher.asked) == 1


def test_L10_keys_of_several_types_are_asked_each_in_their_own() -> None:
    noon = dt.datetime(2020, 1, 1, 12)
    keys = [noon, noon.replace(tzinfo=dt.UTC), 1, 1.0]

    def answer(asked: pa.Array) -> pa.Table:
        names = [repr(key) for key in asked.to_pylist()]
        return pa.table({"key": asked, "name": names, "n": pa.array([0] * len(asked), pa.int32())})

    enricher = Columns(answer)
    enricher.key_schema = lambda: None  # type: ignore[method-assign]
    kinds = ["timestamp[us]", "timestamp[us, tz=UTC]", "int64", "double"]
    assert [found["n"] for found in looked_up(enricher, *keys, retry=Retry(3))] == [0] * 4
    assert sorted(str(asked.type) for asked in enricher.asked) == sorted(kinds)


def test_A3_rows_of_such_an_enricher_come_from_its_columns() -> None:
    enricher = Columns()
    assert asyncio.run(enricher.lookup(4)) == [row(4), row(4)]
    assert asyncio.run(enricher.lookup_many([2, 3, 2])) == [row(2), None, row(2)]


@pytest.mark.parametrize("store", ["heap", "rocksdb"])
def test_A3_a_cache_keeps_answers_in_columns_and_misses(store: str, tmp_path: Any) -> None:
    enricher = Columns()

    async def run() -> list[Any]:
        async with Lookup(
            enricher, cache=Cache(store=store, directory=tmp_path if store != "heap" else None)
        ) as lookup:
            first: Any = await asyncio.gather(*map(lookup.get, (2, 3, 4)))
            first[0]["name"] = "changed by the caller"
            return [await lookup.get(key) for key in (2, 3, 4)]

    assert asyncio.run(run()) == [row(2), None, [row(4), row(4)]]
    assert len(enricher.asked) == 1


def test_A3_a_predicate_of_retries_reads_rows() -> None:
    enricher, seen = Columns(), []

    def unsatisfied(answer: Any) -> bool:
        seen.append(answer)
        return False

    looked_up(enricher, 2, 3, retry=Retry(if_result=unsatisfied))
    assert seen == [row(2), None]


def test_A3_an_ordinary_function_is_refused() -> None:
    class Wrong(Columns):
        def lookup_columns(self, keys: pa.Array) -> Any:
            return None

    with pytest.raises(ConfigurationError, match="lookup_columns is an ordinary function"):
        Lookup(Wrong())


@pytest.mark.parametrize("max_batch", [1, 100])
def test_A3_a_class_that_also_writes_lookup_is_called_by_its_columns_alone(max_batch: int) -> None:
    class Both(Columns):
        async def lookup(self, key: Any) -> Any:
            raise AssertionError("lookup was called")

        async def lookup_many(self, keys: Sequence[Any]) -> Any:
            raise AssertionError("lookup_many was called")

    enricher = Both()
    enricher.max_batch = max_batch
    assert looked_up(enricher, 2) == [row(2)]
    assert looked_up(enricher, 2, 3, cache=Cache()) == [row(2), None]
    assert sorted(key for asked in enricher.asked for key in asked.to_pylist()) == [2, 2, 3]
