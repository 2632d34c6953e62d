"""Finds the distinct keys of an Arrow batch, builds the columns that their outcomes add, and decides which rows leave.

Distinct keys are found in Arrow (`key_arrays`). Of the outcome of a key a row gets an answer in one table, of which the
columns of the output are built, and a status, which says how the key was looked up. Both are built once per distinct
key and spread over the rows with `take`. The columns of the input pass through unchanged. This module knows neither
lookups nor threads nor PySpark.

A row of unordered mode that overtakes another row may make it late for a downstream watermark, which is the largest
event time so far minus a delay. So the rows of a partition are cut into segments. A segment is as long as possible, but
no two of its rows are further apart in time than that delay. Within a segment, rows leave when they are answered. No
row leaves before the last row of an earlier segment. Source of the idea: Flink's ``UnorderedStreamElementQueue``, whose
segments end at watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.as_of import AsOf
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.columns import collected
from asyncio_operator.arrow.key_arrays import (
    Ints,
    ascend,
    canonical_array,
    distinct,
    distinct_held,
    key_array,
    key_values,
)
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.failures import is_over_budget
from asyncio_operator.errors import MissingKeyError, code_of, first_of, text_of, verdict
from asyncio_operator.lookup.key_batch import PENDING, Answer, Failure, KeyBatch, answer_of
from asyncio_operator.spark.worker.output_batches import (
    OUTPUT_BYTES,
    OUTPUT_ROWS,
    columns_of,
    pick,
    pieces_of,
    widest_row,
)
from asyncio_operator.telemetry.annotations import status_answered

FOUND, MISSING, FAILED = 0, 1, 2

FEW = 2  # Rows of the input for each found row, above which the found rows are put into a table of their own.


def read_answers(
    outcomes: Any, schema: pa.Schema, declared: Sequence[str] | None = None, rows: int = 0
) -> ColumnAnswers:
    """The answers of keys, which have been checked. A failed key has none. `schema`, `declared`: see `columns`. `rows`
    is the number of rows that have these keys, if it is known."""
    if isinstance(outcomes, ColumnAnswers):
        # To read many copies from a small table, whose rows are neighbours in memory, costs less than from a large one.
        # Where a piece of the output could be too large, the bytes of each row are looked at.
        if outcomes.rows is None or (
            FEW * len(outcomes.rows) >= rows and widest_row(outcomes.table) * OUTPUT_ROWS <= OUTPUT_BYTES
        ):
            return outcomes
        return outcomes.alone()
    # Most batches have one kind of answers. Their keys need no step in Python each.
    if not {Answer, Failure}.isdisjoint(map(type, outcomes)):
        outcomes = [None if type(one) is Failure else answer_of(one) for one in outcomes]
    return collected(outcomes, schema, declared)


STATUS = pa.struct(
    [
        ("status", pa.string()),
        ("source", pa.string()),
        ("attempts", pa.int32()),
        ("latency_ms", pa.float64()),
        ("error_type", pa.string()),
        ("error_message", pa.string()),
        ("http_status", pa.int32()),
        ("retryable", pa.bool_()),
    ]
)

NOTHING_ASKED = Answer(None, "none", 0, None)  # The outcome of a null key.

KINDS = np.array(["found", "missing", "failed"], object)


def statuses_of(outcomes: list[Any], kinds: Ints) -> pa.Array:
    """The status of each key, and at the end that of the null key. `kinds` are FOUND, MISSING or FAILED.

    In columns: only what failed takes a step in Python.
    """
    reports = [*outcomes, NOTHING_ASKED]
    columns: dict[str, Any] = {
        name: list(map(attrgetter(name), reports)) for name in ("source", "attempts", "latency", "http_status")
    }
    columns["status"] = KINDS[kinds]
    columns["status"][-1] = "missing"
    # None becomes NaN, and then null.
    columns["latency_ms"] = np.array(columns["latency"], np.float64) * 1000
    for name in ("error_type", "error_message", "retryable"):
        columns[name] = [None] * len(reports)
    for i, error in enumerate(map(attrgetter("error"), reports)):
        if error is None:
            continue
        columns["retryable"][i] = verdict(error)["retryable"]
        outcome = reports[i]
        if isinstance(outcome, Failure):
            kind = "over_budget" if is_over_budget(error) else "timed_out" if outcome.timed_out else "failed"
            columns["status"][i] = kind
        first = first_of(error)
        columns["error_type"][i] = type(first).__name__
        try:
            columns["error_message"][i] = text_of(first)
        except BaseException as second:  # It has no text that Arrow can hold.
            columns["error_message"][i] = f"making its text failed with {type(second).__name__}"
        code = code_of(first)
        columns["http_status"][i] = code if type(code) is int else status_answered(error)
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in STATUS]
    return pa.StructArray.from_arrays(arrays, fields=list(STATUS))


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of input and output."""

    keys: tuple[int, ...]  # Positions of the key columns in the input, in the order of a key's parts.
    found: pa.Schema  # The fields that a found row adds, with the enricher's names.
    inner: bool = False  # Rows without a match are dropped.
    required: bool = False  # A row without a match fails the task.
    drop_failed: bool = False  # Rows whose lookup failed are dropped.
    status: bool = False  # Whether a status column follows.
    # Position of the column whose times form the segments of unordered mode; None: one segment.
    event_time: int | None = None
    delay: int = 0  # The largest distance between times of one segment, in the unit of that column.
    declared: tuple[str, ...] | None = None  # The names of all columns of the enricher; None: those of `found`.
    optional: tuple[int, ...] = ()  # The parts of a key that may be null.
    as_of: AsOf | None = None  # Which of the rows of a key is the one of an input row.
    hidden: bool = False  # The last field of `found` is only for `as_of`.
    # The first field of `found` says that an answer is a refusal. It counts as failed, as a null key does.
    refusals: bool = False

    @property
    def added(self) -> list[pa.Field]:
        """The fields that follow those of the input."""
        return list(self.found)[: len(self.found) - self.hidden]


