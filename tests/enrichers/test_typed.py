"""`typed_row`: values of JSON and text into values that fit columns, exactly or with an error that says why not."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any, TypeAlias

import hypothesis
import pandas
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import as_schema, shown_type
from enrichers.scalars import COERCED, JSON, TEXT
from enrichers.typed import MisfitError, NoColumnError, json_decoder, row_converter, typed_row

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
TWO_HOURS_EAST = datetime.timezone(datetime.timedelta(hours=2))

Kind: TypeAlias = str | pa.DataType
"""A type as DDL or in Arrow."""


def column(kind: Kind) -> pa.Schema:
    return as_schema(f"c {kind}") if isinstance(kind, str) else pa.schema([("c", kind)])


FITS: list[tuple[Kind, Any, Any]] = [
    ("boolean", True, True),
    ("int", 7, 7),
    ("int", 7.0, 7),
    ("int", Decimal("1E+2"), 100),
    ("tinyint", -128, -128),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("double", 7, 7.0),
    ("double", 2**60, 2.0**60),
    ("double", 2**53 + 1, 2.0**53),
    ("double", float("-inf"), float("-inf")),
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
    ("timestamp", "2024-02-29 12:00:00+00", NOON),
    ("timestamp", "2024-02-29T12:00:00.000001Z", NOON.replace(microsecond=1)),
    ("timestamp_ntz", "2024-02-29T12:00:00", NOON.replace(tzinfo=None)),
    ("timestamp_ntz", "2024-02-29T12:00", NOON.replace(tzinfo=None)),
    ("array<int>", [1, None, 3], [1, None, 3]),
    ("map<int,string>", {"1": "a", "-2": None}, [(1, "a"), (-2, None)]),
    ("map<date,double>", {"2024-02-29": 1}, [(datetime.date(2024, 2, 29), 1.0)]),
    ("struct<a: int, b: array<date>>", {"b": ["2024-02-29"]}, {"a": None, "b": [datetime.date(2024, 2, 29)]}),
    (pa.uint8(), 255, 255),
    (pa.time64("us"), "12:30:00.5", datetime.time(12, 30, 0, 500_000)),
    (pa.binary(2), "AP8=", b"\0\xff"),
    (pa.list_(pa.int32(), 2), [1, 2], [1, 2]),
    (pa.timestamp("s"), "2024-02-29T12:00:00.000", NOON.replace(tzinfo=None)),
    (pa.date64(), "2024-02-29", NOON.date()),
    (pa.large_string(), "x", "x"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITS)
def test_what_fits_becomes_what_arrow_takes(kind: Kind, value: Any, expected: Any) -> None:
    schema = column(kind)
    row = typed_row({"c": value, "other": object()}, schema)
    assert row == {"c": expected}
    assert type(row["c"]) is type(expected)
    [back] = pa.Table.from_pylist([row], schema).to_pylist()
    assert back == {"c": expected} or kind == "float"


MISFITS: dict[Kind, list[Any]] = {
    "boolean": [1, "true"],
    "int": [True, "7", 1.5, 2**31, float("nan"), float("inf"), Decimal("1e999999999"), 2.5e9],
    "bigint": [2.0**53],
    "double": [True, "1.5", 10**400, Decimal("1e400")],
    "float": [1e300],
    "decimal(4,2)": [100, 1.111, "1e999999999", "nan", "1_0", True],
    "string": [7, {"a": 1}, "\ud800", b"bytes"],
    "binary": ["not base64", 7],
    "date": ["20240229", "2024-02-30", "2024-W05-4", "2024-02-29T00:00:00", NOON],
    "timestamp": [
        *("2024-02-29T12:00:00", "2024-02-29T12:00:00.1234567Z", "0001-01-01T00:00:00+05:00", "2024-02-29"),
        *("2024-02-29x12:00:00Z", "20240229T120000Z", 1_700_000_000),
    ],
    "timestamp_ntz": ["2024-02-29T12:00:00Z", pandas.Timestamp(1001)],
    "array<int>": ["[1]", {"0": 1}],
    "map<int,string>": [[["1", "a"]], {"1": "a", "01": "b"}],
    "map<double,string>": [{"0.0": "a", "-0.0": "b"}, {"nan": "a", "NaN": "b"}],
    "struct<a: int>": [[1]],
    pa.uint8(): [256, -1],
    pa.time64("us"): ["25:00", 7],
    pa.binary(2): ["AA=="],
    pa.list_(pa.int32(), 2): [[1]],
    pa.timestamp("s"): ["2024-02-29T12:00:00.5"],
}


def each(table: dict[Kind, list[Any]]) -> list[tuple[Kind, Any]]:
    return [(kind, value) for kind, values in table.items() for value in values]


@pytest.mark.parametrize(("kind", "value"), each(MISFITS))
def test_what_does_not_fit_is_an_error_that_names_column_value_and_type(kind: Kind, value: Any) -> None:
    schema = column(kind)
    with pytest.raises(ValueError, match="does not fit") as raised:
        typed_row({"c": value}, schema)
    assert not isinstance(raised.value, ConfigurationError)
    assert f"does not fit {shown_type(schema.field('c').type)}: " in str(raised.value)
    assert repr(value)[:190] in str(raised.value)


INSIDE: list[tuple[Kind, Any, str, str, str]] = [
    ("struct<a: struct<b: int>>", {"a": {"b": "x"}}, "c.a.b", "'x' (a text)", "int"),
    ("array<int>", [1, True], "c[1]", "True (a boolean)", "int"),
    ("array<array<date>>", [[], [None, 7]], "c[1][1]", "7 (a number)", "date"),
    ("map<string,array<int>>", {"k": [{}]}, "c['k'][0]", "{} (an object)", "int"),
    ("map<int,string>", {"1.0": "a"}, "c['1.0']", "'1.0' (a text)", "int"),
    ("map<int,string>", {"": "a"}, "c['']", "'' (a text)", "int"),
    ("struct<a: int not null>", {}, "c.a", "null", "int"),
    ("int not null", None, "c", "null", "int"),
    (pa.list_(pa.field("element", pa.int32(), False)), [1, None], "c[1]", "null", "int"),
    (pa.map_(pa.string(), pa.field("value", pa.int32(), False)), {"k": None}, "c['k']", "null", "int"),
]


@pytest.mark.parametrize(("kind", "value", "path", "told", "wanted"), INSIDE)
def test_an_error_names_the_place_inside_of_the_column(
    kind: Kind, value: Any, path: str, told: str, wanted: str
) -> None:
    with pytest.raises(MisfitError) as raised:
        typed_row({"c": value}, column(kind))
    assert raised.value.path == path
    assert str(raised.value).startswith(f"the column {path!r} holds {told}, which does not fit {wanted}: ")


def test_the_message_can_be_made_with_another_view_of_the_value() -> None:
    with pytest.raises(MisfitError) as raised:
        typed_row({"c": "s3cret"}, as_schema("c int"))
    assert raised.value.message_with(lambda _: "***") == (
        "the column 'c' holds *** (a text), which does not fit int: a number is needed"
    )


def test_a_message_of_a_huge_value_is_short() -> None:
    for value in ("x" * 100_000, [list(range(100_000))], 10**5000):
        with pytest.raises(MisfitError) as raised:
            typed_row({"c": value}, as_schema("c date"))
        assert len(str(raised.value)) < 500


TEXTS: list[tuple[str, Any, Any]] = [
    ("boolean", "TRUE", True),
    ("boolean", b"0", False),
    ("int", b" -7\r\n", -7),
    *((kind, "", None) for kind in ("bigint", "double", "decimal(10,2)", "boolean", "date", "timestamp")),
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
    ("array<decimal(20,19)>", "[1.2345678901234567891]", [Decimal("1.2345678901234567891")]),
    ("int", 7, 7),
]


UNREADABLE: dict[str, list[Any]] = {
    "boolean": ["yes", "\u00a0true", "t", "on", "\uff11", "2", "01"],
    "int": ["1.0", "1_000", "٣", "9" * 10_000],
    "bigint": ["\u00a07", "7\u2003", "7 7", "\uff17", "\u0667", "1_0", "0x7", "7.0", "--7", "\x1c7"],
    "double": ["\u00a01.5", "1_0.5", "\uff11.5", "0x1p3", "0x10", "1,5", "1.5f", "1e400", "-1e400"],
    "decimal(10,2)": ["\u00a01", "1_0", "\uff11", "1,0", "1.505", "NaN", "Infinity", "1e10"],
    "date": ["\u00a02024-02-29", "2024-2-9", "20240229", "2024-W09-4", "2024-060", "\uff12024-02-29"],
    "timestamp_ntz": [
        *("\u00a02024-02-29T12:00:00", "2024-02-29T12:00:00\x1c", "2024-02-29T120000.1234567", "2024-02-29"),
        *("2024-02-29T12:00:00.1234567", "2024-02-29T12:00:00,12345670000001", "2024-02-29x12:00:00"),
    ],
    "string": [b"\xff"],
    "array<int>": ["[1", "[" * 100_000],
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_X12_a_text_that_is_no_value_of_its_type_is_an_error(kind: str) -> None:
    for text in UNREADABLE[kind]:
        for value in (text, text.encode() if isinstance(text, str) else text):
            with pytest.raises(ValueError, match=r"column 'c' holds .*, which does not fit"):
                typed_row({"c": value}, as_schema(f"c {kind}"), TEXT)


@pytest.mark.parametrize(
    "kind",
    [pa.duration("s"), pa.float16(), pa.list_(pa.duration("s")), pa.null(), pa.map_(pa.list_(pa.int8()), pa.int8())],
)
def test_a_type_that_json_has_not_is_a_configuration_error(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="the column 'c"):
        row_converter(pa.schema([("c", kind)]))


@pytest.mark.parametrize("row", [None, [1], "text", 7])
def test_a_row_that_is_no_object_is_an_error(row: Any) -> None:
    with pytest.raises(ValueError, match="not a row"):
        typed_row(row, as_schema("a int"))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("not_null", ["", " NOT NULL"])
def test_a_row_with_none_of_the_columns_is_an_error_that_names_both(text: bool, not_null: str) -> None:
    row = {"Height": "4", "error": "no such airport", "s3cret": None}
    with pytest.raises(NoColumnError) as raised:
        typed_row(row, as_schema(f"name string{not_null}, height int"), TEXT if text else JSON)
    told = "the row has none of the columns ['name', 'height']; its fields are ['Height', 'error', 's3cret']"
    assert str(raised.value) == told
    assert raised.value.message_with(lambda value: repr(value).replace("s3cret", "***")) == told.replace(
        "s3cret", "***"
    )


def test_L9_a_row_with_one_of_the_columns_or_without_any_field_is_a_row() -> None:
    schema = as_schema("name string, at struct<x:int>")
    empty = {"name": None, "at": None}
    assert typed_row({"error": "x", "name": None}, schema) == empty
    assert typed_row({}, schema) == empty
    assert typed_row({"at": {"y": 1}}, schema) == {"name": None, "at": {"x": None}}, "a struct may have other fields"
    assert typed_row({"x": 1}, pa.schema([])) == {}


READ: list[tuple[str, str, Any]] = [
    ("double", "1e-7", 1e-7),
    ("double", "9007199254740993", 9007199254740992.0),
    ("double", "NaN", None),
    ("double", "-Infinity", float("-inf")),
    ("int", "1e2", 100),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("decimal(38,18)", "12345678901234567890.123456789012345678", Decimal("12345678901234567890.123456789012345678")),
    ("decimal(10,2)", "0.10", Decimal("0.10")),
    ("decimal(5,0)", "1.2e4", Decimal(12000)),
    ("array<decimal(3,1)>", "[1.5]", [Decimal("1.5")]),
    ("struct<d:double,x:decimal(2,1)>", '{"d": 0.1}', {"d": 0.1, "x": None}),
]


def read(kind: Kind, text: str, dialect: Any = JSON) -> Any:
    """The value of a column whose value is written so in JSON."""
    schema = column(kind)
    row = typed_row(json_decoder(schema, dialect)(f'{{"c": {text}}}'), schema, dialect)
    pa.Table.from_pylist([row], schema)
    return row["c"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("double", "1e999"), ("float", "-1e999"), ("double", "1" + "0" * 400)),
        *(("decimal(3,1)", "NaN"), ("int", "Infinity")),
    ],
)
def test_a_number_too_large_for_its_column_does_not_become_infinity(kind: str, text: str) -> None:
    with pytest.raises(MisfitError, match=r"does not fit .*: it is"):
        read(kind, text)


@hypothesis.given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_the_one_that_was_written_also_beside_decimals(number: float) -> None:
    assert read("double", json.dumps(number)) == number
    assert read("struct<d:double,x:decimal(2,1)>", json.dumps({"d": number}))["d"] == number


TAKEN: list[tuple[str, str, Any]] = [
    *(("string", text, text) for text in ("12345", "1.5", "1.10", "1e30", "1E5", "0.0000001", "-7", "1e400", "1" * 30)),
    ("string", '"01234"', "01234"),
    ("string", "null", None),
    ("bigint", "1e18", 10**18),
    ("bigint", "9007199254740993.0", 2**53 + 1),
    ("int", "12345.000", 12345),
    ("double", "1.10", 1.1),
    ("decimal(4,2)", "1.10", Decimal("1.10")),
    ("array<string>", '[1, "a", 2.50, null]', ["1", "a", "2.50", None]),
    ("map<string,string>", '{"a": 1.0}', [("a", "1.0")]),
    ("struct<a: string, b: array<bigint>>", '{"a": 7, "b": [1e18]}', {"a": "7", "b": [10**18]}),
    ("struct<a: string, d: decimal(4,2)>", '{"a": 7.10, "d": 7.10}', {"a": "7.10", "d": Decimal("7.10")}),
]


def text_of(kind: str, value: Any) -> Any:
    """The value of a column whose value is this text or these bytes."""
    return typed_row({"c": value}, as_schema(f"c {kind}"), TEXT)["c"]


def coerced(kind: str, text: str) -> Any:
    """With `coerce` a string takes numbers as they are written, and an integer every whole one."""
    return read(kind, text, COERCED)


@pytest.mark.parametrize(
    ("way", "kind", "given", "expected"),
    [(way, *row) for way, rows in {text_of: TEXTS, read: READ, coerced: TAKEN}.items() for row in rows],
)
def test_what_is_written_is_read_without_loss(way: Any, kind: str, given: Any, expected: Any) -> None:
    found = way(kind, given)
    assert found == expected or (expected is None and math.isnan(found))
    assert type(found) is type(expected) or expected is None, "nothing of how it was written goes further"


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (1.10, "1.1"), (1e30, "1e+30"), (Decimal("1.10"), "1.10"), (10**20, str(10**20))]
)
def test_with_coerce_a_number_that_was_calculated_is_written_as_python_writes_it(value: Any, text: str) -> None:
    assert typed_row({"c": value}, as_schema("c string"), COERCED) == {"c": text}


COERCED_MISFITS: dict[Kind, list[Any]] = {
    "string": [True, float("nan"), float("inf"), Decimal("nan"), [7], {"a": 7}, NOON],
    "array<string>": [[True]],
    "int": ["7", True, 1.5],
    "bigint": [2.0**53],
    "boolean": [1],
    "double": ["1.5"],
    "date": [20240229],
}


@pytest.mark.parametrize(("kind", "value"), each(COERCED_MISFITS))
def test_coerce_takes_nothing_else(kind: str, value: Any) -> None:
    with pytest.raises(MisfitError) as caught:
        typed_row({"c": value}, as_schema(f"c {kind}"), COERCED)
    assert not caught.value.coercible or value == 2.0**53


@pytest.mark.parametrize(
    ("kind", "value", "helps"),
    [
        *(("string", 7, True), ("string", 1.5, True), ("bigint", 1e17, True), ("array<string>", [7], True)),
        *(("string", True, False), ("int", 1.5, False), ("int", 1e17, False), ("int", "7", False)),
        *(("string NOT NULL", None, False), ("struct<a: int>", 7, False), ("string", float("nan"), False)),
    ],
)
def test_a_misfit_knows_whether_coerce_would_take_it(kind: str, value: Any, helps: bool) -> None:
    with pytest.raises(MisfitError) as caught:
        typed_row({"c": value}, as_schema(f"c {kind}"))
    assert caught.value.coercible is helps


def test_a_converter_is_made_once_and_is_that_of_its_own_schema() -> None:
    schemas = [as_schema(f"c {kind}") for kind in ("int", "string")]
    assert row_converter(schemas[0]) is row_converter(schemas[0])
    assert row_converter(schemas[0]) is not row_converter(schemas[0], TEXT)
    assert row_converter(schemas[0]) is not row_converter(schemas[0], COERCED)
    assert typed_row({"c": "x"}, schemas[1]) == {"c": "x"}
    for number in range(1000):  # more than are kept, each gone before the next
        assert typed_row({f"c{number}": "1"}, as_schema(f"c{number} int"), TEXT) == {f"c{number}": 1}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KINDS = list(dict.fromkeys(kind for kind, _, _ in FITS))


@hypothesis.given(st.sampled_from(KINDS), VALUES, st.booleans(), st.booleans())
def test_every_value_fits_arrow_or_is_an_error(kind: Kind, value: Any, text: bool, coerce: bool) -> None:
    schema = column(kind)
    try:
        row = typed_row(
            {"c": json.dumps(value) if text else value}, schema, TEXT if text else COERCED if coerce else JSON
        )
    except ValueError:
        return
    pa.Table.from_pylist([row], schema)


@hypothesis.given(st.sampled_from(KINDS), VALUES)
def test_what_fits_without_coerce_is_the_same_with_it(kind: Kind, value: Any) -> None:
    schema = column(kind)
    text = json.dumps({"c": value})
    try:
        row = typed_row(json_decoder(schema)(text), schema)
    except ValueError:
        return
    coerced = typed_row(json_decoder(schema, COERCED)(text), schema, COERCED)
    assert repr(coerced) == repr(row)


@hypothesis.given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_number_taken_as_text_reads_as_the_same_number(number: float) -> None:
    schema = as_schema("c string")
    text = json.dumps({"c": number})
    taken = typed_row(json_decoder(schema, COERCED)(text), schema, COERCED)["c"]
    assert json.loads(taken) == number


@pytest.mark.parametrize("dialect", [JSON, COERCED])
@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("7.00000000000000001", None),
        ("-0.99999999999999999999", None),
        ("1e-400", None),
        ("4503599627370497.01", None),
        ("9007199254740993.0", 9007199254740993),
        ("7.0000000000000000000", 7),
        ("0.0", 0),
        ("70e-1", 7),
    ],
)
def test_X12_a_number_that_is_nearly_whole_is_no_integer(text: str, whole: int | None, dialect: Any) -> None:
    if whole is None:
        with pytest.raises(ValueError, match="no whole number"):
            read("bigint", text, dialect)
    else:
        assert read("bigint", text, dialect) == whole
    assert read("double", text, dialect) == float(text)


@pytest.mark.parametrize("kind", ["double", "decimal(10,2)", "int"])
@pytest.mark.parametrize("text", ['{"v":1,"v":2}', '[{"v":1},{"w":{"a":1,"a":1}}]', '{"v":1,"\\u0076":1}'])
def test_X12_an_object_with_two_values_of_one_name_is_an_error(kind: str, text: str) -> None:
    for coerce in (False, True):
        with pytest.raises(ValueError, match="two values of one name"):
            json_decoder(as_schema(f"v {kind}"), COERCED if coerce else JSON)(text)
