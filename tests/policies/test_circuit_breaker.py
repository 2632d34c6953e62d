"""Law R10 for circuit breakers: when one opens, what passes while it is open, and how it closes again."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.policies.circuit_breaker import SLICES, Breaker, CircuitBreaker, _Window

SPEC = CircuitBreaker(failure_ratio=0.5, window=30.0, minimum_calls=4, open_for=10.0)


def opened(at=0.0, spec=SPEC):
    breaker = Breaker(spec)
    for _ in range(spec.minimum_calls):
        assert breaker.allow(at)
        breaker.failed(at, started=at)
    return breaker


class Model:
    """All outcomes are kept, and counted anew each time. Times are whole slices."""

    def __init__(self, spec):
        self.spec = spec
        self.state = "closed"
        self.outcomes = []
        self.until = 0
        self.probing = False

    def allow(self, now):
        if self.state == "closed":
            return True
        if self.probing or now < self.until:
            return False
        self.state = "half_open"
        self.probing = True
        return True

    def ended(self, now, failed):
        if self.state == "closed":
            self.outcomes.append((now, failed))
            recent = [bad for time, bad in self.outcomes if time > now - self.spec.window]
            enough = Fraction(str(self.spec.failure_ratio)) * len(recent)
            if len(recent) >= self.spec.minimum_calls and sum(recent) >= enough:
                self.open(now)
        elif self.probing:
            self.probing = False
            if failed:
                self.open(now)
            else:
                self.state = "closed"
                self.outcomes = []

    def open(self, now):
        self.state = "open"
        self.until = now + self.spec.open_for
        self.probing = False
        self.outcomes = []


steps = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 2, 7, 29, 30, 31]), st.sampled_from([False, False, True, True, True])),
    max_size=120,
)


@given(
    steps,
    st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]),
    st.integers(1, 8),
    st.sampled_from([1.0, 5.0, 30.0]),
)
def test_R10_it_does_what_a_simple_model_does(steps, ratio, minimum_calls, open_for):
    spec = CircuitBreaker(ratio, float(SLICES), minimum_calls, open_for)
    breaker, model = Breaker(spec), Model(spec)
    now = 0.0
    for gap, fails in steps:
        now += gap
        allowed = breaker.allow(now)
        assert allowed == model.allow(now)
        assert breaker.state == model.state
        if allowed:
            (breaker.failed if fails else breaker.succeeded)(now, now)
            model.ended(now, fails)
            assert breaker.state == model.state


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0.5, 1, 2, 7, 29, 30, 31]), st.booleans()), max_size=60))
def test_R10_its_window_counts_the_calls_of_the_last_slices(outcomes):
    """A breaker that opens forgets its counts, so the model above seldom sees a window that slides."""
    window, kept, now = _Window(1.0), [], 100.0
    for gap, fails in outcomes:
        now += gap
        kept.append((math.floor(now), fails))
        recent = [bad for begun, bad in kept if begun > math.floor(now) - SLICES]
        window.count(now, int(fails))
        assert (window.calls, window.failures) == (len(recent), sum(recent))


def test_R10_a_call_that_started_at_the_moment_at_which_it_opened_is_not_the_probe():
    breaker = opened(5.0)
    assert breaker.allow(15.0)
    breaker.succeeded(16.0, started=5.0)
    assert breaker.state == "half_open"


def test_R10_a_probe_that_succeeds_closes_it_with_nothing_counted():
    breaker = opened()
    assert breaker.allow(10.0)
    breaker.succeeded(11.0, started=10.0)
    assert breaker.state == "closed"
    for _ in range(SPEC.minimum_calls - 1):
        assert breaker.allow(11.0)
        breaker.failed(11.0, started=11.0)
    assert breaker.state == "closed"


def test_R10_after_a_probe_that_was_abandoned_one_call_is_the_next_probe():
    breaker = opened()
    assert breaker.allow(10.0)
    breaker.abandoned(started=10.0)
    assert [breaker.allow(11.0) for _ in range(3)] == [True, False, False]


def test_R10_calls_that_started_before_it_opened_are_not_the_probe():
    breaker = opened(5.0)
    breaker.succeeded(6.0, started=4.0)
    breaker.failed(6.0, started=6.0)
    assert breaker.opens_again_at == 15.0
    assert breaker.allow(15.0)
    breaker.succeeded(16.0, started=4.0)
    breaker.failed(16.0, started=4.0)
    assert breaker.state == "half_open"
    assert not breaker.allow(16.0)
    breaker.succeeded(17.0, started=15.0)
    assert breaker.state == "closed"
    for _ in range(10):
        breaker.failed(18.0, started=4.0)
    assert breaker.state == "closed"


def test_R10_a_clock_that_goes_back_loses_no_outcome():
    breaker = Breaker(SPEC)
    for now in (100.0, 90.0, 10.0, 100.0):
        breaker.failed(now, started=now)
    assert breaker.state == "open"
