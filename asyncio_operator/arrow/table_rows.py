"""The answer for a key in columns: rows of a table that many keys share. `answer_tables` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.key_arrays import Ints
from asyncio_operator.errors import ResultError, describe_error


class TableRows:
    """The answer for a key in columns: `count` rows of a table from row `start`. It is never changed."""

    __slots__ = ("count", "start", "table")

    def __init__(self, table: pa.Table, start: int, count: int) -> None:
        self.table = table
        self.start = start
        self.count = count

    def answer(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The same as a mapping, or a list of mappings.

        Raises:
            ResultError: Python cannot hold a value.
        """
        rows = _rows(self.table.slice(self.start, self.count))
        return rows[0] if self.count == 1 else rows


class WholeAnswers(Sequence[Any]):
    """The answers of keys in one table: for each key its first row and the number of its rows. Read one by one, they
    are `TableRows`, or None for a miss.

    Attributes:
        rows: the numbers of the found rows in the table, which may have many others, and in any order: `starts` and
            `counts` are of this list. None: all rows of the table, in their order.
    """

    __slots__ = ("counts", "rows", "starts", "table")

    def __init__(self, table: pa.Table, starts: Ints, counts: Ints, rows: Ints | None = None) -> None:
        self.table = table
        self.starts = starts
        self.counts = counts
        self.rows = rows

    def at(self, places: Ints) -> WholeAnswers:
        """The answers of other keys: those at these places, a miss for -1."""
        counts = np.append(self.counts, 0)[places]
        return WholeAnswers(self.table, np.append(self.starts, 0)[places], counts, self.rows)

    def gathered(self) -> WholeAnswers:
        """The same answers in a table that has only the found rows."""
        if self.rows is None:
            return self
        return WholeAnswers(self.table.take(pa.array(self.rows)), self.starts, self.counts)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, place: Any) -> Any:
        start, count = int(self.starts[place]), int(self.counts[place])
        if not count:
            return None
        if self.rows is None:
            return TableRows(self.table, start, count)
        return TableRows(self.table.take(pa.array(self.rows[start : start + count])), 0, count)

    def __iter__(self) -> Iterator[TableRows | None]:
        table, spans = self.gathered().table, zip(self.starts.tolist(), self.counts.tolist(), strict=True)
        return (TableRows(table, start, count) if count else None for start, count in spans)


def compacted(answers: Sequence[TableRows]) -> list[TableRows]:
    """The same answers in a table of their own, which holds no other rows."""
    of_table: dict[int, list[TableRows]] = {}
    for one in answers:
        of_table.setdefault(id(one.table), []).append(one)
    tables, starts, rows = [], {}, 0
    for ones in of_table.values():
        tables.append(ones[0].table.take([row for one in ones for row in range(one.start, one.start + one.count)]))
        for one in ones:
            starts[id(one)] = rows
            rows += one.count
    whole = pa.concat_tables(tables).combine_chunks()
    return [TableRows(whole, starts[id(one)], one.count) for one in answers]


def rows_of_answers(answers: Sequence[TableRows | None]) -> list[Any]:
    """The answers of one call as mappings or lists of mappings.

    Raises:
        ResultError: Python cannot hold a value.
    """
    table = next((answer.table for answer in answers if answer is not None), None)
    rows = [] if table is None else _rows(table)
    return [
        None
        if answer is None
        else rows[answer.start]
        if answer.count == 1
        else rows[answer.start : answer.start + answer.count]
        for answer in answers
    ]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError) as error:
        name = next((name for name in table.column_names if not _is_readable(table.column(name))), "")
        raise ResultError(
            f"column {name!r} of the table of lookup_columns has a value that Python cannot hold "
            f"({describe_error(error)}): leave it out, or give it as text"
        ) from error
    return rows


def _is_readable(column: pa.ChunkedArray) -> bool:
    try:
        column.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True
