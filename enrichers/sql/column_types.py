"""Types of SQL columns as Arrow has them, values as Arrow takes them, and keys as a statement takes them.

Values come as the driver returns them, without SQLAlchemy's own conversion: drivers agree on Python's types, and
SQLite, which stores dates, booleans and decimals as something else, needs a check that SQLAlchemy does not make. Every
value is checked against its column; a value that does not fit is a `MisfitError`, never changed to one that does.

| column | takes |
| --- | --- |
| boolean | True, False, 0, 1; the bytes 0 and 1 of a MySQL BIT(1) |
| integers, float, decimal | numbers, if no digit is lost; a float takes the nearest one |
| string | text, UUIDs; JSON that a driver has read is written as JSON again |
| binary | bytes |
| date, timestamp | those of Python, and text in ISO 8601, which SQLite stores |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from sqlalchemy import types

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import shown_type
from enrichers.databases.enricher import decimal_size
from enrichers.databases.key_kinds import Floats, Kind, Numerics, Texts, Uuids, kind_of
from enrichers.names import is_utf8
from enrichers.scalars import SQL, scalar
from enrichers.sql.spellings import spellings_of
from enrichers.typed import MisfitError

WIDTHS = {"TINYINT": 8, "SMALLINT": 16, "YEAR": 16, "MEDIUMINT": 24, "BIGINT": 64}
"""Bits of integer types by their names. Others have 32."""

SIGNED = {8: pa.int8(), 16: pa.int16(), 24: pa.int32(), 32: pa.int32(), 64: pa.int64()}
UNSIGNED = {8: pa.int16(), 16: pa.int32(), 24: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
"""Arrow's type by bits. Spark has no unsigned integers, so these are as wide as needed."""

EXACT: dict[str, type] = {
    "string": str,
    "binary": bytes,
    "bool": bool,
    "double": float,
    "date32[day]": date,
}
"""For types of Arrow the type of Python of which every value fits."""


@dataclass(frozen=True)
class Column:
    """A column of the database: its type in Arrow, and how its keys are compared."""

    arrow: pa.DataType
    kind: Kind


def column_of(kind: types.TypeEngine[Any], dialect: str) -> Column | None:
    """The column for a type that SQLAlchemy has found, or None if there is none."""
    arrow = _arrow_of(kind, dialect)
    if arrow is None:
        return None
    if isinstance(kind, types.Uuid):
        return Column(arrow, Uuids())
    padded = isinstance(kind, types.CHAR | types.NCHAR) and dialect != "sqlite"  # It pads no text.
    return Column(arrow, Texts(padded=True) if padded else kind_of(arrow))


def column_for(arrow: pa.DataType) -> Column:
    """The column for a type of Arrow that the user has named; null if the type is open."""
    return Column(arrow, kind_of(arrow))


def checked(schema: pa.Schema) -> pa.Schema:
    """The schema, if values of every column can be checked.

    Raises:
        ConfigurationError: a column has a type that a database does not return.
    """
    for field in schema:
        if kinds.is_nested(field.type) or scalar(field.type, SQL) is None:
            raise ConfigurationError(
                f"schema: the column {field.name!r} is {shown_type(field.type)}, which a database does not return; use "
                "a string, and convert it in Spark"
            )
    return schema


def _arrow_of(kind: types.TypeEngine[Any], dialect: str) -> pa.DataType | None:
    match kind:
        case types.Boolean():
            return pa.bool_()
        case types.Uuid() | types.String() | types.JSON():
            return pa.string()
        case types.Integer():
            if dialect == "sqlite":
                return pa.int64()
            bits = WIDTHS.get(kind.__visit_name__.upper(), 32)
            unsigned = getattr(kind, "unsigned", False) or (dialect == "mssql" and bits == 8)
            return (UNSIGNED if unsigned else SIGNED)[bits]
        case types.Float():
            return pa.float64()
        case types.Numeric():
            return pa.decimal128(*decimal_size(kind.precision, kind.scale or 0))
        case types.DateTime():
            return pa.timestamp("us", tz="UTC" if kind.timezone else None)
        case types.Date():
            return pa.date32()
    if kind.__visit_name__ == "YEAR":
        return pa.int16()
    try:
        return pa.binary() if kind.python_type is bytes else None
    except NotImplementedError:
        return None


