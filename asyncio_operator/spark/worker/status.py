"""The status column: how each row's key was looked up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.key_arrays import Ints
from asyncio_operator.engine.failures import is_over_budget
from asyncio_operator.errors import code_of, first_of, text_of, verdict
from asyncio_operator.lookup.key_batch import Failure
from asyncio_operator.spark.worker.answers import FOUND
from asyncio_operator.telemetry.annotations import status_answered

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
            # The refused call was not made.
            status["status"] = "over_budget"
            status["attempts"] -= 1
    else:
        status["status"] = "found" if kind == FOUND else "missing"
        status["http_status"] = outcome.http_status
    if outcome.error is not None:
        error = first_of(outcome.error)
        status["error_type"] = type(error).__name__
        status["error_message"] = _message(error)
        status["retryable"] = verdict(outcome.error)["retryable"]
        code = code_of(error)
        status["http_status"] = code if type(code) is int else status_answered(outcome.error)
    return status


def _message(error: BaseException) -> str:
    """The text of an error, in a form that Arrow can hold."""
    try:
        return text_of(error)
    except BaseException as second:
        return f"making its text failed with {type(second).__name__}"
