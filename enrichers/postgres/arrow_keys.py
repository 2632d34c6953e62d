"""Keys in Arrow arrays: how they become parameters, and how a result gets its keys back as they were asked.

A statement on a table takes each key column as one text, an array literal of PostgreSQL (``{1,2,3}``), which Arrow
makes. That costs less than a list of Python objects (client CPU per key: integers 0.08 against 0.15 us, text 0.09
against 0.23, timestamps 0.1 against 1.4). Dates and timestamps are sent as numbers of days or microseconds since 1970.
A query takes the parameters that its author wrote, so its keys are lists of Python objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.enricher import key_values
from enrichers.databases.key_kinds import Kind, Texts, Uuids

FIRST_DAY = -2_440_588
FIRST_MICROSECOND = -210_866_803_200_000_000
"""The first date and timestamp of PostgreSQL, in 4713 BC, counted from 1970. Arrow's last ones are before its last."""

UUID = r"\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z"
"""A UUID as the server writes it."""

PADDED = Texts(padded=True)


@dataclass(frozen=True)
class AskedKeys:
    """The keys of a batch, each once, without those that no row can have.

    Attributes:
        schema: the key columns.
        kinds: their kinds.
        asked: the keys as they were asked, one array per key column.
        canonical: the same as the server writes them: UUIDs in lower case, ``char(n)`` without blanks at the end.
        sent: the canonical keys, each once.
    """

    schema: pa.Schema
    kinds: Sequence[Kind]
    asked: Sequence[pa.Array]
    canonical: Sequence[pa.Array]
    sent: Sequence[pa.Array]

    def __len__(self) -> int:
        return len(self.asked[0])

    def __getitem__(self, place: int) -> Any:
        """A key for a message."""
        return shown_key([part[place] for part in self.asked])

    def literals(self) -> list[str]:
        """The parameters of a statement on a table: for each key column the text of an array."""
        return list(map(_literal, self.sent))

    def values(self) -> list[Any]:
        """The Python keys, tuples if there are several key columns. None for a key that Python cannot hold."""
        columns = list(map(key_values, self.sent))
        if len(columns) == 1:
            return columns[0]
        return [None if None in key else key for key in zip(*columns, strict=True)]

    def without(self, texts: Collection[str]) -> AskedKeys:
        """The keys that hold none of these texts."""
        asked = _without_texts(self.asked, self.canonical, texts)
        canonical = _without_texts(self.canonical, self.canonical, texts)
        sent = asked if self.sent is self.asked else _without_texts(self.sent, self.sent, texts)
        return AskedKeys(self.schema, self.kinds, asked, canonical, sent)

    def respelled(self, table: pa.Table) -> pa.Table:
        """A result with its keys as they were asked, where several spellings mean one key."""
        if self.sent is self.asked:
            return table
        places: dict[Any, list[int | None]] = {}
        for place, key in enumerate(_tuples(self.canonical)):
            places.setdefault(key, []).append(place)
        names = self.schema.names
        found = [_canonical(table[name].combine_chunks(), kind) for name, kind in zip(names, self.kinds, strict=True)]
        pairs = [(row, place) for row, key in enumerate(_tuples(found)) for place in places.get(key, (None,))]
        rows = pa.array([row for row, _ in pairs], pa.int64())
        asked = pa.array([place for _, place in pairs], pa.int64())
        table = table.take(rows)
        for name, part in zip(names, self.asked, strict=True):
            column = pc.coalesce(part.take(asked), table[name])
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
        return table


def asked_keys(keys: pa.Array, schema: pa.Schema, kinds_of: Sequence[Kind]) -> AskedKeys:
    """The keys of a batch: an array of the type of the key column, or a struct array of those of several. They are
    distinct, and none is null.

    Raises:
        ValueError: the array has another type.
    """
    parts = [keys] if len(schema) == 1 else keys.flatten() if kinds.is_struct(keys.type) else []
    if [part.type for part in parts] != schema.types:
        raise ValueError(f"lookup_columns was called with keys of type {keys.type}")
    canonical = [_canonical(part, kind) for part, kind in zip(parts, kinds_of, strict=True)]
    asked = _without_nulls(parts, canonical)
    canonical = _without_nulls(canonical, canonical)
    if PADDED not in kinds_of and all(map(is_, asked, canonical)):
        return AskedKeys(schema, kinds_of, asked, canonical, asked)
    return AskedKeys(schema, kinds_of, asked, canonical, _distinct(canonical))


