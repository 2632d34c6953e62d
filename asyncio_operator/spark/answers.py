"""What the outcomes of keys mean: the rows that each key adds, and what became of it.

An answer that is none is a `ResultError` for that key alone. Rows are kept flat, so that columns can be built from them
at once, and a key without rows adds the one empty row at their end, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncio_operator.columns import Ints
from asyncio_operator.enricher import Row
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.answers import rows_of
from asyncio_operator.lookup.keys import Answer, Failure

FOUND, MISSING, FAILED = 0, 1, 2

OnResultError = Callable[[Any, ResultError], Failure]


@dataclass(slots=True)
class Answers:
    """The flat rows, the last of which is the empty one; and for every key, and behind the last for the null key:

    Attributes:
        starts: the number of its first row.
        copies: how many rows it adds.
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
        outcomes: aligned with `keys`; an entry whose answer will not do is replaced by what `on_result_error` gives.
        miss, failure: how many empty rows a miss, or a failed key, adds: 0 or 1.
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
                    # A defaultdict would invent what is absent.
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
    """The failure that takes the place of an outcome; it took as long."""
    if type(outcome) is Answer:
        failure.latency, failure.attempts, failure.source = outcome.latency, outcome.attempts, outcome.source
    return failure
