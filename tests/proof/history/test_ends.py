"""The checker of histories: how runs begin and end, and rows that need no source to be judged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, seen


@seen("O9", good=[1.0], bad=[2.5, case(1.0, closed=109.0)])
def test_O9_a_call_before_the_function_was_opened_is_seen(opened: float, closed: float = 9.0) -> Story:
    story = Story(mode="unordered").task(end=9).add("opened", opened, task="t").add("closed", closed, task="t")
    return story.row(0, 3, 0, key="a", source="call").call(2, 3, ["a"])


@seen(
    "O6",
    bad=[2],
    fine=[
        1,
        case(2, beyond=0.05),
        case(2, on_error="null"),
        # Which attempts belong together is not known.
        case(2, number=False),
    ],
)
def test_O6_a_run_that_goes_on_after_the_last_attempt_is_seen(
    attempts: int, *, beyond: float = 0.2, number: bool = True, **setting: Any
) -> Story:
    """A row whose attempts fail, and a call for another row later."""
    story = Story(mode="unordered", max_attempts=2, delay=0.1, **setting).task(end=9, outcome="failed")
    story.row(0, None, 0, key="a").row(0, None, 1, key="a").row(0, None, 2, key="b")
    for attempt in range(attempts):
        begin = attempt * 0.2
        story.call(begin, begin + 0.1, ["a"], "error", error="E", attempt=attempt + 1 if number else None)
    return story.call(0.2 + beyond, 2, ["b"], attempt=1 if number else None)


@pytest.mark.parametrize(
    ("on_error", "error", "laws"),
    [
        ("null", "ValueError", {"O6"}),
        ("drop", "ValueError", {"O6"}),
        ("null", "SystemExit", set()),
        ("null", None, set()),
        ("fail", "ValueError", set()),
        # What a hook raises ends the run.
        ("return", "ValueError", set()),
    ],
)
def test_O6_a_task_that_fails_with_a_hidden_error_is_seen(on_error: str, error: str | None, laws: set[str]) -> None:
    def story(ended: str) -> Story:
        story = Story(mode="unordered", on_error=on_error).task(end=None).row(0, None, 0, key="a")
        story.call(0, 1, ["a"], "error", error=error)
        return story.add("task_ended", 1, task="t", outcome="failed", error=ended)

    assert broken(story("FunctionError")) == laws
    assert broken(story("MissingKeyError")) == set()


def test_O6_a_task_that_fails_by_its_function_and_made_no_call_is_seen() -> None:
    story = Story(mode="unordered").task(end=None).row(0, None, 0, key="a")
    assert broken(story.add("task_ended", 1, task="t", outcome="failed", error="FunctionError")) == {"O6"}


@seen("O4", good=[2], bad=[1, 0], fine=[case(1, outcome="failed"), case(1, partition=1)])
def test_O4_an_attempt_that_did_not_read_all_rows_is_seen(rows: int, **second: Any) -> Story:
    story = Story(mode="unordered").task(end=1, task="t", outcome="killed", partition=0, attempt=0)
    story.row(0, None, 0).row(0, None, 1).task(2, end=9, task="u", **{"partition": 0, "attempt": 1, **second})
    for row in range(rows):
        story.row(3, 4, row, task="u").call(3, 4, rows=[row], task="u")
    return story


@pytest.mark.parametrize("source", ["call", "cache", None])
def test_L1_a_null_key_that_is_found_in_a_run_without_calls_is_seen(source: str | None) -> None:
    assert broken(Story().task().row(0, 1, 0, source=source)) == ({"L1"} if source else set())
    assert broken(Story().task().row(0, 1, 0, source="none", status="missing")) == set()


def without_source(status: str = "found", outcome: str | None = None, **setting: Any) -> Story:
    """A row that does not say where its answer came from, perhaps a call for it, and one for another row."""
    story = Story(**{"mode": "unordered", "on_error": "null", **setting}).task()
    story.row(0, 1, 0, key="a", status=status).row(0, 1, 1, key="b").call(0, 1, ["b"])
    return story if outcome is None else story.call(0, 1, ["a"], outcome)


def test_L1_a_row_that_is_found_without_any_call_is_seen() -> None:
    assert broken(without_source()) == {"L1"}
    assert broken(without_source(outcome="result")) == set()
    for setting in ({"journal": {"name": "j"}}, {"cache": {"store": "redis"}}, {"on_error": "return"}):
        assert broken(without_source(**setting)) == set()


def test_L3_an_error_that_is_a_miss_is_seen_without_a_source_too() -> None:
    assert broken(without_source("missing", "error")) == {"L3"}
    assert broken(without_source("missing", "result")) == set()
    assert broken(without_source("missing", "error", cache={})) == set()
