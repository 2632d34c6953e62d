"""Values of JSON, or text, into Python values that fit the columns of a `pyarrow.Schema`: exactly, or not at all.

    row = typed_row({"id": 7, "at": "2024-02-29T12:00:00Z"}, schema)
    convert = row_converter(schema)  # the same for many rows: it looks at the schema once

| column | takes | of text (``text=True``) also |
| --- | --- | --- |
| boolean | true, false | ``true``, ``false``, ``1``, ``0`` |
| integers | numbers without a fraction, in range | digits |
| float, double | numbers; of those written without a point, what a double holds exactly | numbers |
| decimal | numbers and text, if no digit is lost | |
| string | text | bytes of UTF-8 |
| binary | base64 text, bytes | the bytes of the text itself |
| date | ``2024-02-29`` | |
| timestamp | ``2024-02-29T12:00:00Z``, with a zone | |
| timestamp_ntz | the same without a zone | |
| array, map, struct | arrays, objects; the keys of a map are text | JSON |

Python's own values of these types (dates, decimals, ...) are taken too. Null, and an absent field, is null; with `text`
an empty text is null where the column is neither string nor binary. Fields without a column are ignored. Nothing is
cast in any other way: a number is no text, and a number of seconds no timestamp.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe

Convert = Callable[[Any], Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.(?P<fraction>[0-9]+))?)?"
_CLOCK = re.compile(_TIME)
_MOMENT = re.compile(rf"{_DATE.pattern}[Tt ]{_TIME}([Zz]|[+-][0-9]{{2}}:?[0-9]{{2}})?")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
_LARGEST_FLOAT32 = (2.0 - 2.0**-23) * 2.0**127


def typed_row(mapping: Mapping[str, Any], schema: pa.Schema, *, text: bool = False) -> dict[str, Any]:
    """A row with a value for every column of the schema.

    Args:
        mapping: values of JSON by name.
        text: the values are text or bytes, as in a hash of Redis or a file of comma-separated values.

    Raises:
        ValueError: a value does not fit; names the column, the value and both types.
        ConfigurationError: a column has a type that no value of JSON can be converted to.
    """
    return row_converter(schema, text=text)(mapping)


@lru_cache(maxsize=200)
def row_converter(schema: pa.Schema, *, text: bool = False) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """`typed_row` for one schema, for many rows.

    Raises:
        ConfigurationError: a column has a type that no value of JSON can be converted to.
    """
    columns = [(field.name, field.nullable, _converter(field.type, field.name, text)) for field in schema]
    types = {field.name: field.type for field in schema}

    def convert(mapping: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(mapping, Mapping):
            raise ValueError(f"{describe(mapping)}, {_kind(mapping)}, is no row: an object with the columns is needed")
        row = {}
        for name, nullable, column in columns:
            value = mapping.get(name)
            try:
                row[name] = typed = None if value is None else column(value)
                if typed is None and not nullable:
                    raise ValueError("null is not allowed")
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise ValueError(
                    f"column {name!r} is {types[name]}, which {describe(value)}, {_kind(value)}, does not fit: {error}"
                ) from error
        return row

    return convert


def _kind(value: object) -> str:
    """What JSON calls the type of a value."""
    names = (
        (bool, "a boolean"),
        (int | float | Decimal, "a number"),
        (str, "a text"),
        (Mapping, "an object"),
        (list, "an array"),
    )
    if value is None:
        return "null"
    return next((name for kind, name in names if isinstance(value, kind)), f"of type {type(value).__name__}")


def _converter(data_type: pa.DataType, column: str, text: bool) -> Convert:
    """What makes a value, which is not None, one of a type; it raises ValueError, or gives None for null."""
    if kinds.is_string(data_type) or kinds.is_large_string(data_type):
        return _text
    if kinds.is_binary(data_type) or kinds.is_large_binary(data_type) or kinds.is_fixed_size_binary(data_type):
        width = data_type.byte_width if kinds.is_fixed_size_binary(data_type) else None
        return partial(_binary, text=text, width=width)
    if kinds.is_nested(data_type):
        nested = _nested(data_type, column)
        return partial(_from_json, convert=nested) if text else nested
    convert = _scalar(data_type)
    if convert is None:
        raise ConfigurationError(
            f"schema: the column {column!r} is {data_type}, which values of JSON or text cannot be converted to; "
            "take a string, and convert it in Spark"
        )
    return partial(_from_text, convert=convert, parse=_parser(data_type)) if text else convert


def _scalar(data_type: pa.DataType) -> Convert | None:
    if kinds.is_boolean(data_type):
        return _boolean
    if kinds.is_integer(data_type):
        bits, signed = data_type.bit_width, kinds.is_signed_integer(data_type)
        lowest, beyond = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        return partial(_integer, lowest=lowest, beyond=beyond)
    if kinds.is_float32(data_type) or kinds.is_float64(data_type):
        return _single if kinds.is_float32(data_type) else _double
    if kinds.is_decimal(data_type):
        context = Context(prec=data_type.precision, traps=[InvalidOperation, Inexact])
        return partial(_decimal, step=Decimal(1).scaleb(-data_type.scale), context=context)
    if kinds.is_date32(data_type):
        return _date
    if kinds.is_timestamp(data_type):
        return partial(_moment, zoned=data_type.tz is not None, digits=_DIGITS[data_type.unit])
    if kinds.is_time(data_type):
        return partial(_clock, digits=_DIGITS[data_type.unit])
    return None


def _parser(data_type: pa.DataType) -> Convert:
    """What makes of text the value that JSON would have in its place."""
    if kinds.is_boolean(data_type):
        return _parse_boolean
    if kinds.is_integer(data_type):
        return partial(_parse_number, pattern=_INTEGER, number=int, name="whole number")
    if kinds.is_floating(data_type):
        return partial(_parse_number, pattern=_NUMBER, number=float, name="number")
    return _itself


def _from_text(value: Any, convert: Convert, parse: Convert) -> Any:
    value = _decoded(value)
    if isinstance(value, str):
        value = value.strip()
        return convert(parse(value)) if value else None
    return convert(value)


def _from_json(value: Any, convert: Convert) -> Any:
    value = _decoded(value)
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else None
    return None if value is None else convert(value)


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes | bytearray) else value


def _itself(value: Any) -> Any:
    return value


def _parse_boolean(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("true, false, 1 or 0 is needed")
    return _TRUTH[text.lower()]


def _parse_number(text: str, pattern: re.Pattern[str], number: Callable[[str], Any], name: str) -> Any:
    if not pattern.fullmatch(text):
        raise ValueError(f"it is no {name}")
    parsed = number(text)
    if parsed in (float("inf"), float("-inf")) and "inf" not in text.lower():
        raise ValueError("it is too large")
    return parsed


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode()
    if not isinstance(value, str):
        raise ValueError("a text is needed")
    if not value.isascii():
        value.encode()  # half of a surrogate pair, which JSON can escape, is no text
    return value


def _binary(value: Any, text: bool, width: int | None) -> bytes:
    if isinstance(value, str):
        value = value.encode() if text else base64.b64decode(value, validate=True)
    if not isinstance(value, bytes | bytearray):
        raise ValueError("bytes, or text in base64, are needed")
    if width is not None and len(value) != width:
        raise ValueError(f"{width} bytes are needed, and these are {len(value)}")
    return bytes(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _integer(value: Any, lowest: int, beyond: int) -> int:
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueError("a number is needed")
        if isinstance(value, Decimal) and value.is_finite() and value.adjusted() > 30:
            raise ValueError(f"it is not between {lowest} and {beyond - 1}")
        if value != value or int(value) != value:
            raise ValueError("it is no whole number")
        value = int(value)
    if not lowest <= value < beyond:
        raise ValueError(f"it is not between {lowest} and {beyond - 1}")
    return int(value)


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("a number is needed")
    number = float(value)
    if isinstance(value, int) and number != value:
        raise ValueError("it has more digits than a double")
    if number in (float("inf"), float("-inf")) and value != number:
        raise ValueError("it is too large")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    if _LARGEST_FLOAT32 < abs(number) < float("inf"):
        raise ValueError("it is too large")
    return number


def _decimal(value: str | float | Decimal, step: Decimal, context: Context) -> Decimal:
    """A float stands for the shortest number that reads as the same float, which is mostly the one that was written."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            raise ValueError("it is no number")
        value = Decimal(value.strip())
    elif isinstance(value, float):
        value = Decimal(repr(value))
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("a number is needed")
    value = Decimal(value)
    if not value.is_finite():
        raise ValueError("it is not finite")
    try:
        return value.quantize(step, context=context)
    except (InvalidOperation, Inexact):
        raise ValueError("it has more digits") from None