Mask = np.ndarray[Any, np.dtype[np.bool_]]

NO_SEGMENTS: Ints = np.empty(0, dtype=np.int64)  # The segments of a batch without event time. Nothing reads them.


CHECK_EVERY = 16  # One batch of this number shows whether keys repeat in those that follow.
MOSTLY_DISTINCT = 0.75  # The share of distinct keys above which the search for duplicates costs more than it saves.


@dataclass(slots=True, eq=False)
class Rows:
    """A batch of rows, and which of them have left."""

    batch: pa.RecordBatch
    key_of: Ints  # The number of each row's key; -1 if a part of it is null.
    number: int  # Of the batch in its partition, from 0.
    segments: Ints  # With event time, the segment number of each row.
    left: Mask
    # `keys_ready` had an outcome when it was last asked which rows may leave.
    keys_left: int = 0
    keys_ready: int = 0


class Enrichment:
    """Builds the output of one task, and counts its rows by outcome."""

    def __init__(
        self,
        layout: Layout,
        # Makes the error for a key without a row, if the layout requires one. With a time: none of its rows held then.
        missing: Callable[..., Exception] = MissingKeyError,
        cheap: bool = False,  # To look up a key costs about as much as to find its duplicates.
        held: bool = True,  # False: values that Python cannot hold are keys too.
    ) -> None:
        self.kinds = np.zeros(3, dtype=np.int64)
        """Input rows by FOUND, MISSING and FAILED."""
        self.layout = layout
        self._missing = missing
        self._schema: pa.Schema | None = None
        self._gate = None if layout.event_time is None else Gate()
        self._cheap = cheap
        self._held = held
        self._repeat = True
        self._segmenter = Segmenter(layout.delay)
        self._read = 0

    def expect(self, rows: pa.Schema) -> pa.Schema:
        """Note the schema of the input, and return that of the output. It never changes: any thread may call this."""
        if self._schema is None:
            # All names differ. Spark reads columns by position, but its Arrow reader mixes up the buffers of two fields
            # with the same name.
            fields: dict[str, pa.Field] = {}
            for field in [*rows, *self.layout.added, *([pa.field("status", STATUS)] if self.layout.status else [])]:
                name = field.name
                while name.lower() in fields:
                    name += "'"
                fields[name.lower()] = field.with_name(name)
            self._schema = pa.schema(fields.values())
        return self._schema

    def nothing(self) -> Iterator[pa.RecordBatch]:
        """An output batch without rows, if the schema is known."""
        if self._schema is not None:
            yield pa.RecordBatch.from_pylist([], self._schema)

    def keys_of(self, batch: pa.RecordBatch) -> KeyBatch:
        """The next batch of the input, with its distinct keys in the order of their first row. The payload is the
        `Rows`. It may run on another thread than the methods for output.

        Keys are canonical, so timestamps with a zone are datetimes in UTC. A value that Python cannot hold (a date in
        the year 10000, text that is not UTF-8) counts as null, so its row is a miss.
        """
        layout, number = self.layout, self._read
        self._read += 1
        event_time = layout.event_time
        segments = NO_SEGMENTS if event_time is None else self._segmenter.number(batch.column(event_time))
        deduplicate = not self._cheap or self._repeat or number % CHECK_EVERY == 0
        columns = [batch.column(position) for position in layout.keys]
        arrays = columns if deduplicate else [canonical_array(column) for column in columns]
        # Without nulls, duplicates need no search if they are kept.
        if deduplicate or any(one.null_count for one in arrays):
            search = distinct_held if deduplicate and self._held else distinct
            array, codes = search(arrays, layout.optional)
        else:
            array, codes = key_array(arrays), np.arange(batch.num_rows)
        keys = ArrowKeys(array)
        if deduplicate:
            self._repeat = len(keys) < MOSTLY_DISTINCT * batch.num_rows
        rows = Rows(batch, codes, number, segments, left=np.zeros(batch.num_rows, dtype=np.bool_))
        return KeyBatch(keys, batch.num_rows, rows, ascend(columns))

    def leading(self, batch: KeyBatch, ready: int) -> tuple[Iterator[pa.RecordBatch], int]:
        """Ordered mode: the leading rows that need only the first `ready` keys, and the number of keys that left.

        Keys are numbered in the order of their first row. So no row before the first row of key `ready` needs that key
        or a later one.
        """
        rows: Rows = batch.payload
        start, stop = int(np.count_nonzero(rows.left)), batch.rows
        # `argmax` gives the first True. There is one, because no row of key `ready` has left.
        if ready < len(batch.keys):
            stop = start + int(np.argmax(rows.key_of[start:] >= ready))
        rows.left[start:stop] = True
        return self._leave(batch, rows.batch.slice(start, stop - start), rows.key_of[start:stop], ready)

    def answered(self, batch: KeyBatch, ended: bool) -> Iterator[tuple[Iterator[pa.RecordBatch], int, KeyBatch | None]]:
        """Unordered mode: yields rows that may leave, the number of keys that left, and the batch if it has left whole.
        A row may leave if its key has an outcome, and all rows of earlier segments have left. `ended`: every key of the
        batch has an outcome."""
        rows: Rows = batch.payload
        if self._gate is None:
            leaving = self._has_outcome(batch)
            rows.left |= leaving
            yield *self._some(batch, leaving), batch if ended else None
            return
        for one, leaving, done in self._gate.pass_through(batch, rows, ended, self._has_outcome):
            yield *self._some(one, leaving), one if done else None

    def _has_outcome(self, batch: KeyBatch) -> Mask:
        """A mask of the rows whose key has an outcome and that have not left."""
        rows: Rows = batch.payload
        waiting: Mask = ~rows.left
        rows.keys_ready = len(batch.keys)
        if not batch.ended:
            # One copy, because outcomes come meanwhile on another thread. The extra last place, which -1 selects, is
            # for null keys: they are always ready.
            ready = np.array([outcome is not PENDING for outcome in [*batch.outcomes, None]])
            rows.keys_ready = int(np.count_nonzero(ready)) - 1
            waiting &= ready[rows.key_of]
        return waiting

    def _some(self, batch: KeyBatch, leaving: Mask) -> tuple[Iterator[pa.RecordBatch], int]:
        """The output of the leaving rows, and the number of keys that make room for others."""
        rows: Rows = batch.payload
        # An answered key makes room for others even if its rows have to stay: they may wait for one of those others.
        # The number of rows that stay has its own bound.
        keys_left = len(batch.keys) if rows.left.all() else rows.keys_ready
        part = rows.batch if leaving.all() else rows.batch.filter(pa.array(leaving))
        return self._leave(batch, part, rows.key_of[leaving], keys_left)

    def _leave(
        self, batch: KeyBatch, rows: pa.RecordBatch, codes: Ints, keys_left: int
    ) -> tuple[Iterator[pa.RecordBatch], int]:
        freed = keys_left - batch.payload.keys_left
        batch.payload.keys_left = keys_left
        if not rows.num_rows:
            return iter(()), freed
        keys: Any = batch.keys
        needed = None
        # A part of a batch is built only from the keys of its rows: the others may have no outcome yet.
        if rows.num_rows < batch.rows:
            used = np.zeros(len(keys) + 1, dtype=np.bool_)
            used[codes] = True
            used[-1] = False
            codes = np.where(used, np.cumsum(used) - 1, -1)[codes]
            needed = np.flatnonzero(used)
            keys = keys.at(needed)
        places = None if needed is None else needed.tolist()
        reports = batch.outcomes if places is None else [batch.outcomes[i] for i in places]
        return self._build(rows, codes, keys, batch.found(places), reports), freed

    def _build(
        self, rows: pa.RecordBatch, codes: Ints, keys: Sequence[Any], outcomes: Any, reports: list[Any]
    ) -> Iterator[pa.RecordBatch]:
        """The output for rows. `codes` has the number of each row's key, or -1 for none; `outcomes` and `reports` are
        of the keys, and in the second, answers may be `IN_COLUMNS`."""
        self.expect(rows.schema)
        answers = read_answers(outcomes, self.layout.found, self.layout.declared, rows.num_rows)
        # For each key and, last, the null key; and the rows of nulls that each adds.
        fates = np.append(np.where(answers.counts > 0, FOUND, MISSING), FAILED if self.layout.refusals else MISSING)
        empty = np.where(fates == FOUND, 0, int(not self.layout.inner))
        if not isinstance(outcomes, ColumnAnswers):
            for place in np.flatnonzero(answers.counts == 0).tolist():
                if type(outcome := outcomes[place]) is Failure:
                    fates[place] = FAILED
                    # Law G12: rows without money get nulls, also where failed ones are dropped.
                    empty[place] = not self.layout.drop_failed or is_over_budget(outcome.error)
        columns = columns_of(answers.table, self.layout.found.names)
        # -1 selects the last place, which is for the null key. For a found row it is the row of nulls.
        starts = np.where(fates == FOUND, np.append(answers.starts, -1), -1)[codes]
        copies, kinds = (np.append(answers.counts, 0) + empty)[codes], fates[codes]
        if (as_of := self.layout.as_of) is not None:
            starts = as_of.held(columns[as_of.version], rows.column(as_of.time), answers, codes)
            # The key has rows, and none of them held: a miss.
            lost = (kinds == FOUND) & (starts < 0)
            kinds[lost] = MISSING
            copies = np.where(lost, int(not self.layout.inner), np.minimum(copies, 1))
        if self.layout.required:
            self._require_found(rows, codes, keys, fates, kinds)
        self.kinds += np.bincount(kinds, minlength=3)
        if self.layout.refusals:
            refused = np.count_nonzero(np.append(columns[0].fill_null(False), False)[starts])
            self.kinds += np.array([-refused, 0, refused])
        added = columns[: len(self.layout.added)]
        statuses = _statuses(reports, fates, codes, kinds) if self.layout.status else None
        numbers = None if answers.rows is None else np.append(answers.rows, -1)
        for row, found in pieces_of(rows.columns, answers, added, starts, copies):
            picked = pick(rows.columns, row) + pick(added, found if numbers is None else numbers[found])
            if statuses is not None:
                picked += pick([statuses[0]], statuses[1][row])
            yield pa.RecordBatch.from_arrays(picked, schema=self._schema)

    def _require_found(self, rows: pa.RecordBatch, codes: Ints, keys: Sequence[Any], fates: Ints, kinds: Ints) -> None:
        """Raise the error for the first row without a match. A failed lookup is not a miss."""
        missed = np.flatnonzero(kinds == MISSING)
        if not len(missed):
            return
        row = int(missed[0])
        if fates[codes[row]] == FOUND and self.layout.as_of is not None:
            raise self._missing(keys[codes[row]], rows.column(self.layout.as_of.time)[row])
        if codes[row] >= 0:
            raise self._missing(keys[codes[row]])
        parts = [key_values(rows.column(position).slice(row, 1))[0] for position in self.layout.keys]
        raise self._missing(parts[0] if len(parts) == 1 else tuple(parts))


