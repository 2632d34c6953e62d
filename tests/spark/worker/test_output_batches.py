"""How much goes into an output batch: what rows take, and rows in pieces."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.spark.worker import output_batches as pieces
from asyncio_operator.spark.worker.output_batches import cut, pick, pieces_of, places, row_bytes

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
