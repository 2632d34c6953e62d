"""L10: arrays of keys are numbered, matched and searched as a dictionary of canonical keys does it."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.arrow import key_index
from asyncio_operator.arrow.key_arrays import ascend, canonical_array, distinct, key_array, key_values, python_keys
from asyncio_operator.arrow.key_index import _SECRET, ArrowKeys, KeyIndex, _mixed, _Search, match
from tests.arrow.test_key_identity import COLUMNS, names_of, rows_of

OTHERS: dict[str, list[pa.DataType]] = {
    "bigint": [pa.int8(), pa.uint16(), pa.float64(), pa.decimal128(20, 3)],
    "smallint": [pa.int64(), pa.int32()],
    "float": [pa.float64()],
    "double": [pa.float32()],
    "decimal": [pa.decimal128(30, 5), pa.decimal256(50, 2)],
    "string": [pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "binary": [pa.large_binary()],
    "date": [pa.date64()],
    "timestamp": [pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ms", "UTC")],
    "timestamp_ntz": [pa.timestamp("ms")],
}
"""Other types that hold the values of a column, too."""

LONG = ["", "a", "a\0", "a" * 7, "a" * 8, "a" * 8 + "\0", "a" * 9, "a" * 16, "b" + "a" * 15, "a" * 500, "b" * 500]


@st.composite
def keys_of(draw: st.DrawFn, names: Sequence[str], nulls: bool, max_size: int = 12) -> pa.Array:
    """An array of keys with a part of each of the columns, at times as a slice of a longer one."""
    parts = []
    size, skipped = draw(st.integers(0, max_size)), draw(st.integers(0, 2))
    for name in names:
        data_type, values = COLUMNS[name]
        if name == "string":
            values = values | st.sampled_from(LONG)
        if nulls:
            values = st.none() | values
        drawn = draw(st.lists(values, min_size=size + skipped, max_size=size + skipped))
        parts.append(rows_of(data_type, drawn).column(0)[skipped:])
    return key_array(parts)


columns = st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3)


def python(keys: pa.Array) -> list[Any]:
    """The identities of keys in Python, or None for a key with a null."""
    found = python_keys(canonical_array(keys))
    missing = [any(part is None for part in (key if isinstance(key, tuple) else (key,))) for key in found]
    return [None if absent else name for absent, name in zip(missing, names_of(found), strict=True)]


def parts_of(keys: pa.Array) -> list[pa.Array]:
    return keys.flatten() if pa.types.is_struct(keys.type) else [keys]


@given(st.data(), columns)
@settings(max_examples=50)
def test_L10_distinct_keys_as_an_array_are_those_in_python(data: st.DataObject, names: list[str]) -> None:
    rows = data.draw(keys_of(names, nulls=True))
    array, codes = distinct(parts_of(rows))
    keys = python_keys(array)
    expected: dict[Any, int] = {}
    assert codes.tolist() == [-1 if key is None else expected.setdefault(key, len(expected)) for key in python(rows)]
    assert names_of(keys) == [*expected]


@given(st.data(), st.sampled_from(sorted(COLUMNS)))
@settings(max_examples=50)
def test_L10_keys_that_ascend_are_numbered_like_others(data: st.DataObject, name: str) -> None:
    drawn = canonical_array(data.draw(keys_of([name], nulls=False)))
    rows = drawn.take(pc.array_sort_indices(drawn)) if data.draw(st.booleans()) else drawn
    found = python(rows)
    if ascend([rows]):
        keys = python_keys(rows)
        assert all(one < other for one, other in itertools.pairwise(keys)), keys
    elif len(rows) and name in ("bigint", "smallint", "string", "date", "timestamp", "timestamp_ntz"):
        assert any(not one < other for one, other in itertools.pairwise(python_keys(rows)))
    assert distinct([rows])[1].tolist() == [[*dict.fromkeys(found)].index(key) for key in found]


@pytest.mark.parametrize(
    "keys",
    [[1, 1], [2, 1], [1, None], [None, 1], ["a", "a"], ["b", "a"], [0.0, 1.0], [float("nan"), 1.0], [b"a", b"b"]],
    ids=repr,
)
def test_L10_keys_that_do_not_ascend_or_may_not_are_told_from_those_that_do(keys: list[Any]) -> None:
    assert not ascend([pa.array(keys)])
    assert not ascend([pa.array([1, 2]), pa.array([1, 2])])
    assert ascend([pa.array([1, 2])])
    assert ascend([pa.array(["\uffff", "\U00010000"])])
    # Two times of one day, which are one date in Python.
    assert not ascend([pa.array([0, 43_200_000], pa.int64()).view(pa.date64())])


def test_L10_parts_whose_joint_numbers_exceed_64_bits_are_numbered_again() -> None:
    values = [-(2**63), 2**63 - 1, 0, None, 2**63 - 1]
    rows = [pa.array(values), pa.array(values[::-1]), pa.array(values)]
    keys, codes = distinct(rows)
    assert codes.tolist() == [0, -1, 1, -1, 2]
    assert python_keys(keys) == [(-(2**63), 2**63 - 1, -(2**63)), (0, 0, 0), (2**63 - 1, -(2**63), 2**63 - 1)]


@given(st.data(), columns)
@settings(max_examples=75)
def test_L10_rows_are_matched_to_the_keys_that_were_asked_for(data: st.DataObject, names: list[str]) -> None:
    asked, _ = distinct(parts_of(data.draw(keys_of(names, nulls=True))))
    rows = data.draw(keys_of(names, nulls=True))
    positions = {key: position for position, key in enumerate(python(asked))}
    assert match(asked, rows).tolist() == [positions.get(key, -1) for key in python(rows)]
    assert match(asked, asked).tolist() == [*range(len(asked))]


@given(st.data(), columns)
@settings(max_examples=75)
def test_L10_an_index_finds_all_rows_of_keys_in_the_order_of_the_table(data: st.DataObject, names: list[str]) -> None:
    table, asked = data.draw(keys_of(names, nulls=True)), data.draw(keys_of(names, nulls=True))
    index = KeyIndex(table)
    own = python(table)
    assert len(index) == len({key for key in own if key is not None})
    rows, positions = index.find(asked)
    expected = [
        (row, position)
        for position, key in enumerate(python(asked))
        for row, other in enumerate(own)
        if key is not None and key == other
    ]
    assert [*zip(rows.tolist(), positions.tolist(), strict=True)] == expected


@given(st.data(), st.sampled_from(sorted(OTHERS)))
@settings(max_examples=75)
def test_L10_types_of_one_family_are_matched_by_value(data: st.DataObject, name: str) -> None:
    other = data.draw(st.sampled_from(OTHERS[name]))
    rows = data.draw(keys_of([name], nulls=True))
    asked, _ = distinct([data.draw(keys_of([name], nulls=False))])
    values = canonical_array(rows)
    for unit in ("s", "ms"):
        if pa.types.is_timestamp(other) and other.unit == unit:
            values = values.cast(pa.timestamp(unit, values.type.tz), safe=False).cast(values.type)
    try:
        converted = values.cast(other) if not pa.types.is_dictionary(other) else values.dictionary_encode()
    except pa.ArrowInvalid:
        return  # a value that the other type does not have
    if pa.types.is_float32(other):
        values = converted.cast(values.type)
    expected = match(asked, values).tolist()
    assert match(asked, converted).tolist() == expected
    both = key_array([asked, asked])
    assert match(both, key_array([converted, values])).tolist() == expected
    assert KeyIndex(both).find(key_array([converted, values]))[0].tolist() == [at for at in expected if at >= 0]


def colliding(size: int, start: int, text: bool = False) -> pa.Array:
    """Keys of two integers, or of 16 bytes, that all have one hash, if hashes begin with this word."""
    firsts = np.arange(size, dtype=np.uint64)
    states = np.full(size, start, dtype=np.uint64)
    if text:
        states = _mixed(states, np.full(size, 16, dtype=np.uint64))
    states = _mixed(states, firsts)
    lasts = states[0] ^ states
    if text:
        return pa.array([first.tobytes() + last.tobytes() for first, last in zip(firsts, lasts, strict=True)])
    return key_array([pa.array(firsts.view(np.int64)), pa.array(lasts.view(np.int64))])


@pytest.mark.parametrize("several", [False, True])
def test_L10_different_keys_of_one_hash_are_told_apart(several: bool) -> None:
    keys = colliding(6, int(_SECRET))
    order = [3, 0, 4, 1, *([3, 1, 0, 3] if several else [])]
    table = keys.take(pa.array(order))
    index = KeyIndex(table)
    assert len({*index._search.hashes[:-1].tolist()}) == 1, "the keys of this test have one hash"
    assert len(index) == 4
    rows, positions = index.find(keys)
    expected = [(row, key) for key in range(6) for row, own in enumerate(order) if own == key]
    assert [*zip(rows.tolist(), positions.tolist(), strict=True)] == expected


@pytest.mark.parametrize("text", [False, True])
def test_L10_hostile_keys_made_to_have_one_hash_are_found_in_few_rounds(
    text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = colliding(2000, 0, text)
    assert len({*ArrowKeys(keys).names}) == len(keys)
    monkeypatch.setattr(key_index, "_SECRET", np.uint64(0))
    assert len({*ArrowKeys(keys).names}) == 1, "the keys have one hash without the secret word"
    monkeypatch.undo()
    table, others = keys[:1000], keys[1000:]
    index, rounds, equal = KeyIndex(table), [], key_index._equal

    def counted(*keys: Any) -> Any:
        rounds.append(keys)
        return equal(*keys)

    monkeypatch.setattr(key_index, "_equal", counted)
    assert index.find(table)[0].tolist() == [*range(1000)]
    assert index.find(others)[0].tolist() == []
    # A find ends with a round of no keys. Two more are for keys of one hash by chance.
    assert len(rounds) <= 4


def test_L10_another_process_has_other_hashes_and_its_index_finds_its_keys() -> None:
    program = (
        "import pickle, sys; import pyarrow as pa; from asyncio_operator.arrow import key_index; "
        "keys = pa.array(['a', 'b']); made = key_index._SECRET, key_index.KeyIndex(keys); "
        "sys.stdout.buffer.write(pickle.dumps(made))"
    )
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    secret, index = pickle.loads(made)
    assert secret != _SECRET
    assert index.find(pa.array(["b", "c", "a"]))[0].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("composite", [False, True])
def test_L10_keys_in_views_are_those_in_texts_and_bytes(kind: pa.DataType, composite: bool) -> None:
    viewed = pa.array(["a", None, "b" * 20, "a"], pa.string()).cast(kind)
    plain = viewed.cast(pa.string() if pa.types.is_string_view(kind) else pa.binary())
    viewed, plain = (key_array([keys, keys]) if composite else keys for keys in (viewed, plain))
    asked = plain.take(pa.array([2, 0]))
    for rows in (viewed, plain):
        assert [found.tolist() for found in KeyIndex(rows).find(asked)] == [[2, 0, 3], [0, 1, 1]]
    assert [found.tolist() for found in KeyIndex(plain).find(viewed[2:])] == [[2, 0, 3], [0, 1, 1]]
    assert match(asked, viewed).tolist() == [1, -1, 0, 1]
    assert distinct(parts_of(viewed))[0] == distinct(parts_of(plain))[0]


def test_L10_a_part_of_a_key_that_is_null_in_every_row_has_no_type_and_is_compared_all_the_same() -> None:
    nulls = ArrowKeys(pa.nulls(2))
    assert nulls.same([0, 1], nulls, [1, 0]).tolist() == [False, False]
    optional = ArrowKeys(key_array([pa.nulls(3), pa.array([1, 2, 1])]))
    assert optional.same([0, 0], optional, [2, 1]).tolist() == [True, False]


@pytest.mark.parametrize("asked", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_L10_keys_of_half_precision_are_found_like_other_floats(asked: pa.DataType) -> None:
    rows = pa.array(np.array([-0.0, 1.5, np.nan], dtype=np.float16))
    keys = pa.array(np.array([0.0, -0.0, 1.5, np.nan, 2.0]).astype(asked.to_pandas_dtype()))
    index = KeyIndex(rows)
    assert [found.tolist() for found in index.find(keys)] == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert match(pa.array([0.0, 1.5]), rows).tolist() == [0, 1, -1]
    assert repr(key_values(rows)) == "[0.0, 1.5, nan]"


LARGEST = 2**64 - 1
words = st.integers(0, 20) | st.integers(LARGEST - 20, LARGEST) | st.integers(0, LARGEST)


@given(st.lists(words), st.lists(words, min_size=1))
@settings(max_examples=100)
def test_L10_the_place_of_a_hash_is_that_of_the_first_that_is_equal(own: list[int], asked: list[int]) -> None:
    hashes = np.array(sorted(own), dtype=np.uint64)
    search = _Search(hashes)
    sought = np.array([*own, *asked], dtype=np.uint64)
    places = search.places(sought)
    assert places.max() <= len(own)
    for hash_, place in zip(sought.tolist(), places.tolist(), strict=True):
        if hash_ in own:
            assert place == sorted(own).index(hash_)
        else:
            assert place == len(own) or hashes[place] != hash_


def test_L10_hostile_keys_with_the_same_first_bits_are_searched_by_halves() -> None:
    size = 100_000
    crowded = np.append(np.arange(size - 1, dtype=np.uint64), np.uint64(LARGEST))
    search = _Search(crowded)
    assert search._steps <= size.bit_length()
    assert search.places(crowded).tolist() == [*range(size)]
    assert len(search._firsts) <= 2 * size + 1
    index = KeyIndex(pa.array(crowded))
    assert index.find(pa.array(crowded[::-1]))[0].tolist() == [*range(size)][::-1]


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 9)), st.lists(st.integers(-3, 12)))
@settings(max_examples=50)
def test_L10_integers_that_fill_their_range_are_found(start: int, table: list[int], asked: list[int]) -> None:
    own, others = (
        [number for number in (start + step for step in steps) if -(2**63) <= number < 2**63]
        for steps in (table, asked)
    )
    rows, positions = KeyIndex(pa.array(own, pa.int64())).find(pa.array(others, pa.int64()))
    expected = [(row, place) for place, key in enumerate(others) for row, number in enumerate(own) if number == key]
    assert [*zip(rows.tolist(), positions.tolist(), strict=True)] == expected


@pytest.mark.parametrize(
    "table",
    [pa.array([], pa.string()), pa.array([None, None], pa.string()), pa.nulls(3), pa.array([], pa.decimal128(5, 2))],
)
def test_a_table_without_keys_has_no_rows(table: pa.Array) -> None:
    index = KeyIndex(table)
    assert len(index) == 0
    asked = pa.array(["a", None], pa.string()) if pa.types.is_string(table.type) else pa.array([Decimal(1), None])
    if not pa.types.is_null(table.type):
        assert [found.tolist() for found in index.find(asked)] == [[], []]
