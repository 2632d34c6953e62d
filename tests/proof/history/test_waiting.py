"""The checker of histories and what waits although there is room: retries (R7) and batches (B1)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def retried(start: float, **setting: Any) -> Story:
    """A call that fails at 1 s, and its retry."""
    setting = {"capacity": 2, "max_attempts": 2, "delay": 0.5, **setting}
    story = Story(on_error="null", mode="unordered", **setting).task().row(0, 90, key="a", source="call")
    return story.call(0, 1.0, ["a"], "error").call(start, start + 1, ["a"])


@seen("R7", good=[case(5.0, free=5.0)], bad=[case(5.0, free=4.9)])
def test_R7_a_retry_may_wait_for_a_place(start: float, free: float) -> Story:
    story = retried(start)
    for row, end in (1, free), (2, 9.0):
        story.row(0, 90, row, key=row, source="call").call(1.0, end, [row])
    return story


@pytest.mark.parametrize(
    ("setting", "latest"),
    [
        ({"delay": None, "backoff": {"initial": 0.3, "jitter": True}}, 1.3),
        ({"delay": None, "backoff": {"initial": 0.3, "jitter": False}}, 1.3),
        ({"batch": {"max_size": 2, "linger": 0.4}}, 1.9),
    ],
)
def test_R7_the_latest_start_of_a_retry(setting: dict[str, Any], latest: float) -> None:
    assert "R7" not in broken(retried(latest, **setting))
    assert broken(retried(latest + 0.01, **setting)) == {"R7"}


@seen(
    "B1",
    good=[
        1.0,
        # It waits for a place.
        case(2.5, running=2.0),
        # It is not full.
        case(1.1, rows=1),
    ],
    bad=[1.1, case(2.6, running=2.0)],
)
def test_B1_a_full_batch_is_called_when_there_is_room(
    start: float, rows: int = 2, running: float = 0.0, **setting: Any
) -> Story:
    """Keys that come at 1 s and wait for their batch. Before, a call shows that the service is open."""
    setting = {"capacity": 1, "batch": {"max_size": 2, "linger": 9.0}, **setting}
    story = Story(mode="unordered", **setting).task().row(0, 90, 9, key=9, source="call")
    for row in range(rows):
        story.row(1.0, 90, row, key=row, source="call")
    story.call(0, 0.5 + running, [9])
    return story.call(start, 80, [*range(rows)][: min(rows, 2)])


def test_B1_a_batch_that_waits_longer_than_linger_breaks_the_law_once() -> None:
    def story(start: float) -> Story:
        story = Story(batch={"max_size": 4, "linger": 0.1}, capacity=2).task()
        story.row(0, 1, 0, key=0, source="call").call(0, 1, [0])
        return story.row(2, 3, 1, key=1, source="call").call(start, 3, [1])

    assert judged(story(2.1), "B1")
    assert story(2.11).report().broken == {"B1": 1}
