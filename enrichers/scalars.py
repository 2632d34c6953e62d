"""Converts single values of a source to values of an Arrow type that is not nested.

`scalar` returns a converter. A converter gets a value that is not None. It returns the value that Arrow takes, or
raises a ValueError whose message says why and does not contain the value. For text it may return None, which is null.
The values of JSON are the base: a `Source` is a table of what it writes in another way. This module knows neither
columns nor schemas. `enrichers.typed` has the table of all conversions.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from math import isfinite, isinf
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.enricher import exact_decimal
from enrichers.names import NOT_UTF8, is_utf8

Convert = Callable[[Any], Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)
_TOO_FINE = re.compile(r"[.,][0-9]{6}0*[1-9]")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_BLANKS = " \t\r\n"
"""Around a value of text; those of JSON."""

_EXACT_IN_A_FLOAT = 2**53


class WrittenFloat(float):
    """A number of JSON that remembers how it was written, such as 1.10 or 1e3."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number


class WrittenDecimal(Decimal):
    """A decimal that remembers how it was written. It has all digits."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenDecimal:
        number = super().__new__(cls, text)
        number.text = text
        return number


@dataclass(frozen=True, eq=False)
class Source:
    """How a source writes values.

    Attributes:
        reads: by the name of a type in `_TYPES`, a function that makes a value of JSON, or of Python, from one of the
            source, and None from null. Other types are as in JSON.
        nested: for a source that writes arrays, maps and structs as text: the source of their parts.
    """

    reads: Mapping[str, Convert] = field(default_factory=dict)
    nested: Source | None = None


def scalar(data_type: pa.DataType, source: Source) -> Convert | None:
    """The converter of a type, or None if there is none."""
    for name, checks, make in _TYPES:
        if any(check(data_type) for check in checks):
            read, convert = source.reads.get(name), make(data_type)
            return convert if read is None else partial(_read_first, read, convert)
    return None


def _read_first(read: Convert, convert: Convert, value: Any) -> Any:
    value = read(value)
    return None if value is None else convert(value)


# -- text


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes | bytearray) else value


def _trimmed(parse: Convert, value: Any) -> Any:
    """The value of JSON that a text means; None for an empty one."""
    value = _decoded(value)
    if not isinstance(value, str):
        return value
    value = value.strip(_BLANKS)
    return parse(value) if value else None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("true, false, 1 or 0 is needed")
    return _TRUTH[text.lower()]


def _digits(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("it is no whole number")
    try:
        return int(text)
    except ValueError:
        raise ValueError("it is too large") from None


def _written(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError("it is not a number")
    number = float(text)
    if isinf(number) and "n" not in text.lower():
        raise ValueError("it is too large")
    return number


# -- the values of a database's driver


def _bit(value: Any) -> bool:
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else value
    if isinstance(number, int) and number in (0, 1):
        return bool(number)
    raise ValueError("true, false, 1 or 0 is needed")


def _document(value: Any) -> Any:
    """JSON that a driver has read is written as JSON again."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value) if isinstance(value, uuid.UUID) else value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("bytes are needed")
    return bytes(value)


def _midnight(value: Any) -> Any:
    return f"{value} 00:00" if isinstance(value, str) and len(value) == 10 else value


# -- single values


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a text is needed")
    if not is_utf8(value):
        raise ValueError(NOT_UTF8)
    return value


def _as_written(value: Any) -> str:
    written = value if isinstance(value, str) else None if isinstance(value, bool) else number_text(value)
    if written is None:
        raise ValueError("a text or a number is needed")
    return written


def number_text(value: Any) -> str | None:
    """A number as it was written in JSON, or as Python writes it. None if JSON has no such number."""
    if isinstance(value, WrittenFloat | WrittenDecimal):
        return value.text
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float) and isfinite(value):
        return float.__repr__(value)
    return str(value) if isinstance(value, Decimal) and value.is_finite() else None


def _binary(data_type: pa.DataType) -> Convert:
    width = data_type.byte_width if kinds.is_fixed_size_binary(data_type) else None

    def convert(value: Any) -> bytes:
        if isinstance(value, str):
            try:
                value = base64.b64decode(value, validate=True)
            except ValueError:
                raise ValueError("it is not base64") from None
        if not isinstance(value, bytes | bytearray):
            raise ValueError("bytes, or text in base64, are needed")
        if width is not None and len(value) != width:
            raise ValueError(f"{width} bytes are needed, and these are {len(value)}")
        return bytes(value)

    return convert


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise ValueError("true or false is needed")
    return value


def _integer(data_type: pa.DataType) -> Convert:
    values = 2**data_type.bit_width
    lowest = 0 if kinds.is_unsigned_integer(data_type) else -values // 2
    highest = lowest + values - 1

    def convert(value: Any) -> Any:
        number = value if type(value) is int else _whole(value)
        if lowest <= number <= highest:
            return number
        raise ValueError(f"it is not between {lowest} and {highest}")

    return convert


