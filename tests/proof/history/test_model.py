"""Lawful histories of a plain model are accepted; one mutation of any of them breaks the law that it should break."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from asyncio_operator.testing import History, check_history
from tests.proof.history.model import Event, Model, Plan

PROFILE = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])

KEYS = st.one_of(st.none(), st.integers(0, 4))

PLANS = st.builds(
    Plan,
    rows=st.lists(st.tuples(st.integers(0, 20), KEYS), min_size=1, max_size=15).map(
        lambda rows: sorted(rows, key=lambda row: row[0])
    ),
    calls=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8),
    capacity=st.integers(1, 3),
    ordered=st.booleans(),
    attempts=st.integers(1, 3),
    delay=st.integers(0, 5),
    remember=st.booleans(),
)


@settings(PROFILE, max_examples=80)
@given(PLANS)
def test_Y2_lawful_histories_are_accepted(plan: Plan) -> None:
    report = check_history(Model(plan).run())
    report.raise_if_broken()
    assert "O4" in report.held


def of_kind(events: list[Event], kind: str) -> list[int]:
    return [number for number, event in enumerate(events) if event["event"] == kind]


def changed(events: list[Event], number: int, **fields: Any) -> list[Event]:
    return [{**event, **fields} if place == number else event for place, event in enumerate(events)]


def lose_a_row(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick(of_kind(events, "row_out"))
    return [*events[:number], *events[number + 1 :]]


def double_a_row(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick(of_kind(events, "row_out"))
    return [*events[: number + 1], events[number], *events[number + 1 :]]


def give_another_answer(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick([one for one in of_kind(events, "row_out") if events[one]["status"] == "found"])
    return changed(events, number, answer=[["another"]])


def call_a_miss_found(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick([one for one in of_kind(events, "row_out") if events[one]["status"] == "missing"])
    return changed(events, number, status="found")


def allow_one_call_less(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    running = most = 0
    for event in events:
        running += {"call_started": 1, "call_ended": -1}.get(event["event"], 0)
        if event["event"] == "call_ended" or not running:
            continue
        # A call that takes no time overlaps nothing that begins when it ends.
        open_calls = [one for one in events[: events.index(event) + 1] if one["event"] == "call_started"]
        ends = {one["call"]: one["at"] for one in events if one["event"] == "call_ended"}
        most = max(most, sum(ends[one["call"]] > event["at"] for one in open_calls))
    assume(most > 1)
    return changed(events, 0, capacity=most - 1)


def allow_one_attempt_less(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    most = max((event["attempt"] for event in events if event["event"] == "call_started"), default=1)
    assume(most > 1)
    return changed(events, 0, max_attempts=most - 1)


def ask_for_a_longer_back_off(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    started = [events[number] for number in of_kind(events, "call_started")]
    retries = [event for event in started if event["attempt"] > 1]
    assume(retries)
    ends = {events[number]["call"]: events[number]["at"] for number in of_kind(events, "call_ended")}
    gaps = []
    for retry in retries:
        before = [one for one in started if one["keys"] == retry["keys"] and one["call"] < retry["call"]][-1]
        gaps.append(retry["at"] - ends[before["call"]])
    return changed(events, 0, delay=round(min(gaps) + 0.000003, 6))


def allow_one_start_less(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    starts = [round(events[number]["at"] * 10) for number in of_kind(events, "call_started")]
    most = max((sum(0 <= other - one < 10 for other in starts) for one in starts), default=0)
    assume(most > 1)
    lawful = changed(events, 0, limits=[{"rate": most, "per": 1.0}])
    assert not check_history(lawful)
    return changed(events, 0, limits=[{"rate": most - 1, "per": 1.0}])


def swap_two_rows(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    assume(events[0]["mode"] == "ordered")
    rows = of_kind(events, "row_out")
    assume(len(rows) > 1)
    first = pick(rows[:-1])
    second = rows[rows.index(first) + 1]
    one, other = events[first], events[second]
    again = changed(events, first, **{**other, "at": one["at"]})
    again[first] = {**other, "at": one["at"]}
    again[second] = {**one, "at": other["at"]}
    # The row must have been read by then.
    read = next(event["at"] for event in events if event["event"] == "row_in" and event["row"] == other["row"])
    number = next(n for n, e in enumerate(events) if e["event"] == "row_in" and e["row"] == other["row"])
    assume(number < first and read <= one["at"])
    return again


def ask_for_a_null_key(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick(of_kind(events, "call_started"))
    return changed(events, number, keys=[None])


def ask_while_asking(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    ends = {events[number]["call"]: events[number] for number in of_kind(events, "call_ended")}
    number = pick(
        [one for one in of_kind(events, "call_started") if ends[events[one]["call"]]["at"] > events[one]["at"]]
    )
    again = {**events[number], "call": "again"}
    ended = {**ends[events[number]["call"]], "call": "again"}
    place = events.index(ends[events[number]["call"]])
    mutated = [*events[: number + 1], again, *events[number + 1 : place + 1], ended, *events[place + 1 :]]
    return changed(mutated, 0, capacity=99)


def ask_for_what_is_remembered(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    assume("remember" in events[0])
    number = pick([one for one in of_kind(events, "call_ended") if events[one]["outcome"] == "result"])
    [key] = next(
        one["keys"] for one in events if one["event"] == "call_started" and one["call"] == events[number]["call"]
    )
    at = events[-1]["at"] + 1.0
    about = {"at": at, "task": "t", "call": "again"}
    more = [
        {"event": "row_in", "at": at, "task": "t", "row": 99, "key": key},
        {"event": "call_started", **about, "keys": [key], "attempt": 1},
        {"event": "call_ended", **about, "outcome": "result", "answers": events[number]["answers"]},
        {"event": "row_out", "at": at, "task": "t", "row": 99, "status": "found", "source": "call"},
    ]
    return [*events[:-1], *more, {**events[-1], "at": at}]


def start_after_the_end(events: list[Event], pick: Callable[[list[int]], int]) -> list[Event]:
    number = pick(of_kind(events, "call_started"))
    at = events[-1]["at"] + 1.0
    return [*events, {**events[number], "at": at, "call": "late"}]


MUTATIONS = [
    (lose_a_row, "O4"),
    (double_a_row, "O4"),
    (give_another_answer, "L2"),
    (call_a_miss_found, "L9"),
    (allow_one_call_less, "O1"),
    (allow_one_attempt_less, "R5"),
    (ask_for_a_longer_back_off, "R7"),
    (allow_one_start_less, "R10"),
    (swap_two_rows, "X2"),
    (ask_for_a_null_key, "L1"),
    (ask_while_asking, "L2"),
    (ask_for_what_is_remembered, "L12"),
    (start_after_the_end, "O18"),
]


@pytest.mark.parametrize(("mutate", "law"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
@settings(PROFILE, max_examples=20)
@given(plan=PLANS, data=st.data())
def test_Y2_a_mutated_history_breaks_its_law(mutate: Any, law: str, plan: Plan, data: st.DataObject) -> None:
    def pick(numbers: list[int]) -> int:
        assume(numbers)
        return data.draw(st.sampled_from(numbers))

    events = Model(plan).run()
    report = check_history(mutate(events, pick))
    assert law in report.broken, report


@settings(PROFILE, max_examples=80)
@given(plan=PLANS, data=st.data())
def test_Y2_a_damaged_history_is_refused_or_judged(plan: Plan, data: st.DataObject) -> None:
    events = Model(plan).run()
    number = data.draw(st.integers(0, len(events) - 1))
    event = events[number]
    damage = data.draw(st.sampled_from(["lost", "twice", *event]))
    if damage == "lost":
        damaged = [*events[:number], *events[number + 1 :]]
    elif damage == "twice":
        damaged = [*events[: number + 1], event, *events[number + 1 :]]
    else:
        values: list[Any] = [None, -1, 1.5, float("nan"), "x", [], {}, True, [None], 10**9]
        value = data.draw(st.sampled_from(values))
        damaged = changed(events, number, **{damage: value})
    assert re.match(r"event \d+: |\d+ laws? broken, ", judged_or_refused(damaged))


def judged_or_refused(events: list[Event]) -> str:
    """The report of a history, or why it is none. No other error may be raised."""
    try:
        report = check_history(events)
    except ValueError as error:
        return str(error)
    assert History(events).to_bytes()
    return str(report)


def test_Y2_an_event_that_is_missing_in_the_middle_is_named() -> None:
    events = Model(Plan(rows=[(0, 1), (1, 2)], calls=[(3, False)])).run()
    for kind in ("row_in", "call_started", "task_started"):
        number = of_kind(events, kind)[0]
        with pytest.raises(ValueError, match=r"^event \d+: "):
            check_history([*events[:number], *events[number + 1 :]])