def _statuses(outcomes: list[Any], fates: Ints, codes: Ints, kinds: Ints) -> tuple[pa.Array, Ints]:
    """Statuses, and for each row the position of its own. `fates` are the kinds of keys, which a row may not share."""
    statuses = statuses_of(outcomes, fates)
    # The remainder makes the last place of -1, the null key: `take` does not count from the end.
    of_row = codes % len(statuses)
    lost = kinds != fates[codes]
    if lost.any():
        of_row += len(statuses) * lost
        missed = statuses_of(outcomes, np.where(fates == FOUND, MISSING, fates))
        statuses = pa.concat_arrays([statuses, missed])
    return statuses, of_row


@dataclass(slots=True)
class Segmenter:
    """Numbers the segments of a partition, batch by batch. The rows of one are at most `delay` apart, in the unit of
    their event times."""

    delay: int
    segment: int = 0
    low: int | None = None  # The first and the last time in the segment.
    high: int = 0

    def number(self, times: pa.Array) -> Ints:
        """The segment number of each row of the next batch. A row without event time belongs to the present segment."""
        delay, segment, low, high = self.delay, self.segment, self.low, self.high
        numbers = []
        # Row by row, because where a segment begins depends on where the one before it began.
        for time in times.cast(pa.int64()).to_pylist():
            if time is not None:
                if low is None:
                    low = high = time
                elif time < low:
                    low = time
                elif time > high:
                    high = time
                if high - low > delay:
                    segment += 1
                    low = high = time
            numbers.append(segment)
        self.segment, self.low, self.high = segment, low, high
        return np.array(numbers, dtype=np.int64)