def _whole(value: Any) -> int:
    """An int from a number, if it is whole. A float is refused if it is too large to hold all digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("a number is needed")
    if isinstance(value, WrittenFloat):
        value = Decimal(value.text)
    if isinstance(value, float) and abs(value) >= _EXACT_IN_A_FLOAT:
        raise ValueError("it is too large for a float to hold all its digits")
    if isinstance(value, Decimal) and (not value.is_finite() or value.adjusted() > 30):
        raise ValueError("it is too large")
    if value != value or int(value) != value:
        raise ValueError("it is no whole number")
    return int(value)


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("a number is needed")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("it is too large") from None
    if isinf(number) and value != number:
        raise ValueError("it is too large")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    try:
        struct.pack("<f", number)
    except OverflowError:
        raise ValueError("it is too large") from None
    return number


def _decimal(data_type: pa.DataType) -> Convert:
    """A float is converted by the shortest number that reads as the same float: mostly the number that was written."""
    exact = exact_decimal(data_type)

    def convert(value: Any) -> Decimal:
        if isinstance(value, str):
            value = value.strip(_BLANKS)
            if not _NUMBER.fullmatch(value):
                raise ValueError("it is not a number")
            value = Decimal(value)
        elif isinstance(value, float):
            value = Decimal(repr(value))
        elif isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise ValueError("a number is needed")
        number = Decimal(value)
        if not number.is_finite():
            raise ValueError("it is not finite")
        try:
            return exact(number)
        except ArithmeticError:
            raise ValueError("it has more digits") from None

    return convert


def _date(value: Any) -> datetime.date:
    if isinstance(value, str) and value[4:8:3] == "--":
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise ValueError("a date is needed, as in '2024-02-29'")


def _moment(data_type: pa.DataType) -> Convert:
    zoned, step, unit = data_type.tz is not None, _MICROSECONDS[data_type.unit], data_type.unit
    needed = f"a timestamp {'with' if zoned else 'without'} a zone is needed, as in '2024-02-29T12:00:00{'Z' * zoned}'"

    def convert(value: Any) -> datetime.datetime:
        moment = _read_moment(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime.datetime) or (moment.tzinfo is not None) != zoned:
            raise ValueError(needed)
        if moment.microsecond % step or getattr(moment, "nanosecond", 0):
            raise ValueError(f"it is finer than a {unit}")
        try:
            return moment.astimezone(datetime.UTC) if zoned else moment
        except OverflowError:
            raise ValueError("in UTC it is not within the years 1 and 9999") from None

    return convert


def _read_moment(text: str) -> datetime.datetime | None:
    """Reads a date with hyphens and a time, as in ISO 8601. None for any other text."""
    # Python would accept any character between date and time, and cut digits after the microseconds.
    if text[4:8:3] != "--" or text[10:11] not in ("T", " ", "t"):
        return None
    if len(text) > 24 and _TOO_FINE.search(text):
        raise ValueError("it is finer than a us")
    try:
        return datetime.datetime.fromisoformat(text[:-1] + "Z" if text[-1] == "z" else text)
    except ValueError:
        return None


def _clock(data_type: pa.DataType) -> Convert:
    def convert(value: Any) -> datetime.time:
        if isinstance(value, str) and value[2:3] == ":" and not _TOO_FINE.search(value):
            with contextlib.suppress(ValueError):
                value = datetime.time.fromisoformat(value)
        if not isinstance(value, datetime.time) or value.tzinfo is not None:
            raise ValueError("a time without a zone is needed, as in '12:00:00'")
        if value.microsecond % _MICROSECONDS[data_type.unit]:
            raise ValueError(f"it is finer than a {data_type.unit}")
        return value

    return convert


# -- types, and what sources add


def _always(convert: Convert) -> Callable[[pa.DataType], Convert]:
    return lambda _: convert


_TYPES: tuple[tuple[str, tuple[Callable[[pa.DataType], bool], ...], Callable[[pa.DataType], Convert]], ...] = (
    ("string", (kinds.is_string, kinds.is_large_string), _always(_string)),
    ("binary", (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary), _binary),
    ("boolean", (kinds.is_boolean,), _always(_boolean)),
    ("integer", (kinds.is_integer,), _integer),
    ("float", (kinds.is_float32, kinds.is_float64), lambda kind: _single if kinds.is_float32(kind) else _double),
    ("decimal", (kinds.is_decimal,), _decimal),
    ("date", (kinds.is_date,), _always(_date)),
    ("timestamp_ntz", (lambda kind: kinds.is_timestamp(kind) and kind.tz is None,), _moment),
    ("timestamp", (kinds.is_timestamp,), _moment),
    ("time", (kinds.is_time,), _clock),
)

JSON = Source()

COERCED = Source({"string": _as_written})
"""JSON with numbers for strings."""

_PARSED = {"boolean": _truth, "integer": _digits, "float": _written}
_TRIMMED = {name: partial(_trimmed, _PARSED.get(name, str)) for name, _, _ in _TYPES}

TEXT = Source(
    _TRIMMED | {"string": _decoded, "binary": lambda value: value.encode() if isinstance(value, str) else value}, JSON
)
"""Text or bytes, as in a hash of Redis or a file of comma-separated values."""

SQL = Source({"boolean": _bit, "string": _document, "binary": _bytes, "timestamp_ntz": _midnight})
"""Python's values as the drivers of databases give them, and texts for what SQLite stores as texts."""