def _date(value: Any) -> datetime.date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        return datetime.date.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise ValueError("a date is needed, as in '2024-02-29'")


def _moment(value: Any, zoned: bool, digits: int) -> datetime.datetime:
    if isinstance(value, str) and (found := _MOMENT.fullmatch(value)):
        _check_digits(found["fraction"], digits)
        value = datetime.datetime.fromisoformat(value.upper())
    if not isinstance(value, datetime.datetime):
        raise ValueError(f"a timestamp is needed, as in '2024-02-29T12:00:00{'Z' if zoned else ''}'")
    if (value.tzinfo is not None) != zoned:
        raise ValueError(f"a timestamp {'with' if zoned else 'without'} a zone is needed")
    _check_digits(f"{value.microsecond:06}", digits)
    return value.astimezone(datetime.UTC) if zoned else value


def _clock(value: Any, digits: int) -> datetime.time:
    if isinstance(value, str) and (found := _CLOCK.fullmatch(value)):
        _check_digits(found["fraction"], digits)
        value = datetime.time.fromisoformat(value)
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise ValueError("a time without a zone is needed, as in '12:00:00'")
    _check_digits(f"{value.microsecond:06}", digits)
    return value


def _check_digits(fraction: str | None, digits: int) -> None:
    if fraction and fraction[digits:].strip("0"):
        raise ValueError(f"its seconds have more than {digits} digits behind the point")


