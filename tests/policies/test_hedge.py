"""Laws H1 and H2, the decision alone: after how long a call is made a second time, and for how many calls."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.policies.hedge import CALM, LATEST, REFRESHED, SAVED, TIMES_MEDIAN, Hedge, Hedger


def after(latencies, **spec):
    """The delay of a new run after these latencies."""
    hedger = Hedger(Hedge(**spec))
    for latency in latencies:
        hedger.lasted(latency)
    return hedger.delay


def shuffled(latencies, seed=1):
    latencies = [*latencies]
    random.Random(seed).shuffle(latencies)
    return latencies


# -- after how long


def test_H1_seconds_are_taken_as_they_are():
    hedger = Hedger(Hedge(0.002))
    assert hedger.delay == 0.002
    for _ in range(LATEST):
        hedger.lasted(5.0)
    assert hedger.delay == 0.002


@pytest.mark.parametrize(
    ("percentile", "enough"), [("p50", 20), ("p95", 20), ("p98", 50), ("p99", 100), ("p99.9", 1000)]
)
def test_H1_a_percentile_says_nothing_before_there_are_enough_latencies(percentile, enough):
    assert after([1.0] * (enough - 1), after=percentile) == math.inf
    assert after([1.0] * enough, after=percentile) == 1.0


@pytest.mark.parametrize(
    ("percentile", "slower"), [("p50", 500), ("p90", 100), ("p98", 20), ("p99.5", 5), ("p99.9", 1)]
)
def test_H1_a_percentile_is_exact_over_the_latest_latencies(percentile, slower):
    latencies = shuffled(1.0 + place / LATEST for place in range(LATEST))
    # Twice, because it is computed again after every 50 of them.
    delay = after(latencies * 2, after=percentile)
    assert sum(latency > delay for latency in latencies) == slower


def test_H1_seconds_may_have_a_cap_that_is_not_less():
    for cap in (1.0, 2.0):
        assert after([0.1] * 50, after=1.0, cap=cap) == 1.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=1500), st.floats(0, 1), st.none() | st.floats(1, 50))
def test_H1_the_delay_is_a_latency_or_one_of_its_bounds(latencies, floor, cap):
    delay = after(latencies, after="p90", floor=floor, cap=cap)
    if len(latencies) < 20:
        assert delay == (math.inf if cap is None else cap)
    else:
        highest = {TIMES_MEDIAN * latency for latency in latencies} if cap is None else {cap}
        assert delay in {floor, *latencies, *highest}
        assert floor <= delay <= (math.inf if cap is None else cap)


def test_H1_one_bad_server_does_not_raise_the_percentile_until_hedging_stops():
    """A tenth of the answers comes from a server that is 100 times slower."""
    latencies = shuffled([1.0] * 900 + [100.0] * 100)
    assert after(latencies) == TIMES_MEDIAN
    assert after(latencies, cap=2.0) == 2.0


def test_H1_latencies_of_long_ago_are_forgotten():
    slow, fast = [1.0] * 5000, [0.1] * LATEST
    assert after([*slow, *fast]) == 0.1
    assert after([*slow, *fast[:-REFRESHED]]) > 0.1


# -- for how many calls


def copies_of(extra, calls, wants):
    """The places, among all calls, of the copies that are made if each call for which `wants` is true gets one."""
    hedger, made, copies = Hedger(Hedge(1.0, extra=extra)), 0, []
    for call in range(calls):
        hedger.called()
        made += 1
        while wants(call) and hedger.next_copy(0.0) == 0.0:
            hedger.copied()
            copies.append(made)
            made += 1
    return copies, made


@given(
    st.sampled_from([0.5, 0.25, 0.1, 0.02, 0.01, 1 / 3, 0.001]),
    st.integers(0, 3000),
    st.lists(st.integers(0, 3000), max_size=6),
)
def test_H1_fewer_than_extra_of_all_calls_are_second_ones(extra, calls, turns):
    """At every moment, whenever copies are wanted (between the turns) and whenever they are not."""
    copies, _ = copies_of(extra, calls, lambda call: sum(turn <= call for turn in turns) % 2 == 0)
    for count, place in enumerate(copies, start=1):
        assert count <= extra * (place + 1)


@pytest.mark.parametrize("extra", [0.5, 0.1, 0.02])
def test_H1_the_whole_share_may_be_used(extra):
    copies, made = copies_of(extra, 10_000, lambda call: True)
    assert len(copies) == math.floor(extra * made)


def test_H1_with_extra_of_one_every_slow_call_has_its_copy():
    hedger = Hedger(Hedge(1.0, extra=1.0))
    for _ in range(1000):
        hedger.called()
        assert hedger.next_copy(5.0) == 5.0
        hedger.copied()


@pytest.mark.parametrize("extra", [0.5, 0.02])
def test_H1_what_a_quiet_time_did_not_use_is_lost(extra):
    """After 100,000 good calls everything is slow: the copies that follow are a share of the calls that follow."""
    copies, made = copies_of(extra, 101_000, lambda call: call >= 100_000)
    assert len(copies) <= extra * (made - 100_000) + extra * SAVED


def test_H1_the_first_copy_needs_enough_calls():
    hedger = Hedger(Hedge(1.0))
    for _ in range(49):
        hedger.called()
        assert hedger.next_copy(5.0) in (math.inf, 5.0)
    assert hedger.next_copy(5.0) == 5.0
    hedger.copied()
    assert hedger.next_copy(5.0) == math.inf


def test_H2_a_source_that_asks_to_be_left_alone_gets_no_copies_meanwhile():
    hedger = Hedger(Hedge(1.0, extra=0.5))
    for _ in range(100):
        hedger.called()
    hedger.overloaded(10.0, 0.0)
    assert hedger.next_copy(10.0) == 10.0 + CALM
    hedger.overloaded(10.5, 30.0)
    hedger.overloaded(11.0, 0.0)
    assert [hedger.next_copy(now) for now in (11.0, 40.5, 50.0)] == [40.5, 40.5, 50.0]
