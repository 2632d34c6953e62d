"""Law R11: the capacity rises while it costs nothing, falls when it does, stays in its bounds and never stalls."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, Controller
from benchmarks.adaptive import GRACE, Phase, Service, Simulation


def feed(controller, latency, calls, in_flight=None, start=0.0):
    """Calls that end one after the other; gives the limits after each."""
    limits = []
    for call in range(calls):
        controller.completed(start + call * 1e-3, latency, controller.limit if in_flight is None else in_flight)
        limits.append(controller.limit)
    return limits


def risen(specification=None):
    controller = Controller(specification or AdaptiveCapacity())
    feed(controller, 0.01, 300)
    assert controller.limit > 200
    return controller


events = st.lists(
    st.tuples(
        st.sampled_from(["good", "good", "good", "bad", "overload"]),
        st.sampled_from([0.0, 1e-9, 0.001, 0.01, 0.1, 60.0]) | st.floats(0, 10),
        st.floats(0, 1.5),
        st.integers(1, 60),
    ),
    max_size=60,
)


def happening(controller, events):
    """The times of the events, each after it has happened."""
    now = 0.0
    for kind, latency, part, times in events:
        for _ in range(times):
            now += 0.01
            in_flight = round(part * controller.limit)
            if kind == "good":
                controller.completed(now, latency, in_flight)
            else:
                controller.failed(now, latency, in_flight, kind == "overload")
            yield now


@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 40), events)
def test_R11_it_never_leaves_its_bounds(minimum, more, yet_more, events):
    specification = AdaptiveCapacity(minimum + more, minimum, minimum + more + yet_more)
    controller = Controller(specification)
    assert controller.limit == specification.initial
    for _ in happening(controller, events):
        assert type(controller.limit) is int
        assert minimum <= controller.limit <= specification.maximum


@given(events)
@example([*[("good", 0.0, 0.0, 1)] * 3, ("overload", 0.0, 0.0, 1), ("good", 0.0, 0.0, 3)])
@example([("good", 0.0, 0.0, 23)])
def test_R11_it_never_stalls(events):
    """Whatever has happened, it rises again when the service answers soon and every time alike.

    A base from a few faster calls may hold it down, because it stays where latency is somewhat above the base. Then it
    rises as soon as the service is faster than that base.
    """
    controller = Controller(AdaptiveCapacity(maximum=100))
    now = max(happening(controller, events), default=0.0)
    feed(controller, 0.01, 6000, start=now + 100)
    if controller.limit < 100:
        feed(controller, 0.004, 6000, start=now + 200)
    assert controller.limit == 100


def test_R11_it_rises_to_the_maximum_while_latency_stays():
    limits = feed(Controller(AdaptiveCapacity(maximum=500)), 0.05, 2000)
    assert limits == sorted(limits)
    assert limits[199] >= 320
    assert limits[-1] == 500


@pytest.mark.parametrize("in_flight", [1, 10, 19])
def test_R11_it_does_not_rise_where_it_was_not_reached(in_flight):
    controller = Controller(AdaptiveCapacity())
    assert set(feed(controller, 0.05, 2000, in_flight)) == {20}


@pytest.mark.parametrize(("one_in", "highest"), [(4, 20), (50, 1000)])
def test_R11_it_does_not_rise_while_many_calls_fail(one_in, highest):
    controller, limits = Controller(AdaptiveCapacity()), []
    for call in range(4000):
        if call % one_in:
            controller.completed(call, 0.05, controller.limit)
        else:
            controller.failed(call, 0.05, controller.limit, False)
        limits.append(controller.limit)
    assert max(limits) == highest


def test_R11_overload_lets_it_fall_by_a_factor_once_for_calls_that_started_together():
    controller = risen()
    before = controller.limit
    for _ in range(50):
        controller.failed(10.0, 1.0, before, True)
    assert controller.limit == int(before * 0.85)
    controller.failed(10.5, 0.4, before, True)
    assert controller.limit == int(int(before * 0.85) * 0.85)


def test_R11_it_falls_when_latency_grows_with_the_calls():
    controller = risen()
    limits = []
    for call in range(5000):
        controller.completed(call, 0.01 * max(1.0, controller.limit / 50), controller.limit)
        limits.append(controller.limit)
    assert min(limits[2500:]) >= 50
    assert max(limits[2500:]) <= 100


def test_R11_it_comes_back_when_the_service_is_slower_and_not_overloaded():
    controller = risen(AdaptiveCapacity(maximum=400))
    feed(controller, 0.01, 1000)
    limits = feed(controller, 0.05, 3000, start=100.0)
    assert min(limits) == 200
    assert limits[-1] == 400


def test_R11_a_few_very_slow_calls_do_not_move_it():
    controller = Controller(AdaptiveCapacity(maximum=100))
    limits = []
    for call in range(5000):
        controller.completed(call, 0.2 if call % 200 == 100 else 0.002, controller.limit)
        limits.append(controller.limit)
    assert set(limits[1000:]) == {100}


def test_R11_nor_do_some_slow_calls_among_many_for_a_while():
    controller = Controller(AdaptiveCapacity(maximum=100))
    feed(controller, 0.002, 2000)
    for call in range(5000):
        controller.completed(call, 0.06 if call % 20 == 0 and call // 1000 % 2 else 0.002, controller.limit)
        assert controller.limit == 100


def test_R11_it_rises_also_where_latencies_scatter_too_much_to_be_sure():
    controller = Controller(AdaptiveCapacity())
    controller.failed(1.0, 0.5, 20, True)
    for call in range(20_000):
        controller.completed(call, 1000.0 if call % 500 == 0 else 0.001, controller.limit)
    assert controller.limit > 20


SERVICES = [Service(20, 0.001, "constant"), Service(100, 0.05, "uniform"), Service(5, 0.2, "exponential")]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: f"{service.workers} {service.jitter}")
def test_R11_it_keeps_a_simulated_service_busy_in_every_phase(service):
    client = Simulation(Controller(AdaptiveCapacity()), 7)
    for phase in service.phases():
        outcome = client.run(phase)
        now = phase.service
        possible = min(now.workers, now.level or now.workers) / now.seconds
        assert outcome.rate >= 0.75 * possible, phase


def test_R11_it_does_not_flood_a_service_with_few_workers():
    service = Service(5, 0.2, "uniform")
    client = Simulation(Controller(AdaptiveCapacity()), 7)
    client.run(Phase("seeks", service, 2000))
    outcome = client.run(Phase("has found", service, 2000))
    assert outcome.limit <= 15
    assert outcome.successes == 2000 - GRACE
