"""Columns in the names of directories, ``day=2024-01-31``: their types and values, as Spark infers them.

Spark takes values for int, bigint or date if all of them are, and for text if one is nothing else. What it would take
for another type (1.5, 1e5, a time) is refused with words: `schema=` says what it is. This module knows no files.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import cast_table, shown_type

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory for rows whose column is null."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIKE_A_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}(-[0-9]{1,2})?")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def partition_of(directory: str, file: str) -> tuple[str, str | None]:
    """The column and the value of a directory's name; None for null.

    Raises:
        ConfigurationError: the name is not ``name=value``, or has an escape whose meaning is unknown.
    """
    name, equals, value = directory.partition("=")
    if not (name and equals and value):
        raise ConfigurationError(
            f"file {file!r} is in the directory {directory!r}, whose name is not name=value: Spark does not read it as "
            "a part of the table; pass a list of files, or the directory that has them"
        )
    if any(int(code, 16) > 0x7F for code in _ESCAPE.findall(directory)):
        raise ConfigurationError(
            f"the directory {directory!r} has an escaped byte that is not ASCII; its text is not known: read it in a "
            "function as the source"
        )
    return _unescaped(name), None if value == NULL else _unescaped(value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def partition_type(name: str, values: Sequence[str | None]) -> pa.DataType:
    """The type that Spark infers for these values of a column.

    Raises:
        ConfigurationError: it is none of int, bigint, date and string.
    """
    given = {value for value in values if value is not None}
    if given and all(map(_INTEGER.fullmatch, given)):
        numbers = [*map(int, given)]
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if all(-(1 << bits) <= number < 1 << bits for number in numbers):
                return kind
    if given and all(map(_is_date, given)):
        return pa.date32()
    if any(map(_is_text, given)) or (any(map(_is_date, given)) and any(map(_INTEGER.fullmatch, given))):
        return pa.string()
    shown = f"such as {min(given)!r}" if given else "which are all null"
    raise ConfigurationError(
        f"the type of column {name!r} cannot be known from the names of directories, {shown}; declare the columns in "
        f'schema=, as in schema="{name} string, ..."'
    )


def _is_date(value: str) -> bool:
    if not _DATE.fullmatch(value):
        return False
    try:
        datetime.date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_text(value: str) -> bool:
    """Whether Spark can take a value for nothing but text."""
    if _LIKE_A_DATE.fullmatch(value):
        return not _is_date(value)
    is_number = value.strip().lower() in ("nan", "infinity")
    return value[0].isalpha() and not is_number and not re.match("T[0-9]", value)


def partition_value(name: str, value: str | None, kind: pa.DataType) -> Any:
    """The value as a scalar of a type.

    Raises:
        ConfigurationError: it is not of that type, or needs a time zone.
    """
    if value is None:
        return pa.scalar(None, kind)
    if kinds.is_timestamp(kind) and kind.tz is not None:
        raise ConfigurationError(
            f"column {name!r} is in the names of directories, which have no time zone; declare it as timestamp_ntz"
        )
    try:
        if kinds.is_integer(kind):
            if not _INTEGER.fullmatch(value):
                raise pa.ArrowInvalid("it is no integer")
            return pa.scalar(int(value), kind)
        return cast_table(pa.table({name: [value]}), pa.schema([(name, kind)]))[name][0]
    except (pa.ArrowException, OverflowError) as error:
        raise ConfigurationError(
            f"the directory {name}={value} is no {shown_type(kind)}, the type of column {name!r}: {error}"
        ) from error
