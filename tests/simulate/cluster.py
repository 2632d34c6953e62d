"""Workers that share a budget, on virtual time: the real `answer` and `Permits`, with calls that only take time.

Everything random comes from one seed. True time is the coordinator's. Each worker has a clock of its own, with another
origin and another speed. Messages take time, and may be lost; workers die, pause, and are replaced.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncio_operator.engine.gate import only_counts
from asyncio_operator.errors import BudgetExceeded, ConfigurationError
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import Budget
from asyncio_operator.quota.state import State
from tests.quota.helpers import text_of

Weights = Mapping[str, float]

Work = Callable[["Worker", float], bool]
"""Whether a worker has a call to make at this time."""


@dataclass(frozen=True)
class Network:
    """How messages travel, and how workers behave.

    Attributes:
        delay: the mean time of a message in one direction, in seconds; some take ten times as long.
        steady: whether all messages take the same time.
        lost: the part of messages that never come; the same of replies.
        dies: the part of the workers that die in a second; each is replaced at once.
        pauses: the part of the workers that stand still in a second, for up to three seconds.
        drift: how much the workers' clocks are too fast or too slow.
    """

    delay: float = 0.002
    steady: bool = False
    lost: float = 0.0
    dies: float = 0.0
    pauses: float = 0.0
    drift: float = 1e-4

    def mean(self) -> float:
        """Seconds that a message takes on average in one direction."""
        return self.delay if self.steady else self.delay * (1 + SLOW * (TIMES_SLOWER - 1))


SLOW, TIMES_SLOWER = 0.01, 10
"""The part of messages that take longer, and how much."""

LATENCY = 0.05
"""Seconds that a call takes, if nothing else is said."""

IDLE = 0.02
"""Seconds after which a worker without work looks for some again."""


class Cluster:
    """A coordinator and its workers.

    Args:
        work: who has calls to make.
        weigh: the weights of the next call.
        latency: seconds that a call takes.
        settle: the true weights of a call, from its estimates; None: the estimates are true.
        as_text: whether states and messages travel as text, as they do over a network.

    Attributes:
        ahead: how much the coordinator's clock is ahead of the true time.
        starts: the true time of every call, and its weights: the estimates, or the truth where that is lower.
        servers: how many servers have had the state, one after the other.
    """

    def __init__(
        self,
        budget: Budget,
        workers: int,
        *,
        work: Work,
        weigh: Callable[[random.Random], Weights] = lambda _: {},
        latency: float = LATENCY,
        capacity: int = 100,
        network: Network | None = None,
        settle: Callable[[random.Random, Weights], Weights] | None = None,
        as_text: bool = False,
        seed: int = 1,
    ) -> None:
        self.budget = budget
        self.work = work
        self.weigh = weigh
        self.latency = latency
        self.capacity = capacity
        self.network = network or Network()
        self.settle = settle
        self.as_text = as_text
        self.ahead = 0.0
        self.random = random.Random(seed)
        self.now = 0.0
        self.starts: list[tuple[float, Weights]] = []
        self.messages = 0
        self.refusals: list[BudgetExceeded] = []
        self.in_flight = self.most_in_flight = 0
        self.state: State | dict[str, Any] | None = {}
        self.servers = 1
        self._new_server = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._born = itertools.count()
        self.workers = [Worker(self, place) for place in range(workers)]

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Let something happen at a true time."""
        heapq.heappush(self._events, (max(time, self.now), next(self._count), what))

    def run(self, seconds: float) -> None:
        """Let this much time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = end

    def name(self) -> str:
        """A name that no worker has had."""
        return f"w{next(self._born)}"

    def delay(self) -> float:
        """How long the next message takes."""
        if self.network.steady:
            return self.network.delay
        slow = TIMES_SLOWER if self.random.random() < SLOW else 1
        return slow * self.random.expovariate(1 / self.network.delay)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The coordinator gets a message."""
        self.messages += 1
        if self.as_text:
            message = json.loads(json.dumps(message, allow_nan=False))
        self.state, reply = answer(self.state, message, self.now + self.ahead, self._new_server)
        self._new_server = False
        if self.as_text:
            self.state, reply = json.loads(text_of([self.state, reply]))
        return reply

    def copy(self) -> str:
        """The state as it is now."""
        return text_of(self.state)

    def fail_over(self, copy: str) -> None:
        """Another server takes over, with this copy of the state. Messages on their way to the last one are lost."""
        self.state = json.loads(copy)
        self.servers += 1
        self._new_server = True

    def join(self) -> None:
        """One worker more."""
        self.workers.append(Worker(self, len(self.workers)))

    def replace(self, worker: Worker) -> None:
        """A worker has died; another takes its place."""
        self.workers[worker.place] = Worker(self, worker.place)


