"""The checker of histories and the laws of the operator: each holds in a good story, and is seen where it is broken."""

from __future__ import annotations

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def in_flight(calls: int, **setting: object) -> Story:
    story = Story(capacity=2, **setting).task()
    for row in range(calls):
        story.row(0, 1.0, row, key=row, source="call").call(0, 1.0, [row])
    return story


def test_Y2_one_call_too_many_is_seen() -> None:
    assert judged(in_flight(2), "O1")
    assert broken(in_flight(3)) == {"O1"}
    [violation] = in_flight(3).report()
    assert str(violation) == ("O1 at 0.000000: 3 calls of task t run, and capacity is 2 (events 3, 5, 7)")


@pytest.mark.parametrize(("end", "laws"), [(0.999999, set()), (1.0, set()), (1.000003, {"O1"})])
def test_Y2_a_moment_is_no_overlap_and_more_is(end: float, laws: set[str]) -> None:
    story = Story(capacity=1).task().row(0, 2.0, 0, key=0).row(0, 2.0, 1, key=1)
    assert broken(story.call(0, end, [0]).call(1.0, 2.0, [1])) == laws


@seen("O1", good=[1.0], bad=[0.9])
def test_Y2_a_row_that_has_no_place_is_seen(third: float) -> Story:
    story = Story(buffer=2).task().row(0, 1.0, 0, key=0).row(0, 2.0, 1, key=0)
    return story.row(third, 2.0, 2, key=0)


def test_Y2_a_row_that_is_lost_or_doubled_is_seen() -> None:
    assert judged(Story().task().row(0, 1, 0, key=1), "O4")
    assert broken(Story().task().row(0, None, 0, key=1)) == {"O4"}
    twice = Story().task().row(0, 1, 0, key=1).add("row_out", 1, task="t", row=0, status="found")
    assert "O4" in broken(twice)
    lost_part = Story().task().row(0, 1, 0, key=1, part=1)
    assert "O4" in broken(lost_part)
    lost_last_part = Story().task().row(0, 1, 0, key=1, answer=[1, 2])
    assert "O4" in broken(lost_last_part)
    assert "O4" not in broken(lost_last_part.add("row_out", 1, task="t", row=0, part=1, status="found", answer=[1, 2]))
    # A consumer that closes a task may have taken some parts only.
    assert broken(Story().task(outcome="closed").row(0, 1, 0, key=1, answer=[1, 2])) == set()
    # A task that failed or was killed may leave rows.
    assert broken(Story().task(outcome="killed").row(0, None, 0, key=1)) == set()


def test_Y2_a_removed_row_needs_a_reason() -> None:
    def story(answer: object, outcome: str = "result", **setting: object) -> Story:
        answers = {"answers": [answer]} if outcome == "result" else {}
        return Story(**setting).task().row(0, None, 0, key=1).call(0, 1, [1], outcome, **answers)

    assert judged(story([], how="inner"), "O4")
    assert broken(story([1], how="inner")) == {"O4"}
    assert judged(story(None, "error", on_error="drop"), "O4")
    assert broken(story([1], on_error="drop")) == {"O4"}
    assert "O4" in story(None, how="inner").report().undecided


@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
def test_Y2_a_row_is_not_removed_before_its_deadline(limit: str) -> None:
    def story(returned: float, end: float = 100.0) -> Story:
        story = Story(on_error="drop", **{limit: 2.0}).task(end=end)
        return story.row(0, None, 0, key=0).call(0, returned, [0], answers=[[1]])

    assert "O4" in story(2.0).report().undecided
    assert broken(story(1.9)) == {"O4"}
    assert broken(story(1.9, end=1.9)) == {"O4"}


def failing(late: float) -> Story:
    story = Story(on_error="fail").task(end=2.0, outcome="failed")
    story.row(0, 0.5, 0, key=0).call(0, 0.5, [0]).row(0, None, 1, key=1).call(0, 1.0, [1], "error")
    return story.row(0, None, 2, key=2).call(late, 2.0, [2], "cancelled")


def test_Y2_what_follows_the_first_failure_is_seen() -> None:
    assert judged(failing(0.9), "O6")
    assert broken(failing(1.1)) == {"O6"}
    assert "O6" in broken(failing(0.9).add("row_out", 1.5, task="t", row=2, status="found"))
    finished = Story(on_error="fail").task().row(0, None, 0, key=0).call(0, 1.0, [0], "error")
    assert "O6" in broken(finished)


@pytest.mark.parametrize(
    ("consumer", "ended", "laws"), [("ready", 0.8, {"O6"}), (None, 0.8, set()), (None, 1.2, {"O6"})]
)
def test_Y2_O6_a_slow_consumer_may_take_a_row_that_was_complete_before_the_failure(
    consumer: str | None, ended: float, laws: set[str]
) -> None:
    """Seed 20002940."""
    story = Story(on_error="fail", mode="unordered").about(consumer=consumer).task(end=2.0, outcome="failed")
    story.row(0, None, 0, key=0).call(0, 1.0, [0], "error").row(0, 1.5, 1, key=1).call(0, ended, [1])
    assert broken(story) == laws


@seen("O7", good=[case((0, 0), (0, 1), (1, 0))], bad=[case((0, 0), (1, 0), (0, 1)), case((0, 1), (0, 0))])
def test_Y2_outputs_of_a_row_that_do_not_stay_together_are_seen(*order: tuple[int, int]) -> Story:
    story = Story(mode="unordered").task()
    for row in {row for row, _ in order}:
        story.add("row_in", 0, task="t", row=row, key=row)
    for row, part in order:
        story.add("row_out", 1, task="t", row=row, part=part, status="found")
    return story


