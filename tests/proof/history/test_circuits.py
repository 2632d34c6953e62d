"""The checker of histories and the law of circuit breakers (R10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, judged

BREAKER = {"failure_ratio": 0.5, "minimum_calls": 4, "window": 30.0, "open_for": 1.0}


def circuit(*calls: tuple[float, float, str], breaker: dict[str, Any] = BREAKER, **setting: Any) -> Story:
    """A run whose calls start, end, and end so. Each has a row of its own."""
    story = Story(on_error="null", capacity=10, circuit_breaker=breaker, **setting).task()
    for row, (start, end, outcome) in enumerate(calls):
        story.row(0, 90, row, key=row, source="call", status="found" if outcome == "result" else "failed")
        story.call(start, end, [row], outcome)
    return story


OPENED = [(0.0, 0.5, "result"), (0.0, 0.6, "result"), (0.0, 0.7, "error"), (0.0, 1.0, "error")]
"""Calls after which the circuit is open from 1 s to 2 s."""


def test_R10_no_call_starts_while_the_circuit_is_open() -> None:
    assert judged(circuit(*OPENED, (2.0, 2.1, "result"), (2.1, 3.0, "result")), "R10")
    assert broken(circuit(*OPENED, (1.999, 2.1, "result"))) == {"R10"}
    assert broken(circuit(*OPENED, (1.001, 2.1, "result"))) == {"R10"}
    # At this very moment it may have started before the failure was counted.
    assert broken(circuit(*OPENED, (1.0, 2.1, "result"))) == set()


def test_R10_a_circuit_opens_when_too_many_of_enough_calls_failed() -> None:
    few = [(0.0, 0.5, "error"), (0.0, 0.6, "error"), (0.0, 1.0, "error")]
    assert broken(circuit(*few, (1.5, 1.6, "error"))) == set()
    good = [(0.0, 0.4, "result"), *OPENED]
    assert broken(circuit(*good, (1.5, 1.6, "result"))) == set()
    assert broken(circuit(*good, (1.1, 1.2, "error"), (1.5, 1.6, "result"))) == {"R10"}


def test_R10_failures_are_forgotten_after_the_window() -> None:
    def story(fails: float) -> Story:
        calls = [(0.0, fails, "error"), (0.0, fails, "error"), (0.0, 30.0, "result"), (0.0, 31.0, "error")]
        return circuit(*calls, (31.5, 32.0, "result"))

    assert broken(story(2.1)) == {"R10"}
    # It forgets in steps of a thirtieth of the window.
    assert broken(story(1.9)) == set()
    assert "R10" in story(1.9).report().undecided
    assert str(story(0.9).report().undecided["R10"]) == "nothing happened that it speaks of"


def test_R10_one_call_tries_an_open_circuit_alone() -> None:
    assert judged(circuit(*OPENED, (2.5, 3.0, "result"), (3.0, 3.5, "result"), (3.1, 3.5, "result")), "R10")
    assert broken(circuit(*OPENED, (2.5, 3.0, "result"), (2.9, 3.5, "result"))) == {"R10"}


def test_R10_a_call_that_tries_the_circuit_and_fails_opens_it_again() -> None:
    assert judged(circuit(*OPENED, (2.5, 3.0, "error"), (4.0, 4.5, "result")), "R10")
    assert broken(circuit(*OPENED, (2.5, 3.0, "error"), (3.9, 4.5, "result"))) == {"R10"}


def test_R10_what_was_counted_before_the_circuit_closed_is_forgotten() -> None:
    closed = [*OPENED, (0.9, 5.0, "error"), (2.0, 2.5, "result")]
    again = [(3.0, 3.1, "error"), (3.0, 3.2, "result"), (3.0, 3.3, "result")]
    assert judged(circuit(*closed, *again, (5.5, 6.0, "result")), "R10")
    assert broken(circuit(*closed, *again, (4.0, 4.1, "error"), (4.5, 5.0, "result"))) == {"R10"}


@pytest.mark.parametrize(("outcome", "error"), [("cancelled", None), ("error", "ResultError")])
def test_R10_calls_that_may_not_count_leave_the_circuit_undecided(outcome: str, error: str | None) -> None:
    story = circuit(*OPENED[:3])
    story.row(0, 90, 8, key=8, source="call", status="failed").call(0, 1.0, [8], outcome, error=error)
    story.row(0, 90, 9, key=9, source="call").call(1.5, 1.6, [9])
    assert broken(story) == set()
    assert "R10" in story.report().undecided


def test_R10_a_call_that_was_cut_counts_from_its_limit_on() -> None:
    def story(returns: float) -> Story:
        calls = [*OPENED[:3], (0.0, returns, "timed_out")]
        return circuit(*calls, (1.9, 2.0, "result"), attempt_timeout=1.0)

    assert broken(story(1.0)) == {"R10"}
    # It may have ignored its cancellation, or it was cut late: that cannot be seen.
    assert broken(story(1.5)) == set()


def test_R10_a_result_after_its_limit_proves_nothing() -> None:
    calls = [*OPENED, (2.0, 3.5, "result")]
    assert "R10" not in broken(circuit(*calls, (3.6, 3.7, "result"), attempt_timeout=1.2))
    assert "R10" in circuit(*calls, (3.6, 3.7, "result"), attempt_timeout=1.2).report().undecided


def test_R10_the_loser_of_two_calls_does_not_count() -> None:
    def story(copy_of: str | None) -> Story:
        story = circuit(*OPENED[1:3], hedge={"after": 0.1, "extra": 1.0})
        story.row(0, 90, 7, key=7, source="call").call(0, 0.8, [7], call="first")
        story.call(0.5, 1.0, [7], "error", copy_of="first")
        return story.row(0, 90, 9, key=9, source="call").call(1.5, 1.6, [9])

    assert "R10" not in broken(story("first"))


def test_R10_a_refusal_begins_the_time_of_a_row_before_its_first_call() -> None:
    """The result comes in time by the start of its call, and too late by the refusal: the next row asks again."""

    def story(end: float, failures: int = 1) -> Story:
        breaker = {"minimum_calls": 2, "failure_ratio": 0.5, "open_for": 0.5}
        setting = {"max_attempts": 3, "delay": 0.9, "timeout": 1.0, "remember": 60.0, "on_error": "null"}
        story = Story(mode="unordered", circuit_breaker=breaker, **setting).task()
        for row in range(failures):
            story.row(0, 0.1, row, key=row, source="call", status="failed").call(
                0, 0.1, [row], "error", retryable=False
            )
        story.row(0.2, 1.2, 8, key="a", source="call", status="timed_out").call(1.1, end, ["a"])
        return story.row(2, 2.1, 9, key="a", source="call").call(2, 2.1, ["a"])

    assert broken(story(1.3)) == set()
    assert "L12" in broken(story(1.19))
    assert "L12" in broken(story(1.3, failures=0))
