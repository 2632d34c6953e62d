"""The checker of histories and what need not be asked for again: keys of a cache, and what rows share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def again(
    at: float = 9.0,
    read: float | None = None,
    begin: float = 6.0,
    answer: Any = (1,),
    outcome: str = "result",
    status: str = "found",
    worker: str = "w",
    remember: float | None = None,
    **cache: Any,
) -> Story:
    """A key that is answered at 1 s, and asked for again by a row of another task of the worker."""
    story = Story(mode="unordered", on_error="null", cache=cache, remember=remember)
    story.task(worker="w", end=5).task(begin, worker=worker, task="u")
    answer = [1] if answer == (1,) else answer
    gave = {"status": "missing" if answer == [] else status, "source": "call", "answer": answer}
    story.row(0, 1, 0, key="a", **gave).call(0, 1, ["a"], outcome, answers=[answer])
    story.row(at if read is None else read, at + 1, 9, key="a", task="u", **gave)
    return story.call(at, at + 1, ["a"], answers=[answer], task="u", call="again", refresh=False)


def other(story: Story, at: float, key: Any, source: str = "call") -> Story:
    """A row of another key, with a call of its own or from the cache."""
    row = len(story.after)
    story.row(at, at + 0.1, row, key=key, source=source, answer=[1])
    return story.call(at, at + 0.1, [key], answers=[[1]]) if source == "call" else story


@pytest.mark.parametrize(
    ("cache", "law"),
    [({}, "L1"), ({"answer": []}, "L3"), ({"answer": [], "cache_missing": False}, None), ({"store": "rocksdb"}, None)],
)
def test_L1_a_cache_that_keeps_nothing_is_seen(cache: dict[str, Any], law: str | None) -> None:
    assert broken(again(**cache)) == ({law} if law else set())


@pytest.mark.parametrize(
    "cache", [{"expire_after_write": 8.0}, {"expire_after_access": 8.0}, {"answer": [], "missing_ttl": 8.0}]
)
def test_L1_an_answer_that_expires_too_early_is_seen(cache: dict[str, Any]) -> None:
    law = {"L3"} if "answer" in cache else {"L1"}
    assert broken(again(at=8.99, **cache)) == law
    assert broken(again(at=9.0, **cache)) == set()


def test_L3_a_miss_has_a_time_of_its_own() -> None:
    assert broken(again(answer=[], missing_ttl=9.0, expire_after_write=2.0)) == {"L3"}
    assert broken(again(answer=[], missing_ttl=2.0, expire_after_write=9.0)) == set()
    assert broken(again(missing_ttl=2.0, expire_after_write=9.0)) == {"L1"}


@seen("L1", bad=[2.7], fine=[1.7, case(2.7, remember=60.0)])
def test_L1_a_hit_is_a_use_of_its_key_unless_the_task_may_have_remembered_it(
    used: float, remember: float | None = None
) -> Story:
    """Seed 9462995."""
    story = again(max_rows=3, remember=remember).row(used, used, 7, key="a", source="cache", answer=[1])
    return other(other(other(story, 2, "x"), 2.5, "y"), 3, "z")


@pytest.mark.parametrize("worker", ["w", "x"])
def test_L1_a_cache_belongs_to_its_worker(worker: str) -> None:
    assert broken(again(worker=worker)) == ({"L1"} if worker == "w" else set())


@pytest.mark.parametrize(
    "more",
    [
        # A row that was read before the answer came had looked in the cache by then.
        {"read": 0.5, "begin": 0.0},
        # The cache may be closed after a minute without a task.
        {"at": 70.0, "begin": 66.0},
        {"outcome": "error", "answer": None, "status": "failed"},
        {"answer": {"invalid": "x"}, "status": "failed"},
        # It was not recorded whether the answer is one that can be used.
        {"answer": None},
    ],
)
def test_L1_an_answer_that_the_cache_may_not_have_is_not_missed(more: dict[str, Any]) -> None:
    assert "L1" not in broken(again(**more))


def test_L1_a_refresh_asks_for_what_the_cache_has() -> None:
    def story(refresh: bool | None) -> Story:
        story = again(refresh_after=20.0 if refresh is False else 3.0)
        for event in story.after:
            if event.get("call") == "again" and event["event"] == "call_started":
                event["refresh"] = refresh
        return story.row(8.9, 8.9, 3, key="a", task="u", source="cache", answer=[1])

    assert broken(story(False)) == {"L1"}
    assert "L1" not in broken(story(None)) | broken(story(True))


def failing(status: str = "failed", others: int = 0, outcome: str = "error", **setting: Any) -> Story:
    """A row with an expired answer on hand, whose call fails."""
    cache = {"expire_after_write": 2.0, "stale_if_error": True, "max_rows": 3, **setting.pop("cache", {})}
    story = Story(mode="unordered", on_error="null", cache=cache, **setting).task()
    story.row(0, 0.5, 0, key="a", source="call", answer=[1]).call(0, 0.5, ["a"], answers=[[1]])
    for key in range(others):
        other(story, 2 + key / 10, key)
    source = "stale" if status == "found" else "call"
    story.row(8, 9, 1, key="a", source=source, status=status, answer=[1] if status == "found" else None)
    return story.call(8, 9, ["a"], outcome, answers=[[2]] if outcome == "result" else None)


def test_L6_a_failure_although_an_answer_is_on_hand_is_seen() -> None:
    assert broken(failing()) == {"L6"}
    assert broken(failing(others=2)) == {"L6"}
    assert broken(failing(others=3)) == set()
    assert broken(failing(cache={"stale_if_error": False})) == set()
    assert broken(failing(cache={"store": "rocksdb"})) == set()
    assert broken(failing("timed_out", outcome="timed_out", timeout=1.0)) == {"L6"}
    assert judged(failing("found"), "L6")


def test_L6_a_stale_answer_beside_a_good_one_is_seen_before_the_deadline_too() -> None:
    assert broken(failing("found", outcome="result", timeout=30.0)) == {"L6"}
    assert broken(failing("found", outcome="result", timeout=1.0)) == set()
    assert judged(failing("found", timeout=30.0), "L6")


# -- caches that several tasks use, or that stand beside a journal


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


# -- what rows share, and for how long a task remembers


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
