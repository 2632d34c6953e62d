"""The checker of histories and the laws of limits and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from asyncio_operator_proof.history.sweeps import distinct_between, over_window
from tests.proof.history.stories import Story, broken, case, judged, seen


def starts(*times: float, weights: dict[str, float] | None = None, **setting: Any) -> Story:
    """Calls that start at these times, by two tasks in turn."""
    story = Story(**setting).task().task(task="u")
    for row, at in enumerate(times):
        task = "tu"[row % 2] if "budget" in setting else "t"
        story.row(0, at, row, key=row, task=task).call(at, at, [row], task=task, weights=weights)
    return story


def limit(rate: float, per: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"limits": [{"unit": "calls", "rate": rate, "per": per, **more}]}


def test_Y2_one_start_too_many_in_a_window_is_seen() -> None:
    assert judged(starts(0, 0.5, 1.0, 1.5, **limit(2)), "R10")
    assert broken(starts(0, 0.5, 0.999997, **limit(2))) == {"R10"}
    assert judged(starts(0, 0.5, 0.9, **limit(2, burst=1)), "R10")


@pytest.mark.parametrize(("third", "laws"), [(1.0, set()), (0.999999, set()), (0.999997, {"G2"})])
def test_Y2_a_window_of_a_budget_is_judged_over_all_tasks(third: float, laws: set[str]) -> None:
    story = starts(0, 0.5, third, budget="b", **limit(2))
    assert broken(story) == laws
    assert ("G2" in story.report().held) is not bool(laws)


@seen("G2", good=[case(0, 0, 0, 0, 1, 1)], bad=[case(0, 0, 0, 0, 1, 1, 1)])
def test_Y2_a_burst_that_is_not_paid_back_is_seen(*times: float) -> Story:
    """Each window has 4, which is within the limit with its burst; the three together have one too many."""
    return starts(*times, budget="b", **limit(2, burst=2))


def test_Y2_every_unit_has_its_own_window() -> None:
    tokens: dict[str, Any] = {"limits": [{"unit": "tokens", "rate": 100.0, "per": 1.0}]}
    assert judged(starts(0, 0.5, weights={"tokens": 50.0}, budget="b", **tokens), "G2")
    assert broken(starts(0, 0.5, weights={"tokens": 51.0}, budget="b", **tokens)) == {"G2"}
    keys: dict[str, Any] = {"limits": [{"unit": "keys", "rate": 1.0, "per": 1.0}]}
    assert broken(starts(0, 0.5, budget="b", **keys)) == {"G2"}


def test_Y2_one_name_with_two_limits_is_seen() -> None:
    def story(rate: float) -> Story:
        story = Story(budget="b", **limit(2)).chained(1, budget="b", **limit(rate)).task()
        story.row(0, 5, key=0).call(0, 1, [0])
        return story.row(0, 5, key=0, lookup=1).call(2, 3, [0], lookup=1)

    assert judged(story(2), "G1")
    assert "G1" in broken(story(3))


@seen("G1", good=[2], bad=[3])
def test_Y2_one_call_in_flight_too_many_is_seen(calls: int) -> Story:
    story = Story(budget="b", in_flight=2).task().task(task="u")
    for row in range(calls):
        task = "tu"[row % 2]
        story.row(0, 1, row, key=row, task=task).call(0, 1, [row], task=task)
    return story


@seen("G1", good=[1.0], bad=[0.9])
def test_Y2_a_call_of_a_killed_task_runs_until_the_kill(second: float) -> Story:
    story = Story(budget="b", in_flight=1).task(end=1.0, outcome="killed").task(task="u")
    story.row(0, None, key=0).call(0, None, [0])
    return story.row(0, 3, key=0, task="u").call(second, 3, [0], task="u")


def working(rate_used: int, **setting: Any) -> Story:
    """A hundred seconds in which a row always waits, with this number of calls in each."""
    story = (
        Story(mode="unordered", capacity=50, budget="b", **limit(10), **setting).task(end=200).task(end=200, task="u")
    )
    for row in range(100 * rate_used):
        at = row / rate_used
        story.row(0, at, row, key=row, source="call").call(at, at, [row])
    return story


def test_Y2_a_limit_that_is_not_used_is_seen() -> None:
    assert judged(working(10), "G3")
    assert broken(working(9)) == {"G3"}
    # What else may hold a call leaves it undecided.
    assert "G3" in working(9, hedge={"after": 1.0}).report().undecided


@seen("G4", good=[3.0], bad=[2.5], fine=[case(1.0, settled=100.0)])
def test_Y2_a_debt_that_is_not_paid_is_seen(last: float, settled: float = 300.0) -> Story:
    """300 units are 3 seconds of the limit; the fourth hundred may start then."""
    story = Story(budget="b", limits=[{"unit": "tokens", "rate": 100.0, "per": 1.0}]).task()
    for row, at in enumerate((0.0, last)):
        story.row(0, 50, row, key=row)
        story.call(at, at + 0.1, [row], weights={"tokens": 100.0}, settled={"tokens": settled if not row else 100.0})
    return story


@seen(
    "G5",
    good=[case(5.1, wait=5.0)],
    bad=[case(4.9, wait=5.0)],
    fine=[case(0.5, wait=5.0), case(4.9, wait=-5.0), case(4.9, wait=7200.0)],
)
def test_Y2_a_hint_that_a_task_does_not_believe_is_seen(start: float, **hint: Any) -> Story:
    """For half a second it need not be known, and one that cannot be right is ignored."""
    story = starts(0.0, start, budget="b", **limit(100))
    return story.add("said", 0.1, task="t", **hint)


@seen("G5", good=[3], bad=[2])
def test_Y2_more_starts_than_the_source_has_left_are_seen(remaining: float) -> Story:
    story = Story(budget="b", **limit(1, 100.0, burst=9)).task().task(task="u")
    for row in range(3):
        story.row(0, 9, row, key=row, task="u").call(2 + row, 9, [row], task="u")
    return story.add("said", 0.1, task="u", remaining=remaining, reset=60.0)


def test_Y2_a_row_that_leaves_though_its_call_was_refused_is_seen() -> None:
    story = Story(budget="b", spend={"usd": 1.0}, on_error="null").task()
    story.row(0, 1, key=0, status="failed", source="call", attempts=0, error="BudgetExceeded")
    assert "G6" in broken(story)


@pytest.mark.parametrize(
    ("on_spent", "out", "laws"),
    [
        ("null", {"status": "over_budget", "error": "BudgetExceeded"}, set()),
        ("fail", {"status": "over_budget", "error": "BudgetExceeded"}, {"G6", "G12"}),
        ("null", {"status": "failed", "error": "BudgetExceeded"}, {"G12"}),
        ("null", {"status": "over_budget", "error": "BudgetExceeded", "answer": [1]}, {"G12"}),
    ],
)
@pytest.mark.parametrize("on_error", ["null", "drop", "fail"])
def test_Y2_a_row_without_money_is_judged_by_what_the_budget_says(
    on_spent: str, out: dict[str, Any], laws: set[str], on_error: str
) -> None:
    story = Story(budget="b", spend={"usd": 1.0}, on_spent=on_spent, on_error=on_error).task()
    story.row(0, 1, key=0, source="call", attempts=0, **out)
    seen = broken(story)
    assert {law for law in seen if law[0] == "G"} == laws
    if not laws:
        assert (seen, judged(story, "G12")) == (set(), True)


@pytest.mark.parametrize("source", ["stale", "shared"])
@pytest.mark.parametrize("stale", [True, False])
def test_Y2_an_old_answer_may_take_the_place_of_a_refused_call(source: str, stale: bool) -> None:
    story = Story(budget="b", spend={"usd": 1.0}, on_spent="null", cache={"stale_if_error": stale}).task()
    story.row(0, 1, key=0, status="found", source=source, attempts=0, error="BudgetExceeded", answer=[1])
    assert ("G12" in broken(story)) is not stale


@seen("G6", good=[0.5], bad=[0.6])
def test_Y2_a_call_that_passes_the_spend_limit_is_seen(settled: float) -> Story:
    story = Story(budget="b", spend={"usd": 1.0}).task()
    story.row(0, 9, 0, key=0).call(0, 1, [0], weights={"usd": 0.5}, settled={"usd": settled})
    return story.row(0, 9, 1, key=1).call(2, 3, [1], weights={"usd": 0.5})


@seen("G7", good=[2.0, 9.0], bad=[2.1])
def test_Y2_a_start_without_a_coordinator_is_seen(start: float) -> Story:
    story = starts(0.0, start, budget="b", **limit(100))
    return story.add("fault", 1.0, what="coordinator_down").add("fault", 9.0, what="coordinator_up")


def test_windows_are_found_like_by_comparing_all_pairs() -> None:
    times = [(number * 0.37 % 5, float(number % 3)) for number in range(60)]
    times.sort()
    found = {last for _, last, _ in over_window(times, 6.0, 1.0, 0.0)}
    slow = {
        last
        for last, (at, weight) in enumerate(times)
        if weight and sum(other for begin, other in times[: last + 1] if at - begin < 1.0) > 6.0
    }
    assert found == slow


def test_distinct_keys_between_two_moments_are_counted() -> None:
    writes = [(float(at), key) for at, key in enumerate("abcabbca")]
    spans = [(begin / 2, end / 2) for begin in range(-1, 17) for end in range(begin, 18)]
    slow = [len({key for at, key in writes if begin < at < end}) for begin, end in spans]
    assert distinct_between(writes, spans) == slow


@pytest.mark.parametrize(
    ("others", "same"),
    [
        ([{"unit": "keys", "rate": 20}, {"rate": 10}], True),
        ([{"unit": "calls", "rate": 10.0, "per": 1, "burst": 0}, {"rate": 20, "unit": "keys", "per": 1.0}], True),
        ([{"rate": 10}], False),
        ([{"rate": 10, "burst": 1}, {"unit": "keys", "rate": 20}], False),
    ],
)
def test_G1_equal_limits_may_be_written_in_different_ways(others: list[dict[str, Any]], same: bool) -> None:
    story = Story(mode="unordered", budget="b", limits=[{"rate": 10}, {"unit": "keys", "rate": 20}])
    story.chained(1, mode="unordered", budget="b", limits=others).task()
    for lookup in range(2):
        story.row(0, 9, 0, key="a", source="call", lookup=lookup).call(lookup, 2, ["a"], lookup=lookup)
    assert broken(story) == (set() if same else {"G1"})
