"""JSON values as values of typed columns, exactly or not at all.

| column | JSON |
| --- | --- |
| string | a string |
| boolean | true or false |
| integers | a number without fraction or exponent, in the range of the type |
| float, double | a number; rounded to the nearest, never to infinity |
| decimal | a number, or a string that holds one, with no more digits than the type has; never by way of a float |
| date | a string, ``2013-01-31`` |
| timestamp | a string in ISO 8601 with an offset or ``Z``; without one where the type has no zone |
| binary | a string in base64 |
| array, struct, map | an array, an object, an object; the keys of a map are strings or integers |

A value that has the Python type already, as from a function of the user's, is taken too. Null is null, where the
column allows it. Nothing is cast: what does not fit is a `MisfitError`, which names the place and the value.
"""

from __future__ import annotations

import base64
import datetime
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException, DivisionByZero, Inexact, InvalidOperation, Overflow
from math import isinf
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError

Convert = Callable[[Any], Any]

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,37})", re.ASCII)
_TOO_FINE = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)

_FLOATS = {"halffloat": "<e", "float": "<f", "double": "<d"}
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


class MisfitError(ValueError):
    """A value does not fit its column.

    Attributes:
        path: where in the column it stands: empty, or like ``[3].name``.
        value: it.
        type: what was wanted.
        why: more about it, or nothing.
    """

    def __init__(self, value: Any, data_type: pa.DataType, why: str = "", path: str = "") -> None:
        super().__init__(value, data_type, why, path)
        self.value = value
        self.type = data_type
        self.why = why
        self.path = path

    def inside(self, step: str) -> MisfitError:
        """The same, seen from one level further out."""
        return MisfitError(self.value, self.type, self.why, step + self.path)


