"""`typed_row`: values of JSON and text into values that fit columns, exactly or with an error that says why not."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import as_schema
from enrichers.typed import row_converter, typed_row

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
TWO_HOURS_EAST = datetime.timezone(datetime.timedelta(hours=2))

FITS: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("int", 7, 7),
    ("int", 7.0, 7),
    ("int", Decimal("1E+2"), 100),
    ("tinyint", -128, -128),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("double", 7, 7.0),
    ("double", 2**60, 2.0**60),
    ("double", Decimal("0.1"), 0.1),
    ("float", 0.1, 0.1),
    ("decimal(4,2)", 1.1, Decimal("1.10")),
    ("decimal(4,2)", "99.99", Decimal("99.99")),
    ("decimal(4,2)", 5, Decimal("5.00")),
    ("decimal(4,2)", Decimal("1.5000"), Decimal("1.50")),
    ("decimal(38,18)", "-12345678901234567890.123456789012345678", Decimal("-12345678901234567890.123456789012345678")),
    ("string", "ü\0", "ü\0"),
    ("binary", "AP8=", b"\0\xff"),
    ("binary", b"\xff", b"\xff"),
    ("date", "2024-02-29", datetime.date(2024, 2, 29)),
    ("timestamp", "2024-02-29T12:00:00Z", NOON),
    ("timestamp", "2024-02-29 14:00+02:00", NOON),
    ("timestamp", NOON.astimezone(TWO_HOURS_EAST), NOON),
    ("timestamp", "2024-02-29T12:00:00.120000000Z", NOON.replace(microsecond=120_000)),
    ("timestamp_ntz", "2024-02-29T12:00:00", NOON.replace(tzinfo=None)),
    ("array<int>", [1, None, 3], [1, None, 3]),
    ("map<int,string>", {"1": "a", "2": None}, [(1, "a"), (2, None)]),
    ("struct<a: int, b: array<date>>", {"b": ["2024-02-29"]}, {"a": None, "b": [datetime.date(2024, 2, 29)]}),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITS)
def test_what_fits_becomes_what_arrow_takes(kind: str, value: Any, expected: Any) -> None:
    schema = as_schema(f"c {kind}")
    row = typed_row({"c": value, "other": object()}, schema)
    assert row == {"c": expected}
    assert type(row["c"]) is type(expected)
    [back] = pa.Table.from_pylist([row], schema).to_pylist()
    assert back == {"c": expected} or kind == "float"


MISFITS: list[tuple[str, Any]] = [
    ("boolean", 1),
    ("boolean", "true"),
    ("int", True),
    ("int", "7"),
    ("int", 1.5),
    ("int", 2**31),
    ("int", float("nan")),
    ("int", float("inf")),
    ("int", Decimal("1e999999999")),
    ("double", True),
    ("double", "1.5"),
    ("double", 2**53 + 1),
    ("double", 10**400),
    ("double", Decimal("1e400")),
    ("float", 1e300),
    ("decimal(4,2)", 100),
    ("decimal(4,2)", 1.111),
    ("decimal(4,2)", "1e999999999"),
    ("decimal(4,2)", "nan"),
    ("decimal(4,2)", "1_0"),
    ("decimal(4,2)", True),
    ("string", 7),
    ("string", {"a": 1}),
    ("string", "\ud800"),
    ("binary", "not base64"),
    ("binary", 7),
    ("date", "20240229"),
    ("date", "2024-02-30"),
    ("date", NOON),
    ("timestamp", "2024-02-29T12:00:00"),
    ("timestamp", "2024-02-29T12:00:00.1234567Z"),
    ("timestamp", "0001-01-01T00:00:00+05:00"),
    ("timestamp", 1_700_000_000),
    ("timestamp_ntz", "2024-02-29T12:00:00Z"),
    ("array<int>", "[1]"),
    ("array<int>", {"0": 1}),
    ("map<int,string>", {"x": "a"}),
    ("map<int,string>", [["1", "a"]]),
    ("struct<a: int>", {"a": "x"}),
    ("struct<a: int>", [1]),
    ("int not null", None),
]


@pytest.mark.parametrize(("kind", "value"), MISFITS)
def test_what_does_not_fit_is_an_error_that_names_column_value_and_type(kind: str, value: Any) -> None:
    schema = as_schema(f"c {kind}")
    with pytest.raises(ValueError, match="does not fit") as raised:
        typed_row({"c": value}, schema)
    assert not isinstance(raised.value, ConfigurationError)
    assert f"column 'c' is {schema.field('c').type}" in str(raised.value)
    assert repr(value)[:190] in str(raised.value)


TEXTS: list[tuple[str, Any, Any]] = [
    ("boolean", "TRUE", True),
    ("boolean", b"0", False),
    ("int", b" -7 ", -7),
    ("int", "", None),
    ("double", "1e3", 1000.0),
    ("double", "-inf", float("-inf")),
    ("decimal(4,2)", "1.5", Decimal("1.50")),
    ("string", b"", ""),
    ("string", "ü".encode(), "ü"),
    ("binary", "AP8=", b"AP8="),
    ("binary", b"\xff", b"\xff"),
    ("date", b"2024-02-29", datetime.date(2024, 2, 29)),
    ("timestamp", "2024-02-29t12:00z", NOON),
    ("array<int>", b"[1, null]", [1, None]),
    ("array<int>", "null", None),
    ("struct<a: int>", '{"a": 1}', {"a": 1}),
    ("int", 7, 7),
]


@pytest.mark.parametrize(("kind", "value", "expected"), TEXTS)
def test_text_is_read(kind: str, value: Any, expected: Any) -> None:
    row = typed_row({"c": value}, as_schema(f"c {kind}"), text=True)
    assert row == {"c": expected}
    assert type(row["c"]) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", "yes"),
        ("int", "1.0"),
        ("int", "1_000"),
        ("int", "٣"),
        ("double", "1e400"),
        ("double", "0x10"),
        ("string", b"\xff"),
        ("array<int>", "[1"),
        ("array<int>", '["1"]'),
        ("array<int>", "[" * 100_000),
        ("int", "9" * 10_000),
    ],
)
def test_text_that_cannot_be_read_is_an_error(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"column 'c' is .* does not fit"):
        typed_row({"c": value}, as_schema(f"c {kind}"), text=True)


def test_other_types_of_arrow() -> None:
    schema = pa.schema(
        [
            ("u", pa.uint8()),
            ("t", pa.time64("us")),
            ("f", pa.binary(2)),
            ("l", pa.list_(pa.int32(), 2)),
            ("s", pa.timestamp("s")),
        ]
    )
    row = typed_row({"u": 255, "t": "12:30:00.5", "f": "AP8=", "l": [1, 2], "s": "2024-02-29T12:00:00.000"}, schema)
    time = datetime.time(12, 30, 0, 500_000)
    assert row == {"u": 255, "t": time, "f": b"\0\xff", "l": [1, 2], "s": NOON.replace(tzinfo=None)}
    for wrong in ({"u": 256}, {"u": -1}, {"t": "25:00"}, {"f": "AA=="}, {"l": [1]}, {"s": "2024-02-29T12:00:00.5"}):
        with pytest.raises(ValueError, match="does not fit"):
            typed_row(wrong, schema)


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.float16(), pa.list_(pa.duration("s")), pa.null()])
def test_a_type_that_json_has_not_is_a_configuration_error(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="the column 'c"):
        row_converter(pa.schema([("c", kind)]))


@pytest.mark.parametrize("row", [None, [1], "text", 7])
def test_a_row_that_is_no_object_is_an_error(row: Any) -> None:
    with pytest.raises(ValueError, match="no row"):
        typed_row(row, as_schema("a int"))


def test_an_error_inside_of_a_value_names_its_place() -> None:
    with pytest.raises(ValueError, match=r"does not fit: b: .*element 1: 'x'") as raised:
        typed_row({"c": {"b": [1, "x"]}}, as_schema("c struct<b: array<int>>"))
    assert len(str(raised.value)) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KINDS = [kind for kind, _, _ in FITS]


@hypothesis.given(st.sampled_from(KINDS), VALUES, st.booleans())
def test_every_value_fits_arrow_or_is_an_error(kind: str, value: Any, text: bool) -> None:
    schema = as_schema(f"c {kind}")
    try:
        row = typed_row({"c": json.dumps(value) if text else value}, schema, text=text)
    except ValueError:
        return
    pa.Table.from_pylist([row], schema)
