"""Converts single values of JSON, or text, to values of an Arrow type that is not nested.

`scalar` returns a converter. A converter gets a value that is not None. It returns the value that Arrow takes, or
raises a ValueError whose message says why and does not contain the value. For text it may return None, which is null.
This module knows neither columns nor schemas. `enrichers.typed` has the table of all conversions.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import isfinite, isinf
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.enricher import exact_decimal

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


def scalar(data_type: pa.DataType, text: bool, coerce: bool = False) -> Convert | None:
    """The converter of a type, or None if there is none. With `text` it also parses text and bytes. With `coerce` a
    column of strings takes numbers."""
    if kinds.is_string(data_type) or kinds.is_large_string(data_type):
        string = _string_or_number if coerce else _string
        return partial(_of_text, convert=string, parse=None) if text else string
    if kinds.is_binary(data_type) or kinds.is_large_binary(data_type) or kinds.is_fixed_size_binary(data_type):
        width = data_type.byte_width if kinds.is_fixed_size_binary(data_type) else None
        return partial(_binary, text=text, width=width)
    convert = _scalar(data_type)
    if convert is None or not text:
        return convert
    return partial(_of_text, convert=convert, parse=_parser(data_type))


def _scalar(data_type: pa.DataType) -> Convert | None:
    if kinds.is_boolean(data_type):
        return _boolean
    if kinds.is_integer(data_type):
        return _integer(data_type)
    if kinds.is_float32(data_type) or kinds.is_float64(data_type):
        return _single if kinds.is_float32(data_type) else _double
    if kinds.is_decimal(data_type):
        return _decimal(data_type)
    if kinds.is_date(data_type):
        return _date
    if kinds.is_timestamp(data_type):
        return _moment(data_type)
    if kinds.is_time(data_type):
        return partial(_clock, step=_MICROSECONDS[data_type.unit], unit=data_type.unit)
    return None


# -- text


def _of_text(value: Any, convert: Convert, parse: Convert | None) -> Any:
    """Converts text. `parse` turns the text into the value that JSON would have; it is None for a string."""
    if isinstance(value, bytes | bytearray):
        value = value.decode()
    if parse is not None and isinstance(value, str):
        value = value.strip(_BLANKS)
        return convert(parse(value)) if value else None
    return convert(value)


def _parser(data_type: pa.DataType) -> Convert:
    if kinds.is_boolean(data_type):
        return _truth
    if kinds.is_integer(data_type):
        return _digits
    if kinds.is_floating(data_type):
        return _written
    return str


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


# -- single values


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a text is needed")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, which UTF-8 cannot encode") from None
    return value


def _string_or_number(value: Any) -> Any:
    if isinstance(value, str):
        return _string(value)
    written = None if isinstance(value, bool) else number_text(value)
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


def _binary(value: Any, text: bool, width: int | None) -> bytes:
    if isinstance(value, str):
        try:
            value = value.encode() if text else base64.b64decode(value, validate=True)
        except ValueError:
            raise ValueError("it is not base64") from None
    if not isinstance(value, bytes | bytearray):
        raise ValueError("bytes, or text in base64, are needed")
    if width is not None and len(value) != width:
        raise ValueError(f"{width} bytes are needed, and these are {len(value)}")
    return bytes(value)


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
        if moment.microsecond % step:
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


def _clock(value: Any, step: int, unit: str) -> datetime.time:
    if isinstance(value, str) and value[2:3] == ":" and not _TOO_FINE.search(value):
        with contextlib.suppress(ValueError):
            value = datetime.time.fromisoformat(value)
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise ValueError("a time without a zone is needed, as in '12:00:00'")
    if value.microsecond % step:
        raise ValueError(f"it is finer than a {unit}")
    return value