class Gate:
    """Decides which answered rows may leave, over all batches delivered so far."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Any, Rows, bool] | None] = {}
        """Delivered batches by number; None for a batch whose rows have all left."""
        self._first = self._open = 0

    def pass_through(
        self, batch: Any, rows: Rows, ended: bool, answered: Callable[[Any], Mask]
    ) -> Iterator[tuple[Any, Mask, bool]]:
        """The delivered batch, and other batches of which rows may leave now: yields a batch, the mask of its rows that
        leave now, and whether all its rows have left. `answered` gets a batch, and returns for each row whether it is
        answered and has not left. `ended`: every row of the batch is answered."""
        delivered = rows.number
        # Batches are delivered as they end. Behind a number that is missing no row may leave: it may belong to any
        # segment.
        self._batches[delivered] = batch, rows, ended
        expected, all_left = self._first, True
        for number in sorted(self._batches):
            all_left = all_left and number == expected
            expected = number + 1
            entry = self._batches[number]
            # All of it has left. Its number stays until those before it are gone too, so that it is not taken for
            # missing.
            if entry is None:
                continue
            batch, rows, ended = entry
            leaving = answered(batch)
            if all_left and len(leaving):
                # The first row that must wait decides which segment is open: rows of later segments wait too.
                waiting = ~(rows.left | leaving)
                self._open = int(rows.segments[np.argmax(waiting)] if waiting.any() else rows.segments[-1])
            # Segments have ascending numbers over all batches, so one number says which rows may leave.
            leaving &= rows.segments <= self._open
            rows.left |= leaving
            all_left = all_left and bool(rows.left.all())
            done = ended and bool(rows.left.all())
            if done:
                self._batches[number] = None
            if done or number == delivered or leaving.any():
                yield batch, leaving, done
        while self._batches.get(self._first, ()) is None:
            del self._batches[self._first]
            self._first += 1