def test_Y2_an_ended_task_that_goes_on_is_seen() -> None:
    assert judged(Story().task(end=1).row(0, 1, 0, key=0).call(0, 1, [0]), "O18")
    late = Story().task(end=1).row(0, 1, 0, key=0).call(0, 1, [0])
    assert "O18" in broken(late.call(1.1, 1.2, [0]))
    assert broken(Story().task(end=1).row(0, 1.1, 0, key=0)) == {"O8"}
    assert broken(Story().task(end=1).row(1.1, 1.2, 0, key=0)) == {"O8"}
    # A read that had begun may bring rows once.
    reading = Story().task(end=1, outcome="failed").row(1.1, None, 0, key=0)
    assert broken(reading) == set()
    assert broken(reading.row(1.2, None, 1, key=1)) == {"O8"}


def closing(close: float, end: float, **more: object) -> Story:
    story = Story(**more).task(end=20).add("opened", 0, task="t")
    return story.row(0, 1, 0, key=0).call(0, end, [0], "cancelled").add("closed", close, task="t")


def test_Y2_a_close_before_the_last_call_is_seen() -> None:
    assert judged(closing(1.0, 1.0), "O9")
    assert broken(closing(0.9, 1.0)) == {"O9"}
    # It waits for a call no longer than a grace period.
    assert broken(closing(5.0, 20.0)) == set()
    twice = closing(1.0, 1.0).add("closed", 2.0, task="t")
    assert broken(twice) == {"O9"}
    never = Story().task().add("opened", 0, task="t").row(0, 1, 0, key=0)
    assert broken(never) == {"O9"}


def test_Y2_a_call_that_outlives_its_task_is_seen() -> None:
    story = Story().task(end=2.0, outcome="closed").row(0, None, 0, key=0)
    assert broken(story.call(1.9, 3.0, [0], "cancelled")) == {"O9"}
    story = Story().task(end=2.0, outcome="killed").row(0, None, 0, key=0)
    assert broken(story.call(1.9, 3.0, [0], "cancelled")) == set()


def snapshot(rows: list[list[int]], **outs: float) -> Story:
    story = Story(max_attempts=3, on_error="null").task(end=3.0, outcome="closed")
    story.row(0, 1.0, 0).row(0, None, 1).row(0, None, 2)
    story.call(0, 1, rows=[0]).call(0, 1, rows=[1], outcome="error").call(0, 3, rows=[2], outcome="cancelled")
    return story.add("snapshot", 2.0, task="t", snapshot="s", rows=rows)


def test_Y2_a_snapshot_that_lacks_a_row_or_counts_wrongly_is_seen() -> None:
    assert judged(snapshot([[1, 1], [2, 0]]), "O10")
    assert broken(snapshot([[1, 1]])) == {"O10"}
    assert broken(snapshot([[0, 1], [1, 1], [2, 0]])) == {"O10"}
    assert broken(snapshot([[1, 0], [2, 0]])) == {"O10"}
    assert broken(snapshot([[1, 1], [2, 2]])) == {"O10"}


@seen("O10", good=[[1, 2, 3]], bad=[[3, 1, 2], [1], [1, 2, 0]])
def test_Y2_a_restored_run_that_loses_or_repeats_a_row_is_seen(rows: list[int]) -> Story:
    story = snapshot([[1, 1], [2, 0]]).task(at=4.0, end=9.0, task="u", restored="s")
    for row in rows:
        story.row(4.0, 5.0, row, task="u")
    return story


# -- order


def test_Y2_a_row_that_leaves_out_of_order_is_seen() -> None:
    def story(mode: str) -> Story:
        return Story(mode=mode).task().row(0, 2, 0, key=0).row(0, 1, 1, key=1)

    assert judged(Story().task().row(0, 1, 0, key=0).row(0, 1, 1, key=1), "X2")
    assert broken(story("ordered")) == {"X2"}
    assert broken(story("unordered")) == set()


def test_Y2_a_row_that_passes_a_watermark_is_seen() -> None:
    def story(first: float, watermark: float, second: float) -> Story:
        story = Story(mode="unordered").task().row(0, first, 0, key=0)
        story.add("watermark_in", 0, task="t", timestamp=7).row(0, second, 1, key=1)
        return story.add("watermark_out", watermark, task="t", timestamp=7)

    assert judged(story(1, 2, 3), "Q6")
    assert broken(story(3, 2, 4)) == {"Q6"}
    assert broken(story(1, 2, 1.5)) == {"Q6"}
    wrong = story(1, 2, 3).add("watermark_out", 4, task="t", timestamp=7)
    assert broken(wrong) == {"Q6"}


def test_Y2_two_rows_of_a_key_that_run_at_once_are_seen() -> None:
    def story(second: float) -> Story:
        story = Story(mode="key_ordered").task().row(0, 2, 0, key="a").row(0, 3, 1, key="a")
        return story.call(0, 1.0, rows=[0]).call(second, 3, rows=[1])

    assert judged(story(1.0), "Q7")
    assert broken(story(0.9)) == {"Q7"}
    swapped = Story(mode="key_ordered").task().row(0, 2, 0, key="a").row(0, 1, 1, key="a")
    assert broken(swapped) == {"Q7"}


def test_Y2_more_rows_than_a_key_has_are_seen() -> None:
    story = Story(single=True).task().row(0, 1, 0, key=0)
    assert judged(story, "X1")
    assert broken(story.add("row_out", 1, task="t", row=0, part=1, status="found")) == {"X1"}


def test_Y2_a_miss_of_a_required_lookup_is_seen() -> None:
    assert judged(Story(how="required").task().row(0, 1, 0, key=0), "X11")
    assert broken(Story(how="required").task().row(0, 1, 0, key=0, status="missing")) == {"X11"}
