"""Columns in, columns out, against a model in plain Python. No Spark here."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import BudgetExceeded, ElementTimeoutError, EnricherError
from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.arrow.key_arrays import in_utc
from asyncio_operator.lookup.key_batch import PENDING, Answer, Failure
from asyncio_operator.spark.worker import output_batches as pieces
from asyncio_operator.spark.worker.output_batches import cut, pick, pieces_of, places, row_bytes
from asyncio_operator.spark.worker.rows import Enrichment, Layout
from tests.keyed import key_batch

FOUND = pa.schema([("x", pa.int64()), ("y", pa.string())])


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def keys_of(array: Any, *more: Any) -> tuple[list[Any], list[int]]:
    """The keys, and for every row the number of its key."""
    arrays = [a if isinstance(a, pa.Array) else pa.array(a) for a in (array, *more)]
    batch = key_batch(pa.RecordBatch.from_arrays(arrays, [f"k{i}" for i in range(len(arrays))]), range(len(arrays)))
    return list(batch.keys), batch.payload.key_of.tolist()


# -- keys


def test_the_last_moment_of_the_year_9999_is_a_key_in_every_zone() -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert keys_of(pa.array([last], pa.timestamp("us", "Asia/Tokyo")))[0] == [last]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0, 2_932_897, 0], pa.int32()).cast(pa.date32()),
        pa.array([0, 2**62, 0], pa.int64()).cast(pa.timestamp("us")),
        pa.array([0, -(2**62), 0], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([b"a", b"\xff\xfe", b"a"]).view(pa.string()),
    ],
    ids=["date", "timestamp_ntz", "timestamp", "text"],
)
def test_L9_what_python_cannot_hold_is_a_key_that_no_row_has(array: pa.Array) -> None:
    keys, codes = keys_of(array)
    assert (len(keys), codes) == (1, [0, -1, 0])
    keys, codes = keys_of([1, 2, 1], array)
    assert (len(keys), codes) == (1, [0, -1, 0])


# -- rows

FAILED = Failure(ValueError("no"), 0.25)
LATE = Failure(ElementTimeoutError("late"), 1.0, timed_out=True)
SPENT = Failure(BudgetExceeded("spent", on_spent="null"), 0.0, attempts=0)

ROW = st.fixed_dictionaries(
    {"x": st.integers(0, 9)}, optional={"y": st.sampled_from(["p", "q"]), "ignored": st.just(1)}
)
OUTCOME = st.one_of(ROW, st.lists(ROW, max_size=4), st.none(), st.sampled_from([FAILED, SPENT]))


def enrichment(**layout: Any) -> Enrichment:
    return Enrichment(Layout((0,), FOUND, **layout))


def model(keys: list[Any], outcomes: dict[Any, Any], inner: bool, drop: bool) -> list[tuple[Any, ...]]:
    """What becomes of rows with these keys: the row's number, the key, and the added columns."""
    rows: list[tuple[Any, ...]] = []
    for number, key in enumerate(keys):
        outcome = outcomes.get(key)
        failed = isinstance(outcome, Failure)
        found = [] if failed or outcome is None else [outcome] if isinstance(outcome, dict) else outcome
        rows += [(number, key, row["x"], row.get("y")) for row in found]
        # Law G12: a row that has no answer for want of money keeps its place.
        if outcome is SPENT or (not found and not (drop if failed else inner)):
            rows.append((number, key, None, None))
    return rows


def rows_of(output: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in output for row in batch.to_pylist()]


