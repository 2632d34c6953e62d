"""The argument `columns`: names, or a mapping of result columns that the server casts.

    {"n": "double", "made": "created_at timestamp"}

A value of the mapping is a type in Spark's DDL, or a column of the source and a type. What Spark calls a type is cast
to the type of PostgreSQL that `types` converts back to it. This module uses no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import as_schema, spark_type
from asyncio_operator.enricher import describe as shown
from enrichers.names import names_of
from enrichers.postgres.types import PgType, column_of

Chosen = tuple[str, ...] | tuple[tuple[str, str], ...]
"""Names of columns, or pairs of a result column and what it is made of."""

_TARGETS = {
    pa.bool_(): "bool",
    pa.int16(): "int2",
    pa.int32(): "int4",
    pa.int64(): "int8",
    pa.float32(): "float4",
    pa.float64(): "float8",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}

_FORM = "a type of Spark, as in 'double', or a column and its type, as in 'created_at timestamp'"


@dataclass(frozen=True)
class ResultColumn:
    """What a result column is made of.

    Attributes:
        source: a column of the table or the query.
        target: the type that the server casts it to; None: its own.
        name: the type's name in Spark.
    """

    source: str
    target: PgType | None = None
    name: str = ""


def chosen_of(columns: object, key: Sequence[str]) -> Chosen:
    """The argument `columns`, checked.

    Raises:
        ConfigurationError: it holds no names, or a type that is none.
    """
    if isinstance(columns, Mapping):
        pairs = tuple(columns.items())
    elif isinstance(columns, tuple) and columns and all(isinstance(column, tuple) for column in columns):
        pairs = columns  # the field of another enricher
    else:
        return names_of("columns", columns)
    names_of("columns", [name for name, _ in pairs])
    for name, wanted in result_columns(pairs).items():
        if name in key and wanted.source != name:
            raise ConfigurationError(
                f"columns: {name!r} is a key column, so it cannot be made of {wanted.source!r}; give it another name"
            )
    return pairs


def result_columns(columns: Chosen) -> dict[str, ResultColumn]:
    """What each result column is made of."""
    return {
        column if isinstance(column, str) else column[0]: ResultColumn(column)
        if isinstance(column, str)
        else _wanted(*column)
        for column in columns
    }


def _wanted(name: str, text: object) -> ResultColumn:
    if not isinstance(text, str):
        raise ConfigurationError(f"columns[{name!r}] is {shown(text)}; it must be {_FORM}")
    field = _field("x " + text)
    source = name
    if field is None:
        field = _field(text)
        source = field.name if field is not None else ""
    if field is None:
        raise ConfigurationError(
            f"columns[{name!r}] is {shown(text)}, which is not a type of Spark; it must be {_FORM}"
        )
    target = target_of(field.type)
    if target is None:
        raise ConfigurationError(
            f"columns[{name!r}] is {shown(text)}; PostgreSQL has no such type to cast to: use smallint, int, bigint, "
            "float, double, decimal(p,s), string, binary, boolean, date, timestamp, timestamp_ntz, or an array of one"
        )
    return ResultColumn(source, target, spark_type(field.type) or "")


def _field(ddl: str) -> pa.Field | None:
    """The only column of a DDL text, or None if it is something else."""
    try:
        [field] = as_schema(ddl)
    except (ConfigurationError, ValueError):
        return None
    return field


def target_of(data_type: pa.DataType) -> PgType | None:
    """The type that the server casts to, or None if it has no such type."""
    if kinds.is_list(data_type):
        element = target_of(data_type.value_type)
        if element is None or element.element is not None:
            return None
        return PgType(f"_{element.name}", f"{element.sql}[]", element.modifier, "b", element)
    if kinds.is_decimal(data_type):
        modifier = (data_type.precision << 16 | data_type.scale) + 4
        return PgType("numeric", f"numeric({data_type.precision},{data_type.scale})", modifier, "b")
    name = _TARGETS.get(data_type, "")
    return PgType(name, name, -1, "b") if name else None


def needs_cast(target: PgType, kind: PgType) -> bool:
    """Whether a column has to be cast. One that is a string, say, already is not: a cast would cut its blanks.

    A numeric is always cast: its digits may be more than those of its decimal.
    """
    wanted, own = column_of(target), column_of(kind)
    return own is None or wanted is None or own.arrow != wanted.arrow or "decimal" in str(own.arrow)


TEXTS = ("text", "varchar", "bpchar", "name")
