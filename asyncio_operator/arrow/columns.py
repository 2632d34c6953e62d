"""Converts values to columns of a declared type, without loss.

Arrow refuses most values that do not fit, but not all. It converts 1.5 to 1, a datetime to a date, 5 to a moment in
1970, 1e300 to infinity, Decimal("1E-61") to 0, True to 1.0, and between text and bytes, also inside of lists, maps and
structs. It takes a datetime without a time zone as UTC, whereas PySpark takes it in the zone of the session. It drops a
zone that the column cannot hold, and takes a text as the list of its letters. All of this is refused here.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import ColumnAnswers, in_order, joined, together
from asyncio_operator.arrow.decimals import cast_table, decimals_fit, decimals_of
from asyncio_operator.arrow.type_names import in_ddl, shown_type
from asyncio_operator.errors import ResultError, describe, describe_error

Column = Any  # A `pyarrow.Array`, or a `pyarrow.ChunkedArray` if one cannot hold the values, as over 2 GB of text.

SIMILAR = 0.75  # How alike two names are, of 1, if one may be the other misspelt: two of four letters changed places.
MOST_FIELDS = 200  # Fields of a row in which misspelt names are looked for.

logger = logging.getLogger("asyncio_operator")

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def columns(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema, declared: Sequence[str] | None = None
) -> list[Column]:
    """The columns of rows. Raises an error of any type if a row does not fit; `row_reader` says which and why.

    `declared` are the names that a row may have; None: those of the schema.
    """
    names = declared or schema.names

    def check() -> None:
        for row in rows:
            _check_names(row, names)

    def tell() -> None:
        tell_misspelt(next(row for row in rows if any(name not in row for name in schema.names)), names)

    # A row that has none of the columns does not have the first one either.
    return [_column(rows, field, check if i == 0 else tell) for i, field in enumerate(schema)]


def collected(answers: Sequence[Any], schema: pa.Schema, declared: Sequence[str] | None = None) -> ColumnAnswers:
    """The answers of keys in one table of that schema. Raises an error of any type if a row does not fit.

    Args:
        answers: each is a mapping, a sequence of mappings, `ColumnAnswers` of one key, or None for a miss.
        declared: see `columns`.
    """
    types = set(map(type, answers))
    if ColumnAnswers not in types:
        return _of_rows(answers, types, schema, declared)
    places = [i for i, one in enumerate(answers) if type(one) is ColumnAnswers]
    others = [i for i, one in enumerate(answers) if type(one) is not ColumnAnswers]
    found = together([answers[i] for i in places])
    table = found.table.select(schema.names)
    # Where only nullability differs, no copy is needed.
    same = table.schema.types == schema.types
    found.table = pa.Table.from_arrays(table.columns, schema=schema) if same else cast_table(table, schema)
    if not others:
        return found
    rows = _of_rows([answers[i] for i in others], types - {ColumnAnswers}, schema, declared)
    return joined([(places, found), (others, rows)], len(answers))


def _of_rows(
    answers: Sequence[Any], types: set[type], schema: pa.Schema, declared: Sequence[str] | None
) -> ColumnAnswers:
    """The same for answers that are rows, of these types. Those of most batches take no step in Python each."""
    counts, rows = np.ones(len(answers), np.int64), answers  # A table without columns has no number of rows.
    if types <= {dict, type(None)}:
        if type(None) in types:
            counts = np.array([one is not None for one in answers], np.int64)
            rows = [one for one in answers if one is not None]
    else:
        several = [() if one is None else (one,) if isinstance(one, Mapping) else one for one in answers]
        counts, rows = np.array(list(map(len, several)), np.int64), [*chain.from_iterable(several)]
    return in_order(pa.Table.from_arrays(columns(rows, schema, declared), schema=schema), counts)


def _column(rows: Sequence[Mapping[str, Any]], field: pa.Field, check: Callable[[], None]) -> Column:
    """`check` is called if a row does not have the field."""
    # The first way runs in C, and nearly every row has every field.
    try:
        values = list(map(itemgetter(field.name), rows))
    except KeyError:
        check()
        values = [row.get(field.name) for row in rows]
    return array_of(values, field.type)


def load_pandas() -> None:
    """Arrow imports pandas with its first array of Python values, for half a second: not on a loop while calls run."""
    pa.array(())


def array_of(values: Sequence[Any], data_type: pa.DataType) -> Column:
    """The values in that type. Raises an error of any type if a value does not fit."""
    if kinds.is_decimal(data_type) and {Decimal, type(None)}.issuperset(map(type, values)):
        # Arrow refuses more than 38 digits, and wraps around with more than 76, though all behind these may be 0.
        made = decimals_of(values, data_type)
        if made.null_count == values.count(None):
            return made
    # The types of the values decide for a whole column at once; only a mixed column is checked value by value.
    if not kinds.is_boolean(data_type) and not _are_exact(values, data_type):
        kind, fits = _sure(data_type)
        for value in values:
            if type(value) is not kind or not (fits is None or fits(value)):
                _check(value, data_type)
    try:
        return pa.array(values, data_type)
    except Exception:
        # Arrow cannot convert a list in which structs are dicts and tuples. One by one, each of them fits.
        return pa.concat_arrays([pa.array([value], data_type) for value in values])


def row_reader(
    schema: pa.Schema, declared: Sequence[str] | None = None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Makes a function that copies a row into a new dictionary that has no more than the columns of the schema.

    The function raises a `ResultError` if a value does not fit, with the column and the value,
    or if the row has fields, but none of the columns, or of those with the `declared` names. Values of the most
    common types are checked without Arrow, in a hundredth of the time. Arrow checks all others.
    """
    fields = [(field.name, *_sure(field.type), field) for field in schema]

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for name, exact, fits, field in fields:
            try:
                if name not in row:
                    continue
                own[name] = value = row[name]
            except Exception as error:
                raise ResultError(f"column {name!r} of the answer cannot be read: {describe_error(error)}") from error
            # By the very type, not `isinstance`: True is an int for Python, and a datetime is a date.
            if (type(value) is exact and (fits is None or fits(value))) or value is None:
                continue
            try:
                array_of([value], field.type)
            except Exception as error:
                raise ResultError(
                    f"column {name!r} is {shown_type(field.type)}, which the answer does not fit: {describe(value)} "
                    f"({in_ddl(describe_error(error))})"
                ) from error
        if len(own) < len(fields):
            _check_names(row, declared or schema.names)
        return own

    return read


