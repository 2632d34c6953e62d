"""Laws G2 and G3 in the scenarios of `make simulate ARGS=budget`, with fewer workers."""

from __future__ import annotations

from random import Random

import pytest

from asyncio_operator import Budget, Limit
from asyncio_operator.quota.account import TURN
from asyncio_operator.quota.permits import Permits
from tests.quota.helpers import Coordinator, most_in_a_window
from tests.simulate.budget import SCENARIOS, Scenario, always, run
from tests.simulate.cluster import Cluster, Network

LONG = (
    "100 workers, tokens",
    "200 workers die and are replaced, 5 % in a second",
    "100 workers stand still for seconds",
)
"""Each takes some seconds, and others hold the same laws with weights, deaths and pauses."""


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.what not in LONG], ids=lambda scenario: scenario.what
)
def test_G2_G3_what_is_allowed_is_used_and_no_window_is_exceeded(scenario: Scenario) -> None:
    # Where all messages take the same time, all units start at once again and again, and the windows must hold whole
    # rounds: five rounds of 1.2 s.
    steady = scenario.options.get("network", Network()).steady
    smaller = scenario.smaller(workers=16, windows=6 if steady else 3, calls=1000)
    _, used, broken = run(smaller)
    assert not broken
    assert used >= smaller.target * smaller.at_best


def test_G4_G3_what_estimates_were_too_high_is_used_in_every_window() -> None:
    """Units that a call gets back may come from several permits, with which calls of one look have started."""
    budget = Budget("b", Limit(4_000.0, 10.0, "tokens"))
    cluster = Cluster(
        budget, 1, work=always, weigh=lambda _: {"tokens": 100.0}, settle=lambda *_: {"tokens": 60.0}, latency=0.3
    )
    cluster.run(30.0)
    for begin in (10.0, 20.0):
        used = sum(weights["tokens"] for time, weights in cluster.starts if begin <= time < begin + 10.0)
        assert used >= 0.97 * 4_000


@pytest.mark.parametrize("seed", [26, 29, 34, 54, 57])
def test_G4_what_was_used_is_what_the_answers_said_whenever_calls_start_and_return(seed: int) -> None:
    random, coordinator = Random(seed), Coordinator()
    budget = Budget("b", Limit(100_000.0, 60.0, "tokens"), spend={"usd": 1e6})
    permits, estimate, now, billed = Permits(budget, "w"), {"tokens": 100.0, "usd": 100.0}, 0.0, 0
    left, running, reply = random.randint(10, 40), list[tuple[float, float]](), None
    while now < 20.0:
        if reply is not None and reply[0] <= now:
            permits.answered(reply[2], reply[1], now)
            reply = None
        for ends, started in [one for one in running if one[0] <= now]:
            running.remove((ends, started))
            used = random.choice([15, 85, 100])
            permits.returned(estimate, {"tokens": used, "usd": used}, started, now)
            billed += used
        while left and random.random() < 0.7 and permits.take(estimate, now) <= now:
            left -= 1
            running.append((now + random.choice([0.001, 0.02, 0.3, 1.5]), now))
        if not left and not running:
            permits.rest()
        if reply is None and permits.ask_at(now) <= now:
            reply = now + random.choice([0.001, 0.05]), now, coordinator.ask(permits.message(now), now)
        now += random.choice([0.001, 0.003, 0.01, 0.05])
    units = coordinator.statistics(budget, now)["units"]
    assert units["tokens"]["used"] == units["usd"]["used"] == billed


@pytest.mark.parametrize(
    ("estimate", "truth", "workers", "capacity", "latency"),
    [(0.0, 10.0, 1, 10, 0.01), (0.0, 10.0, 4, 5, 0.01), (0.0, 100.0, 4, 10, 0.3), (50.0, 100.0, 4, 5, 0.01)],
)
def test_G4_a_debt_is_at_most_what_was_in_flight_and_is_paid(
    estimate: float, truth: float, workers: int, capacity: int, latency: float
) -> None:
    """Calls whose estimates are too low, or that weigh nothing, and say the truth when they return."""
    rate, per, windows = 1000.0, 4.0, 4
    cluster = Cluster(
        Budget("b", Limit(rate, per, "tokens")),
        workers,
        work=always,
        weigh=lambda _: {"tokens": estimate},
        settle=lambda *_: {"tokens": truth},
        latency=latency,
        capacity=capacity,
    )
    cluster.run(per * windows)
    starts = [time for time, _ in cluster.starts]
    most = most_in_a_window(starts, per) * truth
    in_flight = workers * capacity * (truth - estimate)
    assert most <= rate + in_flight
    assert 0.95 * rate * windows <= len(starts) * truth <= rate * windows + in_flight


@pytest.mark.parametrize(
    ("workers", "in_flight", "latency"), [(20, 8, 0.1), (16, 20, 0.2), (3, 1, 0.02), (7, 3, 1.0), (4, 10, 0.1)]
)
def test_G3_slots_go_round_among_all_workers(workers: int, in_flight: int, latency: float) -> None:
    """A worker waits for ``(W - S) / S + 1`` turns of 2 seconds at most, each longer by what a call lasts."""
    cluster = Cluster(Budget("b", in_flight=in_flight), workers, work=always, latency=latency)
    turns = workers / in_flight if workers > in_flight else 0
    longest, round_trips = 1.5 * latency, 0.2
    bound = turns * (TURN + longest) + longest + round_trips
    calls, since = [0] * workers, [0.0] * workers
    while cluster.now < 16.0:
        cluster.run(0.05)
        for place, worker in enumerate(cluster.workers):
            if worker.running or worker.made > calls[place]:
                calls[place], since[place] = worker.made, cluster.now
            assert cluster.now - since[place] <= bound, f"worker {place} has had no call since {since[place]:.2f} s"
    if in_flight > workers:
        assert min(calls) >= 0.8 * max(calls)
    assert cluster.most_in_flight == in_flight
    assert sum(calls) >= 0.95 * in_flight * 16.0 / latency - in_flight


def test_G3_a_worker_that_is_killed_while_it_waits_for_a_slot_holds_nobody_up() -> None:
    cluster = Cluster(Budget("b", in_flight=2), 8, work=always, latency=0.05)
    cluster.run(3.0)
    before = len(cluster.starts)
    for worker in [one for one in cluster.workers if not one.running]:
        worker.die()
    cluster.run(4.0)
    assert len(cluster.starts) - before >= 0.9 * 2 / 0.05 * 4.0


def test_G3_a_worker_with_one_slot_has_permits_when_its_call_returns() -> None:
    cluster = Cluster(Budget("b", Limit(10_000), in_flight=10), 10, work=always, latency=0.05)
    cluster.run(2.0)
    assert len(cluster.starts) >= 0.9 * 10 / 0.05 * 2.0


def test_G3_a_worker_whose_calls_are_short_has_permits_for_all_of_them() -> None:
    cluster = Cluster(Budget("b", Limit(10_000_000), in_flight=10), 1, work=always, latency=2e-4, capacity=10)
    cluster.run(1.0)
    before = len(cluster.starts)
    cluster.run(0.5)
    assert len(cluster.starts) - before >= 0.95 * 10 / 2e-4 * 0.5
