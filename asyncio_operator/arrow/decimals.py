"""Decimals in Arrow, converted by value: a number keeps every digit, or it does not fit. Every cast is here.

Arrow's own casts multiply or divide by a power of ten within 128 bits, and do not see every overflow: they wrap more
than half of the numbers that are too large, and make 0 of some that have too many digits after the point. They are
right for numbers that fit. So the size of a number is compared first.

| from | how |
| --- | --- |
| integers, decimals | by value |
| float | the shortest decimal that reads back as it |
| text | a number in ASCII digits, as in 12.50 or 1e3, without blanks |

This module knows neither keys nor columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Context, Decimal, Inexact, InvalidOperation, Rounded
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.type_names import in_ddl, shown_type

MOST_DIGITS = 38  # Of a number in 128 bits.
_readable = Context(prec=76, traps=[Rounded]).plus  # Raises if a number has more digits than Arrow reads.

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@lru_cache(maxsize=1000)
def exact_decimal(kind: pa.DataType) -> Callable[[Decimal], Decimal]:
    """A function that gives a number the scale of a type. It raises an ArithmeticError if a digit would be lost."""
    quantize = Context(prec=kind.precision, traps=[InvalidOperation, Inexact]).quantize
    step = Decimal(1).scaleb(-kind.scale)

    def convert(number: Decimal) -> Decimal:
        made = quantize(number, step)
        if not made.is_finite():
            raise InvalidOperation(made)
        return made

    return convert


def decimals_fit(numbers: Iterable[Decimal | None], kind: pa.DataType) -> bool:
    """Whether a type holds numbers with all their digits. Of those that have more than 76, Arrow makes others."""
    exact = exact_decimal(kind)
    try:
        for number in numbers:
            if number is not None:
                exact(_readable(number))
    except ArithmeticError:
        return False
    return True


def fit_decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers, or texts of numbers, as decimals of a type. Null where one does not fit, or a text is not a number."""
    given = array.type
    if given == kind:
        return array
    if kinds.is_integer(given):
        # Arrow refuses a decimal type that is too small for the largest integer, whatever the values are.
        return _rescaled(array.cast(pa.decimal128(20, 0)), kind)
    if kinds.is_decimal(given):
        return _rescaled(array, kind)
    if kinds.is_floating(given):
        return decimals_of((None if number is None else Decimal(repr(number)) for number in array.to_pylist()), kind)
    if kind.bit_width >= 128 and _in_reach(array, kind):
        with suppress(pa.ArrowInvalid):
            return array.cast(kind)
    return decimals_of(array.to_pylist(), kind)


def cast_exactly(column: Any, kind: pa.DataType) -> Any:
    """An array, or a chunked one, as another type. Like Arrow's `cast`, but no decimal becomes another number, no
    moment loses its time of day or its zone, no number but 0 and 1 becomes a boolean, no finite number infinity, and no
    field of a struct is left out, at any depth.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit.
        pyarrow.ArrowNotImplementedError: Arrow has no such cast.
    """
    if column.type != kind and (_has_decimals(kind) or _has_decimals(column.type)):
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([cast_exactly(chunk, kind) for chunk in column.chunks], kind)
        if kinds.is_dictionary(column.type):
            return cast_exactly(column.dictionary_decode(), kind)
    if column.type == kind or not (kinds.is_decimal(kind) or kinds.is_decimal(column.type)):
        made = column.cast(kind)
        if _is_changed(column, made):
            raise pa.ArrowInvalid(f"a value of type {shown_type(column.type)} does not fit {shown_type(kind)}")
        return made
    if kinds.is_floating(kind):
        # Arrow does not always take the nearest one.
        return pa.array([None if value is None else float(value) for value in column.to_pylist()], kind)
    if not kinds.is_decimal(kind) or kinds.is_null(column.type):
        return column.cast(kind)
    made = fit_decimals(column, kind)
    if made.null_count > column.null_count:
        lost = column.filter(pc.and_(made.is_null(), column.is_valid()))
        raise pa.ArrowInvalid(f"{str(lost[0].as_py())[:200]} does not fit decimal({kind.precision},{kind.scale})")
    return made


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table in the types of a schema, which has the same names. See `cast_exactly`.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit, or Arrow has no such cast. The message names the column.
    """
    if table.column_names != schema.names:
        raise ValueError(f"the columns are {table.column_names}, and not {schema.names}")
    columns = []
    for name, column, kind in zip(schema.names, table.columns, schema.types, strict=True):
        try:
            columns.append(cast_exactly(column, kind))
        except pa.ArrowNotImplementedError:
            no_cast = f"there is no cast from {shown_type(column.type)} to {shown_type(kind)}"
            raise pa.ArrowInvalid(f"column {name!r}: {no_cast}") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # the second is Arrow 18's for fields of a struct
            raise pa.ArrowInvalid(f"column {name!r}: {in_ddl(str(error))}") from None
    # Also checks that a column that must not be null is not.
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def _is_changed(column: Any, made: Any) -> bool:
    """Whether Arrow's cast has silently changed a value, or left out a field."""
    given, kind = column.type, made.type
    if given == kind:
        return False
    if isinstance(column, pa.ChunkedArray):
        return any(map(_is_changed, column.chunks, made.chunks))
    if kinds.is_nested(kind) and kinds.is_nested(given):
        if kinds.is_struct(kind) and kinds.is_struct(given):
            names = [one.name for one in given]
            if sorted(names) != sorted(one.name for one in kind):
                return True
            pairs = [(column.field(one.name), made.field(one.name)) for one in given]
        elif kinds.is_map(kind) and kinds.is_map(given):
            # Slices of maps show the entries before and after them too.
            column, made = pa.concat_arrays([column]), pa.concat_arrays([made])
            pairs = [(column.keys, made.keys), (column.items, made.items)]
        else:
            pairs = [(column.flatten(), made.flatten())]
        return any(_is_changed(*pair) for pair in pairs)
    if kinds.is_timestamp(given) and kinds.is_timestamp(kind) and (given.tz is None) != (kind.tz is None):
        return True
    if (
        (kinds.is_timestamp(given) and kinds.is_date(kind))
        or ((kinds.is_integer(given) or kinds.is_floating(given)) and kinds.is_boolean(kind))
        or (kinds.is_decimal(given) or kinds.is_decimal(kind))  # A wrapped number does not come back.
    ):
        return not made.cast(given).equals(column)
    if (kinds.is_string(given) or kinds.is_large_string(given)) and kinds.is_floating(kind):
        # Arrow reads a number that is too large as infinity.
        return bool(pc.any(pc.and_(pc.is_inf(made), pc.match_substring_regex(column, "[0-9]"))).as_py())
    if kinds.is_floating(given) and kinds.is_floating(kind):
        return bool(pc.any(pc.and_(pc.is_inf(made), pc.is_finite(column))).as_py())
    return False