# -- values


def values_of(column: Sequence[Any], field: pa.Field) -> Sequence[Any]:
    """The values of a column of a result, as Arrow takes them.

    Raises:
        MisfitError: one does not fit.
    """
    found = {*map(type, column)} - {type(None)}
    if not field.nullable and None in column:
        raise MisfitError(field.name, None, field.type, "null is not allowed", [*column].index(None))
    if not found or _all_fit(column, field.type, found):
        return column
    convert = scalar(field.type, SQL)
    assert convert is not None
    values: list[Any] = []
    for value in column:
        try:
            values.append(None if value is None else convert(value))
        except (ValueError, ArithmeticError) as error:
            raise MisfitError(field.name, value, field.type, str(error), len(values)) from None
    return values


def _all_fit(column: Sequence[Any], arrow: pa.DataType, found: set[type]) -> bool:
    """Whether every value is of the type that Arrow takes, and within its range: true of nearly all results."""
    if kinds.is_signed_integer(arrow) and found == {int}:
        limit = 1 << (arrow.bit_width - 1)
        numbers = column if None not in column else [value for value in column if value is not None]
        return bool(-limit <= min(numbers) and max(numbers) < limit)
    if arrow == pa.timestamp("us"):
        return found == {datetime} and all(value is None or value.tzinfo is None for value in column)
    return found == {EXACT.get(str(arrow))}


# -- keys


FINITE_ONLY = frozenset(("mysql", "mariadb", "mssql"))
"""Dialects whose numbers are finite. Drivers of theirs refuse others."""


def canonical_values(kind: Kind, dialect: str, keys: Sequence[Any]) -> Sequence[Any]:
    """The canonical forms of keys, aligned with them. None for a key that no row can have.

    Raises:
        TypeError: a key is of a type that cannot be compared with the column.
    """
    canonical = kind.canonical_many(keys)
    if isinstance(kind, Floats | Numerics):
        if dialect in FINITE_ONLY:
            return [None if key is None or not math.isfinite(key) else key for key in canonical]
        if dialect == "sqlite":
            # Its numbers are doubles, or integers. It stores not-a-number as null.
            return [
                key if key is not None and (math.isfinite(key) or abs(key) == math.inf) else None for key in canonical
            ]
        return canonical
    if not isinstance(kind, Texts):
        return canonical
    # Half of a surrogate pair, which no database can hold, or the zero byte, which PostgreSQL cannot.
    zero = "\0" if dialect == "postgresql" else "\ud800"
    return [None if key is None or zero in key or not is_utf8(key) else key for key in canonical]


def parameter_type(column: Column, dialect: str) -> types.TypeEngine[Any]:
    """The type of a parameter for keys of a column. The values of keys are those of `as_parameter`."""
    arrow = column.arrow
    if spellings_of(arrow, dialect) is not None:
        return types.String()
    if isinstance(column.kind, Uuids):
        return types.Uuid(as_uuid=False)
    if isinstance(column.kind, Numerics):
        # Without a precision: some drivers make a cast of the type, which would round a key.
        return types.NullType() if dialect == "sqlite" else types.Numeric()
    if kinds.is_integer(arrow):
        return types.BigInteger() if arrow.bit_width > 32 else types.Integer()
    if kinds.is_timestamp(arrow):
        return types.DateTime(timezone=arrow.tz is not None)
    for is_kind, made in _PARAMETERS:
        if is_kind(arrow):
            return made()
    # Bytes too: drivers take them as they are, and SQLAlchemy's type for them does not work with aiomysql.
    return types.NullType()


_PARAMETERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[], types.TypeEngine[Any]]], ...] = (
    (kinds.is_floating, lambda: types.Float(53)),
    (kinds.is_string, types.String),
    (kinds.is_large_string, types.String),
    (kinds.is_boolean, types.Boolean),
    (kinds.is_date, types.Date),
)


def as_parameter(keys: Sequence[Any], column: Column, dialect: str) -> Sequence[Any]:
    """Canonical keys as the driver takes them. SQLite compares numbers by value, and has no decimals."""
    if dialect == "sqlite" and isinstance(column.kind, Numerics):
        return [int(key) if key == key.to_integral_value() and -(2**63) <= key < 2**63 else float(key) for key in keys]
    return keys
