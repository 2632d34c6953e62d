"""Law R10 for rate limits: no window holds too many starts, and none is delayed without need."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.policies.rate_limit import LocalWindow, RateLimit


def run(spec, wanted):
    """The times at which calls start that want to start at these times."""
    limiter = LocalWindow(spec)
    starts = []
    now = 0.0
    for time in wanted:
        now = limiter.next_start(max(now, time))
        limiter.start(now)
        starts.append(now)
    return starts


rates = st.integers(1, 7)
bursts = st.none() | st.integers(0, 5)
pers = st.sampled_from([1.0, 0.1, 0.3, 1 / 3, 60.0, 1e-3])
gaps = st.lists(st.just(0.0) | st.floats(0, 0.5) | st.sampled_from([0.1, 1.0, 30.0]), min_size=1, max_size=150)
origins = st.sampled_from([0.0, 0.1, 12345.678, 1.7e9])


@given(rates, pers, bursts, gaps, origins)
def test_R10_no_window_holds_more_than_rate_and_burst(rate, per, burst, gaps, origin):
    starts = run(RateLimit(rate, per, burst), itertools.accumulate([origin, *gaps]))
    most = rate + (burst or 0)
    assert starts == sorted(starts)
    assert all(late - early >= per for early, late in zip(starts, starts[most:], strict=False))


@given(rates, pers, bursts, gaps, origins)
def test_R10_the_mean_never_exceeds_the_rate(rate, per, burst, gaps, origin):
    starts = run(RateLimit(rate, per, burst), itertools.accumulate([origin, *gaps]))
    most = rate + (burst or 0)
    for first, last in itertools.combinations(range(len(starts)), 2):
        allowed = most + (starts[last] - starts[first]) * rate / per
        assert last - first + 1 <= allowed + 1e-3


@given(rates, pers, bursts, gaps)
def test_R10_no_start_is_delayed_without_need(rate, per, burst, gaps):
    wanted = list(itertools.accumulate(gaps))
    starts = run(RateLimit(rate, per, burst), wanted)
    most = rate + (burst or 0)
    for place, (want, start) in enumerate(zip(wanted, starts, strict=True)):
        soonest = max(want, starts[place - 1] if place else 0.0)
        if start > soonest:
            by_log = place >= most and start <= starts[place - most] + per + 1e-9
            # Some time ago the bucket was full, and since then as many have started as have come back.
            by_mean = any(
                place - first + 1 >= most + (start - starts[first]) * rate / per - 1e-6 for first in range(place)
            )
            assert by_log or by_mean


def test_R10_a_burst_is_paid_back():
    starts = run(RateLimit(2, 1.0, burst=3), [10.0] * 11)
    assert starts == [10.0] * 5 + [11.0, 11.0, 11.5, 12.0, 12.5, 13.0]
    assert run(RateLimit(2, 1.0, burst=3), [0.0] * 5 + [100.0] * 6) == [0.0] * 5 + [100.0] * 5 + [101.0]


def test_R10_asking_changes_nothing():
    limiter = LocalWindow(RateLimit(1))
    limiter.start(5.0)
    assert [limiter.next_start(now) for now in (5.0, 5.5, 6.0, 7.0, 5.0)] == [6.0, 6.0, 6.0, 7.0, 6.0]


def test_R10_a_clock_that_goes_back_lets_nothing_through():
    limiter = LocalWindow(RateLimit(2))
    limiter.start(10.0)
    limiter.start(3.0)
    assert limiter.next_start(3.0) == 11.0


@pytest.mark.parametrize("burst", [None, 5])
def test_R10_many_starts_keep_the_rate_exactly(burst):
    starts = run(RateLimit(10, 1.0, burst), [0.1] * 5000)
    expected = (5000 - 10 - (burst or 0)) / 10
    assert starts[-1] - 0.1 == pytest.approx(expected, abs=1e-6)
