"""Columns in, columns out: the distinct keys of an Arrow batch, and the columns that their outcomes add.

Keys are told apart in Arrow (`dictionary_encode`), columns are built once per distinct key and spread over the rows
with `take`, and the input's own columns pass through untouched. This module does not know where outcomes come from, nor
threads, nor pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncio_operator.errors import ResultError, describe
from asyncio_operator.lookup.keys import PENDING, Failure, KeyBatch, Timed
from asyncio_operator.spark.answers import FOUND, Answers, Ints, read_answers

OUTPUT_ROWS = 10_000
"""Rows of an output batch at most: what Spark's own batches hold by default."""

STATUS = pa.struct(
    [
        ("status", pa.string()),
        ("source", pa.string()),
        ("attempts", pa.int32()),
        ("latency_ms", pa.float64()),
        ("error_type", pa.string()),
        ("error_message", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What goes in and what comes out.

    Attributes:
        keys: positions of the key columns in the input, in the order of a key's parts.
        found: the fields that a found row adds, under the names that the enricher gives them.
        inner: rows without a match are dropped.
        drop_failed: rows whose lookup failed are dropped.
        status: whether a status column follows.
    """

    keys: tuple[int, ...]
    found: pa.Schema
    inner: bool = False
    drop_failed: bool = False
    status: bool = False


class Rows:
    """A batch of rows, the number of its key for every row (-1 where a part of the key is null), and which have
    left."""

    __slots__ = ("batch", "key_of", "keys_left", "leading", "left")

    def __init__(self, batch: pa.RecordBatch, key_of: Ints) -> None:
        self.batch = batch
        self.key_of = key_of
        self.keys_left = 0
        self.leading = 0
        self.left = np.zeros(batch.num_rows, dtype=np.bool_)


def key_batch(batch: pa.RecordBatch, positions: Sequence[int]) -> KeyBatch:
    """The distinct keys of a batch, in the order of their first row; its payload is the `Rows`."""
    codes, values = _encode(batch.column(positions[0]))
    if len(positions) == 1:
        return KeyBatch(values.to_pylist(), batch.num_rows, Rows(batch, codes))
    part_codes, parts = [codes], [values]
    for position in positions[1:]:
        more, values = _encode(batch.column(position))
        part_codes.append(more)
        parts.append(values)
        # Numbering anew after every column keeps the product of the cardinalities within 64 bits.
        joint = np.where((codes < 0) | (more < 0), -1, codes * max(1, len(values)) + more)
        codes, _ = _encode(pa.array(joint, mask=joint < 0))
    present = np.flatnonzero(codes >= 0)
    _, first = np.unique(codes[present], return_index=True)
    rows = present[first]
    columns = [part.take(pa.array(c[rows])).to_pylist() for part, c in zip(parts, part_codes, strict=True)]
    return KeyBatch(list(zip(*columns, strict=True)), batch.num_rows, Rows(batch, codes))


def _encode(column: pa.Array) -> tuple[Ints, pa.Array]:
    """For every row the number of its value, -1 for null; and the values, in the order of their first row."""
    encoded = column.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        codes = pc.fill_null(codes, -1)
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


class Enrichment:
    """Builds the output of one task, and counts what became of its rows.

    Args:
        on_result_error: what becomes of a key whose answer will not do: a `Failure`, or it raises.
    """

    def __init__(self, layout: Layout, on_result_error: Callable[[Any, ResultError], Failure]) -> None:
        self.kinds = np.zeros(3, dtype=np.int64)
        """Input rows by FOUND, MISSING and FAILED."""
        self.layout = layout
        self._on_result_error = on_result_error
        self._schema: pa.Schema | None = None
        self._empty = dict.fromkeys(layout.found.names)

    def leading(self, batch: KeyBatch, ready: int) -> tuple[Iterator[pa.RecordBatch], int]:
        """Ordered mode: the rows before the first one that needs a key not among the `ready` first; how many keys left.

        Keys are numbered in the order of their first row, so nothing before the first row of key `ready` needs it or a
        later one.
        """
        rows: Rows = batch.payload
        start, stop = rows.leading, batch.rows
        if ready < len(batch.keys):
            stop = start + int(np.argmax(rows.key_of[start:] >= ready))
        rows.leading = stop
        part = rows.batch.slice(start, stop - start)
        return self._leave(batch, part, rows.key_of[start:stop], ready)

    def answered(self, batch: KeyBatch) -> tuple[Iterator[pa.RecordBatch], int]:
        """Unordered mode: the rows whose key has an outcome and that have not left yet; how many keys left."""
        rows: Rows = batch.payload
        # One place more, which -1 reaches, stands for null keys: they wait for nothing.
        ready = np.array([*(outcome is not PENDING for outcome in batch.outcomes), True])
        now = ready[rows.key_of] & ~rows.left
        rows.left |= now
        part = rows.batch if now.all() else rows.batch.filter(pa.array(now))
        return self._leave(batch, part, rows.key_of[now], int(np.count_nonzero(ready)) - 1)

    def _leave(
        self, batch: KeyBatch, part: pa.RecordBatch, codes: Ints, keys_left: int
    ) -> tuple[Iterator[pa.RecordBatch], int]:
        """The output for some rows of a batch, and how many keys have left with them."""
        rows: Rows = batch.payload
        freed = keys_left - rows.keys_left
        rows.keys_left = keys_left
        if part.num_rows == batch.rows:
            return self._build(part, codes, batch.keys, batch.outcomes), freed
        used, numbers = np.unique(codes[codes >= 0], return_inverse=True)
        codes = codes.copy()
        codes[codes >= 0] = numbers
        return self._build(part, codes, [batch.keys[i] for i in used], [batch.outcomes[i] for i in used]), freed

    def _build(
        self, rows: pa.RecordBatch, codes: Ints, keys: list[Any], outcomes: list[Any]
    ) -> Iterator[pa.RecordBatch]:
        """The output for rows of which each has the key with the number in `codes`, or none for -1."""
        answers, columns = self._columns(keys, outcomes)
        # The last place, which -1 reaches, is the null key's.
        starts, copies = answers.starts[codes], answers.copies[codes]
        self.kinds += np.bincount(answers.kinds[codes], minlength=3)
        statuses = None
        if self.layout.status:
            told = [_status(outcome, kind) for outcome, kind in zip(outcomes, answers.kinds.tolist(), strict=False)]
            statuses = pa.array([*told, NOTHING_ASKED], STATUS).take(pa.array(np.where(codes < 0, len(keys), codes)))
        ends = np.cumsum(copies)
        done = 0
        while done < len(codes):
            # As many rows as fit an output batch, but at least one, which may fan out into more than fit.
            before = int(ends[done - 1]) if done else 0
            stop = max(done + 1, int(np.searchsorted(ends, before + OUTPUT_ROWS, side="right")))
            now = slice(done, stop)
            part = rows.slice(done, stop - done)
            said = None if statuses is None else statuses.slice(done, stop - done)
            output = self._spread(part, said, columns, starts[now], copies[now])
            for i in range(0, output.num_rows, OUTPUT_ROWS):
                yield output.slice(i, OUTPUT_ROWS)
            done = stop

    def _spread(
        self, rows: pa.RecordBatch, statuses: pa.Array | None, columns: list[pa.Array], starts: Ints, copies: Ints
    ) -> pa.RecordBatch:
        """Each row as often as `copies` says, beside the found rows from its start."""
        index = starts
        if not (copies == 1).all():
            repeated = pa.array(np.repeat(np.arange(len(copies)), copies))
            rows = rows.take(repeated)
            statuses = None if statuses is None else statuses.take(repeated)
            index = np.repeat(starts - np.cumsum(copies) + copies, copies) + np.arange(rows.num_rows)
        first = int(index[0]) if len(index) else 0
        if np.array_equal(index, np.arange(first, first + len(index))):
            added = [column.slice(first, len(index)) for column in columns]
        else:
            places = pa.array(index)
            added = [column.take(places) for column in columns]
        if statuses is not None:
            added.append(statuses)
        if self._schema is None:
            status = [pa.field("status", STATUS)] if self.layout.status else []
            fields = [*rows.schema, *self.layout.found, *status]
            # Spark goes by position, but its Arrow reader mixes up the buffers of two fields of one name.
            self._schema = pa.schema([field.with_name(str(i)) for i, field in enumerate(fields)])
        return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=self._schema)

    def _columns(self, keys: list[Any], outcomes: list[Any]) -> tuple[Answers, list[pa.Array]]:
        """What the outcomes mean, and the columns of their rows. Rows that fit no column become failures of their
        key."""
        while True:
            answers = read_answers(
                keys,
                outcomes,
                miss=int(not self.layout.inner),
                failure=int(not self.layout.drop_failed),
                on_result_error=self._on_result_error,
                empty=self._empty,
            )
            try:
                return answers, [_column(answers.rows, field) for field in self.layout.found]
            except Exception:
                if not self._find_misfits(keys, outcomes, answers):
                    raise

    def _find_misfits(self, keys: list[Any], outcomes: list[Any], answers: Answers) -> int:
        """Replace the outcomes whose rows do not fit the columns by failures; how many they were."""
        misfits = 0
        for i in np.flatnonzero(answers.kinds == FOUND).tolist():
            start, copies = int(answers.starts[i]), int(answers.copies[i])
            try:
                for field in self.layout.found:
                    _column(answers.rows[start : start + copies], field, strict=True)
            except ResultError as error:
                outcomes[i] = self._on_result_error(keys[i], error)
                misfits += 1
        return misfits


def _column(rows: Sequence[Mapping[str, Any]], field: pa.Field, strict: bool = False) -> pa.Array:
    """The values of one field; absent ones are null. With `strict`, what does not fit is a `ResultError`."""
    name = field.name
    try:
        try:
            values = list(map(itemgetter(name), rows))
        except KeyError:
            values = [row.get(name) for row in rows]
        if pa.types.is_integer(field.type) and float in set(map(type, values)):
            # Arrow would cut the fraction off without a word.
            return pa.array(values).cast(field.type)
        return pa.array(values, field.type)
    except Exception as error:
        if not strict:
            raise
        raise ResultError(
            f"column {name!r} is {field.type}, which the answer does not fit: {describe(rows[0].get(name))} ({error})"
        ) from error


NOTHING_ASKED = {"status": "missing", "source": "none", "attempts": 0}


def _status(outcome: Any, kind: int) -> dict[str, Any]:
    status: dict[str, Any] = {"source": "call", "attempts": 1}
    if isinstance(outcome, Timed | Failure):
        status["latency_ms"] = outcome.latency * 1000
    if isinstance(outcome, Failure):
        status["status"] = "timed_out" if outcome.timed_out else "failed"
        status["error_type"] = type(outcome.error).__name__
        status["error_message"] = str(outcome.error)
    else:
        status["status"] = "found" if kind == FOUND else "missing"
    return status