def row_converter(schema: pa.Schema) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that makes a row of a JSON object: absent fields are null, others are left out.

    Raises:
        ConfigurationError: a column has a type that JSON cannot give.
    """
    fields = []
    for field in schema:
        try:
            fields.append((field.name, _nullable(field)))
        except TypeError as error:
            raise ConfigurationError(f"schema: the column {field.name!r} is {field.type}; {error}") from None

    def convert(row: Mapping[str, Any]) -> dict[str, Any]:
        get = row.get
        name = ""
        try:
            return {name: to(get(name)) for name, to in fields}
        except MisfitError:
            for name, to in fields:
                try:
                    to(get(name))
                except MisfitError as misfit:
                    raise misfit.inside(name) from None
            raise

    return convert


def has_decimals(schema: pa.Schema) -> bool:
    """Whether numbers have to be read as decimals, because a column, or what is inside of one, is decimal."""

    def within(data_type: pa.DataType) -> bool:
        nested = kinds.is_nested(data_type) and any(
            within(data_type.field(i).type) for i in range(data_type.num_fields)
        )
        return bool(kinds.is_decimal(data_type)) or nested

    return any(within(field.type) for field in schema)


def _nullable(field: pa.Field) -> Convert:
    convert, data_type = _converter(field.type), field.type
    if field.nullable:
        return lambda value: None if value is None else convert(value)

    def not_null(value: Any) -> Any:
        if value is None:
            raise MisfitError(None, data_type, "it may not be null")
        return convert(value)

    return not_null


def _converter(data_type: pa.DataType) -> Convert:
    if kinds.is_string(data_type) or kinds.is_large_string(data_type):
        return _string(data_type)
    if kinds.is_boolean(data_type):
        return lambda value: value if type(value) is bool else _fail(value, data_type)
    if kinds.is_integer(data_type):
        return _integer(data_type)
    if kinds.is_floating(data_type):
        return _float(data_type)
    if kinds.is_decimal(data_type):
        return _decimal(data_type)
    if kinds.is_date(data_type):
        return _date(data_type)
    if kinds.is_timestamp(data_type):
        return _timestamp(data_type)
    if kinds.is_binary(data_type) or kinds.is_large_binary(data_type):
        return _binary(data_type)
    if kinds.is_list(data_type) or kinds.is_large_list(data_type):
        return _list(data_type)
    if kinds.is_struct(data_type):
        return _struct(data_type)
    if kinds.is_map(data_type):
        return _map(data_type)
    raise TypeError("JSON has no such values; make it a string, or one of the types that the documentation lists")


def _fail(value: Any, data_type: pa.DataType, why: str = "") -> Any:
    raise MisfitError(value, data_type, why)


def _string(data_type: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            _fail(value, data_type)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                _fail(value, data_type, "it holds half of a surrogate pair, which UTF-8 has not")
        return value

    return convert


def _integer(data_type: pa.DataType) -> Convert:
    bits = data_type.bit_width
    signed = kinds.is_signed_integer(data_type)
    smallest = -(2 ** (bits - 1)) if signed else 0
    largest = 2 ** (bits - 1) - 1 if signed else 2**bits - 1

    def convert(value: Any) -> Any:
        if type(value) is int and smallest <= value <= largest:
            return value
        return _fail(value, data_type, "" if type(value) is not int else f"it is not within {smallest} and {largest}")

    return convert


def _float(data_type: pa.DataType) -> Convert:
    code = _FLOATS[str(data_type)]

    def convert(value: Any) -> Any:
        if type(value) is float and code == "<d" and not isinf(value):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            _fail(value, data_type)
        try:
            number = float(value)
            struct.pack(code, number)
        except (OverflowError, ValueError):
            return _fail(value, data_type, "it is too large")
        return _fail(value, data_type, "it is too large") if isinf(number) else number

    return convert


def _decimal(data_type: pa.DataType) -> Convert:
    exact = Context(
        prec=data_type.precision,
        Emin=-999999,
        Emax=999999,
        traps=[Inexact, InvalidOperation, Overflow, DivisionByZero],
    )
    unit = Decimal(1).scaleb(-data_type.scale)

    def convert(value: Any) -> Any:
        is_text = isinstance(value, str) and len(value) < 200 and _NUMBER.fullmatch(value)
        if not (is_text or isinstance(value, Decimal) or type(value) is int):
            return _fail(value, data_type)
        number = Decimal(value)
        if not number.is_finite():
            return _fail(value, data_type)
        try:
            return exact.quantize(number, unit)
        except DecimalException:
            return _fail(value, data_type, "it has more digits")

    return convert


def _date(data_type: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value
        if not isinstance(value, str):
            _fail(value, data_type, "a string like 2013-01-31 was expected")
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            return _fail(value, data_type, "a string like 2013-01-31 was expected")

    return convert


def _timestamp(data_type: pa.DataType) -> Convert:
    has_zone = data_type.tz is not None
    example = f"a string like 2013-01-31T05:00:00{'Z' if has_zone else ''} was expected"
    step = _MICROSECONDS[data_type.unit]

    def convert(value: Any) -> Any:
        moment = value
        if isinstance(value, str):
            # A bare date is no moment, and Python would cut what is finer than a microsecond.
            if len(value) <= 10 or _TOO_FINE.search(value):
                _fail(value, data_type, example)
            try:
                moment = datetime.datetime.fromisoformat(value)
            except ValueError:
                _fail(value, data_type, example)
        if not isinstance(moment, datetime.datetime) or (moment.tzinfo is not None) != has_zone:
            _fail(value, data_type, f"{example}, {'with' if has_zone else 'without'} an offset")
        if moment.microsecond % step:
            _fail(value, data_type, f"it is finer than a {data_type.unit}")
        try:
            return moment.astimezone(datetime.UTC) if has_zone else moment
        except OverflowError:
            return _fail(value, data_type, "in UTC it is not within the years 1 and 9999")

    return convert


def _binary(data_type: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            _fail(value, data_type, "a string in base64 was expected")
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            return _fail(value, data_type, "a string in base64 was expected")

    return convert


def _list(data_type: pa.DataType) -> Convert:
    to = _nullable(data_type.value_field)

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            _fail(value, data_type)
        items = []
        for i, item in enumerate(value):
            try:
                items.append(to(item))
            except MisfitError as misfit:
                raise misfit.inside(f"[{i}]") from None
        return items

    return convert


def _struct(data_type: pa.DataType) -> Convert:
    fields = [data_type.field(i) for i in range(data_type.num_fields)]
    converters = [(field.name, _nullable(field)) for field in fields]

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            _fail(value, data_type)
        items = {}
        for name, to in converters:
            try:
                items[name] = to(value.get(name))
            except MisfitError as misfit:
                raise misfit.inside(f".{name}") from None
        return items

    return convert


def _map(data_type: pa.DataType) -> Convert:
    key_type = data_type.key_type
    if not (kinds.is_string(key_type) or kinds.is_large_string(key_type) or kinds.is_integer(key_type)):
        raise TypeError("the keys of a map in JSON are strings, or integers written as strings")
    to_key, to_item = _converter(key_type), _nullable(data_type.item_field)
    by_number = kinds.is_integer(key_type)

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            _fail(value, data_type)
        items = []
        for name, item in value.items():
            key = int(name) if by_number and isinstance(name, str) and _INTEGER.fullmatch(name) else name
            try:
                items.append((to_key(key), to_item(item)))
            except MisfitError as misfit:
                raise misfit.inside(f"[{name!r}]") from None
        return items

    return convert
