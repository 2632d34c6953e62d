"""Histories of simulations are accepted; a damaged one is judged, or refused with the number of an event."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.testing import History, Simulation, check_history
from asyncio_operator_proof.history.event_format import Event

SEEDS = (5, 8, 9, 10)


@cache
def events_of(seed: int) -> list[Event]:
    return Simulation(seed).run().events


PROFILE = settings(deadline=None, derandomize=True, max_examples=80)

VALUES: list[Any] = [None, -1, 1.5, float("nan"), "x", [], {}, True, [None], 10**9]


def changed(events: list[Event], number: int, *others: Event) -> list[Event]:
    """The events with others in the place of one."""
    return [*events[:number], *others, *events[number + 1 :]]


@PROFILE
@given(st.sampled_from(SEEDS), st.data())
def test_Y2_a_damaged_history_is_refused_or_judged(seed: int, data: st.DataObject) -> None:
    events = events_of(seed)
    number = data.draw(st.integers(0, len(events) - 1))
    event = events[number]
    damage = data.draw(st.sampled_from(["lost", "twice", *event]))
    one = [] if damage == "lost" else [event, event]
    if damage in event:
        one = [{**event, damage: data.draw(st.sampled_from(VALUES))}]
    damaged = changed(events, number, *one)
    try:
        found = str(check_history(damaged))
        History(damaged).to_bytes()
    except ValueError as error:
        # No other error may be raised.
        found = str(error)
    assert re.match(r"event \d+: |\d+ laws? broken, ", found)


@pytest.mark.parametrize("seed", SEEDS)
def test_Y2_rows_that_are_lost_or_doubled_and_calls_after_the_end_break_their_laws(seed: int) -> None:
    events = events_of(seed)
    check_history(events).raise_if_broken()
    finished = {one["task"] for one in events if one["event"] == "task_ended" and one["outcome"] == "finished"}
    rows = [n for n, one in enumerate(events) if one["event"] == "row_out" and one["task"] in finished]
    for number in (rows[0], rows[-1]):
        assert "O4" in check_history(changed(events, number)).broken
        assert "O4" in check_history(changed(events, number, events[number], events[number])).broken
    late = next(one for one in events if one["event"] == "call_started" and one["task"] in finished)
    assert "O18" in check_history([*events, {**late, "at": events[-1]["at"] + 9.0, "call": "late"}]).broken


@pytest.mark.parametrize("kind", ["row_in", "call_started", "task_started"])
def test_Y2_an_event_that_is_missing_in_the_middle_is_named(kind: str) -> None:
    events = events_of(SEEDS[0])
    number = next(number for number, event in enumerate(events) if event["event"] == kind)
    with pytest.raises(ValueError, match=r"^event \d+: "):
        check_history(changed(events, number))
