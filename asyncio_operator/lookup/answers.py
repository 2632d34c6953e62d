"""Reads the answers of enrichers. An answer is a mapping, a sequence of mappings, rows of a table, or None."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from types import CoroutineType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asyncio_operator.checks import FUNCTION, not_awaited
from asyncio_operator.errors import ResultError, describe

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.enricher import Found, Row

ATOMIC = frozenset((type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID))
"""Types of immutable values."""


def copied(value: Any) -> Any:
    """A copy of a value, which its owner may change."""
    # Flat values are the most frequent ones, and `deepcopy` takes ten times as long for them.
    kind = type(value)
    if kind in ATOMIC:
        return value
    if kind is dict and ATOMIC.issuperset(map(type, value.values())):
        return value.copy()
    if (kind is list or kind is tuple) and ATOMIC.issuperset(map(type, value)):
        return value[:]
    return copy.deepcopy(value)


_SHAPES = "a lookup returns a mapping of column names to values, a sequence of such mappings, or None for no row"


def rows_of(answer: Any) -> Sequence[Row]:
    """The rows of an answer. A miss (None, or an empty sequence) has no rows.

    Raises:
        ResultError: the answer has another shape.
    """
    if answer is None:
        return ()
    if isinstance(answer, Mapping):
        return (answer,)
    if isinstance(answer, tuple) and hasattr(answer, "asDict"):
        raise ResultError(f"the answer is a Row of PySpark: {describe(answer)}; return row.asDict(), a mapping")
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes | bytearray):
        wrong = tuple(kind for kind in set(map(type, answer)) if not issubclass(kind, Mapping))
        if wrong:
            row = next(row for row in answer if isinstance(row, wrong))
            raise ResultError(f"an answer of several rows holds {type(row).__name__}: {describe(row)}; {_SHAPES}")
        return answer
    if type(answer) is CoroutineType:
        raise not_awaited(FUNCTION, answer)
    raise ResultError(f"the answer is of type {type(answer).__name__}: {describe(answer)}; {_SHAPES}")


class AnswerCheck:
    """Converts answers to the form in which they are cached and returned: new dictionaries with the schema's columns.

    Args:
        schema: the columns that every row must fit.
    """

    def __init__(self, schema: pa.Schema) -> None:
        # Imported here: the module loads pyarrow, and a caller that has a schema has loaded it already.
        from asyncio_operator.arrow.column_answers import ColumnAnswers
        from asyncio_operator.arrow.columns import array_of, row_reader

        self._row = row_reader(schema)
        self._columns = [(itemgetter(field.name), field.type) for field in schema]
        self._array_of = array_of
        self._in_table = ColumnAnswers

    def __call__(self, answer: Any) -> Found:
        """The answer: one row, a list of rows, or None for no row.

        Raises:
            ResultError: the answer has a wrong shape, or a value in it does not fit its column.
        """
        if type(answer) is dict:
            return self._row(answer)
        if type(answer) is self._in_table:
            # Its whole table has been checked.
            return answer
        rows = [self._row(row) for row in rows_of(answer)]
        if not rows:
            return None
        return rows[0] if isinstance(answer, Mapping) else rows

    def many(self, answers: Sequence[Any]) -> Sequence[Found]:
        """The same for several answers."""
        # Those of a call in columns become one for each key, as a cache keeps them.
        answers = list(answers)
        kinds = set(map(type, answers))
        if kinds == {self._in_table}:
            return answers
        # By column, where every row has every column and no more: no step has a Python function for each row.
        if kinds == {dict} and set(map(len, answers)) == {len(self._columns)}:
            with suppress(Exception):
                for value_of, kind in self._columns:
                    self._array_of(list(map(value_of, answers)), kind)
                return list(map(dict.copy, answers))
        return list(map(self, answers))


def valid(read: Callable[[Any], Found], key: Any, answer: Any) -> Found:
    """What `read` makes of the answer for a key. Raises ResultError, with the key."""
    try:
        return read(answer)
    except ResultError as error:
        raise ResultError(f"the answer for key {describe(key)} is invalid: {error}") from error
