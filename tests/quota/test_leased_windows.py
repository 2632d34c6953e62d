"""Law G2 for the windows of a coordinator: whatever leased units do, no window and no time holds too many."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator.quota.terms import Rate
from asyncio_operator.quota.window import OWED_WINDOWS, Window, rounded

Starts = list[tuple[float, float]]
"""Times and units of real starts."""

part = st.floats(0, 1)

grants = st.lists(
    st.fixed_dictionaries(
        {
            "after": st.sampled_from([0.0, 0.01, 0.1, 0.4, 1.0]) | st.floats(0, 2),
            "units": st.floats(0.1, 30),
            "horizon": part,
            "starts": st.none() | part,
            "begun": part,
            "reported": st.none() | st.floats(0, 3),
        }
    ),
    min_size=1,
    max_size=60,
)


def carry_out(window: Window, per: float, grain: float, lease: float, steps: list[dict[str, Any]]) -> Starts:
    """What really starts if all is granted that may be. A part of the units never starts; some is never reported."""
    now = 5.0
    starts: Starts = []
    reports: list[tuple[float, float, float | None, float]] = []
    for step in steps:
        now += step["after"]
        window.forget(now)
        for report in sorted(reports, key=lambda one: one[0]):
            if report[0] <= now:
                reports.remove(report)
                window.move(*report[1:])
        until = now + lease
        plan = window.plan(now, now + step["horizon"] * lease, until, step["units"])
        total = sum(units for _, units in plan)
        assert total <= step["units"] * (1 + 1e-9)
        if not total:
            continue
        end = rounded(until, grain)
        window.place(end, total)
        for since, units in plan:
            assert now <= since <= until
            begun = units * step["begun"] if step["starts"] is not None else 0.0
            start = since + (step["starts"] or 0.0) * (until - since)
            if begun:
                starts.append((start, begun))
            if step["reported"] is not None:
                at = start + step["reported"]
                reports.append((at, end, min(end, rounded(start, grain)), begun))
                reports.append((at, end, None, units - begun))
    return sorted(starts)


def most_in_a_window(starts: Starts, per: float) -> float:
    return max((sum(units for time, units in starts if first <= time < first + per) for first, _ in starts), default=0)


def most_above_the_mean(starts: Starts, rate: float, per: float) -> float:
    """The most units in any time, less what comes back in it."""
    worst = 0.0
    for place, (first, _) in enumerate(starts):
        totals = accumulate(units for _, units in starts[place:])
        for (last, _), total in zip(starts[place:], totals, strict=True):
            worst = max(worst, total - (last - first) * rate / per)
    return worst


@given(
    rate=st.sampled_from([1.0, 3.0, 20.0]),
    per=st.sampled_from([0.3, 1.0, 7.0]),
    burst=st.sampled_from([0.0, 2.0, 25.0]),
    lease=st.sampled_from([0.1, 0.5, 1.0]),
    grains=st.sampled_from([4, 256]),
    steps=grants,
)
def test_G2_no_window_and_no_time_holds_more_than_it_may(
    rate: float, per: float, burst: float, lease: float, grains: int, steps: list[dict[str, Any]]
) -> None:
    grain = per / grains
    starts = carry_out(Window(Rate("calls", rate, per, burst), grain, lease), per, grain, lease, steps)
    assert most_in_a_window(starts, per) <= (rate + burst) * (1 + 1e-9)
    assert most_above_the_mean(starts, rate, per) <= (rate + burst) * (1 + 1e-9)


@given(burst=st.sampled_from([0.0, 25.0]), steps=grants)
def test_G2_a_window_that_was_stored_as_text_plans_the_same(burst: float, steps: list[dict[str, Any]]) -> None:
    ours, theirs = (Window(Rate("calls", 20.0, 1.0, burst), 1 / 256, 0.5) for _ in range(2))
    carry_out(ours, 1.0, 1 / 256, 0.5, steps)
    theirs.restore(json.loads(json.dumps(ours.state(), allow_nan=False)))
    now = 5.0 + sum(step["after"] for step in steps)
    plans = [window.plan(now, now + 0.4, now + 0.5, 10.0) for window in (ours, theirs)]
    assert sum(units for _, units in plans[0]) == pytest.approx(sum(units for _, units in plans[1]), abs=1e-6)


@given(time=st.floats(0, 2e9), grain=st.sampled_from([1e-3, 60 / 256, 86_400 / 256]))
@example(time=0.1 + 0.2, grain=0.1)
def test_G2_an_entry_is_never_earlier_than_the_start(time: float, grain: float) -> None:
    assert time <= rounded(time, grain) <= time + grain + 1e-6
    assert rounded(time, 0.0) == time


def test_G2_a_report_about_an_entry_that_has_left_changes_nothing() -> None:
    window = Window(Rate("calls", 10, 1.0, 0), 0.1, 0.5)
    window.place(0.5, 3)
    window.forget(1.5)
    window.move(0.5, 0.2, 3)
    assert window.used == 0


def test_G4_what_a_window_has_no_room_for_is_taken_from_the_next_ones() -> None:
    window = Window(Rate("calls", 100, 10.0, 0))
    window.place(0.0, 100)
    window.owe(1.0, 250, 0.0)
    assert window.room(9.0, 9.0) <= 0
    assert window.room(11.0, 11.0) <= 0
    assert window.room(21.5, 21.5) <= 0
    assert window.room(31.5, 31.5) == 50
    assert window.room(41.5, 41.5) == 100
    window.owe(50.0, 1e9, 0.0)
    assert window.room(50.0 + 10.0 * OWED_WINDOWS, 300.0) == 100, "a wrong unit does not stop a job for ever"
