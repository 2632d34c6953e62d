"""Converts values of JSON, or text, to Python values that fit the columns of a `pyarrow.Schema` exactly.

    row = typed_row({"id": 7, "at": "2024-02-29T12:00:00Z"}, schema)
    convert = row_converter(schema)  # the same for many rows

| column | takes | of text (`TEXT`) also |
| --- | --- | --- |
| boolean | true, false | ``true``, ``false``, ``1``, ``0`` |
| integers | whole numbers in range, 7.0 too | digits |
| float, double | numbers; the nearest one, never infinity for a number that is none | numbers |
| decimal | numbers and text, if no digit is lost | |
| string | text | bytes of UTF-8 |
| binary | base64 text, bytes | the bytes of the text itself |
| date | ``2024-02-29`` | |
| timestamp | ``2024-02-29T12:00:00Z``, with a zone | |
| timestamp_ntz | the same without a zone | |
| array, map, struct | arrays, objects; the keys of a map are text | JSON |

Python's own values of these types (dates, decimals, ...) are taken too. Null and a missing field are null. Of `TEXT` an
empty text is null unless the column is a string or binary. Fields without a column are ignored. But if a row has
fields and none of them has a column, the row is a `NoColumnError`: it is not the expected object. A row without fields
is a row of nulls. Nothing is cast in any other way: a number is not text, and a number of seconds is not a timestamp. A
value that does not fit is a `MisfitError`.

A `Source` says what a source adds to JSON. Of `COERCED` a string takes numbers too, as they were written, and an
integer takes ``1e18``, also inside arrays, maps and structs, if `json_decoder` gets it too: its numbers then remember
how they were written. A number that was computed is written as Python writes it. True, false, infinity and NaN are not
numbers of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from math import isfinite, isinf
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import canonical_key, describe, shown_type
from enrichers.scalars import COERCED, JSON, TEXT, Convert, Source, WrittenDecimal, WrittenFloat, scalar

RowConverter = Callable[[Mapping[str, Any]], dict[str, Any]]

_MISFITS = (ValueError, ArithmeticError, RecursionError)

NO_OBJECT = "an object is needed"

_NAMES = (
    (bool, "a boolean"),
    (int | float | Decimal, "a number"),
    (str, "a text"),
    (Mapping, "an object"),
    (list, "an array"),
)


class MisfitError(ValueError):
    """A value does not fit its column.

    Attributes:
        path: the column, and the place of the value in it, as in ``places[3].name``.
        value: the value.
        type: the Arrow type that it does not fit.
        why: what is wrong with the value; "" if its type says it.
        row: of several rows the one that has it: its number, or its key.
    """

    def __init__(self, path: str, value: Any, data_type: pa.DataType, why: str, row: Any = None) -> None:
        super().__init__(path, value, data_type, why, row)
        self.row = row
        self.path = path
        self.value = value
        self.type = data_type
        self.why = why

    def message_with(self, show: Callable[[Any], str] = describe) -> str:
        """The message. `show` turns the value into text."""
        given = "null" if self.value is None else show(self.value)
        if self.value is not None and self.why:
            given += f" ({_kind(self.value)})"
        why = f": {self.why}" if self.why else ""
        return f"the column {self.path!r} holds {given}, which does not fit {shown_type(self.type)}{why}"

    @property
    def coercible(self) -> bool:
        """Whether ``coerce=True`` would accept this value."""
        convert = None if kinds.is_nested(self.type) else scalar(self.type, COERCED)
        known = type(self.value) is float and isfinite(self.value)
        try:
            return convert is not None and convert(WrittenFloat(repr(self.value)) if known else self.value) is not None
        except _MISFITS:
            return False

    def __str__(self) -> str:
        return self.message_with()


class NoColumnError(MisfitError):
    """A row has fields, but none of them is a column. It may be the report of an error, or the columns are misspelt.
    `value` is the row."""

    def message_with(self, show: Callable[[Any], str] = describe) -> str:
        """The message. `show` turns the list of fields into text."""
        names = [field.name for field in self.type]
        return f"the row has none of the columns {describe(names)}; its fields are {show([*self.value])}"


def typed_row(mapping: Mapping[str, Any], schema: pa.Schema, source: Source = JSON) -> dict[str, Any]:
    """A row with a value for every column of the schema, from values by name, which are written as in `source`.

    Raises:
        ValueError: `mapping` is not a mapping.
        MisfitError: a value does not fit. The message names the column, the value and both types.
        NoColumnError: `mapping` has fields and none of them is a column. The message names fields and columns.
        ConfigurationError: a column has a type that no value of JSON can be converted to.
    """
    return row_converter(schema, source)(mapping)


_made: dict[tuple[int, Source], tuple[pa.Schema, RowConverter]] = {}
_MOST_MADE = 200


def row_converter(schema: pa.Schema, source: Source = JSON) -> RowConverter:
    """A function that does what `typed_row` does, for one schema and many rows.

    Raises:
        ConfigurationError: a column has a type that no value of JSON can be converted to.
    """
    # By identity, because hashing a schema takes longer than converting a row. The schema is kept, so no other object
    # can get its id.
    known = _made.get((id(schema), source))
    if known is None:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        known = _made[id(schema), source] = schema, _object(schema, source, row=True)
    return known[1]


def json_decoder(schema: Iterable[pa.Field], source: Source = JSON) -> Callable[[str], Any]:
    """A `json.loads` that loses no digit that a column could hold. Numbers with a fraction become decimals if a column
    is a decimal or contains one, otherwise floats. A number too large for a float becomes a decimal, not infinity, and
    so does one that a float rounds to an integer. Those of `COERCED` remember how they were written.

    An object with two values of one name is a ValueError.
    """
    if _has_decimals(schema):
        parse: Callable[[str], Any] = WrittenDecimal if source is COERCED else Decimal
    else:
        parse = _written if source is COERCED else _float
    return json.JSONDecoder(parse_float=parse, object_pairs_hook=_with_each_name_once).decode


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        # Python would take the last value, others take the first.
        raise ValueError("an object has two values of one name")
    return made


def _float(text: str) -> float | Decimal:
    number = float(text)
    if isinf(number):
        return Decimal(text)
    # A column of integers must not take for whole what is only nearly so. Fewer digits are never rounded to an integer.
    if (len(text) > 15 or not number) and number.is_integer():
        exact = _decimal(text)
        if exact != number:
            return exact
    return number


def _decimal(text: str) -> Decimal:
    """The decimal of a number; a tiny one if the number is so small that no decimal has its exponent."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("-1e-400" if text.startswith("-") else "1e-400")


