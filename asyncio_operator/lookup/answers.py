"""What an enricher may answer: a mapping, a sequence of mappings, or None. The one place that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncio_operator.enricher import Row
from asyncio_operator.errors import ResultError, describe

_SHAPES = "a lookup gives a mapping of column names to values, a sequence of such mappings, or None for no row"


def rows_of(answer: Any) -> Sequence[Row]:
    """The rows of an answer; none for a miss, which an empty sequence is too.

    Raises:
        ResultError: it is something else.
    """
    if answer is None:
        return ()
    if isinstance(answer, Mapping):
        return (answer,)
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes | bytearray):
        wrong = tuple(kind for kind in set(map(type, answer)) if not issubclass(kind, Mapping))
        if wrong:
            row = next(row for row in answer if isinstance(row, wrong))
            raise ResultError(f"an answer of several rows holds {type(row).__name__}: {describe(row)}; {_SHAPES}")
        return answer
    raise ResultError(f"the answer is of type {type(answer).__name__}: {describe(answer)}; {_SHAPES}")
