"""A coordinator and workers on one clock, whose messages travel as text and take no time."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from asyncio_operator import Budget
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import definition
from asyncio_operator.quota.state import State


def text_of(state: Any) -> str:
    """A state as a server stores it."""
    return json.dumps(state, allow_nan=False, default=State.as_json)


class Coordinator:
    """Keeps the state as text, as Redis and PostgreSQL do. Its clock is ahead of that of the workers.

    Attributes:
        text: the state; "null" if it is lost.
        new_server: whether its server has written no earlier state.
    """

    def __init__(self, ahead: float = 1000.0) -> None:
        self.text = "{}"
        self.ahead = ahead
        self.new_server = False

    def ask(self, message: Mapping[str, Any], now: float) -> dict[str, Any]:
        sent = json.dumps(message)
        given = json.loads(sent)
        state, reply = answer(json.loads(self.text), given, now + self.ahead, self.new_server)
        assert given == json.loads(sent), "a message that is answered again must be the same"
        self.text = text_of(state)
        result: dict[str, Any] = json.loads(json.dumps(reply, allow_nan=False))
        return result

    def statistics(self, budget: Budget, now: float) -> dict[str, Any]:
        message = {"kind": "statistics", "version": 1, "budget": definition(budget)}
        found: dict[str, Any] = self.ask(message, now)["statistics"]
        return found


def exchange(coordinator: Coordinator, permits: Permits, now: float) -> None:
    """A worker asks and gets a reply, in no time."""
    assert permits.answered(coordinator.ask(permits.message(now), now), now, now)


def ask(coordinator: Coordinator, permits: Permits, now: float, weights: Mapping[str, float] | None = None) -> None:
    """A worker has a call of these weights, asks, and gets a reply."""
    permits.next_start(weights or {}, now)
    exchange(coordinator, permits, now)


def call(
    permits: Permits, now: float, weights: Mapping[str, float], settled: Mapping[str, float] | None = None
) -> None:
    """A call starts and returns at once."""
    permits.started(weights, now)
    permits.returned(weights, settled, now, now)


class Cluster:
    """Workers that make calls whenever they may, and ask when it is time. Time goes on in steps.

    Attributes:
        starts: by worker, the times of its calls.
        now: the time of all workers.
    """

    def __init__(self, budget: Budget, workers: int = 1, step: float = 0.005) -> None:
        self.budget = budget
        self.coordinator = Coordinator()
        self.now = 0.0
        self.step = step
        self.permits = [Permits(budget, f"w{number}") for number in range(workers)]
        self.starts: list[list[float]] = [[] for _ in range(workers)]

    def run(
        self,
        seconds: float,
        busy: Sequence[int] | None = None,
        weights: Mapping[str, float] | None = None,
        lasting: bool = False,
    ) -> None:
        """Let this time pass.

        Args:
            busy: the workers that have calls to make; None: all.
            lasting: whether calls go on for ever; otherwise they return at once.
        """
        weights = weights or {}
        end = self.now + seconds
        while self.now < end:
            for number, permits in enumerate(self.permits):
                if busy is None or number in busy:
                    while permits.take(weights, self.now) <= self.now:
                        self.starts[number].append(self.now)
                        if not lasting:
                            permits.returned(weights, None, self.now, self.now)
                if permits.ask_at(self.now) <= self.now:
                    exchange(self.coordinator, permits, self.now)
            self.now += self.step

    @property
    def all_starts(self) -> list[float]:
        return sorted(time for starts in self.starts for time in starts)


def most_in_a_window(starts: Sequence[float], per: float) -> int:
    """The most starts in any window of `per` seconds."""
    return max((bisect_left(starts, start + per) - place for place, start in enumerate(starts)), default=0)


def may_start(permits: Permits, now: float, weights: Mapping[str, float] | None = None) -> bool:
    """Whether a call may start now."""
    start = permits.next_start(weights or {}, now)
    assert start >= now or math.isinf(start)
    return start <= now
