"""L9, L10: keys of one column in the type of another. `Kind`, which compares Python values, is the model."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.arrow.key_fit import fit_keys, fit_values
from asyncio_operator.arrow.key_identity import identity
from enrichers.databases.key_kinds import kind_of

NUMBERS: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "unsigned": pa.uint64(),
    "double": pa.float64(),
    "decimal(4,1)": pa.decimal128(4, 1),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,20)": pa.decimal128(38, 20),
    "decimal(76,3)": pa.decimal256(76, 3),
}

MORE = [pa.string(), pa.large_binary(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]

EDGES = [0, 1, -1, 7, 127, 128, -128, -129, 255, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


def numbers(kind: pa.DataType) -> list[Any]:
    """Keys of a type, around the ends of all the others."""
    if pa.types.is_floating(kind):
        return [*map(float, EDGES), 0.1, 1.5, -0.0, 1e300, float("nan"), float("inf"), -float("inf"), None]
    found: list[Any] = [None]
    for value in [*map(Decimal, EDGES), Decimal("0.1"), Decimal("1.5"), Decimal("123.4"), Decimal("0.25")]:
        try:
            found.append(pa.scalar(value if pa.types.is_decimal(kind) else int(value), kind).as_py())
        except (pa.ArrowInvalid, OverflowError):
            continue
    return found


def model(value: Any, kind: pa.DataType) -> Any:
    """The key in that type, as Python compares it. None if no row can have it."""
    key = None if value is None else kind_of(kind).canonical(value)
    if isinstance(key, int | str | Decimal):
        try:
            return pa.scalar(key, kind).as_py()
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            return None
    return key


@given(st.sampled_from(sorted(NUMBERS)), st.sampled_from(sorted(NUMBERS)), st.data())
@settings(max_examples=100)
def test_L9_L10_numbers_of_all_types_are_compared_by_value(one: str, other: str, data: st.DataObject) -> None:
    given_type, wanted = NUMBERS[one], NUMBERS[other]
    values = data.draw(st.lists(st.sampled_from(numbers(given_type)), max_size=12))
    expected = [identity(nan(model(value, wanted))) for value in values]
    for fitted in (fit_keys(pa.array(values, given_type), wanted), fit_values(values, wanted)):
        assert fitted.type == wanted
        assert list(map(identity, map(nan, fitted.to_pylist()))) == expected


MIXED: list[Any] = [
    None,
    1,
    True,
    1.0,
    1.5,
    2**70,
    10**100,
    10**400,
    Decimal("1.50"),
    Decimal("Infinity"),
    Decimal("1E+400"),
]
MIXED += ["1", b"1", "\ud800", float("nan"), date(2024, 1, 1), datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)]
MIXED += [datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), [1], object()]


@given(st.sampled_from([*NUMBERS.values(), *MORE]), st.lists(st.sampled_from(MIXED), max_size=6))
@settings(max_examples=100)
def test_L9_L10_values_of_any_types_are_compared_as_in_python(wanted: pa.DataType, values: list[Any]) -> None:
    expected = []
    for value in values:
        try:
            expected.append(identity(nan(model(value, wanted))))
        except TypeError:
            expected.append(identity(None))
    fitted = fit_values(values, wanted)
    assert fitted.type == wanted
    assert list(map(identity, map(nan, fitted.to_pylist()))) == expected


def nan(key: Any) -> Any:
    return "nan" if key != key else key


def test_L9_a_column_of_single_precision_has_the_double_or_has_not() -> None:
    doubles = pa.array([0.5, 0.1, float("nan"), -0.0, 1e300, float("inf"), None])
    assert str(fit_keys(doubles, pa.float32()).to_pylist()) == "[0.5, None, nan, 0.0, None, inf, None]"
    singles = pa.array([0.5, 0.1], pa.float32())
    assert fit_keys(singles, pa.float64()).to_pylist() == [0.5, 0.10000000149011612]


MOMENT = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("keys", "wanted", "expected"),
    [
        (pa.array(["a", "e\u0301", None]), pa.large_string(), ["a", "e\u0301", None]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array(["a"]).dictionary_encode(), pa.string(), ["a"]),
        (pa.array(["a"]), pa.dictionary(pa.int32(), pa.string()), ["a"]),
        (pa.array([b"a"]), pa.large_binary(), [b"a"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([MOMENT], pa.timestamp("us", "Europe/Berlin")), pa.timestamp("s", "America/New_York"), [MOMENT]),
        (pa.array([1_000_000, 1_000_001], pa.int64()).cast(pa.timestamp("us")), pa.timestamp("s"), [1, None]),
        (pa.array([2**62, 5], pa.int64()).cast(pa.timestamp("s")), pa.timestamp("us"), [None, 5_000_000]),
        (pa.array([date(2024, 2, 29)]), pa.date64(), [date(2024, 2, 29)]),
        (pa.nulls(2), pa.struct([("0", pa.int8())]), [None, None]),
    ],
)
def test_L10_types_of_one_family_are_fitted(keys: pa.Array, wanted: pa.DataType, expected: list[Any]) -> None:
    fitted = fit_keys(keys, wanted)
    values = fitted.cast(pa.int64()) if pa.types.is_timestamp(wanted) and isinstance(expected[-1], int) else fitted
    if expected == [1, None]:
        values = fitted.cast(pa.int64())
    assert values.to_pylist() == expected


def test_L10_parts_of_a_key_are_fitted_one_by_one_whatever_their_names() -> None:
    keys = pa.StructArray.from_arrays([pa.array([1, 2**40]), pa.array(["a", "b"])], ["x", "y"])
    wanted = pa.struct([("0", pa.int32()), ("1", pa.large_string())])
    assert fit_keys(keys, wanted).to_pylist() == [{"0": 1, "1": "a"}, {"0": None, "1": "b"}]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([True]), pa.int8()),
        (pa.array([date(2024, 1, 1)]), pa.timestamp("us")),
        (pa.array([MOMENT]), pa.timestamp("us")),
        (pa.array([b"a"]), pa.string()),
        (pa.array([1]), pa.struct([("0", pa.int64())])),
        (pa.StructArray.from_arrays([pa.array([1])], ["x"]), pa.struct([("0", pa.int8()), ("1", pa.int8())])),
    ],
)
def test_L10_keys_that_are_never_equal_are_an_error(keys: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(TypeError, match="never equal"):
        fit_keys(keys, wanted)
