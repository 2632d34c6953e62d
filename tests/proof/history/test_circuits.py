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


@pytest.mark.parametrize(("outcome", "error"), [("cancelled", None), ("error", "ResultError")])
def test_R10_calls_that_may_not_count_leave_the_circuit_undecided(outcome: str, error: str | None) -> None:
    story = circuit(*OPENED[:3])
    story.row(0, 90, 8, key=8, source="call", status="failed").call(0, 1.0, [8], outcome, error=error)
    story.row(0, 90, 9, key=9, source="call").call(1.5, 1.6, [9])
    assert broken(story) == set()
    assert "R10" in story.report().undecided
