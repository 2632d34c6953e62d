"""The checker of histories and the laws of hedged calls."""

from __future__ import annotations

from typing import Any

from tests.proof.history.stories import Story, broken, case, judged, seen


def hedged(start: float = 0.2, calls: int = 9, copy_ends: float = 0.5, **setting: Any) -> Story:
    """Calls, the last of which gets a copy."""
    story = Story(hedge={"after": 0.2, "extra": 0.1}, **setting).task()
    for row in range(calls):
        story.row(0, 1, row, key=row, source="call").call(
            0, 1.0 if row == calls - 1 else 0.1, [row], call=f"first{row}"
        )
    return story.call(start, copy_ends, [calls - 1], copy_of=f"first{calls - 1}")


def test_Y2_a_copy_that_comes_too_early_is_seen() -> None:
    assert judged(hedged(0.2), "H1")
    assert broken(hedged(0.19)) == {"H1"}


def test_Y2_one_copy_too_many_is_seen() -> None:
    assert judged(hedged(calls=9), "H1")
    assert broken(hedged(calls=8)) == {"H1"}


def test_Y2_a_copy_of_a_call_that_ended_or_must_not_be_repeated_is_seen() -> None:
    assert judged(hedged(), "H2")
    assert broken(hedged(idempotent=False)) == {"H2"}
    assert "H2" in broken(hedged(1.1, copy_ends=1.2))


def test_Y2_an_answer_of_the_loser_is_seen() -> None:
    def story(answer: Any, status: str = "found", error: str | None = None) -> Story:
        story = Story(hedge={"after": 0.2, "extra": 0.5}, on_error="null").task()
        story.row(0, 1.0, key="a", source="call", answer=answer, status=status, error=error)
        story.row(0, 1.0, 1, key="b", source="call", answer=[3]).call(0, 0.1, ["b"], answers=[[3]])
        story.call(0, 0.9, ["a"], "error", call="first", error="OSError")
        return story.call(0.2, 0.5, ["a"], copy_of="first", answers=[[2]])

    assert judged(story([2]), "H1")
    assert "H1" in broken(story([9]))
    assert "H1" in broken(story(None, "failed", "OSError"))


@seen("H1", good=[0.6], bad=[0.7], fine=[case(0.7, within=None), case(0.55, attempt_timeout=0.5)])
def test_H1_the_loser_does_not_run_on(end: float, within: float | None = 0.1, **setting: Any) -> Story:
    """The copy may have answered too late."""
    story = Story(hedge={"after": 0.2, "extra": 0.5}, mode="unordered", returns_within=within, **setting).task()
    story.row(0, 0.5, key="a", source="call").row(0, 0.1, 1, key="b", source="call").call(0, 0.1, ["b"])
    story.call(0, end, ["a"], "cancelled", call="first")
    return story.call(0.2, 0.5, ["a"], copy_of="first")


@seen("H3", good=[2], bad=[1])
def test_Y2_a_status_that_does_not_count_the_copy_is_seen(attempts: int) -> Story:
    story = Story(hedge={"after": 0.2, "extra": 0.5}).task().row(0, 1, key="a", source="call", attempts=attempts)
    story.row(0, 1, 1, key="b", source="call", attempts=1).call(0, 0.1, ["b"])
    return story.call(0, 0.9, ["a"], "cancelled", call="first").call(0.2, 0.5, ["a"], copy_of="first")


def both(status: str = "found", out: float = 1.0, first: str = "error", copy: str = "result", **more: Any) -> Story:
    """A call that ends at 0.5 s, and its copy, which ends at 1 s."""
    story = Story(hedge={"after": 0.2, "extra": 0.5}, on_error="null", mode="unordered", **more).task()
    story.row(0, out, key="a", source="call", status=status).row(0, 0.1, 1, key="b", source="call").call(0, 0.1, ["b"])
    story.call(0, 0.5, ["a"], first, call="first")
    return story.call(0.2, 1.0, ["a"], copy, copy_of="first")


def test_H1_a_copy_is_awaited_when_its_call_fails() -> None:
    assert judged(both(), "H1")
    assert judged(both("failed", copy="error"), "H1")
    assert broken(both("failed", copy="cancelled")) == {"H1"}
    assert broken(both("failed", 0.5, copy="error")) == {"H1"}
    # A limit may have cut it.
    assert broken(both("timed_out", copy="cancelled", timeout=1.0)) == set()


def test_H1_no_retry_starts_while_the_copy_runs() -> None:
    def story(again: float) -> Story:
        story = both(out=2.0, copy="error", max_attempts=2, delay=0.0)
        return story.call(again, 2.0, ["a"])

    assert judged(story(1.0), "H1")
    assert "H1" in broken(story(0.9))


@seen("H2", good=[1], bad=[2])
def test_H2_a_call_that_was_refused_or_failed_before_is_not_repeated(attempt: int) -> Story:
    story = Story(hedge={"after": 0.2, "extra": 0.5}, mode="unordered", circuit_breaker={}, max_attempts=3).task()
    story.row(0, 1.0, key="a", source="call").row(0, 0.1, 1, key="b", source="call")
    story.call(0, 0.1, ["b"], attempt=1).call(0, 1.0, ["a"], "cancelled", call="first", attempt=attempt)
    return story.call(0.2, 0.5, ["a"], copy_of="first", attempt=attempt)


def test_H1_an_answer_of_no_use_does_not_win() -> None:
    def story(answer: Any) -> Story:
        story = Story(hedge={"after": 0.2, "extra": 0.5}, on_error="null", mode="unordered", returns_within=0.0).task()
        story.row(0, 0.9, key="a", source="call", answer=[2]).row(0, 0.1, 1, key="b", source="call").call(0, 0.1, ["b"])
        story.call(0, 0.5, ["a"], call="first", answers=[answer])
        return story.call(0.2, 0.9, ["a"], copy_of="first", answers=[[2]])

    assert "H1" not in broken(story({"invalid": "0"}))
    assert "H1" in broken(story([1]))
