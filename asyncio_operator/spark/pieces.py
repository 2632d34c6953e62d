"""How much goes into an output batch: rows of columns, picked by number, in pieces of bounded rows and bytes.

A column is built once per distinct key and spread over all rows that have the key, so one large document can become any
number of bytes; an array of text holds 2 GB, and what receives it has to hold it too. What a row takes is known from
the offsets of its column, without a look at the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.columns import Column, Ints

OUTPUT_ROWS = 10_000
"""Rows of an output batch at most: what Spark's own batches hold by default."""

OUTPUT_BYTES = 64 * 2**20
"""Bytes of an output batch at most, if no row takes more: many times an ordinary batch, and far from the 2 GB that an
array of text can hold. The JVM keeps a whole batch outside of its heap."""

Places = Iterator[tuple[Ints, Ints]]
"""For rows of the output: the numbers of their input rows, and of their found rows."""


def places(starts: Ints, copies: Ints) -> Places:
    """All rows of the output, `OUTPUT_ROWS` at a time.

    Args:
        starts, copies: for every input row, the number of its first found row, and how many there are.
    """
    if (copies == 1).all():
        for done in range(0, len(copies), OUTPUT_ROWS):
            found = starts[done : done + OUTPUT_ROWS]
            yield np.arange(done, done + len(found)), found
        return
    ends = np.cumsum(copies)
    total, before = int(ends[-1]), ends - copies
    for done in range(0, total, OUTPUT_ROWS):
        numbers = np.arange(done, min(total, done + OUTPUT_ROWS))
        rows = np.searchsorted(ends, numbers, side="right")
        yield rows, starts[rows] + numbers - before[rows]


def cut(whole: Places, in_bytes: Ints, found_bytes: Ints) -> Places:
    """The same, such that those that come together take at most `OUTPUT_BYTES`; a row that takes more stands alone.

    Args:
        in_bytes, found_bytes: what every input row, and every found row, takes.
    """
    heaviest = in_bytes.max(initial=0) + found_bytes.max(initial=0)
    for rows, found in whole:
        if heaviest * len(rows) <= OUTPUT_BYTES:
            yield rows, found
            continue
        ends = np.cumsum(in_bytes[rows] + found_bytes[found])
        start, before = 0, 0
        while start < len(rows):
            stop = max(start + 1, int(np.searchsorted(ends, before + OUTPUT_BYTES, side="right")))
            yield rows[start:stop], found[start:stop]
            start, before = stop, int(ends[stop - 1])


def row_bytes(columns: Sequence[Column], rows: int) -> Ints:
    """How many bytes every row takes in columns of so many rows, rounded up."""
    total = np.zeros(rows, dtype=np.int64)
    for column in columns:
        if _is_chunked(column):
            total += np.concatenate([row_bytes([chunk], len(chunk)) for chunk in column.chunks])
        else:
            total += _row_bytes(column)
    return total


def _row_bytes(array: pa.Array) -> Ints | int:
    kind = array.type
    if not len(array):
        return 0
    if kinds.is_struct(kind):
        return row_bytes([array.field(i) for i in range(kind.num_fields)], len(array))
    if kinds.is_map(kind):
        return _spans(array, row_bytes([array.keys, array.items], len(array.keys)))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _spans(array, row_bytes([array.values], len(array.values)))
    if any(has_kind(kind) for has_kind in _OF_ANY_LENGTH):
        lengths: Ints = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        return lengths + np.int64(_OFFSET)
    return -(-int(array.nbytes) // len(array))


_OF_ANY_LENGTH = (kinds.is_string, kinds.is_binary, kinds.is_large_string, kinds.is_large_binary)
_OFFSET = 4


def _spans(array: pa.Array, items: Ints) -> Ints:
    """What the items of every list take."""
    before = np.concatenate([[0], np.cumsum(items)])
    offsets = array.offsets.to_numpy()
    spans: Ints = before[offsets[1:]] - before[offsets[:-1]]
    return spans + _OFFSET


def pick(columns: Sequence[Column], numbers: Ints) -> list[pa.Array]:
    """The rows with these numbers, at least one, of columns; without a copy where they stand side by side."""
    first, count = int(numbers[0]), len(numbers)
    if np.array_equal(numbers, np.arange(first, first + count)):
        return [_joined([column.slice(first, count)]) for column in columns]
    taken = pa.array(numbers)
    return [
        # Arrow would join the chunks first, for which they are too large.
        _joined([column.slice(i, 1) for i in numbers.tolist()]) if _is_chunked(column) else column.take(taken)
        for column in columns
    ]


def _joined(parts: Sequence[Column]) -> pa.Array:
    if len(parts) == 1 and not _is_chunked(parts[0]):
        return parts[0]
    return pa.concat_arrays([chunk for part in parts for chunk in part.chunks])


def _is_chunked(column: Column) -> bool:
    return isinstance(column, pa.ChunkedArray)