def _written(text: str) -> WrittenFloat | WrittenDecimal:
    number = WrittenFloat(text)
    return WrittenDecimal(text) if isinf(number) else number


def _has_decimals(fields: Iterable[pa.Field]) -> bool:
    """Whether one of the fields is a decimal, or contains one at any depth."""
    for field in fields:
        kind = field.type
        inner = [kind.field(i) for i in range(kind.num_fields)] if kinds.is_nested(kind) else ()
        if kinds.is_decimal(kind) or _has_decimals(inner):
            return True
    return False


def _kind(value: object) -> str:
    """The name of a value's type in JSON."""
    return next((name for kind, name in _NAMES if isinstance(value, kind)), type(value).__name__)


def _misfit(error: Exception, value: Any, data_type: pa.DataType, place: str) -> MisfitError:
    """The error of a value, with `place` put before its path: the place of the value one level further out."""
    if isinstance(error, MisfitError):
        return MisfitError(place + error.path, error.value, error.type, error.why)
    return MisfitError(place, value, data_type, str(error))


def _raise_first(items: Iterable[tuple[Any, Convert, pa.DataType, str]]) -> None:
    """Raise the error of the first value that does not fit, of values with their converters, types and places."""
    for value, convert, data_type, place in items:
        try:
            _ = None if value is None else convert(value)
        except _MISFITS as error:
            raise _misfit(error, value, data_type, place) from None


# -- objects, arrays and maps. Values inside of them are always values of JSON, also if the outermost value is text.


