"""Reads the answers of enrichers, and says what a failed lookup means: the failure of one key, or the end of the run.

An answer is a mapping, a sequence of mappings, rows of a table, or None.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import itemgetter
from sys import getsizeof
from types import CoroutineType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asyncio_operator.checks import FUNCTION, not_awaited
from asyncio_operator.engine.failures import call_error, ends_the_run, is_ordinary, is_over_budget
from asyncio_operator.errors import (
    EnricherError,
    FunctionError,
    MissingKeyError,
    ResultError,
    describe,
    describe_error,
    first_of,
    said,
)
from asyncio_operator.hints import failed_import, missing_here
from asyncio_operator.hints import remedy as remedy_of

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.column_answers import ColumnAnswers
    from asyncio_operator.enricher import Enricher, Found, Row
    from asyncio_operator.lookup.options import LookupOptions

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
    return bytes(value) if kind is memoryview else copy.deepcopy(value)


FEW = 50  # Answers below which each is checked by itself: to make a table of them would cost more.

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


def size_of(answers: Sequence[Any]) -> int:
    """The bytes of answers, about: mappings, lists of them, `ColumnAnswers` and None."""
    # Asking a table takes longer than all the rest of an answer, so each is asked once.
    tables = {id(answer.table): answer.table for answer in answers if hasattr(answer, "table")}
    rows = {name: table.nbytes / table.num_rows for name, table in tables.items()}
    return sum(
        int(rows[id(answer.table)] * answer.counts) if hasattr(answer, "table") else _inside(answer)
        for answer in answers
    )


def _inside(value: Any) -> int:
    """The bytes of the values in a row, a list of rows, or a nested value."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return sum(getsizeof(item) + _inside(item) for item in value)


class AnswerCheck:
    """Converts answers to the form in which they are cached and returned: new dictionaries with the schema's columns.

    Args:
        schema: the columns that every row must fit.
        in_columns: the form of many is rows of a table.
        declared: the names that a row may have; None: those of the schema.
    """

    def __init__(self, schema: pa.Schema, in_columns: bool = False, declared: Sequence[str] | None = None) -> None:
        # Imported here: the module loads pyarrow, and a caller that has a schema has loaded it already.
        from asyncio_operator.arrow.column_answers import ColumnAnswers, one_after_the_other
        from asyncio_operator.arrow.columns import array_of, collected, row_reader

        self._in_columns = in_columns
        self._collected = partial(collected, schema=schema, declared=declared)
        self._joined = one_after_the_other
        self._row = row_reader(schema, declared)
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
        try:
            rows = [self._row(row) for row in rows_of(answer)]
        except ResultError:
            raise
        except Exception as error:  # A class of the user's.
            raise ResultError(f"an answer ({type(answer).__name__}) cannot be read: {describe_error(error)}") from error
        return (rows[0] if isinstance(answer, Mapping) else rows) if rows else None

    def many(self, answers: Sequence[Any]) -> Sequence[Found]:
        """The same for several answers."""
        if self._in_columns and hasattr(answers, "table"):
            return answers
        if self._in_columns and len(answers) >= FEW:
            if {dict, type(None), self._in_table}.issuperset(map(type, answers)):
                with suppress(Exception):
                    return self._collected(answers)
            return self.in_table(list(map(self, answers)))
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

    def right(self, answers: Sequence[Any]) -> tuple[Sequence[Found], list[bool]]:
        """The same for those of several answers that are right, and whether each is."""
        found, fit = list[Any](), [True] * len(answers)
        for i, answer in enumerate(answers):
            try:
                found.append(self(answer))
            except ResultError:
                fit[i] = False
        return self.in_table(found) if self._in_columns and len(found) >= FEW else found, fit

    def in_table(self, answers: Sequence[Any]) -> ColumnAnswers:
        """Answers that this has converted, in one table."""
        try:
            return self._collected(answers)
        except Exception:
            # Each of them fits alone.
            return self._joined([self._collected([answer]) for answer in answers])


def check_failure(
    enricher: Enricher, options: LookupOptions, key: Any, error: BaseException, attempts: int, again: bool | None
) -> None:
    """Raise what ends the run, if the failed lookup of a key has to end it. `again` as in `Endings`; None: too late."""
    failing = options.fail
    if failing is not None and ends_the_run(error):
        raise error
    # Whether the process lacks what every key needs: a module, or a variable that an error with `any_key` names.
    any_key = said(error, "any_key", bool)
    lacking = failing is not None and bool(failed_import(error) or (any_key and missing_here(error)))
    if (failing and not is_over_budget(error)) or lacking or not is_ordinary(error):
        if lacking:
            remedy = remedy_of(error) or "; the cause is in this Python worker, not in the key"
        else:
            why = "" if options.retry is None or again is None else options.retry.refusal(error, attempts, again)
            # An error that is no `Exception` asks the process to end: no option lets the run go on. An answer that is
            # wrong for every key is a mistake in the enricher: to go on would hide every row.
            wrong = isinstance(error, ResultError) and any_key
            without = options.remedy if is_ordinary(error) and not wrong else ""
            remedy = f"{remedy_of(error)}{f'; {why}' if why else ''}{without}"
        raise run_error(enricher, key, error, attempts, remedy)


def run_error(enricher: Enricher, key: Any, error: BaseException, attempts: int, remedy: str) -> FunctionError:
    """The error that ends a run when a lookup failed."""
    what = "returned an invalid result" if isinstance(error, ResultError) else "failed"
    first, text = first_of(error), None
    kind = type(first).__name__
    own = describe_error(first).removeprefix(f"{kind}: ")
    if isinstance(first, EnricherError) and own.startswith(f"{type(enricher).__qualname__}("):
        # Without its own name and the key, which the message names already.
        rests = [own.partition(end)[2] for end in (f"key {describe(key)}: ", "): ")]
        text = next((f"{kind}: {rest}" for rest in rests if rest), None)
    return call_error(f"{describe(enricher)} {what}", "key", describe(key), error, attempts, remedy, text)


def missing_key_error(enricher: Enricher, key: Any, time: Any = None) -> MissingKeyError:
    """The error for a key without a row when every key must have one. None in the key is a null, or a value that
    Python cannot hold. With a time, an Arrow scalar: the key has rows, and none of them held then (`as_of`)."""
    name, text = describe(enricher), describe(key)
    if time is not None:
        problem = f"{name} has rows for key {text}, but none that held at {time if time.is_valid else 'a null time'}"
        remedy = "add the version to the source" if time.is_valid else "leave such rows out before"
    elif key is None or (isinstance(key, tuple) and None in key):
        problem = f"{name} has no row for key {text}: a part of it is null, or a value that Python cannot hold"
        remedy = "leave such rows out before"
    else:
        problem, remedy = f"{name} has no row for key {text}", "add the row to the source"
    return MissingKeyError(
        f'{problem}; how="required" fails the task for that: {remedy}, or use how="left", which gives nulls, or '
        '"inner", which drops the row',
        key=text,
    )