def shown_key(parts: Sequence[pa.Scalar]) -> Any:
    """A key for a message; a part that Python cannot hold as text."""
    values = []
    for part in parts:
        try:
            values.append(part.as_py())
        except (ValueError, OverflowError):
            values.append(part.cast(pa.string()).as_py())
    return values[0] if len(values) == 1 else tuple(values)


def _without_nulls(parts: Sequence[pa.Array], judged: Sequence[pa.Array]) -> list[pa.Array]:
    """The rows of `parts` in which no column of `judged` is null."""
    with_nulls = [part for part in judged if part.null_count]
    if not with_nulls:
        return list(parts)
    valid = with_nulls[0].is_valid()
    for part in with_nulls[1:]:
        valid = pc.and_(valid, part.is_valid())
    return [part.filter(valid) for part in parts]


def _without_texts(parts: Sequence[pa.Array], judged: Sequence[pa.Array], texts: Collection[str]) -> list[pa.Array]:
    """The rows of `parts` in which no column of `judged` is one of the texts."""
    kept = pa.repeat(True, len(judged[0]))
    for part in judged:
        if kinds.is_string(part.type):
            kept = pc.and_not(kept, pc.is_in(part, pa.array(texts, part.type)))
    return [part.filter(kept) for part in parts]


def _distinct(parts: Sequence[pa.Array]) -> list[pa.Array]:
    """Each key once: a statement may return the rows of a key twice if the key is sent twice."""
    if len(parts) == 1:
        return [parts[0].unique()]
    codes: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        encoded = part.dictionary_encode()
        # Numbered again after every column, so that the product of cardinalities stays within 64 bits.
        _, codes = np.unique(codes, return_inverse=True)
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    if len(first) == len(codes):
        return list(parts)
    rows = pa.array(np.sort(first))
    return [part.take(rows) for part in parts]


def _canonical(keys: pa.Array, kind: Kind) -> pa.Array:
    """The keys as the server writes them; null for one that no row can have."""
    match kind:
        case Texts(padded=True):
            return pc.utf8_rtrim(keys, " ")
        case Uuids():
            if pc.all(pc.match_substring_regex(keys, UUID)).as_py() is not False:
                return keys
            return pa.array([None if key is None else kind.canonical(key) for key in keys.to_pylist()], keys.type)
    if kinds.is_date32(keys.type) or kinds.is_timestamp(keys.type):
        earliest = FIRST_DAY if kinds.is_date32(keys.type) else FIRST_MICROSECOND
        numbers = _numbers(keys)
        if keys.null_count or (len(keys) and numbers.to_numpy().min() < earliest):
            return pc.if_else(pc.less(numbers, earliest), pa.scalar(None, keys.type), keys)
    return keys


def _literal(keys: pa.Array) -> str:
    """An array of PostgreSQL as text."""
    if kinds.is_string(keys.type) or kinds.is_binary(keys.type):
        if kinds.is_binary(keys.type):
            keys = pa.array(["\\x" + key.hex() for key in keys.to_pylist()], pa.string())
        joined = _joined(keys, '","')
        if "\\" in joined or joined.count('"') > 2 * (len(keys) - 1):
            quoted = pc.replace_substring(pc.replace_substring(keys, "\\", "\\\\"), '"', '\\"')
            joined = _joined(quoted, '","')
        return f'{{"{joined}"}}'
    return f"{{{_joined(_numbers(keys).cast(pa.string()), ',')}}}"


def _joined(texts: pa.Array, separator: str) -> str:
    one = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    joined: str = pc.binary_join(one, separator)[0].as_py()
    return joined


def _numbers(keys: pa.Array) -> pa.Array:
    """Dates as days, timestamps as microseconds since 1970, a float as a double; other keys as they are."""
    if kinds.is_timestamp(keys.type):
        return keys.cast(pa.int64())
    if kinds.is_date32(keys.type):
        return keys.cast(pa.int32())
    return keys.cast(pa.float64()) if kinds.is_float32(keys.type) else keys


def _tuples(parts: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    return zip(*(key_values(_numbers(part)) for part in parts), strict=True)
