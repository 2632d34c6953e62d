"""The checker of histories and caches that several tasks use, or that stand beside a journal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, judged, seen


def beside_a_journal(*paid: float, source: str | None = "journal", cache: Any = None) -> Story:
    """An answer that came at 1 s, rows that had it from a journal, and one that has it from the cache at 9 s."""
    cache = cache or {"expire_after_write": 5.0}
    story = Story(mode="unordered", cache=cache, journal={"name": "j"}).task()
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    for row, at in enumerate(paid, start=1):
        story.row(at, at, row, key="a", source=source, answer=[1])
    return story.row(9, 9, 90, key="a", source="cache", answer=[1])


@pytest.mark.parametrize("cache", [{"expire_after_write": 5.0}, {"expire_after_access": 5.0}])
def test_L5_an_answer_that_came_into_the_cache_from_a_journal_expires(cache: dict[str, float]) -> None:
    assert judged(beside_a_journal(4.5, cache=cache), "L5")
    assert broken(beside_a_journal(3.9, cache=cache)) == {"L5"}
    assert broken(beside_a_journal(cache=cache)) == {"L5"}


@seen("L4", good=[5.0], bad=[1.5])
def test_L4_an_answer_of_a_journal_is_a_use_of_its_key(journal: float) -> Story:
    story = beside_a_journal(journal, cache={"max_rows": 2})
    for row in range(2):
        story.row(2 + row, 3 + row, row + 20, key=row, source="call", answer=[1])
        story.call(2 + row, 3 + row, [row], answers=[[1]])
    return story


@pytest.mark.parametrize(("read", "laws"), [(4.5, set()), (9.5, {"L4"})])
def test_L4_a_row_that_did_not_leave_may_have_used_its_key(read: float, laws: set[str]) -> None:
    """Seed 40037245."""
    story = Story(cache={"max_rows": 2}).task(worker="w").task(task="cut", end=20, outcome="killed", worker="w")
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    for row in range(2):
        story.row(2 + row, 3 + row, row + 20, key=row, source="call", answer=[1])
        story.call(2 + row, 3 + row, [row], answers=[[1]])
    story.row(read, None, 0, key="a", task="cut")
    assert broken(story.row(9, 9, 90, key="a", source="cache", answer=[1])) == laws


@pytest.mark.parametrize(("end", "laws"), [(8.0, set()), (3.5, {"L5"})])
def test_L5_a_row_that_did_not_leave_may_have_used_its_key(end: float, laws: set[str]) -> None:
    """Seed 77003200."""
    story = Story(cache={"expire_after_access": 5.0}, mode="unordered").task(worker="w")
    story.task(task="cut", end=end, outcome="failed", worker="w")
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    story.row(3, None, 0, key="a", task="cut")
    assert broken(story.row(9, 9, 1, key="a", source="cache", answer=[1])) == laws
