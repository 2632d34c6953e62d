"""The strict JSON schema of a row, and what in an answer does not have its shape.

Only keywords are used that every service accepts in strict mode: types, `required`, `additionalProperties`, `anyOf`
with null, descriptions. Services refuse a schema with a keyword that they do not support, and `pattern`, `format`,
lengths and ranges are such keywords for some. So a description says how a date or a decimal is written, and the reader
of values of JSON (`enrichers.typed`) decides whether the answer is right.

An object lists all its fields, in the order of the columns: models write them in that order. A map has fields without
names known beforehand, which a strict schema cannot have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import shown_type

JsonSchema = dict[str, Any]


def row_schema(schema: pa.Schema) -> JsonSchema:
    """The JSON schema of a row.

    Raises:
        ConfigurationError: a column has a type that a strict JSON schema cannot describe.
    """
    return _object(schema, "")


def closed(properties: JsonSchema) -> JsonSchema:
    """The schema of an object that has exactly these fields."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def stray(value: Any, schema: Mapping[str, Any], place: str = "") -> str | None:
    """What in a value is not of the shape of the schema: a field is missing, or there is another one. None if nothing
    is. Types are not looked at."""
    for variant in schema.get("anyOf", ()):
        schema = schema if variant["type"] == "null" else variant
    if isinstance(value, Mapping) and "properties" in schema:
        fields = schema["properties"]
        for name in [*(name for name in fields if name not in value), *(name for name in value if name not in fields)]:
            return (
                f"the field {f'{place}.{name}'.lstrip('.')!r} {'is missing' if name in fields else 'is not a column'}"
            )
        found = (stray(item, fields[name], f"{place}.{name}") for name, item in value.items())
        return next((problem for problem in found if problem), None)
    if isinstance(value, list) and "items" in schema:
        found = (stray(item, schema["items"], f"{place}[{i}]") for i, item in enumerate(value))
        return next((problem for problem in found if problem), None)
    return None


def _object(fields: Iterable[pa.Field], place: str) -> JsonSchema:
    return closed({field.name: _field(field, f"{place}.{field.name}".lstrip(".")) for field in fields})


def _field(field: pa.Field, place: str) -> JsonSchema:
    described = _type(field.type, place)
    if not field.nullable:
        return described
    if kinds.is_nested(field.type):
        return {"anyOf": [described, {"type": "null"}]}
    return described | {"type": [described["type"], "null"]}


def _type(kind: pa.DataType, place: str) -> JsonSchema:
    if kinds.is_struct(kind):
        return _object([kind.field(i) for i in range(kind.num_fields)], place)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return {"type": "array", "items": _field(kind.value_field, f"{place}[]")}
    for fits, name in _SIMPLE:
        if fits(kind):
            return {"type": name}
    if kinds.is_decimal(kind):
        return {"type": "number", "description": f"a decimal number with at most {kind.scale} digits after the point"}
    if kinds.is_date(kind):
        return {"type": "string", "description": "a date, written as in 2024-02-29"}
    if kinds.is_timestamp(kind):
        zoned = kind.tz is not None
        how = "with its offset from UTC" if zoned else "without an offset"
        example = f"2024-02-29T12:00:00{'Z' * zoned}"
        return {"type": "string", "description": f"a date and time in ISO 8601, {how}, written as in {example}"}
    remedy = "make it array<struct<key string, value string>>" if kinds.is_map(kind) else "make it a string"
    raise ConfigurationError(
        f"schema: the column {place!r} is {shown_type(kind)}, which a strict JSON schema cannot describe; {remedy}, "
        "and convert it in Spark"
    )


_SIMPLE = (
    (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind), "string"),
    (kinds.is_boolean, "boolean"),
    (kinds.is_integer, "integer"),
    (lambda kind: kinds.is_float32(kind) or kinds.is_float64(kind), "number"),
)
