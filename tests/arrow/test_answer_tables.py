"""A1: what `lookup_columns` is asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.arrow.answer_tables import answer_tables
from asyncio_operator.arrow.key_arrays import key_values


@given(st.lists(st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=2) | st.booleans() | st.dates()))
def test_A1_what_is_asked_is_distinct_and_has_a_place_for_each_key_that_fits(keys: list[Any]) -> None:
    tables = answer_tables(pa.schema([("k", pa.int32())]), pa.schema([]))
    asked, places = tables.asked(keys)
    values = key_values(asked)
    assert len(set(values)) == len(values)
    for key, place in zip(keys, places.tolist(), strict=True):
        if place >= 0:
            assert values[place] == key
        else:
            assert type(key) is not int or not -(2**31) <= key < 2**31
    assert {*places.tolist()} - {-1} == {*range(len(asked))}
