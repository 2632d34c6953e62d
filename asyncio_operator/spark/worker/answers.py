"""What a key's outcome makes of a row: an answer in one table, of which the columns of the output are built, and a
status, which says how the key was looked up.

An invalid answer is a `ResultError` for its key only. A key without rows has none in the table either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.columns import collected, row_reader
from asyncio_operator.arrow.key_arrays import Ints
from asyncio_operator.engine.failures import is_over_budget
from asyncio_operator.errors import ResultError, code_of, first_of, text_of, verdict
from asyncio_operator.lookup.answers import rows_of
from asyncio_operator.lookup.key_batch import Answer, Failure
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES, OUTPUT_ROWS, widest_row
from asyncio_operator.telemetry.annotations import status_answered

FOUND, MISSING, FAILED = 0, 1, 2

OnResultError = Callable[[Any, Any, ResultError], Failure]
"""Gets a key, its outcome and the error, and returns a failure, or raises."""

FEW = 2
"""Rows of the input for each found row, above which the found rows are put into a table of their own."""


def read_answers(
    keys: Sequence[Any],
    outcomes: Any,
    schema: pa.Schema,
    declared: Sequence[str] | None = None,
    *,
    on_result_error: OnResultError,
    rows: int = 0,
) -> ColumnAnswers:
    """The answers of keys. A failed key has none.

    Args:
        outcomes: aligned with `keys`. An entry with an invalid answer is replaced by the result of `on_result_error`.
        schema, declared: see `columns`.
        rows: the number of rows that have these keys, if it is known.
    """
    if isinstance(outcomes, ColumnAnswers):
        # To read many copies from a small table, whose rows are neighbours in memory, costs less than from a large one.
        # Where a piece of the output could be too large, the bytes of each row are looked at.
        if outcomes.rows is None or (
            FEW * len(outcomes.rows) >= rows and widest_row(outcomes.table) * OUTPUT_ROWS <= OUTPUT_BYTES
        ):
            return outcomes
        return outcomes.alone()
    # Most batches have one kind of answers. Their keys need no step in Python each.
    types = set(map(type, outcomes))
    if types <= {dict, ColumnAnswers, type(None)}:
        # If a row does not fit, it is looked for below.
        with suppress(Exception):
            return collected(outcomes, schema, declared)

    def fail(place: int, error: ResultError) -> None:
        """Put a failure in the place of an outcome, also for the status column. It keeps source, attempts, latency."""
        outcome = outcomes[place]
        outcomes[place] = failure = on_result_error(keys[place], outcome, error)
        if type(outcome) is Answer:
            failure.latency, failure.attempts, failure.source = outcome.latency, outcome.attempts, outcome.source

    def bare(place: int, outcome: Any) -> Any:
        """An answer as `collected` takes it."""
        answer = outcome.answer if type(outcome) is Answer else outcome
        if type(answer) is Failure:
            return None
        if type(answer) is ColumnAnswers or type(answer) is dict:
            return answer
        try:
            # Copied: reading a missing key of a defaultdict would invent a value.
            return [dict(row) if hasattr(type(row), "__missing__") else row for row in rows_of(answer)]
        except ResultError as error:
            fail(place, error)
            return None

    while True:
        answers = [bare(place, outcome) for place, outcome in enumerate(outcomes)]
        # All rows at once, which is fast. Only if that fails is each row checked.
        try:
            return collected(answers, schema, declared)
        except Exception:
            misfits, read = 0, row_reader(schema, declared)
            for place, answer in enumerate(answers):
                if answer is None or type(answer) is ColumnAnswers:
                    continue
                try:
                    for row in rows_of(answer):
                        read(row)
                except ResultError as error:
                    fail(place, error)
                    misfits += 1
            if not misfits:
                # Each row fits alone, so no key is to blame, and another round would fail the same way.
                raise


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

NOTHING_ASKED = {"status": "missing", "source": "none", "attempts": 0}
"""The status of a null key."""


def statuses_of(outcomes: list[Any], kinds: Ints) -> pa.Array:
    """The status of each key, and at the end that of the null key. `kinds` are FOUND, MISSING or FAILED."""
    statuses = [_status(outcome, kind) for outcome, kind in zip(outcomes, kinds.tolist(), strict=False)]
    return pa.array([*statuses, NOTHING_ASKED], STATUS)


def _status(outcome: Any, kind: int) -> dict[str, Any]:
    """The status of a key, from its outcome, which is an `Answer` or a `Failure`."""
    status: dict[str, Any] = {
        "source": outcome.source,
        "attempts": outcome.attempts,
        "latency_ms": None if outcome.latency is None else outcome.latency * 1000,
    }
    if isinstance(outcome, Failure):
        status["status"] = "timed_out" if outcome.timed_out else "failed"
        if is_over_budget(outcome.error):
            status["status"] = "over_budget"
    else:
        status["status"] = "found" if kind == FOUND else "missing"
        status["http_status"] = outcome.http_status
    if outcome.error is not None:
        error = first_of(outcome.error)
        status["error_type"] = type(error).__name__
        try:
            status["error_message"] = text_of(error)
        except BaseException as second:  # It has no text that Arrow can hold.
            status["error_message"] = f"making its text failed with {type(second).__name__}"
        status["retryable"] = verdict(outcome.error)["retryable"]
        code = code_of(error)
        status["http_status"] = code if type(code) is int else status_answered(outcome.error)
    return status
