"""The keys of Arrow columns: the rule of `keys`, applied to whole columns.

`canonical_array` gives equal keys equal bytes. So Arrow's `dictionary_encode`, `index_in` and joins compare keys by the
same rule as dictionaries of canonical keys. Types with one spelling per value cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.key_identity import NAN, canonical_key

Ints = np.ndarray[Any, np.dtype[np.int64]]


def canonical_array(array: pa.Array) -> pa.Array:
    """The same keys in canonical form: timestamps with a zone in UTC, 0.0 for -0.0, one NaN, no dictionary, no view,
    floats of at least 32 bits, and decimals of at least 128 bits.

    Then two keys of one type are the same if their bytes are equal. Decimals of different scales are different types:
    cast them first. Fields of structs are made canonical too. Lists and maps cannot be keys.
    """
    kind = array.type
    if kinds.is_dictionary(kind):
        return canonical_array(array.dictionary_decode())
    if kinds.is_string_view(kind):
        # Arrow cannot take rows of views.
        return array.cast(pa.string())
    if kinds.is_binary_view(kind):
        return array.cast(pa.binary())
    if kinds.is_float16(kind):
        # Arrow cannot add the smaller ones.
        return _canonical_floats(array.cast(pa.float32()))
    if kinds.is_float64(kind) or kinds.is_float32(kind):
        return _canonical_floats(array)
    if kinds.is_decimal(kind) and kind.bit_width < 128:
        # Arrow cannot compare the smaller ones.
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    if kinds.is_struct(kind):
        parts = list(map(canonical_array, array.flatten()))
        fields = [field.with_type(part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)
    return in_utc(array)


def key_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The canonical keys of a column. None for null, and for a value that Python cannot hold (a date after 9999)."""
    if isinstance(column, pa.ChunkedArray):
        return [key for chunk in column.chunks for key in key_values(chunk)]
    column = canonical_array(column)
    try:
        return _python_keys(column)
    except (ValueError, OverflowError):
        return list(map(_python_key, column))


def distinct_held(columns: Sequence[pa.Array], optional: Collection[int] = ()) -> tuple[pa.Array, Ints]:
    """See `distinct`. A value that Python cannot hold counts as null, because no source can have it. Only where there
    are such values is a Python object made for a key."""
    arrays = list(map(canonical_array, columns))
    if all(map(_is_held, arrays)):
        return distinct(arrays, optional)
    held = [pa.array(map(_python_key, array), array.type) for array in arrays]
    lost = [pc.and_(one.is_null(), array.is_valid()) for one, array in zip(held, arrays, strict=True)]
    unheld = np.logical_or.reduce([one.to_numpy(zero_copy_only=False) for one in lost])
    return distinct(held, optional, unheld)


def _is_held(array: pa.Array) -> bool:
    """Whether Python can hold all values of a canonical array."""
    kind = array.type
    try:
        if kinds.is_string(kind):
            array.validate(full=True)
        elif kinds.is_date32(kind) or (kinds.is_timestamp(kind) and kind.unit == "us"):
            bounds = pc.min_max(array.cast(pa.int32()) if kinds.is_date32(kind) else array.cast(pa.int64()))
            if array.null_count < len(array):
                _python_keys(pa.array([bounds["min"].as_py(), bounds["max"].as_py()], bounds["min"].type).cast(kind))
        elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
            _python_keys(array)
    except (ValueError, OverflowError):
        return False
    return True


