"""The checker of histories and the status of rows: each is possible in a good story, and seen where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def one(status: str, calls: tuple[str, ...] = ("result",), end: str = "finished", **setting: Any) -> Story:
    """A row with this status, after one call for each outcome."""
    story = Story(**setting).task(outcome=end)
    said: dict[str, Any] = {"source": "call", "attempts": len(calls) or 1, "error": "E" if status == "failed" else None}
    story.row(0, max(1, len(calls)), key="a", status=status, **said)
    for second, outcome in enumerate(calls):
        answers, error = ([[7]], None) if outcome == "result" else (None, "E")
        story.call(second, second + 1, ["a"], outcome, answers=answers, error=error, attempt=second + 1)
    return story


@pytest.mark.parametrize("status", ["failed", "timed_out"])
@pytest.mark.parametrize(("on_error", "laws"), [("null", set()), ("drop", {"O4"}), ("fail", {"O6"}), (None, {"O6"})])
def test_Y2_a_row_that_failed_and_that_the_settings_remove_is_seen(status: str, on_error: Any, laws: set[str]) -> None:
    outcome = "error" if status == "failed" else "timed_out"
    story = one(status, (outcome,), on_error=on_error, timeout=1.0)
    assert broken(story) == laws
    # A trace of `enrich` has keys in place of rows, and those are not removed.
    for event in story.after:
        event["source"] = None
    assert broken(story) <= {"O6"}


def test_Y2_a_task_in_which_an_attempt_too_many_failed_does_not_finish() -> None:
    assert broken(one("failed", ("error", "error"), max_attempts=2, delay=0)) == {"O6"}
    assert broken(one("failed", ("error", "error"), "failed", max_attempts=2, delay=0)) == set()


def test_Y2_a_row_that_is_skipped_without_a_reason_is_seen() -> None:
    assert broken(one("skipped")) == {"O4"}
    assert broken(one("skipped", on_error="null")) == {"O4"}
    assert broken(one("skipped", how="inner")) == {"O4"}
    assert broken(one("skipped", on_error="drop")) == {"O4"}
    assert judged(one("skipped", ("error",), on_error="drop"), "O4")
    assert judged(Story(how="inner").task().row(0, 1, key=None, status="skipped"), "O4")


@seen("X1", bad=[case(how="inner")], fine=[case(how="left")])
def test_Y2_a_miss_of_an_inner_join_is_seen(**setting: Any) -> Story:
    story = Story(**setting).task().row(0, 1, key="a", status="missing", source="call", answer=[])
    return story.call(0, 1, ["a"], answers=[[]])


def test_Y2_a_miss_that_was_found_is_seen() -> None:
    assert broken(one("missing")) == {"L2"}
    assert broken(one("missing", ("error", "result"), max_attempts=2, delay=0)) == {"L2"}


@pytest.mark.parametrize("source", ["cache", "journal", "stale"])
def test_Y2_an_error_that_was_kept_is_seen(source: str) -> None:
    story = Story(on_error="null", cache={}, journal={"name": "j"}).task()
    assert "L3" in broken(story.row(0, 1, key="a", status="failed", source=source))


def test_Y2_a_row_that_failed_without_a_reason_is_seen() -> None:
    assert broken(one("failed", on_error="null")) == {"R5"}
    assert broken(one("failed", (), on_error="null")) == {"R5"}
    assert judged(one("failed", ("error",), on_error="null"), "R5")


# -- hedged calls


@pytest.mark.parametrize(("numbered", "laws"), [(True, {"H2"}), (False, {"H2"})])
def test_Y2_a_copy_of_a_retry_is_seen(numbered: bool, laws: set[str]) -> None:
    story = Story(max_attempts=2, delay=0, hedge={"after": 0.5, "extra": 0.5}).task()
    story.row(0, 3, key="a", source="call", attempts=3, answer=[7])
    attempts = (1, 2, 2) if numbered else (None, None, None)
    story.call(0, 1, ["a"], "error", attempt=attempts[0]).call(1, 3, ["a"], "cancelled", call="c", attempt=attempts[1])
    assert broken(story.call(2, 3, ["a"], copy_of="c", answers=[[7]], attempt=attempts[2])) == laws


@seen("R9", good=[case(attempt_timeout=1.0), case(timeout=1.0)], bad=[case(timeout=0.0)])
def test_R9_a_call_that_times_out_without_a_limit_is_seen(**limit: float) -> Story:
    story = Story(on_error="null", **limit).task().row(0, 1, 0, key="a", source="call", status="failed")
    return story.call(0, 1, ["a"], "timed_out")
