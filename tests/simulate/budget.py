"""Scenarios of a budget: what part of it is used while there is work, and whether a window ever holds too much."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from asyncio_operator.checks import seconds
from asyncio_operator.policies.rate_limit import LocalWindow, RateLimit
from asyncio_operator.quota.spec import Budget, Limit
from asyncio_operator_proof.simulation.scenario import changed
from tests.simulate.cluster import LATENCY, Cluster, Network, Weights, Work, Worker, above_the_mean, exceeded

USED = 0.97
"""Law G3: the part of a limit that must be used while there is work."""

USED_IN_STEP = 0.95
"""The same where calls in flight are just as many as the rate needs: the part of what could be used at best."""


@dataclass(frozen=True)
class Scenario:
    """Workers, their budget and their work.

    Attributes:
        what: in words.
        windows: how many windows of the first limit it lasts, after the first of them.
        target: the part of what can be used at best (`at_best`) that must be used.
    """

    what: str
    budget: Budget
    workers: int
    work: Work
    windows: float
    options: dict[str, Any] = field(default_factory=dict)
    target: float = USED

    @property
    def at_best(self) -> float:
        """The part of the first limit that one could use who knows all, but hears and answers by messages.

        With slots it hears of a free one after a round trip. And a worker knows the time of another clock to a round
        trip only, if all take the same time: so a unit that comes back may start so much later. Otherwise it grants
        each unit just before its call, and loses what is on its way to a worker that dies, or with a lost message.
        """
        slots, limit = self.budget.in_flight, self.budget.limits[0]
        network: Network = self.options.get("network", Network())
        round_trip, begin = 2 * network.mean(), seconds(limit.per)
        if slots is None and network.steady:
            return begin / (begin + round_trip)
        if slots is None:
            return 1.0 - network.lost - network.dies * network.mean()
        end = begin * (1 + self.windows)
        calls = most_calls(limit, slots, self.options.get("latency", LATENCY), round_trip, begin, end)
        return min(1.0, calls / (limit.rate * self.windows))

    def smaller(self, workers: int, windows: int, calls: int) -> Scenario:
        """The same with fewer workers, for a shorter time, with at most this many calls in a window."""
        limits = (
            replace(limit, rate=min(limit.rate, calls)) if limit.unit == "calls" else limit
            for limit in self.budget.limits
        )
        budget = changed(self.budget, limits=limits)
        return replace(self, budget=budget, workers=min(workers, self.workers), windows=min(windows, self.windows))


def most_calls(limit: Limit, slots: int, latency: float, journey: float, begin: float, end: float) -> int:
    """The calls that start between two times if there is always work, and each starts as soon as it may.

    Args:
        latency: seconds that a call takes, more or less by half, as in the cluster.
        journey: seconds from the end of a call until the next may take its slot: 0 for one that knows all at once; a
            round trip for one that hears of it by a message, and whose answer must come back.
    """
    source, window = random.Random(1), LocalWindow(RateLimit(int(limit.rate), limit.per))
    ends: list[float] = []
    now, calls = 0.0, 0
    while True:
        now = max(window.next_start(now), ends[0] if len(ends) >= slots else now)
        if now >= end:
            return calls
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        window.start(now)
        heapq.heappush(ends, now + latency * source.uniform(0.5, 1.5) + journey)
        calls += now >= begin


def always(worker: Worker, now: float) -> bool:
    """All workers have work."""
    return True


def one_of_sixteen(worker: Worker, now: float) -> bool:
    """Few have all the work."""
    return worker.place % 16 == 0


def skewed(worker: Worker, now: float) -> bool:
    """One of sixteen has work always; each of the others for half a second of sixteen, at its own times."""
    return worker.place % 16 == 0 or (now + worker.place * 0.37) % 16.0 < 0.5


def moving(worker: Worker, now: float) -> bool:
    """The work is with another worker every two seconds."""
    return worker.place % 16 == int(now / 2) % 16


def in_bursts(worker: Worker, now: float) -> bool:
    """Each worker has work for half a second of two, at its own times."""
    return (now + worker.place * 0.37) % 2.0 < 0.5


def _tokens(source: random.Random) -> Weights:
    return {"tokens": float(int(source.lognormvariate(6, 1)))}


def _truth(source: random.Random, weights: Weights) -> Weights:
    return {"tokens": weights["tokens"] * source.uniform(0.7, 1.2)}


def _heavy(source: random.Random) -> Weights:
    return {"tokens": source.choice([100.0] * 20 + [20_000.0])}


ALL_FAULTS = Network(delay=0.02, lost=0.003, dies=0.02, pauses=0.05)
"""Of 1,000 workers 20 are killed and 50 begin to stand still in each second. Clocks differ as in all scenarios."""


def _scenario(
    what: str,
    workers: int,
    work: Work,
    windows: float,
    *limits: Limit,
    in_flight: int | None = None,
    target: float = USED,
    **options: Any,
) -> Scenario:
    """A scenario of that budget; other options are those of the cluster."""
    return Scenario(what, Budget("b", *limits, in_flight=in_flight), workers, work, windows, options, target)


_SECOND, _LARGE = Limit(100, 1.0), Limit(20_000, 10.0)

SCENARIOS = (
    _scenario("1,000 workers, all have work", 1000, always, 2, _LARGE),
    _scenario("1,000 workers, one of sixteen has all the work", 1000, one_of_sixteen, 2, _LARGE),
    _scenario("1,000 workers, fewer calls than workers", 1000, always, 5, Limit(400, 4.0)),
    _scenario(
        "1,000 workers with skewed work die, stand still, and get late or no replies",
        1000,
        skewed,
        2,
        _LARGE,
        network=ALL_FAULTS,
    ),
    _scenario("16 workers, one has all the work", 16, one_of_sixteen, 2, Limit(6000, 60.0)),
    _scenario("16 workers, windows of a second", 16, always, 30, Limit(500, 1.0)),
    _scenario("16 workers, the work moves", 16, moving, 8, Limit(1000, 5.0)),
    _scenario("100 workers, work in bursts", 100, in_bursts, 6, Limit(2000, 5.0)),
    _scenario("16 workers, a burst on top", 16, always, 8, Limit(1000, 5.0, burst=500)),
    _scenario(
        "16 workers, two limits at once", 16, always, 45, Limit(200, 1.0), Limit(2000, 15.0), target=0.97 * 2 / 3
    ),
    _scenario("16 workers, eight calls in flight", 16, always, 20, _SECOND, in_flight=8),
    _scenario(
        "16 workers, calls in flight as the rate needs",
        16,
        always,
        20,
        _SECOND,
        in_flight=10,
        latency=0.1,
        target=USED_IN_STEP,
    ),
    _scenario("16 workers, one call in flight more than it needs", 16, always, 20, _SECOND, in_flight=11, latency=0.1),
    _scenario(
        "100 workers, 40 calls in flight as the rate needs",
        100,
        always,
        10,
        Limit(400, 1.0),
        in_flight=40,
        latency=0.1,
        target=USED_IN_STEP,
    ),
    _scenario(
        "150 workers, 100 long calls in flight as it needs", 150, always, 10, _SECOND, in_flight=100, latency=1.0
    ),
    _scenario("100 workers, tokens", 100, always, 4, Limit(600_000, 10.0, "tokens"), weigh=_tokens),
    _scenario(
        "100 workers, heavy and light calls", 100, always, 6, Limit(100_000, 5.0, "tokens"), weigh=_heavy, target=0.85
    ),
    _scenario(
        "200 workers die and are replaced, 5 % in a second",
        200,
        always,
        3,
        Limit(5000, 10.0),
        network=Network(dies=0.05),
    ),
    _scenario(
        "100 workers, slow and lost messages",
        100,
        always,
        4,
        Limit(2000, 10.0),
        network=Network(delay=0.02, lost=0.003),
    ),
    *(
        _scenario(
            f"16 workers, replies always take {2 * delay:g} seconds",
            16,
            always,
            30,
            _SECOND,
            network=Network(delay=delay, steady=True),
        )
        for delay in (0.05, 0.1)
    ),
    _scenario("100 workers stand still for seconds", 100, always, 4, Limit(2000, 10.0), network=Network(pauses=0.05)),
)


def run(scenario: Scenario, seed: int = 1) -> tuple[Cluster, float, int]:
    """The cluster afterwards, the part of the first limit that was used, and the windows with too much."""
    cluster = Cluster(scenario.budget, scenario.workers, work=scenario.work, seed=seed, **scenario.options)
    first = scenario.budget.limits[0]
    cluster.run(seconds(first.per))
    begin = len(cluster.starts)
    cluster.run(scenario.windows * seconds(first.per))
    default = 1.0 if first.unit == "calls" else 0.0
    used = sum(weights.get(first.unit, default) for _, weights in cluster.starts[begin:])
    broken = int(cluster.most_in_flight > (scenario.budget.in_flight or cluster.most_in_flight))
    for limit in scenario.budget.limits:
        burst, per = limit.burst or 0, seconds(limit.per)
        broken += exceeded(cluster.starts, limit.unit, per, limit.rate + burst)
        broken += above_the_mean(cluster.starts, limit.unit, limit.rate, per, burst) > 1e-6 * limit.rate
    return cluster, used / (first.rate * scenario.windows), broken


def lines(scenarios: tuple[Scenario, ...] = SCENARIOS) -> Iterator[tuple[str, bool]]:
    """A line for each scenario, and whether it is as it must be."""
    for scenario in scenarios:
        began = time.perf_counter()
        cluster, used, broken = run(scenario)
        asked = cluster.messages / cluster.now
        best = scenario.at_best
        target = scenario.target * best
        well = used >= target and not broken
        yield (
            f"{'yes' if well else 'NO ':4}{used:7.3f} >= {target:<6.3f}{best:8.3f}{broken:10}  {asked:9,.0f}  "
            f"{len(cluster.starts):9,}  {time.perf_counter() - began:5.1f}  {scenario.what}",
            well,
        )


def main() -> bool:
    """Print all scenarios; whether all are as they must be."""
    print("good   used           at best  exceeded  messages/s   calls   took s  scenario", flush=True)
    good = True
    for line, well in lines():
        print(line, flush=True)
        good &= well
    return good
