"""A1: what `lookup_columns` is asked for. A2: what becomes of its answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.arrow.answer_tables import AnswerTables, row_finder
from asyncio_operator.arrow.key_arrays import key_values
from asyncio_operator.errors import EnricherError, ResultError
from enrichers.databases.key_kinds import canonical_keys


@given(st.lists(st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=2) | st.booleans() | st.dates()))
def test_A1_what_is_asked_is_distinct_and_has_a_place_for_each_key_that_fits(keys: list[Any]) -> None:
    tables = AnswerTables(pa.schema([("k", pa.int32())]), pa.schema([]))
    asked, places = tables.asked(keys)
    values = key_values(asked)
    assert len(set(values)) == len(values)
    for key, place in zip(keys, places.tolist(), strict=True):
        if place >= 0:
            assert values[place] == key
        else:
            assert type(key) is not int or not -(2**31) <= key < 2**31
    assert {*places.tolist()} - {-1} == {*range(len(asked))}


@pytest.mark.parametrize("nullable", [True, False])
def test_A2_rows_of_a_table_are_not_copied_where_the_types_are_those_that_the_caller_takes(nullable: bool) -> None:
    wanted = pa.schema([pa.field("name", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))])
    declared = pa.schema([field.with_nullable(nullable) for field in wanted])
    tables = AnswerTables(pa.schema([("k", pa.int64())]), declared, wanted)
    table = pa.table({"name": ["a", "b", "c"], "at": pa.array([1, 2, 3]).cast(wanted.types[1])}, declared)
    found = tables.read_rows((table, np.array([2, 0]), np.array([0, 1])), pa.array([7, 8]))
    assert found.table is table
    assert found.rows is not None
    assert found.rows.tolist() == [2, 0]


@pytest.mark.parametrize("by_rows", [True, False])
def test_A2_a_value_that_does_not_fit_the_type_that_the_caller_takes_is_an_error(by_rows: bool) -> None:
    declared, wanted = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.int32())])
    tables, keys = AnswerTables(pa.schema([("k", pa.int64())]), declared, wanted), pa.array([7])
    table = pa.table({"k": keys, "n": pa.array([2**40])})
    with pytest.raises(ResultError, match="does not fit its column"):
        tables.read_rows((table, [0], [0]), keys) if by_rows else tables.read(table, keys)


def test_A2_of_several_rows_that_were_not_asked_for_the_first_is_named() -> None:
    tables = AnswerTables(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
    table = pa.table({"k": [7, 9, 8], "n": [1, 2, 3]})
    with pytest.raises(ResultError, match="a row for key 9, which was not asked for"):
        tables.read(table, pa.array([7]))


def test_A3_a_class_that_overrides_only_lookup_columns_does_not_mean_lookup_rows_of_its_base() -> None:
    class Rows:
        async def lookup_columns(self, keys: pa.Array) -> pa.Table: ...

        async def lookup_rows(self, keys: pa.Array) -> Any: ...

    class Columns(Rows):
        async def lookup_columns(self, keys: pa.Array) -> pa.Table: ...

    class Inherits(Columns):
        """Its own class has neither."""

    assert row_finder(Rows()) is not None
    assert row_finder(Columns()) is None
    assert row_finder(Inherits()) is None


@pytest.mark.parametrize("key", ["xy", ("x",), ("x", "y", "z"), 5])
def test_L9_a_key_of_several_columns_with_other_parts_is_no_key(key: Any) -> None:
    """A text of two characters, or a longer tuple, once found the row of another key."""
    tables = AnswerTables(pa.schema([("a", pa.string()), ("b", pa.string())]), pa.schema([]))
    with pytest.raises(EnricherError, match=r"is not a tuple of a, b"):
        tables.asked([("x", "y"), key])
    with pytest.raises(ValueError, match="a tuple of 2 parts"):
        canonical_keys([("x", "y"), key], [list, list])
