"""The checker of histories and the laws of journals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, judged


def journaled(
    start: float, outcome: str = "finished", end: float = 10.0, asked: float | None = None, **journal: Any
) -> Story:
    """A task that is answered at 1 and ends, and another that starts and asks again."""
    options = {"name": "j", "flush_every": 2.0, "write": 1.0, **journal}
    story = Story(journal=options, mode="unordered").task(end=end, outcome=outcome).task(at=start, task="u")
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    again = start if asked is None else asked
    story.row(again, again + 1, 0, key="a", task="u", source="call", answer=[1])
    return story.call(again, again + 1, ["a"], task="u", answers=[[1]])


def test_Y2_an_answer_that_is_paid_twice_is_seen() -> None:
    assert broken(journaled(11.0)) == {"J1"}
    assert broken(journaled(11.0, outcome="failed")) == {"J1"}
    # Two tasks at once may both ask, until what the first was answered is written.
    assert judged(journaled(2.0), "J1")
    assert broken(journaled(4.1)) == {"J1"}
    assert broken(journaled(11.0, end=2.0)) == {"J1"}


def test_Y2_a_kill_that_costs_more_than_it_may_is_seen() -> None:
    assert judged(journaled(11.0, outcome="killed", end=3.9), "J2")
    assert broken(journaled(11.0, outcome="killed", end=4.1)) == {"J2"}


def from_journal(answer: Any, start: float = 11.0, attempts: int = 0, **journal: Any) -> Story:
    story = Story(journal={"name": "j", **journal}).task(end=10).task(at=start, task="u")
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    return story.row(start, start + 1, 0, key="a", task="u", source="journal", answer=answer, attempts=attempts)


def test_Y2_an_answer_that_is_not_that_of_the_journal_is_seen() -> None:
    assert judged(from_journal([1]), "J4")
    assert broken(from_journal([2])) == {"J4"}


def test_Y2_an_expired_answer_of_the_journal_is_seen() -> None:
    assert judged(from_journal([1], expire_after=11.0), "J7")
    assert broken(from_journal([1], expire_after=9.9)) == {"J7"}


def test_Y2_a_hit_of_the_journal_that_costs_calls_is_seen() -> None:
    assert judged(from_journal([1]), "J9")
    assert broken(from_journal([1], attempts=1)) == {"J9"}
    assert broken(Story().task().row(0, 1, key="a", source="journal")) == {"J9"}


@pytest.mark.parametrize("outcome", ["finished", "failed", "killed"])
def test_J1_the_answers_of_the_last_moment_of_a_task_are_taken_if_it_finishes(outcome: str) -> None:
    story = Story(mode="unordered", on_error="null", journal={"name": "j"}).task(end=None)
    story.row(0, 1, 0, key="a", source="call").call(0, 1, ["a"], answers=[[1]])
    story.add("task_ended", 1, task="t", outcome=outcome).task(5, task="u")
    story.row(6, 7, 0, key="a", task="u", source="call").call(6, 7, ["a"], task="u", answers=[[1]])
    assert broken(story) == ({"J1"} if outcome == "finished" else set())