def _check_names(row: Mapping[str, Any], names: Sequence[str]) -> None:
    """Check that a row with fields has one of the columns: a misspelt row would look like a row of nulls (law L11)."""
    if row and not any(name in row for name in names):
        raise ResultError(
            f"the answer has none of the columns {describe([*names])}; its fields are {describe([*row])}: return the "
            "columns by name, or correct the schema"
        )
    tell_misspelt(row, names)


def tell_misspelt(row: Mapping[str, Any], names: Sequence[str]) -> None:
    """Log, once for rows with these fields, that a field looks like a column that is absent."""
    # Most rows with absent columns have no other fields. One with very many is a mapping by key, and slow to compare.
    others = len(row) <= MOST_FIELDS and any(field not in names for field in row)
    if others and (pair := misspelt(tuple([name for name in row if isinstance(name, str)]), tuple(names))) is not None:
        _told(*pair)


@lru_cache(maxsize=1000)
def _told(field: str, name: str) -> None:
    """Once for a pair, whatever other fields the rows have."""
    logger.warning(
        "an answer has the field %r, which is not a column, and no %r, which is one: its column is null. If one of "
        "them is misspelt, correct the schema or the answer. This is logged once",
        field,
        name,
    )


@lru_cache(maxsize=1000)
def misspelt(fields: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, str] | None:
    """A field that is not a column, and an absent column with nearly that name; None if there is no such pair."""
    others = [field for field in fields if field not in names]
    for name in names:
        if name not in fields and (like := get_close_matches(name, others, 1, SIMILAR)):
            return like[0], name
    return None


@lru_cache(maxsize=1000)
def _class_of(data_type: pa.DataType) -> type | None:
    """The class of a type's values in Python, whose range, unit and zone are still to be checked; None: of several."""
    return next((kind for is_kind, kind in _CLASSES if is_kind(data_type)), None)


_CLASSES: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (kinds.is_string, str),
    (kinds.is_large_string, str),
    (kinds.is_boolean, bool),
    (kinds.is_integer, int),
    (kinds.is_float64, float),
    (kinds.is_decimal, Decimal),
    (kinds.is_binary, bytes),
    (kinds.is_large_binary, bytes),
    (kinds.is_timestamp, datetime.datetime),
    (kinds.is_date, datetime.date),
    (kinds.is_time, datetime.time),
    (kinds.is_duration, datetime.timedelta),
)

_STEPS = {"ms": 1_000, "s": 1_000_000}  # The microseconds of the units that are coarser than Python's times.


@lru_cache(maxsize=1000)
def _sure(data_type: pa.DataType) -> tuple[type | None, Callable[[Any], bool] | None]:
    """A quick check for a type: a value fits if it is of the class and, if there is a function, the function is true
    for it. Other values may fit too. The class is None if there is no quick check."""
    kind = _class_of(data_type)
    if kind is str:
        # Text with a lone surrogate has no UTF-8. Python knows without a search whether a text is ASCII.
        return kind, str.isascii
    if kind is int and kinds.is_signed_integer(data_type):
        limit = 1 << (data_type.bit_width - 1)
        return kind, lambda value: -limit <= value < limit
    if kind is Decimal:
        return kind, lambda value: decimals_fit([value], data_type)
    if kind is datetime.datetime and data_type.unit == "us":
        # Only microseconds, which are Python's own unit: a coarser one would lose digits.
        zones = _zones(data_type)
        return kind, lambda value: type(value.tzinfo) in zones
    return kind if kind in (bool, float, bytes, datetime.date) else None, None


