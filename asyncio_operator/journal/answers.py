"""Answers as columns: from a batch of them to the rows of a file, and which of them count.

Law J4 is here: of the answers of a key the latest by time, then by run, then by number of the call, counts, and equal
rows of one answer count once. So a row may be read from any number of files. Nothing here knows files or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.decimals import cast_table
from asyncio_operator.arrow.key_arrays import Ints, distinct, key_parts
from asyncio_operator.arrow.key_fit import fit_keys
from asyncio_operator.arrow.type_names import shown_type
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.journal.format import ABOUT, Description

ORDER = ("_time", "_run", "_call", "_row")

NEVER = np.iinfo(np.int64).max

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """Answers of some calls, in any order."""

    keys: pa.Array  # The key of each answer, none null. Keys of several columns are structs, their parts in order.
    answers: ColumnAnswers  # With the columns of the description, in any order.
    # When each came, in seconds since the epoch: one number for all, or one for each.
    times: float | np.ndarray[Any, np.dtype[np.float64]]
    attempts: pa.Array | None = None  # Of each answer, as is its latency; None: not known.
    latency_ms: pa.Array | None = None
    weights: pa.Array | None = None  # Of each answer, as an array of maps; None: nothing.


def weights_array(weights: Sequence[Mapping[str, float] | None]) -> pa.Array:
    """The weights of answers for an `AnswerBatch`."""
    pairs = [None if not one else [*one.items()] for one in weights]
    return pa.array(pairs, ABOUT.field("_weights").type)


def to_table(
    batch: AnswerBatch, description: Description, *, run: str, first: int, expire_after: float | None
) -> pa.Table:
    """The rows of a file that a batch makes, whose answers `run` asked for. `first` is the number of the batch's first
    answer in its run; answers live for `expire_after` seconds, or for ever. ConfigurationError if a key does not fit
    the stored type."""
    count = len(batch.keys)
    answers = batch.answers.compact()
    # A miss has one row, of nulls.
    missing, copies = answers.counts == 0, np.maximum(answers.counts, 1)
    of_row: Ints = np.repeat(np.arange(count), copies)
    number = np.arange(len(of_row)) - np.repeat(np.cumsum(copies) - copies, copies)
    rows = cast_table(answers.table.select(description.answers.names), description.answers)
    places = np.where(missing[of_row], -1, answers.starts[of_row] + number)
    if not np.array_equal(places, np.arange(rows.num_rows)):
        rows = rows.take(pa.array(places, mask=places < 0))
    micros = np.broadcast_to(np.round(np.asarray(batch.times, np.float64) * _MICROSECONDS).astype(np.int64), (count,))
    lives = None if expire_after is None else micros + round(expire_after * _MICROSECONDS)
    picked = None if len(of_row) == count else pa.array(of_row)

    def spread(array: pa.Array | None, kind: pa.DataType) -> pa.Array:
        if array is None:
            return pa.nulls(len(of_row), kind)
        array = array.cast(kind)
        return array if picked is None else array.take(picked)

    moment = ABOUT.field("_time").type
    about = {
        "_found": spread(pa.array(~missing), pa.bool_()),
        "_time": spread(pa.array(micros), moment),
        "_attempts": spread(batch.attempts, pa.int32()),
        "_latency_ms": spread(batch.latency_ms, pa.float64()),
        "_weights": spread(batch.weights, ABOUT.field("_weights").type),
        "_run": pa.repeat(pa.scalar(run), len(of_row)),
        "_expires": spread(None if lives is None else pa.array(lives), moment),
        "_row": pa.array(number, pa.int32()),
        "_call": spread(pa.array(np.arange(first, first + count)), pa.int64()),
    }
    keys = key_parts(fit_keys(batch.keys, description.key_type))
    if any(part.null_count for part in keys):
        types = ", ".join(map(shown_type, description.keys.types))
        raise ConfigurationError(f"a key is null, or does not fit the journal's key columns, {types}: cast the key")
    parts = [spread(part, part.type) for part in keys]
    return pa.table([*parts, *rows.columns, *(about[name] for name in ABOUT.names)], schema=description.schema)


# -- which answers count


def living(table: pa.Table, now: float, expire_after: float | None = None) -> pa.Table:
    """The rows whose answers have not expired at a time, in seconds since the epoch: by their writer's expiry, or by a
    reader's, `expire_after`, which only shortens it."""
    ends = table["_expires"].cast(pa.int64()).fill_null(NEVER).to_numpy()
    if expire_after is not None:
        own = table["_time"].cast(pa.int64()).to_numpy() + round(expire_after * _MICROSECONDS)
        ends = np.minimum(ends, own)
    alive = ends > round(now * _MICROSECONDS)
    return table if alive.all() else table.filter(pa.array(alive))


