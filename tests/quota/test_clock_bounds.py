"""What a worker believes of the coordinator's clock holds, whatever messages and clocks do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.quota.resources import ClockBounds

delays = st.floats(0, 3)


@given(
    origin=st.floats(-1e9, 1e9),
    drift=st.floats(-2e-4, 2e-4),
    exchanges=st.lists(st.tuples(st.floats(0, 20), delays, delays), min_size=1, max_size=10),
    later=st.floats(0, 30),
    ahead=st.floats(0, 3),
)
def test_G7_the_coordinators_time_is_within_the_bounds(
    origin: float, drift: float, exchanges: list[tuple[float, float, float]], later: float, ahead: float
) -> None:
    bounds, local = ClockBounds(), 100.0

    def coordinator(time: float) -> float:
        return origin + time * (1 + drift)

    for pause, there, back in exchanges:
        sent = local + pause
        local = sent + there + back
        bounds.exchanged(sent, coordinator(sent + there), local)
    local += later
    tiny = 1e-6
    assert coordinator(local) <= bounds.at_most(local) + tiny
    time = coordinator(local) + ahead
    assert coordinator(bounds.first_surely_after(time)) >= time - tiny
    assert coordinator(bounds.last_surely_before(time)) <= time + tiny


@given(back=st.floats(0.001, 100), delay=st.floats(0, 1))
def test_G7_a_coordinators_clock_that_was_set_back_makes_no_call_early(back: float, delay: float) -> None:
    bounds = ClockBounds()
    bounds.exchanged(0.0, 1000.0, 0.001)
    bounds.exchanged(1.0, 1001.0 - back, 1.0 + delay)
    # At local time 1.0 the clock showed 1001 - back.
    assert bounds.first_surely_after(1005.0 - back) >= 5.0 - 1e-6


def test_G7_a_clock_that_was_set_forward_is_believed() -> None:
    bounds = ClockBounds()
    bounds.exchanged(0.0, 1000.0, 0.001)
    bounds.exchanged(1.0, 2000.0, 1.001)
    assert bounds.at_most(1.001) >= 2000.0
