"""The checker of histories: what rows share, and for how long a task remembers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def after_a_call(at: float, status: str = "found", outcome: str = "result", **setting: Any) -> Story:
    """A row whose call ends at 1 s, and another row of its key that shares something later."""
    story = Story(mode="unordered", on_error="null", **setting).task(end=1000)
    answer = [1] if status == "found" else None
    story.row(0, 1, 0, key="a", source="call", status=status, answer=answer, error=None if answer else "E")
    story.call(0, 1, ["a"], outcome, answers=[[1]] if outcome == "result" else None, error=None if answer else "E")
    return story.row(at, at, 1, key="a", source="shared", status=status, answer=answer, attempts=0)


@pytest.mark.parametrize(("setting", "law"), [({}, "L2"), ({"remember": 60.0}, "L12"), ({"cache": {}}, "L2")])
def test_L2_an_error_that_is_remembered_is_seen(setting: dict[str, Any], law: str) -> None:
    assert broken(after_a_call(5.0, "failed", "error", **setting)) == {law}
    assert broken(after_a_call(0.5, "failed", "error", **setting)) == set()


def test_L12_an_answer_that_is_remembered_too_long_is_seen() -> None:
    assert judged(after_a_call(2.0, remember=1.0), "L12")
    assert broken(after_a_call(2.1, remember=1.0)) == {"L12"}
    assert broken(after_a_call(499.0, remember=1.0)) == {"L12"}
    assert broken(after_a_call(2.0)) == {"L1", "L2"}


@seen("L2", good=[2, 1], bad=[case(1, 33.2)], fine=[case(2, 33.2)])
def test_L2_an_older_answer_than_that_of_the_shared_call_is_seen(answer: int, read: float = 20.0) -> Story:
    story = Story(mode="unordered", remember=30.0).task()
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    story.row(32, 33, 1, key="a", source="call", answer=[2]).call(32, 33, ["a"], answers=[[2]])
    return story.row(read, 33.5, 2, key="a", source="shared", answer=[answer])


@seen("L2", good=[2], bad=[1])
def test_L2_an_answer_that_was_remembered_no_longer_is_not_that_of_a_shared_call(answer: int) -> Story:
    story = Story(mode="unordered", remember=1.0).task()
    for row, (at, value) in enumerate([(0, 1), (20, 2)]):
        story.row(at, at + 1, row, key="a", source="call", answer=[value]).call(at, at + 1, ["a"], answers=[[value]])
    return story.row(20, 21, 2, key="a", source="shared", answer=[answer])