@lru_cache(maxsize=1000)
def _has_decimals(kind: pa.DataType) -> bool:
    if kinds.is_dictionary(kind):
        return _has_decimals(kind.value_type)
    if kinds.is_nested(kind):
        return any(_has_decimals(kind.field(i).type) for i in range(kind.num_fields))
    return bool(kinds.is_decimal(kind))


def _rescaled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals as decimals of another type."""
    if array.type.bit_width < 128:
        # Arrow cannot compare the smaller ones. Every value fits.
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    given = array.type
    if given.scale < 0:
        # Nor these.
        return decimals_of(array.to_pylist(), kind)
    digits = kind.precision - kind.scale
    if digits < given.precision - given.scale:
        # 10**digits, which the given type can hold; below one unit of it only 0 fits.
        bound = pa.scalar(Decimal(1).scaleb(max(digits, -given.scale)), given)
        array = pc.if_else(pc.less(pc.abs(array), bound), array, pa.scalar(None, given))
    wide = kind if kind.bit_width >= 128 else pa.decimal128(kind.precision, kind.scale)
    try:
        return array.cast(wide).cast(kind)
    except pa.ArrowInvalid:
        # One has too many digits after the point.
        return decimals_of(array.to_pylist(), kind)


def _in_reach(texts: pa.Array, kind: pa.DataType) -> bool:
    """Whether Arrow reads each text as the number that it is, or refuses it."""
    data = texts.buffers()[2]
    written = b"" if data is None else data.to_pybytes()
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest + max(kind.scale, 0) <= MOST_DIGITS and b"e" not in written and b"E" not in written:
        return True
    return pc.all(pc.match_substring_regex(texts, _plain(kind))).as_py() is not False


@lru_cache(maxsize=1000)
def _plain(kind: pa.DataType) -> str:
    """A number without an exponent that has no more digits than the type."""
    before, after = max(kind.precision - kind.scale - 1, 0), max(kind.scale, 0)
    first = "0" if kind.precision <= kind.scale else f"(?:0|[1-9][0-9]{{0,{before}}})"
    return rf"\A-?{first}(?:\.[0-9]{{0,{after}}})?\z"


def decimals_of(numbers: Iterable[Decimal | str | None], kind: pa.DataType) -> pa.Array:
    """Numbers of Python, or texts of numbers, as decimals of a type. Null where `fit_decimals` gives null."""
    exact = exact_decimal(kind)

    def fitted(number: Decimal | str | None) -> Decimal | None:
        if number is None or (isinstance(number, str) and not _NUMBER.fullmatch(number)):
            return None
        try:
            return exact(Decimal(number))
        except ArithmeticError:
            return None

    return pa.array(list(map(fitted, numbers)), kind)
