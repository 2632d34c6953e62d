"""Laws B1 and B4, as far as they need no loop: the sizes, and which failing batches are split."""

from __future__ import annotations

import asyncio
import http.client

import pytest

from asyncio_operator.errors import CircuitOpenError, ElementTimeoutError, EnricherError
from asyncio_operator.policies.batching import Batching, splits


def test_B1_a_batch_is_bounded_in_size_and_in_time():
    assert (Batching().max_size, Batching().linger) == (1000, 0.002)
    assert Batching(1, 0) == Batching(max_size=1, linger=0.0)


@pytest.mark.parametrize(
    "error",
    [ValueError(), OSError(), EOFError(), KeyError("k"), EnricherError("x"), EnricherError("x", retryable=False)],
)
def test_B4_an_error_that_may_come_from_an_element_splits(error):
    assert splits(error)


@pytest.mark.parametrize(
    "error",
    [
        CircuitOpenError(),
        TimeoutError(),
        ElementTimeoutError(),
        ConnectionError(),
        ConnectionResetError(),
        asyncio.IncompleteReadError(b"", 4),
        http.client.IncompleteRead(b""),
        EnricherError("x", overload=True),
        EnricherError("x", overload=True, retryable=False),
        EnricherError("x", retry_after=0),
        EnricherError("x", retry_after=1.5),
        EnricherError("x", retryable=True),
    ],
)
def test_B4_an_error_of_the_source_does_not_split(error):
    assert not splits(error)
