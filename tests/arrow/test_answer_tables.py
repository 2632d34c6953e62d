"""L10 and A1: rows are matched to keys as a dictionary of canonical keys would."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.arrow.answer_tables import answer_tables, positions
from asyncio_operator.arrow.key_arrays import canonical_array, key_values
from asyncio_operator.keys import canonical_key

PARTS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-2, 2)),
    "text": (pa.string(), st.sampled_from(["", "a", "A", "é", "e\u0301", "\0"])),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), 1.5])),
    "decimal": (pa.decimal128(5, 2), st.sampled_from([Decimal("1.1"), Decimal("1.10"), Decimal(0), Decimal("-0.0")])),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 2))),
    "date": (pa.date32(), st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 3))),
    "bool": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary(max_size=1)),
}


def aware(value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3), st.data())
def test_L10_rows_are_matched_as_a_dictionary_of_canonical_keys_matches_them(names: list[str], data: Any) -> None:
    def keys() -> list[Any]:
        drawn = data.draw(st.lists(st.tuples(*(PARTS[name][1] for name in names)), max_size=12))
        return [tuple(map(aware, key)) for key in drawn]

    def array(keys: list[Any]) -> pa.Array:
        columns = list(zip(*keys, strict=True)) or [()] * len(names)
        parts = [pa.array(column, PARTS[name][0]) for name, column in zip(names, columns, strict=True)]
        return canonical_array(
            parts[0] if len(parts) == 1 else pa.StructArray.from_arrays(parts, list("abc")[: len(parts)])
        )

    asked, rows = keys(), keys()
    places: dict[Any, int] = {}
    for place, key in enumerate(asked):
        places.setdefault(canonical_key(key), place)
    expected = [places.get(canonical_key(key), -1) for key in rows]
    assert positions(array(asked), array(rows)).tolist() == expected


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
