"""Answers in columns: rows of a table. `answer_tables` makes them of tables, `columns` of answers of any form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from asyncio_operator.errors import ResultError, describe_error

if TYPE_CHECKING:
    from asyncio_operator.arrow.key_arrays import Ints


class ColumnAnswers(Sequence[Any]):
    """The answers of keys in one table. They are never changed.

    Read one by one, they are None for a miss, or the answer of one key: of the same class, with numbers in the place of
    arrays, and without a length. Then most keys need no arrays of their own.
    """

    __slots__ = ("counts", "rows", "starts", "table")

    is_read = True  # See `engine.failures.aligned`.

    def __init__(self, table: pa.Table, starts: Any, counts: Any, rows: Ints | None = None) -> None:
        self.table = table
        self.starts = starts  # The first row of each key, or of the key.
        self.counts = counts  # The number of its rows; 0: a miss; from a journal also -1: unknown.
        # The numbers of the found rows in the table, which may have many others, and in any order: `starts` and
        # `counts` are of this list. None: all rows of the table, in their order, as for one key.
        self.rows = rows

    def at(self, places: Ints | Sequence[int]) -> ColumnAnswers:
        """The answers of other keys: those at these places, a miss for -1."""
        numbers = np.asarray(places, np.int64)
        starts, counts = (self.starts, self.counts) if len(self) else (np.zeros(1, np.int64),) * 2
        return ColumnAnswers(self.table, starts[numbers], np.where(numbers < 0, 0, counts[numbers]), self.rows)

    def compact(self) -> ColumnAnswers:
        """The same answers in a table that has few other rows, if any."""
        few_others = self.rows is None and self.table.num_rows <= MOST_UNUSED * self.counts.sum()
        return self if few_others else self.alone()

    def alone(self) -> ColumnAnswers:
        """The same answers in a table of their own, in the order of their keys."""
        starts = np.cumsum(self.counts) - self.counts
        rows = runs(self.starts, self.counts)
        rows = rows if self.rows is None else self.rows[rows]
        return ColumnAnswers(self.table.take(pa.array(rows, pa.int64())), starts, self.counts)

    def piece(self, positions: Sequence[int]) -> Piece:
        """These answers with the positions of their keys."""
        return slice(positions.start, positions.stop) if type(positions) is range else np.asarray(positions), self

    def answers(self) -> list[Any]:
        """Those of the keys: mappings, lists of mappings, and None. ResultError: Python cannot hold a value."""
        found = self.compact()
        rows, spans = _rows(found.table), zip(found.starts.tolist(), found.counts.tolist(), strict=True)
        return [rows[start] if count == 1 else rows[start : start + count] if count else None for start, count in spans]

    def answer(self) -> dict[str, Any] | list[dict[str, Any]]:
        """That of one key, as a mapping or a list of mappings. Raises ResultError if Python cannot hold a value."""
        rows = _rows(self.table.slice(self.starts, self.counts))
        return rows[0] if self.counts == 1 else rows

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return ColumnAnswers(self.table, self.starts[place], self.counts[place], self.rows)
        start, count = int(self.starts[place]), int(self.counts[place])
        if not count:
            return None
        if self.rows is None:
            return ColumnAnswers(self.table, start, count)
        return ColumnAnswers(self.table.take(pa.array(self.rows[start : start + count])), 0, count)

    def __iter__(self) -> Iterator[ColumnAnswers | None]:
        found = self.compact()
        spans = zip(found.starts.tolist(), found.counts.tolist(), strict=True)
        return (ColumnAnswers(found.table, start, count) if count else None for start, count in spans)


def runs(starts: Ints, counts: Ints) -> Ints:
    """From each start on as many numbers as are counted, one after the other."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


MOST_UNUSED = 2
"""The rows for each needed one up to which a table is used whole: to copy it costs less than to pick its rows."""


Piece = tuple[Any, ColumnAnswers]  # The places of keys, as a slice or an array, and their answers.


def joined(pieces: Sequence[Piece], count: int, needed: Any = None) -> ColumnAnswers:
    """The answers of `count` keys, of which each piece has some; a miss for others. Pieces that have none of the places
    `needed`, if these are given, are left out."""
    starts, counts = np.zeros(count, np.int64), np.zeros(count, np.int64)
    wanted = np.zeros(count, bool)
    wanted[slice(None) if needed is None else needed] = True
    tables: list[pa.Table] = []
    rows = 0
    for places, answers in pieces:
        if wanted[places].any() or not tables:  # One at least, for its columns.
            found = answers.compact()
            starts[places], counts[places] = found.starts + rows, found.counts
            tables.append(found.table)
            rows += found.table.num_rows
    # The tables may differ in which columns may be null.
    whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
    return ColumnAnswers(whole, starts, counts)


def one_after_the_other(answers: Sequence[ColumnAnswers]) -> ColumnAnswers:
    """The answers of keys of which each piece has some."""
    if len(answers) == 1:
        return answers[0]
    ends = np.cumsum([len(one) for one in answers]).tolist()
    pieces = [(slice(end - len(one), end), one) for end, one in zip(ends, answers, strict=True)]
    return joined(pieces, ends[-1])


def together(answers: Sequence[ColumnAnswers]) -> ColumnAnswers:
    """The answers of single keys. No step has a Python function for each key."""
    tables = list(map(attrgetter("table"), answers))
    starts, counts = (
        np.fromiter(map(attrgetter(name), answers), np.int64, len(answers)) for name in ("starts", "counts")
    )
    of_identity = dict(zip(map(id, tables), tables, strict=True))
    if len(of_identity) == 1:
        return ColumnAnswers(tables[0], starts, counts).compact()
    numbers = {identity: number for number, identity in enumerate(of_identity)}
    of_table = np.fromiter(map(numbers.__getitem__, map(id, tables)), np.int64, len(answers))
    order = np.argsort(of_table, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(of_table[order])) + 1)
    pieces = zip(groups, of_identity.values(), strict=True)
    return joined(
        [(places, ColumnAnswers(table, starts[places], counts[places])) for places, table in pieces], len(answers)
    )


def in_order(table: pa.Table, counts: Ints | None = None, rows: Ints | None = None) -> ColumnAnswers:
    """Answers whose rows follow each other: as many for each key as `counts` says; None: one for each."""
    counts = np.ones(table.num_rows, np.int64) if counts is None else counts
    return ColumnAnswers(table, np.cumsum(counts) - counts, counts, rows)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    try:
        return table.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as error:
        if table.num_columns > 1:
            for name in table.column_names:
                _rows(table.select([name]))
        raise ResultError(
            f"column {table.column_names[0]!r} of the table of lookup_columns has a value that Python cannot hold "
            f"({describe_error(error)}): leave it out, or give it as text"
        ) from error
