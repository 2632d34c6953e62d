"""`decimals`: the exact number or none, for every way to a decimal, against Python's own decimals (law X12)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.arrow.columns import array_of, row_reader
from asyncio_operator.arrow.decimals import cast_exactly, cast_table, fit_decimals
from asyncio_operator.arrow.key_fit import fit_keys, fit_values
from asyncio_operator.arrow.schema import as_schema
from asyncio_operator.errors import ResultError
from asyncio_operator.journal.answers import AnswerBatch, to_table
from asyncio_operator.journal.format import Description
from tests.numbers import KINDS, fitted, numbers


def same(found: list[Any], wanted: list[Any]) -> None:
    assert found == wanted
    assert [value is None for value in found] == [value is None for value in wanted]


@given(st.lists(numbers, min_size=1, max_size=5), st.sampled_from(KINDS))
def test_X12_a_text_is_its_number_as_a_decimal_or_does_not_fit(given_: list[Decimal], kind: pa.DataType) -> None:
    wanted = [fitted(number, kind) for number in given_]
    for texts in (list(map(str, given_)), [f"{number:f}" for number in given_]):
        same(fit_decimals(pa.array([*texts, None]), kind).to_pylist(), [*wanted, None])


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1_0", "\uff11", "\u0663", "0x1", "1,0", "NaN", "Infinity", "-inf", "1e", "1\n"]
)
def test_X12_a_text_that_is_no_number_does_not_fit(text: str) -> None:
    for texts in ([text], [text, "1" * 30], [text, "1e0"]):
        assert fit_decimals(pa.array(texts), pa.decimal128(38, 2))[0].as_py() is None


@given(st.lists(numbers, min_size=1, max_size=5), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_X12_a_decimal_of_another_type_is_the_same_number_or_does_not_fit(
    given_: list[Decimal], one: pa.DataType, other: pa.DataType
) -> None:
    held = [number for number in given_ if fitted(number, one) is not None]
    array = pa.array([fitted(number, one) for number in held], one)
    wanted = [fitted(number, other) for number in held]
    same(fit_decimals(array, other).to_pylist(), wanted)
    same(fit_keys(array, other).to_pylist(), wanted)
    for shape in (lambda values: values, lambda values: pa.array([values.to_pylist()], pa.list_(values.type))):
        column = shape(array)
        try:
            made = cast_exactly(column, shape(pa.array([], other)).type)
        except pa.ArrowInvalid:
            # In lists Arrow refuses some that fit.
            assert None in wanted or column is not array
        else:
            assert made.to_pylist() == column.to_pylist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from(KINDS))
def test_X12_an_integer_is_the_same_number_as_a_decimal_or_does_not_fit(given_: list[int], kind: pa.DataType) -> None:
    wanted = [fitted(Decimal(number), kind) for number in given_]
    same(fit_decimals(pa.array(given_), kind).to_pylist(), wanted)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1), st.sampled_from(KINDS))
def test_X12_a_float_is_the_shortest_decimal_that_reads_as_it(given_: list[float], kind: pa.DataType) -> None:
    wanted = [fitted(Decimal(repr(number)), kind) for number in given_]
    same(fit_decimals(pa.array(given_), kind).to_pylist(), wanted)
    same(fit_values(given_, kind).to_pylist(), wanted)


@given(st.lists(numbers, min_size=1, max_size=5), st.sampled_from(KINDS))
@example([Decimal(f"1{'0' * 19}.{'0' * 57}"), Decimal(f"1.{'0' * 40}")], pa.decimal128(38, 18))
def test_X12_an_answer_keeps_its_numbers_or_is_an_error(given_: list[Decimal], kind: pa.DataType) -> None:
    read = row_reader(pa.schema([("n", kind)]))
    for number in given_:
        if fitted(number, kind) is None:
            for value, of_value in (
                (number, kind),
                ([number], pa.list_(kind)),
                ({"a": number}, pa.struct([("a", kind)])),
            ):
                with pytest.raises((ValueError, ArithmeticError, pa.ArrowException)):
                    array_of([value], of_value)
            with pytest.raises(ResultError, match="column 'n' is decimal"):
                read({"n": number})
        else:
            assert array_of([number, None], kind).to_pylist() == [number, None]
            assert read({"n": number}) == {"n": number}
            with suppress(ValueError, ArithmeticError, pa.ArrowException):
                assert array_of([[number]], pa.list_(kind)).to_pylist() == [[number]]


@pytest.mark.parametrize("inside", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_X12_a_NaN_beside_a_decimal_stays_one_in_another_type(inside: Callable[[pa.DataType], pa.DataType]) -> None:
    one, other = (pa.struct([("x", pa.float64()), ("n", pa.decimal128(digits, 1))]) for digits in (5, 6))
    row = {"x": math.nan, "n": Decimal("1.5")}
    value = {"struct": row, "list": [row], "map": [("a", row)]}[str(inside(one)).partition("<")[0]]
    made = cast_exactly(pa.array([value], inside(one)), inside(other))
    assert made.type == inside(other)
    assert str(made.to_pylist()) == str([value])


def test_X12_a_table_in_other_types_has_the_same_numbers() -> None:
    table = pa.table({"n": pa.array([Decimal("1e30")], pa.decimal128(38, 0)), "s": ["a"]})
    wanted = pa.schema([("n", pa.decimal128(38, 7)), ("s", pa.string())])
    assert cast_table(table, wanted).to_pylist() == table.to_pylist()
    with pytest.raises(pa.ArrowInvalid, match=r"column 'n': 1000000000000000000000000000000 .* decimal\(38,18\)"):
        cast_table(table, pa.schema([("n", pa.decimal128(38, 18)), ("s", pa.string())]))


def test_X12_a_journal_has_the_same_numbers() -> None:
    stored = pa.decimal128(38, 18)
    description = Description("me", pa.schema([("k", pa.int64())]), pa.schema([("n", stored)]))

    def written(number: int) -> list[Any]:
        rows = pa.table({"n": pa.array([number], pa.decimal128(38, 0))})
        batch = AnswerBatch(pa.array([1]), in_order(rows), 0.0)
        return to_table(batch, description, run="a", first=0, expire_after=None)["n"].to_pylist()  # type: ignore[no-any-return]

    assert written(10**19) == [Decimal(10**19)]
    with pytest.raises(pa.ArrowInvalid, match="does not fit"):
        written(10**30)


@pytest.mark.parametrize(
    ("column", "kind", "says"),
    [
        (pa.array([2]), "boolean", "a value of type bigint does not fit boolean"),
        (pa.array([1]), "date", "there is no cast from bigint to date"),
        (pa.array([[1]]), "tinyint", "there is no cast from array<bigint> to tinyint"),
        (pa.array(["int64 int8"]), "int", "Failed to parse string: 'int64 int8' as a scalar of type int"),
        (pa.array(["b"]), "timestamp", "Failed to parse string: 'b' as a scalar of type timestamp: "),
        (pa.array([1.5]), "smallint", "Float value 1.5 was truncated converting to smallint"),
    ],
)
def test_X12_what_arrow_says_of_a_misfit_has_the_types_of_ddl(column: pa.Array, kind: str, says: str) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        cast_table(pa.table({"c": column}), as_schema(f"c {kind}"))
    # Arrow 18 writes a number without the zeros.
    assert str(caught.value).replace("1.500000", "1.5").startswith(f"column 'c': {says}")
    if not pa.types.is_nested(column.type):
        with pytest.raises(ResultError, match=f"^column 'c' is {kind}, which") as of_a_row:
            row_reader(as_schema(f"c {kind}"))({"c": "?"})
        assert not re.search(r"(?<!')\bu?int\d", str(of_a_row.value))


ARROW = int(pa.__version__.partition(".")[0])
"""Arrow 18 does not cast a struct whose fields are in another order."""


@pytest.mark.parametrize(
    ("column", "kind", "fits"),
    [
        (pa.array([0, None], pa.timestamp("us")), pa.date32(), True),
        (pa.array([1, None], pa.timestamp("us")), pa.date32(), False),
        (pa.array([-1], pa.timestamp("s")), pa.date64(), False),
        (pa.array([0, 1, None]), pa.bool_(), True),
        (pa.array([0, 2]), pa.bool_(), False),
        (pa.array([1e38, float("inf"), float("nan"), None]), pa.float32(), True),
        (pa.array([1e39]), pa.float32(), False),
        (pa.array([1001], pa.timestamp("ns")), pa.timestamp("us"), False),
        (pa.array([2**40]), pa.int32(), False),
        (pa.array([2**64 - 1], pa.uint64()), pa.int64(), False),
        (pa.array([2**53 + 1]), pa.float64(), False),
        (pa.array([1.0, 0.0, None]), pa.bool_(), True),
        (pa.array([1.9]), pa.bool_(), False),
        (pa.array(["1e39"]), pa.float32(), False),
        (pa.array(["1e999"]), pa.float64(), False),
        (pa.array(["inf", "1e300", None]), pa.float64(), True),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), False),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us"), False),
        (pa.array([0], pa.timestamp("us", "Asia/Tokyo")), pa.timestamp("us", "UTC"), True),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())]), False),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("b", pa.int64()), ("a", pa.int64())]), ARROW >= 19),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]), False),
    ],
)
def test_X12_a_table_in_other_types_has_the_same_values(column: pa.Array, kind: pa.DataType, fits: bool) -> None:
    offsets = pa.array([0, len(column)], pa.int32())
    keys = pa.array(list(map(str, range(len(column)))))
    nested = [
        (pa.ListArray.from_arrays(offsets, column), pa.list_(kind)),
        (pa.StructArray.from_arrays([column], names=["f"]), pa.struct([("f", kind)])),
        (pa.MapArray.from_arrays(offsets, keys, column), pa.map_(pa.string(), kind)),
    ]
    nested.append(
        (pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), nested[1][0]), pa.list_(nested[1][1]))
    )
    for shape, wanted_type in [(column, kind), (pa.chunked_array([column]), kind), *nested]:
        column = shape
        table, wanted = pa.table({"c": shape}), pa.schema([("c", wanted_type)])
        if fits:
            assert len(cast_table(table, wanted)) == len(column)
        else:
            with pytest.raises(pa.ArrowInvalid, match="column 'c': "):
                cast_table(table, wanted)