@given(
    keys=st.lists(st.integers(0, 6) | st.none(), max_size=25),
    fates=st.lists(OUTCOME, min_size=7, max_size=7),
    steps=st.lists(st.integers(0, 7), max_size=4),
    inner=st.booleans(),
    drop=st.booleans(),
    size=st.sampled_from([1, 3, 1000]),
    most=st.sampled_from([1, 40, 2**26]),
    ordered=st.booleans(),
)
def test_X1_G12_rows_out_are_those_of_the_join(
    keys: list[int | None],
    fates: list[Any],
    steps: list[int],
    inner: bool,
    drop: bool,
    size: int,
    most: int,
    ordered: bool,
) -> None:
    batch = key_batch(batch_of(k=pa.array(keys, pa.int64()), n=pa.array(range(len(keys)), pa.int64())), [0])
    outcomes = {key: fates[key] for key in batch.keys}
    built, output, freed = enrichment(inner=inner, drop_failed=drop), [], 0
    with mock.patch.object(pieces, "OUTPUT_ROWS", size), mock.patch.object(pieces, "OUTPUT_BYTES", most):
        for step in [*sorted(steps), 8]:
            ready, batch.ended = min(step, len(batch.keys)), step == 8
            for i, key in enumerate(batch.keys):
                here = i < ready if ordered else (key * 5) % 7 < step
                if here and batch.outcomes[i] is PENDING:
                    batch.outcomes[i] = outcomes[key]
            leaving = [(*built.leading(batch, ready), None)] if ordered else built.answered(batch, batch.ended)
            for parts, keys_left, left in leaving:
                output += list(parts)
                freed += keys_left
                assert left is (batch if step == 8 and not ordered else None)
    expected = model(keys, outcomes, inner, drop)
    got = [(number, key, *added) for key, number, *added in rows_of(output)]
    assert got == expected if ordered else sorted(got, key=repr) == sorted(expected, key=repr)
    assert freed == len(batch.keys)
    assert all(0 < part.num_rows <= size for part in output)
    assert len({part.schema for part in output}) <= 1
    assert built.kinds.sum() == len(keys)
    failed = [k for k in keys if k is not None and _is_failure(outcomes[k])]
    assert built.kinds[2] == len(failed)


def _is_failure(outcome: Any) -> bool:
    return isinstance(outcome, Failure) or outcome == 7 or outcome == {"x": "text"}


def told(outcomes: list[Any]) -> list[Any]:
    """Outcomes as they come where there is a status column."""
    return [o if isinstance(o, Answer | Failure) else Answer(o, "call", 1, 0.0) for o in outcomes]


def enrich_batch(batch: pa.RecordBatch, outcomes: dict[Any, Any], **layout: Any) -> list[dict[str, Any]]:
    """One batch whose first column is the key, at once."""
    keyed = key_batch(batch, [0])
    keyed.outcomes = [outcomes.get(key) for key in keyed.keys]
    if layout.get("status"):
        keyed.outcomes = told(keyed.outcomes)
    output, _ = enrichment(**layout).leading(keyed, len(keyed.keys))
    return [row for part in output for row in part.to_pylist()]


def test_X15_answers_that_come_while_rows_leave_make_no_room_before_their_rows_leave() -> None:
    class Filling(list[Any]):
        """Outcomes that arrive just after they were read."""

        def __iter__(self) -> Any:
            yield from list(super().__iter__())
            self[:] = [{"x": 1}] * len(self)

    keyed = key_batch(batch_of(k=[1, 2, 3]), [0])
    keyed.outcomes = Filling([{"x": 1}, PENDING, PENDING])
    [(rows, freed, _)] = enrichment().answered(keyed, False)
    assert (sum(part.num_rows for part in rows), freed) == (1, 1)


def test_an_input_column_of_the_same_name_as_a_found_one_is_not_mixed_up_with_it() -> None:
    keyed = key_batch(batch_of(x=[1, 1, 2]), [0])
    keyed.outcomes = [{"x": 10}, {"x": 20}]
    [part], _ = enrichment().leading(keyed, 2)
    assert part.columns[0].to_pylist() == [1, 1, 2]
    assert part.columns[1].to_pylist() == [10, 10, 20]


