"""The checker of histories: no law is said to hold in a case that it did not judge."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken

NOTHING = "nothing happened that it speaks of"


def a_call(**setting: Any) -> Story:
    return Story(**setting).task().row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])


def kept(source: str, **setting: Any) -> Story:
    """A row with an old answer."""
    cache = {"expire_after_write": 90.0, "stale_if_error": True, "refresh_after": 2.0}
    return a_call(cache=cache, on_error="null", **setting).row(9, 9, 1, key="a", source=source, answer=[1])


def in_a_chain() -> Story:
    story = Story(mode="unordered").chained(1, mode="unordered", capacity=1, batch={"max_size": 2, "linger": 0.1})
    story.task().row(0, 9, 0, key="a", lookup=1, source="call").call(5, 9, ["a"], lookup=1)
    return story


def failing_batch() -> Story:
    story = Story(batch={"max_size": 2}, max_attempts=2, on_error="null").task()
    for row in range(2):
        story.row(0, 9, row, key=row, source="call", status="failed")
    return story.call(0, 1, [0, 1], "error", retry_after=0.0)


def snapshot(**setting: Any) -> Story:
    story = Story(on_error="null", max_attempts=2, delay=2.0, **setting).task(end=2, outcome="closed").row(0, None, 0)
    return story.call(0, 0.5, rows=[0], outcome="error").add("snapshot", 1, task="t", snapshot="s", rows=[[0, 1]])


def a_copy(end: float = 0.5, **setting: Any) -> Story:
    story = Story(hedge={"after": 0.2, "extra": 1.0}, mode="unordered", **setting).task()
    story.row(0, end, key="a", source="call", attempts=2).call(0, end + 0.1, ["a"], "cancelled", call="first")
    return story.call(0.2, end, ["a"], copy_of="first")


UNDECIDED = {
    "a failure that cannot be seen": ("L6", kept("stale", circuit_breaker={})),
    "a refresh that the budget may refuse": ("L6", kept("cache", budget="b")),
    "attempts without rows": ("R5", Story().task().call(0, 1, ["a"])),
    "an error that may be retried": ("B4", failing_batch()),
    "the wait for a batch in a chain": ("B1", in_a_chain()),
    "which call won, at a limit": ("H1", a_copy(timeout=0.5)),
    "attempts beside refusals": ("H3", a_copy(circuit_breaker={})),
    "calls in parts, of a task": ("O1", a_call(capacity=1, whole_calls=False)),
    "calls in parts, of a rate limit": ("R10", a_call(limits=[{"rate": 1}], whole_calls=False)),
    "calls in parts, of a budget": ("G2", a_call(limits=[{"rate": 1}], budget="b", whole_calls=False)),
    "a result that may have asked for a retry": ("R4", a_call(retry_hints=False, max_attempts=2, timeout=5.0)),
    "attempts of a batch in a snapshot": ("O10", snapshot(batch={"max_size": 2})),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_Y2_what_is_not_judged_is_undecided(case: str) -> None:
    law, story = UNDECIDED[case]
    assert broken(story) == set()
    assert story.report().undecided.get(law, NOTHING) != NOTHING


def test_Y2_a_key_that_no_journal_holds_is_no_case_of_journals() -> None:
    assert a_call(journal={"name": "j"}).report().undecided["J1"] == NOTHING
