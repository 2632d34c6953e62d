"""Answers in columns: makes the array of keys for `Enricher.lookup_columns`, and checks and reads the table it returns.

Laws A1 and A2: the table holds the key columns and the declared columns, exactly of their types, in any order of
columns and rows. A row belongs to the asked key that is the same (law L10), and every row must belong to one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import ColumnAnswers, in_order
from asyncio_operator.arrow.decimals import cast_table
from asyncio_operator.arrow.key_arrays import Ints, distinct
from asyncio_operator.arrow.key_fit import fit_keys, fit_values
from asyncio_operator.arrow.key_index import match
from asyncio_operator.errors import EnricherError, ResultError, describe

OF_KEYS = "; key_schema() gives the names and types of the key columns"
"""The end of a message about a key column: a class without a `key_schema` does not know what it is asked with."""


class AnswerTables:
    """What the tables of one enricher must look like.

    Args:
        keys: names and types of the key columns, in the order of a key's parts. A type of null: that of the keys. None:
            one column, "key", of the type of the keys.
        declared: the columns of the answer, as the enricher declares them.
        wanted: the same columns in the types that the caller takes. Default: as declared.
        optional: the parts of a key that may be null.
    """

    def __init__(
        self,
        keys: pa.Schema | None,
        declared: pa.Schema,
        wanted: pa.Schema | None = None,
        optional: Collection[int] = (),
    ) -> None:
        self._keys = pa.schema([("key", pa.null())]) if keys is None else keys
        self._optional = optional
        self._declared = declared
        # The types decide: rows of another nullability need no cast, and a cast needs a copy of them.
        self._wanted = declared if wanted is None or wanted.types == declared.types else wanted
        self._given: pa.Table | None = None
        self._answer: pa.Table | None = None

    @property
    def empty(self) -> pa.Table:
        """A table without rows."""
        return self._wanted.empty_table()

    def asked(self, keys: Sequence[Any]) -> tuple[pa.Array, Ints]:
        """The distinct keys as an array, and for each of `keys` its place there, or -1 if it does not fit the types.
        `ArrowKeys` are not searched for duplicates as long as all of them fit. EnricherError: one has other parts."""
        array, width = getattr(keys, "array", None), len(self._keys)
        columns: list[Sequence[Any]] = [keys] if array is None else self._parts(array)
        if array is None and width > 1:
            odd = {*map(type, keys)} - {tuple} or {*map(len, keys)} - {width}
            if odd and (strange := [key for key in keys if not (isinstance(key, tuple) and len(key) == width)]):
                problem = f"the key {describe(strange[0])} is not a tuple of {', '.join(self._keys.names)}"
                raise EnricherError(problem, retryable=False)
            columns = list(zip(*keys, strict=True)) or [()] * width
        fitted = list(map(_fitted, columns, self._keys.types))
        # Two keys may fall together, and some may not fit.
        if any(one is not column for one, column in zip(fitted, columns, strict=True)):
            array, places = distinct(fitted, self._optional, _misfits(columns, fitted) if self._optional else None)
            fitted = self._parts(array)
        else:
            places = np.arange(len(keys))
        for i, kind in enumerate(self._keys.types):
            # With the zone, and as the dictionary, that the enricher says. Arrow casts only texts to a dictionary.
            if kinds.is_dictionary(kind):
                fitted[i] = fitted[i].cast(kind.value_type).dictionary_encode()
            if not kinds.is_null(kind):
                fitted[i] = fitted[i].cast(kind)
        return self._joined(fitted), places

    def read(self, answer: object, asked: pa.Array) -> ColumnAnswers:
        """The answer, in a table of the wanted columns in which the rows of a key are neighbours.

        Raises:
            ResultError: it is no such table, or has a row that belongs to no asked key.
        """
        answer = pa.Table.from_batches([answer]) if isinstance(answer, pa.RecordBatch) else answer
        if not isinstance(answer, pa.Table):
            raise ResultError(f"lookup_columns returned {type(answer).__name__}; it must return a pyarrow.Table")
        pairs = zip(self._keys.names, self._parts(asked), strict=True)
        parts = [_column(answer, name, part.type, OF_KEYS) for name, part in pairs]
        columns = [_column(answer, field.name, field.type) for field in self._declared]
        for i, (field, part) in enumerate(zip(self._keys, parts, strict=True)):
            if part.null_count and i not in self._optional:
                raise ResultError(f"lookup_columns returned a row whose key column {field.name!r} is null")
        table = pa.table(columns, schema=self._declared)
        if self._wanted is not self._declared:
            table = _cast(table, self._wanted)
        given = self._joined([part.combine_chunks() for part in parts])
        of_key = match(asked, given, self._optional)
        strangers = np.flatnonzero(of_key < 0)
        if len(strangers):
            values = [_shown(part[int(strangers[0])]) for part in parts]
            key = describe(tuple(values) if len(values) > 1 else values[0])
            raise ResultError(f"lookup_columns returned a row for key {key}, which was not asked for")
        counts = np.bincount(of_key, minlength=len(asked))
        if len(of_key) > np.count_nonzero(counts):
            order = np.argsort(of_key, kind="stable")
            table, of_key = table.take(pa.array(order)), of_key[order]
        starts = np.zeros(len(asked), dtype=np.int64)
        # From the end, because of several rows of a key the first one counts.
        starts[of_key[::-1]] = np.arange(len(of_key))[::-1]
        return ColumnAnswers(table.combine_chunks(), starts, counts)

    def read_rows(self, answer: object, asked: pa.Array) -> ColumnAnswers:
        """The same for an answer of `lookup_rows`. Its table is not copied.

        Raises:
            ResultError: it is no such answer.
        """
        parts = answer if isinstance(answer, tuple) and len(answer) == 3 else (None, None, None)
        table = parts[0]
        if not isinstance(table, pa.Table):
            raise ResultError(
                f"lookup_rows returned {describe(answer)}; it must return a pyarrow.Table, the numbers of the found "
                "rows, and for each of them the position of its key"
            )
        rows = _numbers("rows", parts[1], table.num_rows)
        positions = _numbers("positions", parts[2], len(asked))
        if len(rows) != len(positions) or (positions[1:] < positions[:-1]).any():
            raise ResultError("lookup_rows returned positions that do not ascend, or not one for each row")
        columns = [_column(table, field.name, field.type, method="lookup_rows") for field in self._declared]
        if table is not self._given:
            # The same object for the same table, because what is computed of a table is kept with it.
            names = self._declared.names
            self._given, self._answer = table, table if table.column_names == names else table.select(names)
        table = self._answer
        counts = np.bincount(positions, minlength=len(asked))
        found = in_order(table, counts, rows)
        # Arrow takes rows from one chunk only; those of several are too large to be one.
        if self._wanted is not self._declared or any(column.num_chunks > 1 for column in columns):
            found = found.alone()
        if self._wanted is not self._declared:
            found.table = _cast(found.table, self._wanted, "lookup_rows")
        return found

    def _joined(self, parts: Sequence[pa.Array]) -> pa.Array:
        if len(self._keys) == 1:
            return parts[0]
        return pa.StructArray.from_arrays(parts, self._keys.names)

    def _parts(self, keys: pa.Array) -> list[pa.Array]:
        # Not `key_parts`: the only part may be a struct.
        return [keys] if len(self._keys) == 1 else keys.flatten()


async def ask(
    enricher: Any,
    tables: AnswerTables,
    keys: Sequence[Any],
    find: Callable[[pa.Array], Awaitable[object]] | None = None,
) -> ColumnAnswers:
    """The answers for keys, aligned with them, from one call.

    Args:
        keys: Python's or `ArrowKeys`, as `AnswerTables.asked` takes them.
        find: `lookup_rows` of the enricher, called instead of `lookup_columns`.

    Raises:
        EnricherError: see `Enricher.respell`.
        ResultError: the answer is not such a table.
    """
    asked, places = tables.asked(keys)
    if len(misfits := np.flatnonzero(places < 0)):
        in_arrow = getattr(keys, "array", None) is not None
        unfit = keys.at(misfits) if in_arrow else [keys[i] for i in misfits]  # type: ignore[attr-defined]
        # Keys in Arrow are only judged: they have one type, which the driver has checked.
        if (respelled := enricher.respell(unfit)) is not unfit and not in_arrow:
            keys = list(keys)
            for i, key in zip(misfits, respelled, strict=True):
                keys[i] = key
            asked, places = tables.asked(keys)
    if not len(asked):
        return ColumnAnswers(tables.empty, places, np.zeros_like(places))
    answer = await (find or enricher.lookup_columns)(asked)
    try:
        found = tables.read(answer, asked) if find is None else tables.read_rows(answer, asked)
    except ResultError as error:
        # Law A2: a wrong table is neither split nor called again. A value that does not fit is that of a key (law X12).
        any_key = not isinstance(error.__cause__, pa.ArrowInvalid)
        raise ResultError(f"{describe(enricher)}: {error}", any_key=any_key) from error
    return found if len(asked) == len(keys) else found.at(places)


def row_finder(enricher: Any) -> Callable[[pa.Array], Awaitable[object]] | None:
    """`lookup_rows` of an enricher that has it. A class that writes only `lookup_columns` anew does not mean that of
    its base."""
    for kind in type(enricher).__mro__:
        if "lookup_rows" in vars(kind):
            return enricher.lookup_rows  # type: ignore[no-any-return]
        if "lookup_columns" in vars(kind):
            break
    return None


def _fitted(column: Any, kind: pa.DataType) -> pa.Array:
    """A part of keys in the canonical form of a type, null where a key does not fit; of null: in their own type."""
    if not isinstance(column, pa.Array):
        if not kinds.is_null(kind):
            return fit_values(column, kind)
        # Of keys of several types Arrow would make some equal.
        found = {(type(value), getattr(value, "tzinfo", None) is None) for value in column}
        if len(found) > 1:
            names = ", ".join(sorted({one.__name__ for one, _ in found}))
            # Law B3: the batch is split, until the keys of each part have one type.
            problem = f"keys of several types ({names}) have no array; name the type of the key in key_schema()"
            raise EnricherError(problem, retryable=False)
        return pa.array(column)
    try:
        return column if kinds.is_null(kind) else fit_keys(column, kind)
    except TypeError:  # Keys of these types are never equal.
        return pa.nulls(len(column), kind)


def _misfits(columns: Sequence[Any], fitted: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The keys of which a part does not fit: it is null now, and was none before."""
    nulls = [
        column.is_null().to_numpy(zero_copy_only=False)
        if isinstance(column, pa.Array)
        else np.array([value is None for value in column], dtype=bool)
        for column in columns
    ]
    lost = [part.is_null().to_numpy(zero_copy_only=False) & ~null for part, null in zip(fitted, nulls, strict=True)]
    return np.asarray(np.logical_or.reduce(lost))