def ranked(table: pa.Table, codes: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows by key, and for one key from its latest answer to its first. Rows of one answer are in their order, and
    equal rows of one answer are one. `table` has the columns of `ORDER`, `codes` the number of the key of each row.
    Returns positions of rows in that order; the number of the answer of each in its key, from 0 for the latest; the
    code."""
    # In one piece: Arrow 18 ranks no column in pieces.
    runs = (
        pc.rank(table["_run"].combine_chunks(), sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    )
    times = table["_time"].cast(pa.int64()).to_numpy()
    calls, rows = table["_call"].to_numpy(), table["_row"].to_numpy()
    order = np.lexsort((rows, -calls, -runs, -times, codes))
    keys, runs, calls, rows = codes[order], runs[order], calls[order], rows[order]
    new_key = np.ones(len(order), bool)
    new_key[1:] = keys[1:] != keys[:-1]
    new_answer = new_key.copy()
    new_answer[1:] |= (runs[1:] != runs[:-1]) | (calls[1:] != calls[:-1])
    new_row = new_answer.copy()
    new_row[1:] |= rows[1:] != rows[:-1]
    answers = np.cumsum(new_answer)
    # Of the first row of each key, repeated for its other rows.
    first = answers[np.flatnonzero(new_key)]
    numbers = answers - first[np.cumsum(new_key) - 1] if len(order) else answers
    return order[new_row], numbers[new_row], keys[new_row]


def latest(table: pa.Table, codes: Ints) -> Ints:
    """The positions of the rows that count: of each key those of its latest answer, in their order, keys by code."""
    order, numbers, _ = ranked(table, codes)
    chosen: Ints = order[numbers == 0]
    return chosen


def worth_keeping(table: pa.Table, width: int, now: float) -> pa.Table:
    """The rows of answers that a reader may still need, ordered by key, of `table`, which has all rows of some keys. No
    reader's answer changes by dropping others: expired answers, and those before a later one of the same key that lives
    at least as long. The first `width` columns are the key; `now` is in seconds since the epoch."""
    table = living(table, now).combine_chunks()
    if not table.num_rows:
        return table
    keys, codes = distinct([table.column(i).combine_chunks() for i in range(width)])
    # Keys in order, so that the statistics of row groups say much. Structs cannot be sorted by Arrow.
    parts = pa.table(key_parts(keys), names=[str(i) for i in range(width)])
    by_key = pc.sort_indices(parts, [(name, "ascending") for name in parts.schema.names]).to_numpy()
    place = np.empty(len(by_key), np.int64)
    place[by_key] = np.arange(len(by_key))
    order, numbers, ordered = ranked(table, place[codes])
    ends = table["_expires"].cast(pa.int64()).fill_null(NEVER).to_numpy()[order]
    # The longest life of the later answers of the key: a running maximum, kept apart by key. Ranks stay small.
    _, rank = np.unique(ends, return_inverse=True)
    apart = rank + ordered * (len(rank) + 1)
    before = np.concatenate([[-1], np.maximum.accumulate(apart)[:-1]])
    # The rows of one answer end together: its first row decides for all.
    starts = np.ones(len(order), bool)
    starts[1:] = (ordered[1:] != ordered[:-1]) | (numbers[1:] != numbers[:-1])
    kept = (apart > before)[starts][np.cumsum(starts) - 1]
    return table.take(pa.array(order[kept]))