def _object(fields: Iterable[pa.Field], source: Source, row: bool = False) -> RowConverter:
    """The converter of an object to a dictionary, for a struct or a row."""
    fields = list(fields)
    types = {field.name: field.type for field in fields}
    columns = [(field.name, _converter(field.type, field.name, source)) for field in fields]
    required = [field.name for field in fields if not field.nullable]
    place = "{}" if row else ".{}"
    has_none_of = types.keys().isdisjoint if row and types else None

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise _no_row(value) if row else ValueError(NO_OBJECT)
        if has_none_of is not None and value and has_none_of(value):
            raise NoColumnError("", value, pa.struct(fields), "no field of it is a column")
        get = value.get
        try:
            made = {name: None if (item := get(name)) is None else to(item) for name, to in columns}
        except _MISFITS:
            _raise_first((get(name), to, types[name], place.format(name)) for name, to in columns)
            raise
        for name in required:
            if made[name] is None:
                raise MisfitError(place.format(name), get(name), types[name], "null is not allowed")
        return made

    return convert


def _no_row(value: Any) -> ValueError:
    kind = "null" if value is None else f"{describe(value)} ({_kind(value)})"
    return ValueError(f"{kind} is not a row: an object with the columns is needed")


def _array(data_type: pa.DataType, column: str, source: Source) -> Convert:
    item_type, nullable = data_type.value_type, data_type.value_field.nullable
    to = _converter(item_type, column, source)
    size = data_type.list_size if kinds.is_fixed_size_list(data_type) else None

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError("an array is needed")
        if size is not None and len(value) != size:
            raise ValueError(f"{size} elements are needed, and these are {len(value)}")
        try:
            items = [None if item is None else to(item) for item in value]
        except _MISFITS:
            _raise_first((item, to, item_type, f"[{number}]") for number, item in enumerate(value))
            raise
        if not nullable and None in items:
            raise MisfitError(f"[{items.index(None)}]", None, item_type, "null is not allowed")
        return items

    return convert


def _map(data_type: pa.DataType, column: str, source: Source) -> Convert:
    """The converter of an object to a list of pairs, which is Arrow's form of a map."""
    key_type, item_type = data_type.key_type, data_type.item_type
    if kinds.is_nested(key_type):
        raise ConfigurationError(f"schema: the column {column!r} is {shown_type(data_type)}; keys in JSON are text")
    to_key, to_item = _converter(key_type, column, TEXT), _converter(item_type, column, source)
    nullable = data_type.item_field.nullable

    def pair(name: Any, item: Any) -> tuple[Any, Any]:
        try:
            key = None if name is None else to_key(name)
        except _MISFITS as error:
            raise _misfit(error, name, key_type, f"[{name!r}]") from None
        if key is None:
            raise MisfitError(f"[{name!r}]", name, key_type, "a key cannot be null")
        try:
            typed = None if item is None else to_item(item)
        except _MISFITS as error:
            raise _misfit(error, item, item_type, f"[{name!r}]") from None
        if typed is None and not nullable:
            raise MisfitError(f"[{name!r}]", item, item_type, "null is not allowed")
        return key, typed

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise ValueError(NO_OBJECT)
        pairs = [pair(name, item) for name, item in value.items()]
        if len({canonical_key(key) for key, _ in pairs}) < len(pairs):
            raise ValueError("two of its keys are the same")
        return pairs

    return convert


# -- the converter of a type: it never gets None. It returns the value, or None for null, or raises.


def _converter(data_type: pa.DataType, column: str, source: Source) -> Convert:
    if kinds.is_nested(data_type):
        nested = _nested(data_type, column, source.nested or source)
        decode = json_decoder([pa.field("", data_type)])
        return nested if source.nested is None else partial(_from_json, convert=nested, decode=decode)
    convert = scalar(data_type, source)
    if convert is None:
        raise ConfigurationError(
            f"schema: the column {column!r} is {shown_type(data_type)}, but JSON or text cannot be converted "
            "to that type; use a string, and convert it in Spark"
        )
    return convert


def _nested(data_type: pa.DataType, column: str, source: Source) -> Convert:
    if kinds.is_struct(data_type):
        return _object((data_type.field(i) for i in range(data_type.num_fields)), source)
    if kinds.is_map(data_type):
        return _map(data_type, column, source)
    if kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type):
        return _array(data_type, column, source)
    raise ConfigurationError(f"schema: the column {column!r} is {data_type}, which JSON does not have; use a string")


def _from_json(value: Any, convert: Convert, decode: Callable[[str], Any]) -> Any:
    """Converts the JSON text of a nested value."""
    if isinstance(value, bytes | bytearray):
        value = value.decode()
    if isinstance(value, str):
        value = decode(value) if value.strip() else None
    return None if value is None else convert(value)
