"""The calls of `send` without Spark: what a refusal is, and what names a row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from asyncio_operator import Enricher, EnricherError, Retry
from asyncio_operator.spark.send import RowCalls, is_refusal, row_id


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (EnricherError("", code=400), True),
        (EnricherError("", code=403, retryable=False), True),
        # The service says when to return: it is a limit.
        (EnricherError("", code=403, retryable=True, retry_after=1.0), False),
        (EnricherError("", code=429, retryable=False), False),
        (EnricherError("", code=501, retryable=False), False),
        (EnricherError("", code="23505", retryable=False), True),
        (EnricherError("", code="40001", retryable=True), False),
        (EnricherError(""), False),
        (ValueError("x"), False),
        (ExceptionGroup("", [EnricherError("", retryable=False), EnricherError("")]), True),
    ],
)
def test_W1_a_refusal_is_an_answer_that_says_no_for_good(error: Exception, refused: bool) -> None:
    assert is_refusal(error) is refused


def test_W2_names_of_rows_differ_and_stay_the_same() -> None:
    values = [None, 1, 1.0, True, "1", b"1", Decimal(1)]
    names = {row_id((value, occurrence)) for value in values for occurrence in range(3)}
    names |= {row_id((1, None, 0)), row_id((None, 1, 0)), row_id((1, 1, 0))}
    assert len(names) == 3 * len(values) + 3
    assert row_id((Decimal("1.0"), 0)) == row_id((Decimal(1), 0))
    # It must never change: rows that were in flight at a kill are sent again with it, by a later version too.
    assert row_id((1, 0)) == "82b256a8-ced4-585f-9e6b-da9ecaec6c2e"


def test_W1_the_enricher_that_makes_the_calls_passes_everything_on() -> None:
    class Own(Enricher):
        max_calls = 3
        default_retry = Retry(3)

        def schema(self) -> Any:
            raise NotImplementedError

        def weigh(self, keys: Any) -> Any:
            return {"keys": len(keys), "first": keys[0] if keys else None}

    calls = RowCalls(Own())
    assert (calls.max_calls, calls.default_retry, calls.idempotent) == (3, Retry(3), False)
    assert calls.weigh([(1, 0)]) == {"keys": 1, "first": 1}
    assert calls.weigh([(1, 2, 0)]) == {"keys": 1, "first": (1, 2)}
    assert repr(calls) == "test_W1_the_enricher_that_makes_the_calls_passes_everything_on.<locals>.Own"