def _shown(value: pa.Scalar) -> Any:
    """A value for a message; as text or bytes if Python cannot hold it."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.cast(pa.string() if kinds.is_temporal(value.type) else pa.binary()).as_py()


def _numbers(name: str, values: object, size: int) -> Ints:
    """A list of `lookup_rows` as an array."""
    try:
        numbers = np.asarray(values)
    except (TypeError, ValueError):  # A list of lists.
        numbers = np.empty((0, 0))
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise ResultError(f"lookup_rows returned {name} that are {describe(values)}; they must be a list of integers")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < size):
        raise ResultError(f"lookup_rows returned {name} that are not all from 0 to {size - 1}")
    return numbers.astype(np.int64, copy=False)


def _column(
    table: pa.Table, name: str, kind: pa.DataType, declared: str = "", method: str = "lookup_columns"
) -> pa.ChunkedArray:
    places = table.schema.get_all_field_indices(name)
    if len(places) != 1:
        problem = f"has {len(places)} columns {name!r}" if places else f"has no column {name!r}"
        raise ResultError(f"the table of {method} {problem}; its columns are {describe(table.column_names)}{declared}")
    column = table.column(places[0])
    if not column.type.equals(kind):
        raise ResultError(
            f"column {name!r} of the table of {method} is {column.type}; it must be {kind}: cast it there{declared}"
        )
    return column


def _cast(table: pa.Table, wanted: pa.Schema, method: str = "lookup_columns") -> pa.Table:
    try:
        return cast_table(table, wanted)
    except pa.ArrowInvalid as error:
        raise ResultError(f"a value of the table of {method} does not fit its column: {error}") from error
