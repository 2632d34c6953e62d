"""The times that coordinators and workers of a budget must agree on. They follow from its limits alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Json = dict[str, Any]  # A JSON object: its values are texts, numbers, booleans, None, lists and objects.

Answer = Callable[[Any, Json, float, bool], tuple[Any, Json]]
"""State, message, the coordinator's seconds, and whether its server has written no earlier state; the new state and the
reply. The state is None if it may have been lost, empty if there was never one, and else what was returned as the last
one, or its JSON."""

ASK_TIMEOUT = 2.0
"""Seconds in which a coordinator must answer. Leases end after one second, so a later answer is worth nothing."""

VERSION = 1
"""Of the messages between workers and coordinators, and of the states of budgets: 1 until the first release, and then
one more for each release that changes what they hold."""

GRAINS = 256
"""An entry of a window is rounded up to this part of it: so a state is small, and 0.4 % of a limit is lost at most."""

LONGEST_LEASE = 1.0  # Seconds. When a coordinator cannot be reached, starts end within this time (law G7).

SHORTEST_LEASE = 0.1

FORGOTTEN = 4.0
"""Seconds after which a worker that does not ask has lost what it held: killed workers are replaced within 5 s (G2)."""

SPARE = 0.05  # Seconds by which a reply may be late.

RECOVERY = 1.1
"""Seconds in which a coordinator without a state grants nothing. All leases of an earlier one end in this time."""

SETTLING = 2.5
"""Seconds in which a server that may have an older state grants nothing. Workers that have something to do are heard in
this time, also those whose message was lost with the last server: it counts as lost after two seconds."""

GROWTH = 2.0  # How fast the wishes of a worker grow whose calls wait.

SCARCE, ENOUGH, PLENTY = range(3)
"""How much there is of the units: workers with a slot wait for them; they do not; or half of each window is free."""

MOST_WORKERS_A_SECOND = 1000
"""Messages that a coordinator gets in a second, at most. With more workers, each asks less often."""


class Rate(NamedTuple):
    """A limit: at most `rate` units per `per` seconds, and `burst` more."""

    unit: str
    rate: float
    per: float
    burst: float


class Terms:
    """What is agreed about a budget of this `spec.definition`. Durations are in seconds."""

    def __init__(self, definition: Json) -> None:
        self.definition = definition
        self.limits = [Rate(*limit) for limit in definition["limits"]]
        self.in_flight: int | None = definition["in_flight"]
        self.spend: dict[str, float] = definition["spend"]
        shortest = min((limit.per for limit in self.limits), default=2 * LONGEST_LEASE)
        # How long a grant may be used: at most half of the shortest window.
        self.lease = min(LONGEST_LEASE, max(SHORTEST_LEASE, shortest / 2))
        self.horizon = 0.6 * self.lease  # A grant may begin this much later than now, at most.
        self.longest = 0.4 * self.lease  # The bounds of the time from one message of a worker to its next.
        self.shortest = min(0.05, self.longest)

    def __str__(self) -> str:
        parts = [
            f"{rate:g} {unit} per {per:g} s" + (f" and a burst of {burst:g}" if burst else "")
            for unit, rate, per, burst in self.limits
        ]
        if self.in_flight is not None:
            parts.append(f"{self.in_flight} calls in flight")
        parts += [f"{amount:g} {unit} to spend" for unit, amount in self.spend.items()]
        return ", ".join(parts)

    def ahead(self, interval: float, longest: float, usual: float) -> float:
        """The horizon of a worker: it must last until the reply to the next message but one. What a killed worker holds
        is lost, so it is not longer; and what begins so late that the lease has ended by then is of no use. `interval`
        is the seconds from one message to the next, `longest` and `usual` are round trips of late."""
        useful = max(self.horizon / 2, self.lease - usual - SPARE)
        return min(self.horizon, 2 * (interval + longest) + SPARE, useful)

    def interval(self, workers: int) -> float:
        """The time from one message of a worker to its next, if there are that many workers."""
        return min(self.longest, max(self.shortest, workers / MOST_WORKERS_A_SECOND))