def _are_exact(values: Sequence[Any], data_type: pa.DataType) -> bool:
    """Whether the types of the values already show that Arrow loses nothing. If not, each value is checked."""
    found = set(map(type, values)) - {type(None)}
    if kinds.is_list(data_type) and found <= {list, tuple}:
        return _are_exact([*chain.from_iterable(filter(None, values))], data_type.value_type)
    if kinds.is_struct(data_type) and found <= {dict}:
        return all(_are_exact([one.get(part.name) for one in values if one], part.type) for part in data_type)
    if found and (found != {_class_of(data_type)} or getattr(data_type, "unit", None) in _STEPS):
        return False
    if kinds.is_decimal(data_type):
        return decimals_fit(values, data_type)
    return not kinds.is_timestamp(data_type) or {type(v.tzinfo) for v in values if v is not None} <= _zones(data_type)


def _zones(data_type: pa.DataType) -> frozenset[type]:
    """The types of zones that are known to have an offset, for a column with a zone; else that of None."""
    return frozenset([datetime.timezone, ZoneInfo] if data_type.tz is not None else [type(None)])


def _check(value: Any, data_type: pa.DataType) -> None:
    """Raise if Arrow would silently change the value."""
    if value is None or kinds.is_boolean(data_type):
        return
    if kinds.is_nested(data_type):
        if kinds.is_map(data_type):
            for key, item in value.items() if isinstance(value, Mapping) else value:
                _check(key, data_type.key_type)
                _check(item, data_type.item_type)
        elif kinds.is_struct(data_type):
            fields = [*data_type]
            # Arrow takes a struct as a mapping, a tuple in the order of the fields, or a list of pairs.
            if not isinstance(value, Mapping):
                value = dict(zip([f.name for f in fields], value, strict=False) if isinstance(value, tuple) else value)
            for field in fields:
                _check(value.get(field.name), field.type)
        else:
            if isinstance(value, str | bytes | bytearray):
                raise TypeError(f"it is of type {type(value).__name__}")
            for item in value:
                _check(item, data_type.value_type)
    elif kinds.is_integer(data_type):
        # Beyond every integer column. `int` would compute all its digits, which may be a billion.
        if isinstance(value, Decimal) and value.adjusted() > 40:
            raise ValueError("it is too large")
        if isinstance(value, np.bool_ | np.datetime64 | np.timedelta64):
            raise TypeError(f"it is of type {type(value).__name__}")
        # `int` itself refuses NaN and infinity.
        if isinstance(value, float | np.floating | Decimal) and value != int(value):
            raise ValueError("it has a fraction")
    elif kinds.is_decimal(data_type):
        if isinstance(value, int | Decimal) and not decimals_fit([Decimal(value)], data_type):
            raise ValueError(f"it does not fit {shown_type(data_type)}")
    elif kinds.is_floating(data_type):
        if isinstance(value, bool | np.bool_):
            raise TypeError("it is a bool")
        # Infinity is a float32. A larger finite number would become infinity.
        if kinds.is_float32(data_type) and _LARGEST_FLOAT32 < abs(float(value)) < float("inf"):
            raise ValueError("it is too large")
    elif (allowed := _class_of(data_type)) is bytes:
        if isinstance(value, str):
            raise TypeError("it is a text")
    elif allowed is not None:
        # A datetime is a date for Python, and Arrow would drop its time of day.
        is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
        if not (is_date if allowed is datetime.date else isinstance(value, allowed)):
            raise TypeError(f"it is of type {type(value).__name__}")
        step = _STEPS.get(unit := getattr(data_type, "unit", ""))
        finer = unit != "ns" and (getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))  # Of pandas.
        if finer or (step and (value.microseconds if allowed is datetime.timedelta else value.microsecond) % step):
            raise ValueError(f"it is finer than a {unit}")
        # Asked for its offset: a datetime may have a `tzinfo` that gives none, and is then one without a zone.
        if allowed is datetime.datetime and (value.utcoffset() is not None) != (data_type.tz is not None):
            raise ValueError(_NO_ZONE if data_type.tz is not None else _ZONE)


_NO_ZONE = "it has no time zone: add its zone, as in value.replace(tzinfo=UTC), or declare the column as timestamp_ntz"
_ZONE = (
    "it has a time zone, which the column cannot hold: declare the column as timestamp (a timestamp_ntz has no zone), "
    "or remove the zone, as in value.replace(tzinfo=None)"
)
