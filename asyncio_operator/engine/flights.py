"""Elements from admission to their end, and the calls made for them.

An element may need several calls, and with batches a call serves several elements. Times are in seconds, and this
module reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

SLACK = 1e-6
"""Seconds by which a deadline may be missed through rounding: a call's limit and an element's deadline are sums and
differences of the same times."""


class Flight:
    """An element in flight.

    Attributes:
        entry: gets its outcome; in the operator, its place in the queue. None: the flight itself does.
        number: of the record, in the order of the input.
        admitted: when it came in.
        attempts: those that have ended in failure.
        deadline: when it has to end; known from the start of its first attempt, infinity before.
        begun: when its present attempt started, or None before the first.
        call: the one that runs for it, unless it is past its limit.
        ended: whether it has an outcome, or no caller wants one any more.
        started: when its first attempt started.
        wakes: when its timer rings, while it waits for its next attempt, or for a place in a call; else infinity.
        split: whether it waits for a call as part of a batch that failed.
        held: whether its next attempt waits until a call that was cut has returned.
        late: calls for it that run on though they are past their limit, or not needed.
        copies: calls for it that were second ones, made while the first was running.
    """

    __slots__ = (
        "admitted",
        "attempts",
        "begun",
        "call",
        "copies",
        "deadline",
        "ended",
        "entry",
        "held",
        "late",
        "number",
        "split",
        "started",
        "value",
        "wakes",
    )

    def __init__(self, entry: Any, value: Any, number: int, admitted: float, attempts: int) -> None:
        self.entry = entry
        self.value = value
        self.number = number
        self.admitted = admitted
        self.attempts = attempts
        self.deadline = inf
        self.begun: float | None = None
        self.started = 0.0
        self.wakes = inf
        self.split = False
        self.held = False
        self.late = 0
        self.copies = 0
        self.ended = False
        self.call: Call | None = None

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for its outcome."""
        return True

    def limit(self, attempt_timeout: float) -> float:
        """Its deadline, or the end of its attempt."""
        if attempt_timeout == inf:
            return self.deadline
        return min(self.deadline, (self.begun or 0.0) + attempt_timeout)


class Call:
    """A call for one element, or for the elements of a batch.

    Attributes:
        flights: the elements, in the order of the values that it is called with.
        late: those that have left it, at their deadlines, while it runs on.
        half: whether it belongs to an attempt that has begun: it is a part of a batch that failed, or the copy of a
            slow call.
        started: when it started.
        age: the same by the clock of the circuit breaker.
        weights: under a budget, what it is estimated to weigh; None before that is known, and after it has returned.
        settled: what it has turned out to weigh, as far as the call has said.
        billed: whether its source bills it, as far as the call or its error has said; None if neither has.
        weighed: what it weighed in the units of the enricher, known when it has returned.
        admitted: when the budget let it start.
    """

    __slots__ = ("admitted", "age", "billed", "flights", "half", "late", "settled", "started", "weighed", "weights")

    def __init__(self, flights: list[Flight], half: bool = False) -> None:
        self.flights = flights
        self.late: dict[Flight, None] = {}
        self.half = half
        self.started = 0.0
        self.age = 0.0
        self.weights: Mapping[str, float] | None = None
        self.settled: dict[str, float] | None = None
        self.billed: bool | None = None
        self.weighed: dict[str, float] | None = None
        self.admitted: float

    def limit(self, attempt_timeout: float) -> float:
        """When it has to be looked at: the first deadline of its elements, or the end of their attempt."""
        present = self.present
        if len(present) == 1:
            return present[0].limit(attempt_timeout)
        return min([flight.limit(attempt_timeout) for flight in present])

    @property
    def present(self) -> list[Flight]:
        """The elements that it may still give an outcome."""
        return [flight for flight in self.flights if flight not in self.late] if self.late else self.flights