def test_X6_the_status_column_tells_every_row_what_happened() -> None:
    answers = {
        1: Answer({"x": 1}, "call", 1, 0.5),
        2: Answer(None, "cache", 0, None),
        3: Failure(EnricherError("no", retryable=True, code=503), 0.25),
        4: LATE,
        5: Answer([{"x": 5}, {"x": 6}], "shared", 2, 0.2),
        6: Answer({"x": 7}, "stale", 2, 0.5, EnricherError("down")),
        7: SPENT,
    }
    rows = enrich_batch(batch_of(k=[1, 2, 3, 4, None, 5, 6, 7]), answers, status=True)
    assert [tuple(row["status"].values()) for row in rows] == [
        ("found", "call", 1, 500.0, None, None, None, None),
        ("missing", "cache", 0, None, None, None, None, None),
        ("failed", "call", 1, 250.0, "EnricherError", "no", 503, True),
        ("timed_out", "call", 1, 1000.0, "ElementTimeoutError", "late", None, None),
        ("missing", "none", 0, None, None, None, None, None),
        ("found", "shared", 2, 200.0, None, None, None, None),
        ("found", "shared", 2, 200.0, None, None, None, None),
        ("found", "stale", 2, 500.0, "EnricherError", "down", None, None),
        ("over_budget", "call", 0, 0.0, "BudgetExceeded", "spent", None, False),
    ]


def test_X6_the_text_of_an_error_is_cut() -> None:
    rows = enrich_batch(batch_of(k=[1, 1]), {1: Failure(ValueError("x" * 300_000), 0.0)}, status=True)
    assert [row["status"]["error_message"] for row in rows] == ["x" * 1997 + "..."] * 2


class LeavingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [MuteError(), LeavingError(), ValueError("\udc80"), ValueError("\0")])
def test_X6_an_error_whose_text_is_odd_is_told_all_the_same(error: Exception) -> None:
    [row] = enrich_batch(batch_of(k=[1]), {1: Failure(error, 0.0)}, status=True)
    assert row["status"]["error_type"] == type(error).__name__
    assert row["status"]["error_message"]


def test_no_columns_at_all_tell_whether_there_is_a_row() -> None:
    built = Enrichment(Layout((0,), pa.schema([]), inner=True))
    keyed = key_batch(batch_of(k=[1, 2, 3]), [0])
    keyed.outcomes = [{}, None, [{}, {}]]
    output, _ = built.leading(keyed, 3)
    assert rows_of(list(output)) == [(1,), (3,), (3,)]


def test_X7_a_batch_without_rows_can_be_made_as_soon_as_the_input_is_known() -> None:
    built = enrichment(status=True)
    assert list(built.nothing()) == []
    batch = batch_of(x=[1, 2], t=pa.array([[{"a": None}], []], pa.list_(pa.struct([("a", pa.timestamp("us", "UTC"))]))))
    built.expect(batch.schema)
    [empty] = built.nothing()
    keyed = key_batch(batch, [0])
    keyed.outcomes = told([None, None])
    [part], _ = built.leading(keyed, 2)
    assert empty.num_rows == 0
    assert empty.schema.equals(part.schema, check_metadata=True)


def test_times_inside_of_arrays_structs_and_maps_are_in_utc_too() -> None:
    moment = dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)
    for zone in ("America/New_York", "GMT+8"):
        there = pa.timestamp("us", zone)
        for kind, value in (
            (there, moment),
            (pa.list_(there), [moment]),
            (pa.struct([("at", there)]), {"at": moment}),
            (pa.map_(pa.string(), pa.list_(there)), [("k", [moment])]),
        ):
            stored = pa.array([value], in_utc(pa.nulls(0, kind)).type).cast(kind)
            assert in_utc(stored).to_pylist() == [value]


# -- how much goes into an output batch


TEXTS = st.lists(st.none() | st.text(max_size=20), max_size=3)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(0, 9),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
    pa.decimal128(38, 18): st.just(1),
    pa.string(): st.text(max_size=40),
    pa.large_string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
    pa.list_(pa.string()): TEXTS,
    pa.list_(pa.list_(pa.binary())): st.lists(st.lists(st.binary(max_size=9), max_size=3), max_size=3),
    pa.map_(pa.string(), pa.list_(pa.string())): st.dictionaries(st.text(max_size=9), TEXTS, max_size=3),
    pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.list_(pa.int64()))]))]): st.fixed_dictionaries(
        {"a": st.text(max_size=20), "b": st.fixed_dictionaries({"c": st.lists(st.integers(0, 9), max_size=4)})}
    ),
    pa.struct([]): st.just({}),
}