def distinct(
    columns: Sequence[pa.Array], optional: Collection[int] = (), missing: np.ndarray[Any, Any] | None = None
) -> tuple[pa.Array, Ints]:
    """The distinct keys of rows as an array, and for every row the number of its key, or -1 if a part of it is null.

    Keys are canonical and in the order of their first row. Keys of several columns are structs, with the fields "0",
    "1" and so on. No Python object is made for a key.

    Args:
        optional: positions of the columns whose nulls are values. They count only among several columns.
        missing: the rows that have no key at all.
    """
    arrays = list(map(canonical_array, columns))
    # If one column of numbers or times ascends, as in a log, all keys differ.
    ordered = [array for array in arrays if kinds.is_integer(array.type) or kinds.is_temporal(array.type)]
    are_complete = missing is None and not any(array.null_count for array in arrays)
    if ascend(arrays) or (are_complete and any(ascend([array]) for array in ordered)):
        return key_array(arrays), np.arange(len(arrays[0]))
    if len(arrays) == 1:
        codes, keys = _encode(arrays[0])
        return keys, codes
    codes, values = _encode(joint_numbers(arrays, optional, missing))
    if len(values) < len(codes):
        # Written from the last row to the first, so that the first row of a key stays. The last place is for nulls.
        first = np.empty(len(values) + 1, dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        rows = pa.array(first[:-1])
        arrays = [array.take(rows) for array in arrays]
    return key_array(arrays), codes


def ascend(columns: Sequence[pa.Array]) -> bool:
    """Whether every key is greater than the one before, and so none is there twice, as in a table that is sorted by its
    key. Known for single columns of integers, text, dates and timestamps; False for all others."""
    if len(columns) != 1 or columns[0].null_count or not any(is_kind(columns[0].type) for is_kind in _IN_ORDER):
        return False
    # One comparison in C for each key, which is a small part of what it takes to search for equal keys.
    return bool(pc.all(pc.greater(columns[0][1:], columns[0][:-1]), min_count=0).as_py())


_IN_ORDER = (kinds.is_integer, kinds.is_string, kinds.is_large_string, kinds.is_date32, kinds.is_timestamp)


def key_array(parts: Sequence[pa.Array]) -> pa.Array:
    """One array of keys, from their parts: the only part, or structs with the fields "0", "1" and so on."""
    if len(parts) == 1:
        return parts[0]
    return pa.StructArray.from_arrays(list(parts), names=list(map(str, range(len(parts)))))


def key_parts(keys: pa.Array) -> list[pa.Array]:
    """The columns of keys."""
    return list(keys.flatten()) if kinds.is_struct(keys.type) else [keys]


def python_keys(keys: pa.Array) -> list[Any]:
    """The Python keys of an array of keys, such as that of `distinct`. Structs become tuples.

    Raises:
        ValueError, OverflowError: Python cannot hold one of them.
    """
    if kinds.is_struct(keys.type):
        return list(zip(*map(_python_keys, keys.flatten()), strict=True))
    return _python_keys(keys)


def in_utc(array: pa.Array) -> pa.Array:
    """The same array, with the timestamps that have a zone in UTC, whatever the zone of the session."""
    in_zone = utc_type(array.type)
    return array if in_zone == array.type else array.cast(in_zone)


@lru_cache(maxsize=1000)
def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The type that `canonical_array` gives to arrays of this type."""
    return canonical_array(pa.nulls(0, kind)).type


@lru_cache(maxsize=1000)
def utc_type(kind: pa.DataType) -> pa.DataType:
    """The same type with UTC instead of every other zone."""
    if kinds.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(utc_type(field.type)) for field in kind])
    if kinds.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(utc_type(key.type)), item.with_type(utc_type(item.type)))
    if kinds.is_list(kind):
        return pa.list_(kind.value_field.with_type(utc_type(kind.value_type)))
    return kind


def _canonical_floats(array: pa.Array) -> pa.Array:
    array = pc.add(array, pa.scalar(0.0, array.type))  # -0.0 + 0.0 is 0.0
    nans = pc.is_nan(array)
    # The bits of NaNs may differ, and Arrow hashes bits.
    return pc.if_else(nans, pa.scalar(NAN, array.type), array) if nans.true_count else array


_LARGEST = 1 << 62  # A bound of joint numbers, within 64 bits.


def joint_numbers(
    arrays: Sequence[pa.Array], optional: Collection[int] = (), missing: np.ndarray[Any, Any] | None = None
) -> pa.Array:
    """One number for every row: equal for rows of the same key, null if a part of the key is null and not optional."""
    nulls = missing
    if optional:
        # Whether an optional part is null is a part of its own.
        arrays = [*arrays, *(arrays[i].is_null().cast(pa.int8()) for i in optional if arrays[i].null_count)]
    for i, array in enumerate(arrays):
        if array.null_count and i not in optional:
            absent = array.is_null().to_numpy(zero_copy_only=False)
            nulls = absent if nulls is None else nulls | absent
    joint, size = numbers_of(arrays[0])
    for array in arrays[1:]:
        numbers, more = numbers_of(array)
        if size * more >= _LARGEST:
            (joint, size), (numbers, more) = _dense(joint), _dense(numbers)
        joint = joint * more
        joint += numbers
        size *= more
    return pa.array(joint, mask=nulls)


def numbers_of(array: pa.Array) -> tuple[Ints, int]:
    """For every row a number of its value, from 0 on, and a bound above all. Any number for null."""
    kind = array.type
    if not (kinds.is_integer(kind) or (kinds.is_temporal(kind) and not kinds.is_interval(kind))):
        codes, values = _encode(array)
        return codes, max(1, len(values))
    # The distance from the least value is such a number, and needs no table of the values.
    if kinds.is_temporal(kind) and kind.bit_width == 32:
        array = array.cast(pa.int32())
    array = array.cast(pa.int64()) if kind.bit_width < 64 else array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(pc.min(array))
    values = array.to_numpy() if not array.null_count else np.zeros(len(array), dtype=np.int64)
    if not len(values):
        return values, 1
    lowest = int(values.min())
    size = int(values.max()) - lowest + 1
    return (values - lowest, size) if size < _LARGEST else _dense(values)


def _dense(numbers: Ints) -> tuple[Ints, int]:
    codes, values = _encode(pa.array(numbers))
    return codes, max(1, len(values))


def _encode(column: pa.Array) -> tuple[Ints, pa.Array]:
    """For every row the number of its value, or -1 for null; and the values, in the order of their first row."""
    encoded = column.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        codes = pc.fill_null(codes, -1)
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _python_keys(array: pa.Array) -> list[Any]:
    """The values of a canonical array as keys. Raises ValueError or OverflowError if Python cannot hold one."""
    kind = array.type
    if kinds.is_timestamp(kind) and kind.unit == "us":
        return _since(datetime(1970, 1, 1, tzinfo=None if kind.tz is None else UTC), array.cast(pa.int64()), kind.unit)
    if kinds.is_date32(kind):
        return _since(date(1970, 1, 1), array.cast(pa.int32()), "D")
    values: list[Any] = array.to_pylist()
    if kinds.is_floating(kind) and pc.is_nan(array).true_count:
        return [NAN if value != value else value for value in values]
    return values


def _since(epoch: Any, numbers: pa.Array, unit: str) -> list[Any]:
    """Dates or times from their numbers of days or microseconds. Arrow's own conversion takes fifty times as long."""
    nulls = np.flatnonzero(numbers.is_null()) if numbers.null_count else ()
    spans = numbers.fill_null(0).to_numpy().astype(f"timedelta64[{unit}]").tolist()
    try:
        values = [epoch + span for span in spans]
    except TypeError:
        # For the longest spans NumPy gives an int, because Python's timedelta cannot hold them.
        raise OverflowError(f"a number of {unit} is too large") from None
    for place in nulls:
        values[place] = None
    return values


def _python_key(scalar: pa.Scalar) -> Any:
    try:
        return canonical_key(scalar.as_py())
    except (ValueError, OverflowError):
        return None
