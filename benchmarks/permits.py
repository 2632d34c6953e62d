"""What a budget costs a call that needs no message: to ask whether it may start, and to start it."""

from __future__ import annotations

import timeit
from typing import Any

from asyncio_operator.budget.account import answer
from asyncio_operator.budget.permits import Permits
from asyncio_operator.budget.spec import Budget, Limit
from benchmarks import Rows

CALLS = 100_000
ROUNDS = 7


def permits() -> Rows:
    """Law G8: calls between grants, under one limit, and under limits of everything that may be limited."""
    calls = Limit(10**8, 60.0)
    tokens = Limit(1e12, 60.0, "tokens")
    for what, budget, weights in (
        ("one limit", Budget("b", calls), {"calls": 1.0, "keys": 1.0}),
        (
            "two limits, calls in flight, dollars",
            Budget("b", calls, tokens, in_flight=10**8, spend={"usd": 1e9}),
            {"calls": 1.0, "keys": 1.0, "tokens": 1300.0, "usd": 0.01},
        ),
    ):
        seconds = _seconds(budget, weights)
        yield "G8", f"a call under a budget of {what}", f"{seconds * 1e9:.0f} ns", "1000 ns", seconds / 1e-6, "<= 1"


def _seconds(budget: Budget, weights: dict[str, float]) -> float:
    """For `next_start` and `started` of one call, while permits last."""
    held, now = Permits(budget, "worker"), 0.0
    state: dict[str, Any] = {}
    heavy = {unit: amount * CALLS * ROUNDS for unit, amount in weights.items()}
    while held.next_start(heavy, now) > now:
        state, reply = answer(state, held.message(now), now + 1.0)
        held.answered(reply, now, now)
        now += 0.01

    if held._slots is not None:
        # Its share grows with use, which would take long here.
        held._slots.allowed = CALLS * ROUNDS

    def call() -> None:
        assert held.next_start(weights, now) == now
        held.started(weights, now)

    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS
