"""The checker of histories and the laws of lookups and caches."""

from __future__ import annotations

from typing import Any

import pytest

from asyncio_operator_proof.history.same_keys import canonical
from tests.proof.history.stories import Story, broken, case, judged, seen


def answered(
    row: int, out: float, key: Any = "a", source: str = "call", answer: Any = None, **more: Any
) -> dict[str, Any]:
    return {"row": row, "out": out, "key": key, "source": source, "answer": [1] if answer is None else answer, **more}


# -- lookups


def test_Y2_a_null_key_that_is_looked_up_is_seen() -> None:
    def story(**out: Any) -> Story:
        story = Story().task().row(0, 1, 0, key="a", source="call").call(0, 1, ["a"])
        return story.row(0, 1, 1, key=["b", None], **{"status": "missing", "source": "none", "attempts": 0, **out})

    assert judged(story(), "L1")
    assert broken(story(status="found")) == {"L1"}
    assert broken(story(attempts=1)) == {"L1"}
    assert broken(Story().task().row(0, 1, key=None, status="missing").call(0, 1, [None])) == {"L1"}


def test_Y2_a_call_for_a_key_that_no_row_had_is_seen() -> None:
    assert judged(Story().task().row(0, 1, key="a").call(0, 1, ["a"]), "L1")
    assert broken(Story().task().row(0, 1, key="a").call(0, 1, ["b"])) == {"L1"}


def test_Y2_a_source_that_cannot_be_is_seen() -> None:
    assert broken(Story().task().row(0, 1, key="a", source="call")) == {"L1"}
    assert broken(Story().task().row(0, 1, key="a", source="none")) == {"L1"}
    assert broken(Story(cache={}).task().row(0, 1, key="a", source="cache")) == {"L1"}
    early = Story().task().row(2, 3, key="a", source="call").row(0, 1, 1, key="a", source="call").call(0, 1, ["a"])
    assert "L1" in broken(early)


def test_L1_a_call_that_ended_before_a_row_came_is_not_its_own() -> None:
    def story(second: float) -> Story:
        story = Story(remember=0).task().row(0, 1, 0, key="a", source="call", answer=[1])
        story.call(0, 1, ["a"], answers=[[1]])
        return story.row(5, 6, 1, key="a", source="call", answer=[9]).call(second, second + 0.5, ["a"], answers=[[9]])

    assert judged(story(5.0), "L1")
    report = story(50.0).report()
    assert set(report.broken) == {"L1"}
    assert "are not recorded" not in report.undecided["L2"]


def test_Y2_two_calls_of_a_key_at_once_are_seen() -> None:
    def story(second: float, outcome: str = "result", **setting: Any) -> Story:
        story = Story(remember=0, **setting).task()
        story.row(0, 9, 0, key="a", source="call").row(0, 9, 1, key="a", source="call")
        return story.call(0, 1, ["a"], outcome).call(second, 2, ["a"])

    assert broken(story(1.0)) == set()
    assert broken(story(0.9)) == {"L2"}
    batches = story(0.9, asks_per_batch=True).report()
    assert not batches.broken
    assert "L2" in batches.undecided
    # Its caller had left it: it was cancelled, or ran past its deadline.
    assert broken(story(0.9, "cancelled")) == set()
    assert "L2" not in broken(story(0.9, timeout=0.9))


def test_Y2_an_error_that_is_taken_for_a_miss_is_seen() -> None:
    def story(outcome: str) -> Story:
        return Story().task().row(0, 1, key="a", source="shared", status="missing").call(0, 1, ["a"], outcome)

    assert judged(story("result"), "L3")
    assert "L3" in broken(story("error"))


@seen("L9", good=[case("missing", [])], bad=[case("found", []), case("missing", [1])])
def test_Y2_a_miss_with_rows_is_seen(status: str, answer: Any) -> Story:
    story = Story().task().row(0, 1, key="a", source="call", status=status, answer=answer)
    return story.call(0, 1, ["a"], answers=[answer])


SAME = [
    ({"float": "nan"}, {"float": "nan"}),
    (0.0, -0.0),
    ({"decimal": "1.5"}, {"decimal": "1.500"}),
    ({"decimal": "0"}, {"decimal": "-0.00"}),
    ({"decimal": "1e999999"}, {"decimal": "0.1e1000000"}),
    ({"decimal": "NaN"}, {"decimal": "-nan"}),
    ({"instant": "2026-01-31T12:00:00+01:00"}, {"instant": "2026-01-31T11:00:00+00:00"}),
    (["a"], "a"),
    (1, 1.0),
]
OTHER = [
    *((1, True), ("1", 1), (["a", "b"], "ab"), ({"bytes": "00"}, {"bytes": "01"}), ({"float": "inf"}, "inf")),
    ({"decimal": "9" * 37 + "1"}, {"decimal": "9" * 37 + "2"}),
    ({"decimal": "1e999999999"}, {"decimal": "1e-999999999"}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_Y2_one_key_in_two_forms_is_one_key(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)
    story = Story(batch={"max_size": 2}).task().row(0, 1, 0, key=one).row(0, 1, 1, key=other)
    assert "L10" in broken(story.call(0, 1, [one, other]))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_Y2_two_keys_are_two(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)
    story = Story(batch={"max_size": 2}).task().row(0, 1, 0, key=one).row(0, 1, 1, key=other)
    assert judged(story.call(0, 1, [one, other]), "L10")


@seen(
    "L12",
    good=[11.0],
    bad=[10.9, case(10.9, others=2, remember_rows=3)],
    fine=[case(10.9, remember=0), case(10.9, others=3, remember_rows=3)],
)
def test_Y2_a_key_that_was_not_remembered_is_seen(second: float, others: int = 0, **setting: Any) -> Story:
    """Among many keys it may be forgotten."""
    story = Story(**{"remember": 10.0, **setting}).task(end=50)
    story.row(0, 1, 0, key="a", source="call").call(0, 1, ["a"])
    for row in range(others):
        story.row(2, 3, row + 2, key=row, source="call").call(2, 3, [row])
    return story.row(second, second + 1, 1, key="a", source="call").call(second, second + 1, ["a"])


# -- caches


def cached(*hits: dict[str, Any], outcome: str = "result", answers: Any = ([1],), **cache: Any) -> Story:
    """A task that asks for "a" between 0 and 1, and then reads rows."""
    story = Story(mode="unordered", cache=cache, on_error="null").task()
    story.row(0, 1, 0, key="a", source="call", answer=answers[0] if answers else None)
    if answers and answers[0] == []:
        story.after[-1]["status"] = "missing"
    story.call(0, 1, ["a"], outcome, answers=list(answers) if answers else None)
    for hit in hits:
        begin = hit.pop("at", hit["out"])
        story.row(begin, **hit)
    return story


@seen("L5", good=[10.999], bad=[11.002])
def test_Y2_an_answer_past_its_time_is_seen(at: float) -> Story:
    return cached(answered(1, at, source="cache"), expire_after_write=10.0)


@seen(
    "L3",
    good=[case(5.999, missing_ttl=5.0), case(5.999, missing_ttl=5.0, expire_after_write=1.0)],
    bad=[case(6.002, missing_ttl=5.0), case(2.0, cache_missing=False)],
)
def test_Y2_a_cached_miss_past_its_time_or_that_must_not_be_is_seen(at: float, **cache: Any) -> Story:
    """The time of misses goes before that of other answers."""
    return cached(answered(1, at, source="cache", answer=[], status="missing"), answers=([],), **cache)


@seen("L5", good=[[2]], bad=[[1]])
def test_Y2_an_answer_that_is_not_the_current_one_is_seen(answer: Any) -> Story:
    story = cached(answered(2, 20.0, source="cache", answer=answer), expire_after_write=10.0)
    return story.row(12.0, 13.0, 1, key="a", source="call", answer=[2]).call(12.0, 13.0, ["a"], answers=[[2]])


@seen("L4", good=[2], bad=[3])
def test_Y2_a_hit_in_a_cache_that_was_too_full_is_seen(others: int) -> Story:
    story = cached(answered(99, 50.0, source="cache"), max_rows=3)
    for row in range(others):
        story.row(2 + row, 3 + row, row + 1, key=row, source="call", answer=[1])
        story.call(2 + row, 3 + row, [row], answers=[[1]])
    return story


@seen("L6", good=[6.5], bad=[5.9, None], fine=[case(None, hit=5.9)])
def test_Y2_a_refresh_too_early_or_none_at_all_is_seen(refresh: float | None, hit: float = 6.5) -> Story:
    story = cached(answered(1, hit, source="cache"), refresh_after=5.0)
    return story if refresh is None else story.call(refresh, refresh + 1, ["a"], refresh=True, answers=[[1]])


@seen("L6", good=[case("error", stale_if_error=True)], bad=["error"])
def test_Y2_a_stale_answer_without_a_failure_is_seen(outcome: str | None, **cache: Any) -> Story:
    story = cached(answered(1, 21.0, source="stale", at=20.0), expire_after_write=10.0, **cache)
    return story if outcome is None else story.call(20.0, 21.0, ["a"], outcome)


def test_Y2_a_stale_answer_beside_a_good_one_is_seen() -> None:
    def story(**end: Any) -> Story:
        story = cached(answered(1, 21.0, source="stale", at=20.0), stale_if_error=True)
        return story.call(20.0, 21.0, ["a"], **end)

    assert broken(story(answers=[[2]])) >= {"L6"}
    assert "L6" not in broken(story(answers=[[2], [3]]))
    assert "L6" not in broken(story())


@seen("L1", bad=[case("x", "heap")], fine=[case("w", "heap"), case("x", "redis")])
def test_Y2_workers_do_not_share_a_cache_in_memory(worker: str, store: str) -> Story:
    story = Story(cache={"store": store}).task(end=5, worker="w").task(at=6, task="u", worker=worker)
    story.row(0, 1, 0, key="a", source="call", answer=[1]).call(0, 1, ["a"], answers=[[1]])
    return story.row(7, 7, 0, key="a", task="u", source="cache", answer=[1])
