"""Adaptive capacity against the best fixed one, in simulated services whose best capacity is known.

Events are simulated in virtual time, with a seed, so nothing depends on the machine. A service has a number of workers
and an unbounded queue; some services refuse calls above a level. It goes through phases that the client does not know.
The client always has more work. For each phase a grid of fixed capacities is simulated too. The adaptive capacity is
compared with the best of them, by successful calls per second from the 200th call of the phase to its end.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, Controller
from benchmarks import Rows

SEED = 20
GRACE = 200
"""The number of calls at the start of a phase that are not counted: the capacity may still be adapting."""
GRID = (0.25, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0, 4.0)

JITTERS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda chance: 1.0,
    "uniform": lambda chance: chance.uniform(0.5, 1.5),
    "exponential": lambda chance: chance.expovariate(1.0),
}


@dataclass(frozen=True, slots=True)
class Service:
    """`level`: calls in the service above which it refuses, after a quarter of a call's time."""

    workers: int
    seconds: float
    jitter: str
    level: int | None = None

    def phases(self) -> Iterator[Phase]:
        """The phases of the service."""
        calls = max(4_000, 20 * self.workers)
        slow = replace(self, seconds=4 * self.seconds)
        fewer = replace(self, workers=max(1, self.workers // 4))
        refusing = replace(self, level=max(1, self.workers // 2))
        for name, now in (
            ("begins", self),
            ("is 4x slower", slow),
            ("recovers from that", self),
            ("loses 3/4 of its workers", fewer),
            ("recovers from that", self),
            ("refuses above half", refusing),
            ("recovers from that", self),
        ):
            yield Phase(name, now, calls)


@dataclass(frozen=True, slots=True)
class Phase:
    """The state of a service for a number of calls."""

    name: str
    service: Service
    calls: int


@dataclass(slots=True)
class Outcome:
    """The result of a client in a phase, after the grace."""

    successes: int = 0
    refused: int = 0
    seconds: float = 0.0
    limit: float = 0.0
    latency: float = 0.0

    @property
    def rate(self) -> float:
        """Successful calls per second."""
        return self.successes / self.seconds


class Limit(Protocol):
    """The limit of a client: a `Controller`, or a fixed number."""

    limit: int

    def completed(self, now: float, latency: float, in_flight: int) -> None: ...

    def failed(self, now: float, latency: float, in_flight: int, overload: bool) -> None: ...


class Fixed:
    """A capacity that does not change."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def completed(self, now: float, latency: float, in_flight: int) -> None:
        """Does nothing: the limit is fixed."""

    def failed(self, now: float, latency: float, in_flight: int, overload: bool) -> None:
        """Does nothing: the limit is fixed."""


class Simulation:
    """One client with a limit, and one service. `run` may be called again with a changed service."""

    def __init__(self, limit: Limit, seed: int) -> None:
        self.limit = limit
        self.now = 0.0
        self._chance = random.Random(seed)
        self._events: list[tuple[float, int, float, bool]] = []
        self._queue: deque[float] = deque()
        self._number = 0
        self._busy = 0
        self._in_flight = 0
        self._refusing = 0

    def run(self, phase: Phase) -> Outcome:
        """Run until the phase's number of calls has ended."""
        outcome = Outcome()
        for call in range(phase.calls):
            self._fill(phase.service)
            started, good = self._next(phase.service)
            latency = self.now - started
            if good:
                self.limit.completed(self.now, latency, self._in_flight)
            else:
                self.limit.failed(self.now, latency, self._in_flight, True)
            self._in_flight -= 1
            if call == GRACE:
                outcome = Outcome(seconds=-self.now)
            outcome.successes += good
            outcome.refused += not good
            outcome.limit += self.limit.limit
            outcome.latency += latency * good
        outcome.seconds += self.now
        outcome.limit /= phase.calls - GRACE
        outcome.latency /= max(1, outcome.successes)
        return outcome

    def _fill(self, service: Service) -> None:
        while self._in_flight < self.limit.limit:
            self._in_flight += 1
            if service.level is not None and self._in_flight - self._refusing > service.level:
                self._refusing += 1
                self._at(service.seconds / 4, self.now, False)
            else:
                self._queue.append(self.now)
        self._serve(service)

    def _serve(self, service: Service) -> None:
        while self._queue and self._busy < service.workers:
            self._busy += 1
            self._at(service.seconds * JITTERS[service.jitter](self._chance), self._queue.popleft(), True)

    def _at(self, delay: float, started: float, good: bool) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, started, good))

    def _next(self, service: Service) -> tuple[float, bool]:
        self.now, _, started, good = heapq.heappop(self._events)
        if good:
            self._busy -= 1
            self._serve(service)
        else:
            self._refusing -= 1
        return started, good


def adaptive() -> Rows:
    """Every service and jitter, phase by phase."""
    for workers, seconds in ((5, 0.2), (20, 0.001), (100, 0.05), (400, 0.01)):
        for jitter in JITTERS:
            yield from _rows(Service(workers, seconds, jitter))


def _rows(service: Service) -> Rows:
    client = Simulation(Controller(AdaptiveCapacity()), SEED)
    for phase in service.phases():
        ours = client.run(phase)
        best, theirs = max(_fixed(phase), key=lambda found: found[1].rate)
        what = f"{service.workers} workers, {service.seconds * 1e3:g} ms {service.jitter}: {phase.name}"
        notes = f"{ours.rate:,.0f}/s at {ours.limit:,.0f}"
        if ours.refused:
            notes += f", {ours.refused / (ours.refused + ours.successes):.1%} refused"
        yield "adaptive", what, notes, f"{theirs.rate:,.0f}/s at {best}", ours.rate / theirs.rate, ">= 0.85"


def _fixed(phase: Phase) -> Iterator[tuple[int, Outcome]]:
    known = phase.service.level or phase.service.workers
    for capacity in sorted({max(1, round(known * part)) for part in GRID}):
        yield capacity, Simulation(Fixed(capacity), SEED).run(phase)
