"""Which types can be keys, which keys can match, and how Spark and Arrow name the types of added columns.

Spark compares the Arrow types that come back with the announced schema, including units and nullability. So the Arrow
type of an added column is always made from its Spark type, however the enricher writes it: text with 64-bit offsets, a
dictionary, or milliseconds become the type that Spark takes. All added columns are nullable, because an absent field is
null.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from asyncio_operator.errors import ConfigurationError

KEY_FAMILIES: tuple[tuple[type[DataType], str], ...] = (
    (NumericType, "a number"),
    (StringType, "text"),
    (BooleanType, "a boolean"),
    (DateType, "a date"),
    (TimestampType, "a timestamp"),
    (TimestampNTZType, "a timestamp without time zone"),
    (BinaryType, "bytes"),
)
"""The types that keys may have. A key can match only a key of the same family."""

# Spark 4.3 has a parameter for the time zone of timestamps; before, it was always UTC.
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


def key_family(data_type: DataType) -> str | None:
    """The family of a type, or None if it cannot be a key."""
    for family, name in KEY_FAMILIES:
        if isinstance(data_type, family):
            return name
    return None


def check_key_types(fields: Sequence[StructField], known: pa.Schema | None, enricher: str) -> None:
    """Check that columns of the DataFrame can be the parts of a key, and can match the enricher's key schema.

    A part of Arrow type null has a name but no type: it may match any column.

    Raises:
        ConfigurationError: a column cannot be a part of the key.
    """
    for i, field in enumerate(fields):
        family = key_family(field.dataType)
        if family is None:
            allowed = ", ".join(name for _, name in KEY_FAMILIES)
            raise ConfigurationError(
                f"key column {field.name!r} is {field.dataType.simpleString()}; a key must be {allowed}: cast it first"
            )
        if known is not None and not pa.types.is_null(known.field(i).type):
            theirs = spark_field(known.field(i).name, known.field(i))
            if key_family(theirs.dataType) != family:
                raise ConfigurationError(
                    f"key column {field.name!r} is {field.dataType.simpleString()}, which never matches key column "
                    f"{theirs.name!r} of {enricher}, which is {theirs.dataType.simpleString()}: cast it first"
                )


def check_passes_through(schema: StructType) -> None:
    """Check that Spark can pass all columns to Python in Arrow.

    Raises:
        ConfigurationError: it cannot pass one of them.
    """
    for field in schema.fields:
        try:
            arrow_type(field.dataType)
        except Exception:
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Spark cannot pass to Python in "
                "Arrow: drop it, or cast it first"
            ) from None


def spark_field(name: str, field: pa.Field) -> StructField:
    """The Spark field of an Arrow field: nullable, with another name.

    Raises:
        ConfigurationError: Spark does not have such a type.
    """
    try:
        data_type = _nullable(from_arrow_type(field.type, prefer_timestamp_ntz=True))
        arrow_type(data_type)
    except Exception:
        raise ConfigurationError(
            f"the enricher's column {field.name!r} is of Arrow type {field.type}, which Spark does not have"
        ) from None
    return StructField(name, data_type, nullable=True)


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type in which Spark exchanges values of a Spark type. It raises if there is none."""
    return to_arrow_type(data_type, error_on_duplicated_field_names_in_struct=True, **_ZONE)


def _nullable(data_type: DataType) -> DataType:
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType)) for f in data_type.fields])
    return data_type
