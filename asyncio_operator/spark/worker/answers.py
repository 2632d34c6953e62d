"""Converts the outcomes of keys to rows: the rows that each key adds, and whether it was found, missing or failed.

An invalid answer is a `ResultError` for its key only. Rows are kept in one flat list, so that columns can be built from
it at once. Answers in columns follow behind it, as tables. A key without rows adds a row of nulls, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers, together
from asyncio_operator.arrow.columns import Column, columns
from asyncio_operator.arrow.key_arrays import Ints
from asyncio_operator.engine.failures import is_over_budget
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.answers import rows_of
from asyncio_operator.lookup.key_batch import Answer, Failure
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES, OUTPUT_ROWS, pick, row_bytes, widest_row

if TYPE_CHECKING:
    from asyncio_operator.enricher import Row

FOUND, MISSING, FAILED = 0, 1, 2

OnResultError = Callable[[Any, Any, ResultError], Failure]
"""Gets a key, its outcome and the error, and returns a failure, or raises."""


@dataclass(slots=True)
class Answers:
    """The rows of all keys. The arrays have one entry per key, and a last one for the null key.

    Attributes:
        rows: a flat list.
        tables: further rows, numbered behind those of the list.
        starts: position of the key's first row. -1 is a row of nulls.
        copies: number of rows that the key adds.
        kinds: FOUND, MISSING or FAILED.
        numbers: positions in the only table, for which positions in this list are then used. The last one is -1.
    """

    rows: list[Row]
    starts: Ints
    copies: Ints
    kinds: Ints
    tables: Sequence[pa.Table] = ()
    numbers: Ints | None = None

    def columns(self, schema: pa.Schema, declared: Sequence[str] | None = None) -> list[Column]:
        """The columns of the rows. Raises an error of any type if a row of the list does not fit."""
        if not self.tables:
            return columns(self.rows, schema, declared)
        added = [[column] for column in columns(self.rows, schema, declared)] if self.rows else [[] for _ in schema]
        return [
            _joined([*column, *(chunk for table in self.tables for chunk in table.column(field.name).chunks)], field)
            for field, column in zip(schema, added, strict=True)
        ]

    def bytes(self, added: Sequence[Column]) -> Ints:
        """The bytes of each row of the columns, and of the row of nulls."""
        if self.numbers is not None:
            return np.full(len(self.numbers), widest_row(self.tables[0]))
        size = len(self.rows) + sum(table.num_rows for table in self.tables)
        return np.append(row_bytes(added, size), 0)

    def pick(self, added: Sequence[Column], found: Ints) -> list[pa.Array]:
        """The rows of the columns at these positions."""
        return pick(added, found if self.numbers is None else self.numbers[found])


def read_answers(
    keys: Sequence[Any],
    outcomes: list[Any],
    *,
    miss: int,
    failure: int,
    empty: Row,
    on_result_error: OnResultError,
    rows: int = 0,
) -> Answers:
    """The rows of outcomes.

    Args:
        outcomes: aligned with `keys`. An entry with an invalid answer is replaced by the result of `on_result_error`.
        miss, failure: the number of empty rows that a miss, or a failed key, adds: 0 or 1.
        empty: the empty row.
        rows: the number of rows that have these keys, if it is known.
    """
    count = len(outcomes)
    if isinstance(outcomes, ColumnAnswers):
        return _whole(outcomes, miss, rows)
    # Most batches have one kind of answers. Their keys need no step in Python each.
    types = set(map(type, outcomes))
    if types <= {dict, type(None)}:
        plain, kinds = outcomes, np.full(count + 1, FOUND)
        kinds[count] = MISSING
        if type(None) in types:
            kinds[:count][[outcome is None for outcome in outcomes]] = MISSING
            plain = [empty if outcome is None else outcome for outcome in plain]
        # A miss has an empty row of its own, so that rows in their order are not copied.
        return Answers(plain, np.append(np.arange(count), -1), np.where(kinds == FOUND, 1, miss), kinds)
    if types <= {ColumnAnswers, type(None)}:
        return _in_tables(outcomes, miss)
    return _one_by_one(keys, outcomes, miss, failure, on_result_error)


def _one_by_one(
    keys: Sequence[Any], outcomes: list[Any], miss: int, failure: int, on_result_error: OnResultError
) -> Answers:
    """The rows of outcomes of any kinds."""
    rows: list[Row] = []
    added: list[int] = []
    fates: list[int] = []
    in_tables: list[int] = []
    for i, outcome in enumerate(outcomes):
        answer = outcome.answer if type(outcome) is Answer else outcome
        several: Sequence[Row] = ()
        if type(answer) is ColumnAnswers:
            # A miss here. `_add_tables` corrects it when the list is complete: rows of tables come behind the list.
            in_tables.append(i)
        elif type(answer) is not Failure:
            try:
                several = rows_of(answer)
                if any(hasattr(kind, "__missing__") for kind in set(map(type, several))):
                    # Copied: reading a missing key of a defaultdict would invent a value.
                    several = [dict(row) for row in several]
            except ResultError as error:
                # In the caller's list too, from which the status column is made.
                answer = outcomes[i] = failure_of(outcome, on_result_error(keys[i], outcome, error))
        rows += several
        failed = type(answer) is Failure
        # Law G12: rows without money get nulls, also where failed ones are dropped.
        empty_rows = (failure or int(is_over_budget(answer.error))) if failed else miss
        fates.append(FOUND if several else FAILED if failed else MISSING)
        added.append(len(several) or empty_rows)
    kinds = np.array([*fates, MISSING], dtype=np.int64)
    copies = np.array([*added, miss], dtype=np.int64)
    # The row of nulls is none of the list, so its copies take no place.
    own = np.where(kinds == FOUND, copies, 0)
    starts = np.where(kinds == FOUND, np.cumsum(own) - own, -1)
    answers = Answers(rows, starts, copies, kinds)
    if in_tables:
        found = [outcomes[i].answer if type(outcomes[i]) is Answer else outcomes[i] for i in in_tables]
        _add_tables(answers, np.array(in_tables), found)
    return answers


def _whole(found: ColumnAnswers, miss: int, rows: int) -> Answers:
    """The rows of answers that are all in one table."""
    if found.rows is not None:
        # To read many copies from a small table, whose rows are neighbours in memory, costs less than from a large one.
        few = FEW * len(found.rows) < rows
        # Where a piece of the output could be too large, the bytes of each row are looked at.
        if few or widest_row(found.table) * OUTPUT_ROWS > OUTPUT_BYTES:
            found = found.gathered()
    hits = np.append(found.counts > 0, False)
    starts = np.where(hits, np.append(found.starts, -1), -1)
    copies = np.where(hits, np.append(found.counts, 0), miss)
    numbers = None if found.rows is None else np.append(found.rows, -1)
    return Answers([], starts, copies, np.where(hits, FOUND, MISSING), [found.table], numbers)


def _in_tables(outcomes: list[Any], miss: int) -> Answers:
    """The rows of outcomes that are all answers in columns, or None."""
    count = len(outcomes) + 1
    answers = Answers([], np.full(count, -1), np.full(count, miss), np.full(count, MISSING))
    places = np.flatnonzero([outcome is not None for outcome in outcomes])
    _add_tables(answers, places, outcomes if len(places) == count - 1 else [outcomes[i] for i in places.tolist()])
    return answers


def _add_tables(answers: Answers, places: Ints, found: list[ColumnAnswers]) -> None:
    """Add answers in columns, those of the keys at these places."""
    if not found:
        return
    added = together(found)
    answers.tables = [added.table]
    answers.starts[places] = added.starts + len(answers.rows)
    answers.copies[places] = added.counts
    answers.kinds[places] = FOUND


FEW = 2
"""Rows of the input for each found row, above which the found rows are put into a table of their own."""


def _joined(chunks: Sequence[Column], field: pa.Field) -> Column:
    """One array, or a chunked one if the text is too long for one."""
    arrays = [array for chunk in chunks for array in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    if len(arrays) < 2:
        return arrays[0] if arrays else pa.nulls(0, field.type)
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid:
        return pa.chunked_array(arrays)


def failure_of(outcome: Any, failure: Failure) -> Failure:
    """The failure that replaces an outcome. It keeps the source, attempts and latency."""
    if type(outcome) is Answer:
        failure.latency, failure.attempts, failure.source = outcome.latency, outcome.attempts, outcome.source
    return failure