@given(data=st.data(), kind=st.sampled_from(list(VALUES)), start=st.integers(0, 3))
def test_X9_what_a_row_takes_is_known_without_taking_it(data: st.DataObject, kind: pa.DataType, start: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=start, max_size=12))
    array = pa.array(values, kind).slice(start)
    told = row_bytes([array], len(array))
    assert len(told) == len(array)
    for i, size in enumerate(told.tolist()):
        alone = pa.array(array.slice(i, 1).to_pylist(), kind)
        # Offsets count one more than the values they are for, on every level, and bitmaps count whole bytes.
        assert size >= 0.4 * (alone.nbytes - 40)
        assert size <= 2 * alone.nbytes + 16
    assert (row_bytes([array, array], len(array)) == 2 * told).all()
    assert row_bytes([pa.chunked_array([array, array])], 2 * len(array)).tolist() == [*told.tolist(), *told.tolist()]


def test_no_columns_take_nothing() -> None:
    assert row_bytes([], 3).tolist() == [0, 0, 0]


@given(
    heights=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=20),
    rows=st.sampled_from([1, 3, 1000]),
    limit=st.sampled_from([1, 60, 10**9]),
)
def test_X9_places_come_all_in_order_and_in_pieces_of_bounded_rows_and_bytes(
    heights: list[tuple[int, int]], rows: int, limit: int
) -> None:
    copies = np.array([copies for copies, _ in heights], dtype=np.int64)
    starts, in_bytes = np.cumsum(copies) - copies, np.array([size for _, size in heights], dtype=np.int64)
    found_bytes = np.arange(int(copies.sum()) + 1)
    seen: list[tuple[int, int]] = []
    with mock.patch.object(pieces, "OUTPUT_ROWS", rows), mock.patch.object(pieces, "OUTPUT_BYTES", limit):
        for row, found in cut(places(starts, copies), in_bytes, found_bytes):
            assert 0 < len(row) == len(found) <= rows
            assert len(row) == 1 or in_bytes[row].sum() + found_bytes[found].sum() <= limit
            seen += zip(row.tolist(), found.tolist(), strict=True)
    assert seen == [(i, int(starts[i]) + j) for i, n in enumerate(copies.tolist()) for j in range(n)]


@given(
    own=st.lists(st.text(max_size=40), min_size=1, max_size=8),
    found=st.lists(st.text(max_size=40), min_size=1, max_size=8),
    data=st.data(),
    limit=st.integers(1, 400),
)
def test_X9_pieces_of_rows_and_answers_are_small_or_single_rows(
    own: list[str], found: list[str], data: st.DataObject, limit: int
) -> None:
    starts = np.array([data.draw(st.integers(-1, len(found) - 1)) for _ in own], np.int64)
    copies = np.array([data.draw(st.integers(0, 1 if i < 0 else len(found) - i)) for i in starts.tolist()], np.int64)
    columns, answers = ([pa.array(own)], [pa.array(found)]), in_order(pa.table({"a": found}))
    seen = []
    with mock.patch.object(pieces, "OUTPUT_BYTES", limit):
        for rows, numbers in pieces_of(columns[0], answers, columns[1], starts, copies):
            picked = pick(columns[1], numbers) + (pick(columns[0], rows) if copies.max() > 1 else [])
            # Of texts alone: each array has offsets besides.
            texts = sum(len(str(text).encode()) for one in picked for text in one.to_pylist() if text)
            assert len(rows) == 1 or texts <= limit
            seen += rows.tolist()
    assert seen == np.repeat(np.arange(len(own)), copies).tolist()


@pytest.mark.parametrize(
    "numbers", [[0], [5], [1, 2, 3], [0, 0, 4], [5, 3, 3, 0], [0, 1, 2, 3, 4, 5], [-1], [-1, 0, 1], [2, -1]]
)
def test_rows_are_picked_by_number_from_arrays_whole_and_in_chunks(numbers: list[int]) -> None:
    values = ["a", None, "c", "d", "e", "f"]
    columns = [pa.array(values), pa.chunked_array([values[:2], [], values[2:5], values[5:]], pa.string())]
    for got in pick(columns, np.array(numbers)):
        assert isinstance(got, pa.Array)
        assert got.to_pylist() == [None if i < 0 else values[i] for i in numbers]
