"""Law G2 with faults of every kind at random, in the cluster of the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Budget, Limit
from asyncio_operator.checks import seconds
from tests.simulate.cluster import Cluster, Network, above_the_mean, exceeded

limits = st.builds(
    Limit, st.sampled_from([1, 3, 20, 100]), st.sampled_from([0.3, 1.0, 4.0]), burst=st.sampled_from([None, 2, 30])
)

tokens = st.builds(
    Limit,
    st.sampled_from([500.0, 2000.5]),
    st.sampled_from([0.7, 3.0]),
    st.just("tokens"),
    burst=st.sampled_from([None, 700.0]),
)

networks = st.builds(
    Network,
    delay=st.sampled_from([0.0005, 0.005, 0.05, 0.3]),
    lost=st.sampled_from([0.0, 0.02, 0.2]),
    dies=st.sampled_from([0.0, 0.05, 0.3]),
    pauses=st.sampled_from([0.0, 0.1, 0.5]),
)


def weigh(source: Any) -> dict[str, float]:
    return {"tokens": source.choice([0.0, 1.0, 33.3, 100.0, 499.0])}


def truth(source: Any, weights: Mapping[str, float]) -> dict[str, float]:
    return {"tokens": weights["tokens"] * source.uniform(0.2, 1.0)}


def check(cluster: Cluster) -> None:
    for limit in cluster.budget.limits:
        burst, per = limit.burst or 0, seconds(limit.per)
        assert exceeded(cluster.starts, limit.unit, per, limit.rate + burst) == 0, limit
        assert above_the_mean(cluster.starts, limit.unit, limit.rate, per, burst) <= 1e-6 * limit.rate, limit


@pytest.mark.parametrize("fault", ["", "state lost", "clock set back"])
@settings(max_examples=8)
@given(
    calls=limits,
    weighed=st.none() | tokens,
    network=networks,
    workers=st.sampled_from([1, 3, 8]),
    latency=st.sampled_from([0.01, 0.5]),
    settled=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_G2_no_window_is_exceeded_whatever_goes_wrong(
    fault: str,
    calls: Limit,
    weighed: Limit | None,
    network: Network,
    workers: int,
    latency: float,
    settled: bool,
    seed: int,
) -> None:
    cluster = Cluster(
        Budget("b", *([calls] if weighed is None else [calls, weighed])),
        workers,
        work=lambda worker, now: (now + worker.place * 0.3) % 2 < 1.5,
        weigh=weigh,
        latency=latency,
        network=network,
        settle=truth if settled else None,
        as_text=True,
        seed=seed,
    )
    for _ in range(4):
        cluster.run(cluster.random.uniform(0.3, 1.5))
        if fault == "state lost":
            cluster.state = None
        elif fault == "clock set back":
            cluster.ahead -= cluster.random.choice([0.01, 0.5, 100.0])
    cluster.run(8.0)
    check(cluster)
    # What was lost counts as used, and a reply may always come after the end of a short lease.
    if fault == "clock set back" and network.delay < 0.3:
        assert cluster.starts[-1][0] > cluster.now - 6.0


@settings(max_examples=8)
@given(
    in_flight=st.sampled_from([1, 3, 20]),
    workers=st.sampled_from([1, 3, 8]),
    latency=st.sampled_from([0.01, 0.5, 2.0]),
    lost=st.sampled_from([0.0, 0.1]),
    pauses=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10_000),
)
def test_G1_no_more_calls_are_in_flight_than_allowed(
    in_flight: int, workers: int, latency: float, lost: float, pauses: float, seed: int
) -> None:
    cluster = Cluster(
        Budget("b", in_flight=in_flight),
        workers,
        work=lambda worker, now: True,
        latency=latency,
        network=Network(lost=lost, pauses=pauses),
        as_text=True,
        seed=seed,
    )
    cluster.run(6.0)
    assert 0 < cluster.most_in_flight <= in_flight


@settings(max_examples=8)
@given(
    workers=st.sampled_from([1, 3, 8]),
    lost=st.sampled_from([0.0, 0.1]),
    dies=st.sampled_from([0.0, 0.2]),
    pauses=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10_000),
)
def test_G6_no_more_is_spent_than_allowed(workers: int, lost: float, dies: float, pauses: float, seed: int) -> None:
    cluster = Cluster(
        Budget("b", spend={"usd": 2.0}),
        workers,
        work=lambda worker, now: True,
        weigh=lambda source: {"usd": source.choice([0.01, 0.05])},
        network=Network(lost=lost, dies=dies, pauses=pauses),
        settle=lambda source, weights: {"usd": weights["usd"] * source.uniform(0.5, 1.0)},
        as_text=True,
        seed=seed,
    )
    cluster.run(12.0)
    spent = sum(weights["usd"] for _, weights in cluster.starts)
    assert spent <= 2.0 + 1e-6
    if not (lost or dies or pauses):
        assert spent >= 1.9
        assert cluster.refusals


@settings(max_examples=4)
@given(
    workers=st.sampled_from([2, 6]),
    in_flight=st.sampled_from([3, 8]),
    usd=st.sampled_from([0.5, 50.0]),
    lost=st.sampled_from([0.0, 0.1]),
    dies=st.sampled_from([0.1, 0.4]),
    seed=st.integers(0, 10_000),
)
def test_G2_G6_limits_of_several_units_slots_and_a_spend_limit_hold_together(
    workers: int, in_flight: int, usd: float, lost: float, dies: float, seed: int
) -> None:
    """Workers die while they hold permits, slots and amounts."""
    cluster = Cluster(
        Budget("b", Limit(20, 1.0), Limit(1500.0, 2.0, "tokens"), in_flight=in_flight, spend={"usd": usd}),
        workers,
        work=lambda worker, now: True,
        weigh=lambda source: {"tokens": source.choice([1.0, 50.0, 400.0]), "usd": source.choice([0.01, 0.05])},
        latency=0.2,
        network=Network(lost=lost, dies=dies),
        seed=seed,
    )
    cluster.run(5.0)
    check(cluster)
    assert 0 < cluster.most_in_flight <= in_flight
    assert sum(weights["usd"] for _, weights in cluster.starts) <= usd + 1e-6
    # Something starts as long as there is something to spend.
    assert cluster.refusals or cluster.starts[-1][0] > 2.0


def test_G2_what_a_killed_worker_held_comes_back_within_five_seconds() -> None:
    cluster = Cluster(Budget("b", in_flight=10), 2, work=lambda worker, now: worker.place == 0, latency=1e6, seed=3)
    cluster.run(1.0)
    assert cluster.in_flight == 10
    cluster.workers[0].die()
    cluster.work = lambda worker, now: worker.place == 1
    cluster.run(5.0)
    assert cluster.workers[1].running == 10


@pytest.mark.parametrize("silence", [3.0, 5.0, 20.0])
def test_G1_calls_that_outlast_the_silence_of_their_coordinator_keep_their_slots(silence: float) -> None:
    cluster = Cluster(Budget("b", in_flight=6), 3, work=lambda worker, now: True, latency=40.0, seed=3)
    cluster.run(2.0)
    assert cluster.in_flight == 6
    network, cluster.network = cluster.network, Network(lost=1.0)
    cluster.run(silence)
    cluster.network = network
    cluster.run(10.0)
    assert cluster.most_in_flight == 6


@pytest.mark.parametrize(
    ("budget", "every"),
    [(Budget("b", Limit(1000, 60.0)), 0.8), (Budget("b", in_flight=8), 0.05)],
    ids=["window", "slots"],
)
def test_G7_a_coordinator_that_is_silent_stops_starts_within_a_second(budget: Budget, every: float) -> None:
    """Of a window each worker uses little, and holds more; and its slots come back again and again."""
    cluster = Cluster(
        budget, 8, work=lambda worker, now: (now + 0.1 * worker.place) % every < 0.05, latency=0.1, capacity=1
    )
    cluster.run(3.0)
    cluster.network = Network(lost=1.0)
    cluster.run(30.0)
    assert 3.7 < cluster.starts[-1][0] < 4.01
