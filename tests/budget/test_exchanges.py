"""A worker and a coordinator that talk to each other: what is granted, started and reported."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from typing import Any

import pytest

from asyncio_operator import Budget, BudgetExceeded, Limit
from asyncio_operator.budget.account import answer
from asyncio_operator.budget.permits import Permits


class Coordinator:
    """Keeps the state as text, as Redis and PostgreSQL do. Its clock is ahead of that of the workers."""

    def __init__(self, ahead: float = 1000.0) -> None:
        self.text = "{}"
        self.ahead = ahead

    def ask(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        state, reply = answer(json.loads(self.text), json.loads(json.dumps(message)), now + self.ahead)
        self.text = json.dumps(state, allow_nan=False)
        result: dict[str, Any] = json.loads(json.dumps(reply, allow_nan=False))
        return result


def exchange(coordinator: Coordinator, permits: Permits, now: float) -> None:
    assert permits.answered(coordinator.ask(permits.message(now), now), now, now)


def most_in_a_window(starts: list[float], per: float) -> int:
    return max(bisect_left(starts, start + per) - place for place, start in enumerate(starts))


def test_G2_G3_one_worker_uses_all_and_no_more() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(100, 1.0)), "w")
    now, starts = 0.0, []
    while now < 5.0:
        while permits.next_start({}, now) <= now:
            permits.started({}, now)
            starts.append(now)
        if permits.ask_at(now) <= now:
            exchange(coordinator, permits, now)
        now += 0.001
    assert most_in_a_window(starts, 1.0) <= 100
    assert len(starts) >= 485


def test_G7_nothing_starts_without_a_grant_nor_after_its_end() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(100)), "w")
    assert permits.next_start({}, 0.0) == math.inf
    exchange(coordinator, permits, 0.0)
    assert permits.next_start({}, 0.0) == 0.0
    assert permits.next_start({}, 1.01) == math.inf


def test_G6_what_would_pass_a_spend_limit_is_refused() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", spend={"usd": 1.0}), "w")
    for _ in range(2):
        assert permits.next_start({"usd": 0.4}, 0.0) == math.inf
        exchange(coordinator, permits, 0.0)
        assert permits.next_start({"usd": 0.4}, 0.0) == 0.0
        permits.started({"usd": 0.4}, 0.0)
        permits.returned({"usd": 0.4}, {"usd": 0.5}, 0.0)
    with pytest.raises(BudgetExceeded, match="may spend 1 usd; 1 were spent") as caught:
        permits.next_start({"usd": 0.4}, 0.0)
    assert (caught.value.unit, caught.value.limit, caught.value.spent) == ("usd", 1.0, 1.0)
