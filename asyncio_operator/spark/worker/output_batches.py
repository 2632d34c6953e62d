"""Output batches of bounded size: rows of columns, picked by number, in pieces with limited rows and bytes.

A column is built once per distinct key and spread over all rows with that key. So one large document can grow to any
number of bytes. An Arrow array of text holds at most 2 GB, and the reader of a batch must hold it in memory too. The
size of a row is computed from the offsets of its column, without reading values.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.columns import Column
from asyncio_operator.arrow.key_arrays import Ints

OUTPUT_ROWS = 10_000  # The maximum number of rows in an output batch: the default size of Spark's own batches.

OUTPUT_BYTES = 64 * 2**20
"""The maximum number of bytes in an output batch, unless a single row has more. It is many times an ordinary batch, and
far below the 2 GB that an array of text can hold. The JVM keeps a whole batch outside of its heap."""

Places = Iterator[tuple[Ints, Ints]]
"""For some rows of the output: the numbers of their input rows, and the numbers of their found rows."""


def places(starts: Ints, copies: Ints) -> Places:
    """All rows of the output, `OUTPUT_ROWS` at a time. `starts` has for each input row the number of its first found
    row, and `copies` that of its found rows. -1 is a row of nulls, which has at most one copy."""
    # The usual case, one output row for each input row, needs no search.
    if (copies == 1).all():
        for done in range(0, len(copies), OUTPUT_ROWS):
            found = starts[done : done + OUTPUT_ROWS]
            yield np.arange(done, done + len(found)), found
        return
    ends = np.cumsum(copies)
    total, before = int(ends[-1]), ends - copies
    for done in range(0, total, OUTPUT_ROWS):
        numbers = np.arange(done, min(total, done + OUTPUT_ROWS))
        # An input row without copies has the same end as the one before it, and "right" passes over it.
        rows = np.searchsorted(ends, numbers, side="right")
        yield rows, starts[rows] + numbers - before[rows]


def pieces_of(
    own: Sequence[Column], answers: ColumnAnswers, found: Sequence[Column], starts: Ints, copies: Ints
) -> Places:
    """All rows of the output, in pieces of at most `OUTPUT_ROWS` and `OUTPUT_BYTES`. `own` are the columns of the
    input, which can grow only if the output repeats a row, `found` those of the answers that are needed. `starts`,
    `copies`: see `places`."""
    whole, most = places(starts, copies), copies.max(initial=0)
    own = own if most > 1 else []
    # Usually this is enough to see that nothing must be split, and no row is measured.
    if answers.rows is None:
        size = sum(column.nbytes for column in found) * np.bincount(starts[starts >= 0]).max(initial=0)
    else:
        size = widest_row(answers.table) * OUTPUT_ROWS
    if size + sum(column.nbytes for column in own) * most <= OUTPUT_BYTES:
        return whole
    if answers.rows is not None:
        # As many for each row, and for the row of nulls.
        found_bytes = np.full(len(answers.rows) + 1, widest_row(answers.table))
    else:
        rows = int((answers.starts + answers.counts).max(initial=0))
        found_bytes = np.append(row_bytes(found, len(found[0])) if found else np.zeros(rows, np.int64), 0)
    return cut(whole, row_bytes(own, len(starts)), found_bytes)


def cut(whole: Places, in_bytes: Ints, found_bytes: Ints) -> Places:
    """The same rows, split so that each piece takes at most `OUTPUT_BYTES`. A larger row becomes a piece of its own.
    The bytes are those of each input row, and of each found row: of these the last are for -1."""
    for rows, found in whole:
        ends = np.cumsum(in_bytes[rows] + found_bytes[found])
        start, before = 0, 0
        while start < len(rows):
            # At least one row, or a row that is larger than the limit would never leave.
            stop = max(start + 1, int(np.searchsorted(ends, before + OUTPUT_BYTES, side="right")))
            yield rows[start:stop], found[start:stop]
            start, before = stop, int(ends[stop - 1])


def widest_row(table: pa.Table) -> int:
    """The bytes of the largest row of a table, computed once: a table in memory answers many batches."""
    identity = id(table)
    known = _widest.get(identity)
    if known is None:
        largest = int(row_bytes(table.columns, table.num_rows).max(initial=0))
        known = _widest[identity] = largest, weakref.ref(table, lambda _gone: _widest.pop(identity))
    return known[0]


_widest: dict[int, tuple[int, weakref.ref[Any]]] = {}
"""By the identity of tables, which have no hash, as long as they are there."""


def columns_of(table: pa.Table, names: Sequence[str]) -> list[Column]:
    """Columns of a table, each as one array, or a chunked one if the text is too long for one."""
    columns: list[Column] = []
    for column in map(table.column, names):
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        try:
            some = chunks or [pa.nulls(0, column.type)]
            columns.append(some[0] if len(some) == 1 else pa.concat_arrays(some))
        except pa.ArrowInvalid:
            columns.append(column)
    return columns


def row_bytes(columns: Sequence[Column], rows: int) -> Ints:
    """The bytes of each row of these columns, rounded up. The columns have `rows` rows."""
    total = np.zeros(rows, dtype=np.int64)
    for column in columns:
        if isinstance(column, pa.ChunkedArray):
            total += np.concatenate([row_bytes([chunk], len(chunk)) for chunk in column.chunks])
        else:
            total += _row_bytes(column)
    return total


def _row_bytes(array: pa.Array) -> Ints | int:
    kind = array.type
    # An empty array has no offsets to read, and no length to divide by.
    if not len(array):
        return 0
    if kinds.is_struct(kind):
        return row_bytes([array.field(i) for i in range(kind.num_fields)], len(array))
    # `keys`, `items` and `values` ignore that an array is a slice, and its offsets count from their beginning too.
    items = [array.keys, array.items] if kinds.is_map(kind) else []
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        items = [array.values]
    if items:
        # A list has the bytes of its items, and its offset.
        before = np.concatenate([[0], np.cumsum(row_bytes(items, len(items[0])))])
        offsets = array.offsets.to_numpy()
        spans: Ints = before[offsets[1:]] - before[offsets[:-1]]
        return spans + _OFFSET
    if any(has_kind(kind) for has_kind in _OF_ANY_LENGTH):
        lengths: Ints = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        return lengths + np.int64(_OFFSET)
    return -(-int(array.nbytes) // len(array))  # Values of a fixed size: all rows take the same, rounded up.


_OF_ANY_LENGTH = (kinds.is_string, kinds.is_binary, kinds.is_large_string, kinds.is_large_binary)
_OFFSET = 4


def pick(columns: Sequence[Column], numbers: Ints) -> list[pa.Array]:
    """The rows of columns with these numbers, of which there is at least one. -1 is a row of nulls. Adjacent rows are
    not copied."""
    first, count = int(numbers[0]), len(numbers)
    # A slice shares the memory of its column; `take` copies every value.
    if first >= 0 and np.array_equal(numbers, np.arange(first, first + count)):
        return [_joined([column.slice(first, count)]) for column in columns]
    nulls = numbers < 0
    taken = pa.array(numbers, mask=nulls if nulls.any() else None)
    # `take` would first join the chunks, which are too large for one array.
    return [
        _joined([column.slice(i, 1) if i >= 0 else pa.nulls(1, column.type) for i in numbers.tolist()])
        if isinstance(column, pa.ChunkedArray)
        else column.take(taken)
        for column in columns
    ]


def _joined(parts: Sequence[Column]) -> pa.Array:
    if len(parts) == 1 and not isinstance(parts[0], pa.ChunkedArray):
        return parts[0]
    return pa.concat_arrays(
        [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    )
