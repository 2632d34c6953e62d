"""An index of a table in memory: its columns in Arrow, and a `KeyIndex` that finds the rows of many keys at a time.

The index takes 12 bytes for a row besides the columns. Rows are copied from the columns when they are looked up, as
columns or as dictionaries. This module knows neither loops nor where tables come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.enricher import Found, KeyIndex
from enrichers.key_kinds import Kind, kind_of


class TableIndex:
    """Rows by key. Several rows of one key are in the order of the table.

    Args:
        table: a table whose first columns are the key columns.
        keys: number of key columns. Rows with a null in one of them are left out, because no key matches them.
        columns: the columns of a row.
    """

    def __init__(self, table: pa.Table, keys: int, columns: Sequence[str]) -> None:
        self._key_names = table.schema.names[:keys]
        self._key_types = table.schema.types[:keys]
        self._kinds = list(map(kind_of, self._key_types))
        self._index = KeyIndex(_struct([_one_array(column) for column in table.columns[:keys]]))
        self._columns = {name: _one_chunk(table[name]) for name in columns}

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._index)

    def table(self, keys: pa.Array) -> pa.Table:
        """The rows of distinct keys: the key columns as they were asked for, and the columns of a row."""
        numbers, positions = self._found(keys)
        if len(positions) < len(keys) or (positions[1:] == positions[:-1]).any():
            keys = keys.take(pa.array(positions))
        parts = keys.flatten() if len(self._key_names) > 1 else [keys]
        return pa.table(dict(zip(self._key_names, parts, strict=True)) | self._taken(numbers))

    def rows(self, keys: Sequence[Any]) -> list[Found]:
        """For each key its row, a list of its rows, or None. Raises TypeError for a value that cannot be a key."""
        numbers, positions = self._found(self._array(keys))
        columns = self._taken(numbers)
        values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        found: list[Any] = [None] * len(keys)
        for position, row in zip(positions.tolist(), values, strict=True):
            mapping = dict(zip(columns, row, strict=True))
            before = found[position]
            if before is None:
                found[position] = mapping
            elif type(before) is list:
                before.append(mapping)
            else:
                found[position] = [before, mapping]
        return found

    def _found(self, keys: pa.Array) -> Any:
        try:
            return self._index.find(keys)
        except TypeError:
            # Keys of a type that no row can have are misses.
            return self._index.find(pa.nulls(len(keys)))

    def _taken(self, numbers: Any) -> dict[str, pa.Array]:
        taken = pa.array(numbers)
        return {name: column.take(taken) for name, column in self._columns.items()}

    def _array(self, keys: Sequence[Any]) -> pa.Array:
        """Python keys as an array. Null for a key that no row can have."""
        width = len(self._kinds)
        if width == 1:
            return _array_of(self._kinds[0], self._key_types[0], keys)
        whole = [key if isinstance(key, tuple) and len(key) == width else (None,) * width for key in keys]
        columns: Iterable[Sequence[Any]] = zip(*whole, strict=True) if whole else [()] * width
        return _struct(list(map(_array_of, self._kinds, self._key_types, columns)))


def _struct(parts: Sequence[pa.Array]) -> pa.Array:
    """One array of keys: the only part, or structs of all parts."""
    if len(parts) == 1:
        return parts[0]
    return pa.StructArray.from_arrays(list(parts), names=[str(number) for number in range(len(parts))])


def _array_of(kind: Kind, data_type: pa.DataType, keys: Sequence[Any]) -> pa.Array:
    try:
        keys = kind.canonical_many(keys)
    except TypeError:
        keys = [_canonical_or_none(kind, key) for key in keys]
    data_type = _type_of_keys(data_type)
    try:
        return pa.array(keys, data_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.concat_arrays([pa.array([], data_type), *(_one_key(key, data_type) for key in keys)])


def _canonical_or_none(kind: Kind, key: Any) -> Any:
    """The canonical key, or None, also if it cannot be compared with the column. Raises TypeError if it has no hash."""
    hash(key)
    try:
        return None if key is None else kind.canonical(key)
    except TypeError:
        return None


def _type_of_keys(data_type: pa.DataType) -> pa.DataType:
    """A type that holds Python's values exactly, in place of one into which Arrow would silently round them."""
    if kinds.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz)
    if kinds.is_floating(data_type):
        return pa.float64()
    return pa.date32() if kinds.is_date(data_type) else data_type


def _one_key(key: Any, data_type: pa.DataType) -> pa.Array:
    try:
        return pa.array([key], data_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.nulls(1, data_type)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column in one chunk, which is faster to read. It keeps its chunks if its text is too large for one."""
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:
        return column


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column in one array, with offsets of 64 bits if its text is too large for another."""
    combined = _one_chunk(column)
    if isinstance(combined, pa.ChunkedArray):
        large = pa.large_string() if kinds.is_string(column.type) else pa.large_binary()
        combined = column.cast(large).combine_chunks()
    return combined