def _nested(data_type: pa.DataType, column: str) -> Convert:
    """Values inside of JSON are values of JSON, whatever the outermost is."""
    if kinds.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        parts = [(field.name, _converter(field.type, f"{column}.{field.name}", text=False)) for field in fields]
        return partial(_struct, parts=parts)
    if kinds.is_map(data_type):
        key = _converter(data_type.key_type, f"{column}.key", text=True)
        item = _converter(data_type.item_type, f"{column}.value", text=False)
        return partial(_map, key=key, item=item)
    if not (kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type)):
        raise ConfigurationError(f"schema: the column {column!r} is {data_type}, which JSON has not; take a string")
    size = data_type.list_size if kinds.is_fixed_size_list(data_type) else None
    return partial(_list, item=_converter(data_type.value_type, f"{column}.element", text=False), size=size)


def _inside(place: str, value: Any, convert: Convert) -> Any:
    try:
        return None if value is None else convert(value)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{place}: {describe(value, 100)}: {error}") from error


def _struct(value: Any, parts: list[tuple[str, Convert]]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is needed")
    return {name: _inside(name, value.get(name), convert) for name, convert in parts}


def _map(value: Any, key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    """Pairs, as Arrow has them."""
    if not isinstance(value, Mapping):
        raise ValueError("an object is needed")
    return [(_inside("a key", k, key), _inside(repr(k), v, item)) for k, v in value.items()]


def _list(value: Any, item: Convert, size: int | None) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("an array is needed")
    if size is not None and len(value) != size:
        raise ValueError(f"{size} elements are needed, and these are {len(value)}")
    return [_inside(f"element {number}", each, item) for number, each in enumerate(value)]