class Worker:
    """One process with its own clock. It makes the next call as soon as it may."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self._cluster = cluster
        self.place = place
        self._random = random.Random(cluster.random.random())
        self._origin = self._random.uniform(0, 1e6)
        self._speed = 1 + self._random.uniform(-1, 1) * cluster.network.drift
        self.permits = Permits(cluster.budget, cluster.name())
        # Half of the workers make calls without a question, as windows of the engine do.
        self._free = only_counts(cluster.budget) and place % 2 == 1
        self.running = 0
        self.made = 0
        self.since = cluster.now
        self._next: Weights | None = None
        self._dead = False
        self._paused_until = 0.0
        self._woken_at = math.inf
        self._asks_at = math.inf
        self._exchange = 0
        self._backlog: deque[Callable[[], None]] = deque()
        self._cluster.at(cluster.now + self._random.uniform(0, 0.01), self.look)
        for often, what in ((cluster.network.dies, self.die), (cluster.network.pauses, self._pause)):
            if often:
                self._cluster.at(cluster.now + self._random.expovariate(often), what)

    def local(self) -> float:
        """What its clock shows."""
        return self._origin + self._speed * self._cluster.now

    def _true(self, local: float) -> float:
        return (local - self._origin) / self._speed

    def look(self) -> None:
        """Make all calls that may start now, and ask if it is time."""
        if self._stands_still(self.look):
            return
        cluster, now = self._cluster, self.local()
        if not cluster.work(self, cluster.now) and now + IDLE < self._woken_at:
            self._woken_at = now + IDLE
            cluster.at(cluster.now + IDLE, self._woken)
        while self.running < cluster.capacity and cluster.work(self, cluster.now):
            if self._next is None:
                self._next = cluster.weigh(self._random)
            try:
                at = now if self._may_start_free(now) else self.permits.next_start(self._next, now)
            except BudgetExceeded as error:
                cluster.refusals.append(error)
                break
            if at > now:
                if at < math.inf and at < self._woken_at:
                    self._woken_at = at
                    cluster.at(self._true(at) + 1e-9, self._woken)
                break
            self._start(self._next, now)
            self._next = None
        self._ask_when_due()

    def _woken(self) -> None:
        self._woken_at = math.inf
        self.look()

    def _may_start_free(self, now: float) -> bool:
        return self.permits.free.left > 0 and now < self.permits.free.until

    def _start(self, weights: Weights, now: float) -> None:
        cluster, free = self._cluster, self.permits.free
        if self._may_start_free(now):
            free.left, free.last = free.left - 1, now
        else:
            self.permits.started(weights, now)
            if self._free:
                self.permits.lend()
        self.running += 1
        self.made += 1
        cluster.in_flight += 1
        cluster.most_in_flight = max(cluster.most_in_flight, cluster.in_flight)
        place = len(cluster.starts)
        cluster.starts.append((cluster.now, weights))
        lasts = cluster.latency * self._random.uniform(0.5, 1.5)
        cluster.at(cluster.now + lasts, lambda: self._returned(weights, now, place))

    def _returned(self, weights: Weights, started: float, place: int) -> None:
        cluster = self._cluster
        cluster.in_flight -= 1
        if self._dead:
            return

        def returned() -> None:
            self.running -= 1
            settled = None if cluster.settle is None else cluster.settle(self._random, weights)
            if settled is not None:
                # What an estimate was too low is paid later, and may exceed a window (G4).
                lower = {unit: min(weights[unit], amount) for unit, amount in settled.items()}
                cluster.starts[place] = (cluster.starts[place][0], {**weights, **lower})
            if self._free:
                self.permits.free.ended += 1
            else:
                self.permits.returned(weights, settled, started, self.local())
            self.look()

        if not self._stands_still(returned):
            returned()

    def _ask_when_due(self) -> None:
        now = self.local()
        at = self.permits.ask_at(now)
        if at <= now:
            self._ask(now)
        elif at < self._asks_at:
            self._asks_at = at
            self._cluster.at(self._true(at) + 1e-9, self._due)

    def _due(self) -> None:
        self._asks_at = math.inf
        self.look()

    def _ask(self, now: float) -> None:
        cluster, network = self._cluster, self._cluster.network
        message = self.permits.message(now)
        self._exchange += 1
        exchange, server = self._exchange, cluster.servers

        def arrives() -> None:
            if server != cluster.servers:
                return
            reply = cluster.ask(message)
            if cluster.random.random() >= network.lost:
                cluster.at(cluster.now + cluster.delay(), lambda: self._answered(exchange, reply, now))

        if cluster.random.random() >= network.lost:
            cluster.at(cluster.now + cluster.delay(), arrives)
        cluster.at(cluster.now + 2.0, lambda: self._timed_out(exchange))

    def _answered(self, exchange: int, reply: dict[str, Any], sent: float) -> None:
        if self._stands_still(lambda: self._answered(exchange, reply, sent)) or exchange != self._exchange:
            return
        self._exchange += 1
        try:
            self.permits.answered(reply, sent, self.local())
        except ConfigurationError:
            # The budget ends the job.
            self._dead = True
        self.look()

    def _timed_out(self, exchange: int) -> None:
        if exchange == self._exchange and not self._dead:
            self._exchange += 1
            self.permits.lost(self.local())
            self.look()

    def die(self) -> None:
        """The process is killed. Its calls were made."""
        if not self._dead:
            self._dead = True
            self._cluster.replace(self)

    def _pause(self) -> None:
        if self._dead:
            return
        cluster = self._cluster
        self._paused_until = cluster.now + self._random.uniform(0, 3)
        cluster.at(self._paused_until, self._go_on)
        cluster.at(self._paused_until + self._random.expovariate(cluster.network.pauses), self._pause)

    def _go_on(self) -> None:
        backlog, self._backlog = self._backlog, deque()
        for what in backlog:
            what()

    def _stands_still(self, what: Callable[[], None]) -> bool:
        """Whether the worker is dead, or stands still and will do it later."""
        if self._cluster.now < self._paused_until and not self._dead:
            self._backlog.append(what)
            return True
        return self._dead


def exceeded(starts: list[tuple[float, Weights]], unit: str, per: float, most: float) -> int:
    """In how many windows more than `most` units start. Windows begin at starts, and do not hold their end."""
    default = 1.0 if unit in ("calls", "keys") else 0.0
    units = [weights.get(unit, default) for _, weights in starts]
    found, inside, last = 0, 0.0, 0
    for first, (time, _) in enumerate(starts):
        while last < len(starts) and starts[last][0] < time + per:
            inside += units[last]
            last += 1
        found += inside > most * (1 + 1e-6)
        inside -= units[first]
    return found


def above_the_mean(starts: list[tuple[float, Weights]], unit: str, rate: float, per: float, burst: float) -> float:
    """The most by which any time holds more units than ``rate x T / per + rate + burst``; negative if none does."""
    default = 1.0 if unit in ("calls", "keys") else 0.0
    level, worst, before = 0.0, -math.inf, -math.inf
    for time, weights in starts:
        level = max(0.0, level - (time - before) * rate / per) + weights.get(unit, default)
        before = time
        worst = max(worst, level)
    return worst - rate - burst
