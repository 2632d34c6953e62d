"""Laws G1, G2 and G6 when another server takes over, with a state that is older than the last one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncio_operator import Budget, Limit
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.terms import SETTLING
from tests.quota.helpers import Coordinator, ask, exchange, may_start
from tests.quota.test_faults_simulated import check
from tests.simulate.budget import always
from tests.simulate.cluster import Cluster, Network

WINDOWS = Budget("b", Limit(40, 10.0))
SLOTS = Budget("b", Limit(100, 2.0), in_flight=4)
AMOUNTS = Budget("b", spend={"usd": 2.0})


@settings(max_examples=8)
@given(
    budget=st.sampled_from([WINDOWS, SLOTS, AMOUNTS, Budget("b", Limit(20)), Budget("b", Limit(30, 3.0, burst=20))]),
    workers=st.sampled_from([1, 3]),
    age=st.sampled_from([0.05, 0.3, 1.0]),
    down=st.sampled_from([0.0, 1.0, 3.0]),
    latency=st.sampled_from([0.01, 0.3, 3.0]),
    behind=st.sampled_from([0.0, 0.5, 3.0]),
    capacity=st.sampled_from([2, 100]),
    seed=st.integers(0, 10_000),
)
@example(SLOTS, 1, 0.05, 1.0, 0.01, 0.0, 100, 3882)
def test_G2_a_failover_to_an_older_state_exceeds_nothing_while_a_worker_that_knows_more_talks(
    budget: Budget, workers: int, age: float, down: float, latency: float, behind: float, capacity: int, seed: int
) -> None:
    """Another worker, which knows nothing, joins in this moment; the new server's clock may be behind."""
    network = Network(delay=0.005)
    cluster = Cluster(
        budget,
        workers,
        work=always,
        weigh=lambda source: {"usd": source.choice([0.01, 0.05])},
        latency=latency,
        # With few calls at a time a window is not used up before the copy is made.
        capacity=capacity,
        network=network,
        seed=seed,
    )
    cluster.run(cluster.random.uniform(0.3, 2.0))
    copy = cluster.copy()
    cluster.run(age)
    cluster.network = replace(network, lost=1.0)
    cluster.run(down)
    cluster.network = network
    cluster.fail_over(copy)
    cluster.ahead -= behind
    cluster.join()
    cluster.run(SETTLING + 1.5)
    check(cluster)
    assert cluster.most_in_flight <= (budget.in_flight or cluster.most_in_flight)
    assert not budget.spend or sum(weights["usd"] for _, weights in cluster.starts) <= 2.0 + 1e-6


def test_G2_after_a_restart_that_has_lost_nothing_calls_start_again_soon() -> None:
    cluster = Cluster(Budget("b", Limit(100, 1.0), in_flight=10), 3, work=always, seed=3)
    cluster.run(3.0)
    cluster.fail_over(cluster.copy())
    before = len(cluster.starts)
    cluster.run(SETTLING + 1.1)
    after = [time for time, _ in cluster.starts[before:] if time > 4.0]
    assert 3.0 + SETTLING <= after[0] <= 3.1 + SETTLING
    assert len(after) >= 85


@pytest.mark.parametrize("budget", [WINDOWS, SLOTS, AMOUNTS], ids=["windows", "slots", "amounts"])
def test_G2_a_new_server_grants_nothing_until_those_who_know_more_have_had_time_to_say_so(budget: Budget) -> None:
    coordinator, known, unknown = Coordinator(), Permits(budget, "v"), Permits(budget, "w")
    exchange(coordinator, known, 0.0)
    coordinator.new_server = True
    for now in (1.0, 1.0 + SETTLING / 2, 0.99 + SETTLING):
        ask(coordinator, unknown, now)
        coordinator.new_server = False
        assert not may_start(unknown, now)
        assert not may_start(unknown, 1.01 + SETTLING), "it was granted while the server rested"
    exchange(coordinator, unknown, 1.01 + SETTLING)
    assert may_start(unknown, 1.01 + SETTLING)
