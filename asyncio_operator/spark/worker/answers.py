"""Converts the outcomes of keys to rows: the rows that each key adds, and whether it was found, missing or failed.

An invalid answer is a `ResultError` for its key only. Rows are kept in one flat list, so that columns can be built from
it at once. A key without rows adds the empty row, which is the last of the list, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncio_operator.arrow.columns import Ints
from asyncio_operator.enricher import Row
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.answers import rows_of
from asyncio_operator.lookup.key_batch import Answer, Failure

FOUND, MISSING, FAILED = 0, 1, 2

OnResultError = Callable[[Any, ResultError], Failure]


@dataclass(slots=True)
class Answers:
    """The rows of all keys. The arrays have one entry per key, and a last one for the null key.

    Attributes:
        rows: a flat list. The last row is the empty one.
        starts: position of the key's first row.
        copies: number of rows that the key adds.
        kinds: FOUND, MISSING or FAILED.
    """

    rows: list[Row]
    starts: Ints
    copies: Ints
    kinds: Ints


def read_answers(
    keys: Sequence[Any],
    outcomes: list[Any],
    *,
    miss: int,
    failure: int,
    empty: Row,
    on_result_error: OnResultError,
) -> Answers:
    """The rows of outcomes.

    Args:
        outcomes: aligned with `keys`. An entry with an invalid answer is replaced by the result of `on_result_error`.
        miss, failure: the number of empty rows that a miss, or a failed key, adds: 0 or 1.
        empty: the empty row.
    """
    count = len(outcomes)
    types = set(map(type, outcomes))
    if types <= {dict, type(None)}:
        plain, kinds = [*outcomes, empty], np.full(count + 1, FOUND)
        kinds[count] = MISSING
        if type(None) in types:
            kinds[:count][[outcome is None for outcome in outcomes]] = MISSING
            plain = [empty if outcome is None else outcome for outcome in plain]
        return Answers(plain, np.arange(count + 1), np.where(kinds == FOUND, 1, miss), kinds)
    rows: list[Row] = []
    added: list[int] = []
    fates: list[int] = []
    for i, outcome in enumerate(outcomes):
        answer = outcome.answer if type(outcome) is Answer else outcome
        several: Sequence[Row] = ()
        if type(answer) is not Failure:
            try:
                several = rows_of(answer)
                if any(hasattr(kind, "__missing__") for kind in set(map(type, several))):
                    # Copied: reading a missing key of a defaultdict would invent a value.
                    several = [dict(row) for row in several]
            except ResultError as error:
                answer = outcomes[i] = failure_of(outcome, on_result_error(keys[i], error))
        rows += several
        failed = type(answer) is Failure
        fates.append(FOUND if several else FAILED if failed else MISSING)
        added.append(len(several) or (failure if failed else miss))
    kinds = np.array([*fates, MISSING], dtype=np.int64)
    copies = np.array([*added, miss], dtype=np.int64)
    own = np.where(kinds == FOUND, copies, 0)
    starts = np.where(kinds == FOUND, np.cumsum(own) - own, len(rows))
    return Answers([*rows, empty], starts, copies, kinds)


def failure_of(outcome: Any, failure: Failure) -> Failure:
    """The failure that replaces an outcome. It keeps the source, attempts and latency."""
    if type(outcome) is Answer:
        failure.latency, failure.attempts, failure.source = outcome.latency, outcome.attempts, outcome.source
    return failure
