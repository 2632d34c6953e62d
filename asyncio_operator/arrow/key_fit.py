"""The keys of an Arrow column in the type of another column, by value and without loss.

The rule is that of Spark's join and of PostgreSQL's ``=``. A key that the other type cannot hold becomes null: no row
of that column can have it.

| the other column | keys that fit | how |
| --- | --- | --- |
| integer | integer, float, decimal | by value, exactly: 1.0 is 1, and 1.5 is null |
| float | integer, float, decimal | by the nearest double; a column of single precision holds the double or does not |
| decimal | integer, float, decimal | by value; a float is the shortest decimal that reads back as it |
| text, binary | the same, in any layout | by code points; by bytes |
| date | the same, in any unit | |
| timestamp | the same, in any unit, both with a zone or both without | by the instant; by the clock face |
| any other | the same type | |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from math import isinf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.decimals import decimals_of, fit_decimals
from asyncio_operator.arrow.key_arrays import canonical_array, canonical_type
from asyncio_operator.arrow.type_names import shown_type


def fit_keys(keys: pa.Array, data_type: pa.DataType) -> pa.Array:
    """The keys in the canonical form of another type. Null where the key does not fit.

    A struct array has one field for each part of a key. Its parts are fitted one by one, whatever their names.

    Raises:
        TypeError: keys of these two types can never be equal, such as texts and numbers.
    """
    keys, data_type = canonical_array(keys), canonical_type(data_type)
    if keys.type == data_type:
        return keys
    if kinds.is_null(keys.type) or kinds.is_null(data_type):
        return pa.nulls(len(keys), data_type)
    if kinds.is_struct(keys.type) and kinds.is_struct(data_type) and keys.type.num_fields == data_type.num_fields:
        parts = [fit_keys(part, field.type) for part, field in zip(keys.flatten(), data_type, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(data_type))
    if (family := key_family(data_type)) is None or key_family(keys.type) != family:
        raise TypeError(f"keys of type {shown_type(keys.type)} are never equal to keys of {shown_type(data_type)}")
    return _number(keys, data_type) if family == "number" else _cast(keys, data_type)


def fit_values(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Python keys in the canonical form of a type. Null for None, and where a key does not fit."""
    kinds_of_values = set(map(type, values)) - {type(None)}
    if any(hasattr(kind, "nanosecond") for kind in kinds_of_values):  # Arrow would drop them.
        values = [None if getattr(value, "nanosecond", 0) else value for value in values]
    uniform, to_array = len(kinds_of_values) == 1, pa.array
    if kinds_of_values == {datetime}:
        # By identity, because some zones have no hash.
        zones = {id(value.tzinfo) for value in values if value is not None}
        if zones == {id(UTC)}:
            to_array = _instants
        # Arrow takes a datetime without a zone for one in UTC if another one has a zone.
        uniform = len(zones) == 1 or id(None) not in zones
    try:
        if uniform:
            return fit_keys(to_array(values), data_type)
    except _MISFITS:
        pass
    none = fit_keys(pa.nulls(0), data_type)
    return pa.concat_arrays([none, *(_fit_value(value, data_type) for value in values)])


def _instants(values: Sequence[datetime | None]) -> pa.Array:
    """Datetimes in UTC. Arrow's own conversion takes four times as long."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    spans = pa.array([None if value is None else value - epoch for value in values], pa.duration("us"))
    return spans.view(pa.int64()).view(pa.timestamp("us", "UTC"))


_MISFITS = (pa.ArrowException, ValueError, TypeError, ArithmeticError)


def _fit_value(value: Any, data_type: pa.DataType) -> pa.Array:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        # Arrow has no type for the largest of them.
        if kinds.is_decimal(data_type):
            return decimals_of([Decimal(value)], canonical_type(data_type))
        value = _nearest(value) if kinds.is_floating(data_type) else Decimal(value)
    try:
        return fit_keys(pa.array([value]), data_type)
    except _MISFITS:
        return fit_keys(pa.nulls(1), data_type)


@lru_cache(maxsize=1000)
def key_family(kind: pa.DataType) -> str | None:
    """The family of a key's type: keys of one family can be equal. None for a type that is equal to itself only."""
    if kinds.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    return next((name for name, checks in _FAMILIES.items() if any(check(kind) for check in checks)), None)


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "number": (kinds.is_integer, kinds.is_floating, kinds.is_decimal),
    "text": (kinds.is_string, kinds.is_large_string, kinds.is_string_view),
    "binary": (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary),
    "boolean": (kinds.is_boolean,),
    "date": (kinds.is_date,),
    "time": (kinds.is_time,),
}


def _number(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_floating(kind):
        if kinds.is_decimal(keys.type):
            # Arrow does not always take the nearest one.
            doubles = pa.array([None if key is None else _nearest(key) for key in keys.to_pylist()], pa.float64())
        else:
            # Unchecked: an integer beyond 2**53 is compared by its nearest double.
            doubles = keys.cast(pa.float64(), safe=False)
        if kinds.is_float64(kind):
            return doubles
        singles = doubles.cast(kind, safe=False)
        exact = pc.or_(pc.equal(singles.cast(pa.float64()), doubles), pc.is_nan(doubles))
        return canonical_array(pc.if_else(exact, singles, pa.scalar(None, kind)))
    if kinds.is_decimal(kind):
        return fit_decimals(keys, kind)
    if kinds.is_decimal(keys.type):
        return _cast(keys, kind)
    # Integers and floats as integers.
    bits = kind.bit_width - kinds.is_signed_integer(kind)
    lowest, above = (-(1 << bits) if kinds.is_signed_integer(kind) else 0), 1 << bits
    values = keys.fill_null(0).to_numpy(zero_copy_only=False)
    if kinds.is_floating(keys.type):
        fits = (values >= float(lowest)) & (values < float(above)) & (values == np.floor(values))
    else:
        fits = (values >= (lowest if kinds.is_signed_integer(keys.type) else 0)) & (values <= above - 1)
    if not fits.all():
        keys = pc.if_else(pa.array(fits), keys, pa.scalar(None, keys.type))
    return keys.cast(kind)


def _nearest(key: Decimal | int) -> float | None:
    try:
        number = float(key)
    except OverflowError:
        return None
    # A decimal that is too large would be found at infinity.
    return number if number == key or not isinf(number) else None


def _cast(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """The keys cast without loss. Keys that do not fit are found by halving, because they are few."""
    try:
        return keys.cast(kind)
    except pa.ArrowInvalid:
        if len(keys) == 1:
            return pa.nulls(1, kind)
    half = len(keys) // 2
    return pa.concat_arrays([_cast(keys[:half], kind), _cast(keys[half:], kind)])
