"""Names of Arrow types in Spark's DDL, for messages and stored schemas; `schema` parses them."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.types as kinds

MAX_PRECISION = 38  # of Spark's decimals, and of Arrow's 128-bit ones

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""By name in Spark. Messages use the first name of a type."""

_WORDS = {pa.large_string(): "string", pa.large_binary(): "binary"} | {
    kind: one for one, kind in reversed(TYPES.items())
}


def spark_type(kind: pa.DataType) -> str | None:
    """A type in Spark's DDL, which `as_schema` reads back; None if Spark does not have it."""
    if (word := _WORDS.get(kind)) is not None:
        return word
    if kinds.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if kinds.is_decimal(kind) and kind.precision <= MAX_PRECISION:
        return f"decimal({kind.precision},{kind.scale})"
    if not (kinds.is_map(kind) or kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_struct(kind)):
        return None
    inner = [kind.key_field, kind.item_field] if kinds.is_map(kind) else [kind.field(i) for i in range(kind.num_fields)]
    words = [spark_type(field.type) for field in inner]
    if None in words:
        return None
    if kinds.is_struct(kind):
        named = [f"{quoted_name(field.name)}: {word}" for field, word in zip(inner, words, strict=True)]
        return f"struct<{', '.join(named)}>"
    return f"{'map' if kinds.is_map(kind) else 'array'}<{','.join(map(str, words))}>"


def shown_type(kind: pa.DataType) -> str:
    """A type for a message: in Spark's DDL, or in Arrow's words if Spark does not have it."""
    return spark_type(kind) or re.sub(r"decimal\d+\((\d+), (-?\d+)\)", r"decimal(\1,\2)", str(kind))


_ARROW_WORDS = {"float32": "float", "float64": "double"} | {str(kind): word for kind, word in _WORDS.items()}

_QUOTED_OR_TYPE = re.compile(rf"'[^']*'|\b(?:{'|'.join(sorted(map(re.escape, _ARROW_WORDS), reverse=True))})(?!\w)")


def in_ddl(text: str) -> str:
    """The text of an Arrow error, with names of types in Spark's DDL. Quoted values are unchanged."""
    return _QUOTED_OR_TYPE.sub(lambda found: _ARROW_WORDS.get(found[0], found[0]), text)


def quoted_name(name: str) -> str:
    """The name of a column in Spark's DDL."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"
