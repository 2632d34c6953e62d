"""What a key's outcome makes of a row: an answer in one table, of which the columns of the output are built, and a
status, which says how the key was looked up. A key without rows has none in the table either.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.columns import collected
from asyncio_operator.arrow.key_arrays import Ints
from asyncio_operator.engine.failures import is_over_budget
from asyncio_operator.errors import code_of, first_of, text_of, verdict
from asyncio_operator.lookup.key_batch import Answer, Failure, answer_of
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES, OUTPUT_ROWS, widest_row
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
