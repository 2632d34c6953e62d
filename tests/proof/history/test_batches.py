"""The checker of histories and the laws of batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, judged


def batch(size: int = 4, status: str = "found", **setting: Any) -> Story:
    story = Story(batch={"max_size": 4, "linger": 0.1}, on_error="null", **setting).task()
    for row in range(size):
        story.row(0, 9, row, key=row, source="call", status=status)
    return story


def test_Y2_a_batch_that_is_too_large_is_seen() -> None:
    assert judged(batch(4).call(0, 1, [0, 1, 2, 3]), "B1")
    assert broken(batch(5).call(0, 1, [0, 1, 2, 3, 4])) == {"B1"}
    assert broken(Story().task().row(0, 1, 0, key=0).row(0, 1, 1, key=1).call(0, 1, [0, 1])) == {"B1"}


@pytest.mark.parametrize(("breaker", "laws"), [({"minimum_calls": 2}, set()), (None, {"R1", "R2"})])
def test_Y2_an_attempt_that_a_circuit_breaker_refused_begins_the_time_of_a_row(breaker: Any, laws: set[str]) -> None:
    story = Story(timeout=1.0, attempt_timeout=5.0, on_error="null", max_attempts=2, circuit_breaker=breaker).task()
    story.row(0, 1.0, 0, key=0, source="call", status="timed_out")
    assert broken(story.call(0.5, 1.0, [0], "timed_out")) == laws


@pytest.mark.parametrize(("keys", "laws"), [([0, 1], set()), ([0], {"R3"})])
def test_Y2_halves_may_wait_for_a_place_until_the_deadline(keys: list[int], laws: set[str]) -> None:
    story = Story(timeout=1.0, max_attempts=2, delay=0.9, on_error="null", batch={"max_size": 2}).task()
    for key in keys:
        story.row(0, 1.0, key, key=key, source="call", status="timed_out")
    assert broken(story.call(0, 0.5, keys, "error")) == laws


@pytest.mark.parametrize(("again", "laws"), [(1.2, set()), (0.7, {"R5"})])
def test_Y2_a_batch_may_be_cut_before_a_half_of_it_starts(again: float, laws: set[str]) -> None:
    story = Story(attempt_timeout=1.0, max_attempts=2, delay=0.1, on_error="null", batch={"max_size": 2}).task()
    story.row(0, 9, 0, key=0, source="call").row(0, 9, 1, key=1, source="call")
    story.call(0, 0.5, [0, 1], "error", retryable=False)
    assert broken(story.call(again, 1.4, [0, 1])) >= laws
    assert ("R5" in broken(story)) is bool(laws)


def test_Y2_an_answer_of_another_length_that_is_used_or_retried_is_seen() -> None:
    def story(status: str, *more: list[int]) -> Story:
        story = Story(batch={"max_size": 4, "linger": 0}, on_error="null", max_attempts=3, delay=0.0).task()
        for row in range(2):
            story.row(0, 9, row, key=row, source="call", status=status)
        story.call(0, 1, [0, 1], answers=[[1]])
        for keys in more:
            story.call(1, 2, keys, answers=[[1]] * len(keys))
        return story

    assert judged(story("failed"), "B3")
    assert broken(story("found")) == {"B3", "L1"}
    assert "B3" in broken(story("failed", [0]))


def test_Y2_a_failing_batch_that_is_not_halved_is_seen() -> None:
    def story(*halves: list[int], **error: Any) -> Story:
        story = batch(status="found" if halves else "failed").call(0, 1, [0, 1, 2, 3], "error", **error)
        for keys in halves:
            story.call(1, 2, keys)
        return story

    assert judged(story([0, 1], [2, 3]), "B4")
    assert broken(story([0, 1, 2], [3])) == {"B4"}
    assert "B4" in broken(story([0, 1, 2, 3]))
    assert broken(story()) == {"B4"}
    # An overload is no key's fault.
    assert broken(story(overload=True)) == set()
    assert "B4" in broken(story([0, 1], [2, 3], overload=True))


@pytest.mark.parametrize(("slack", "laws"), [(0.001, set()), (0.0, {"R5"})])
def test_Y2_a_clock_may_show_a_next_attempt_a_little_before_the_end_of_the_last(slack: float, laws: set[str]) -> None:
    """Seed 40021070."""
    setting = {"attempt_timeout": 1.0, "max_attempts": 2, "delay": 0.0, "on_error": "null"}
    story = Story(capacity=1, batch={"max_size": 2}, **setting).about(slack=slack).task()
    story.row(0, 2, 0, key=0, status="failed", source="call", attempts=2).row(0, 2, 1, key=1, source="call", attempts=2)
    story.call(0, 0.5, [0, 1], "error").call(0.5, 0.999, [0], "timed_out").call(0.999, 1.5, [1])
    assert broken(story.call(1.5, 2.0, [0], "error", retryable=False)) & {"R5"} == laws


@pytest.mark.parametrize(("fails", "delay", "laws"), [(1.0, 0.5, set()), (0.9, 0.5, {"R5"}), (1.0, 0.0, set())])
def test_Y2_a_half_that_begins_at_the_end_of_its_attempt_is_a_part_of_it(
    fails: float, delay: float, laws: set[str]
) -> None:
    story = Story(attempt_timeout=1.0, batch={"max_size": 2}, max_attempts=2, delay=delay, on_error="null").task()
    for row in range(2):
        story.row(0, 1.7, row, key=row, source="call", attempts=2)
    story.call(0, fails, [0, 1], "error").call(1.0, 1.2, [0], "timed_out").call(1.0, 1.2, [1], "timed_out")
    assert broken(story.call(1.5, 1.7, [0, 1])) & {"R5"} == laws


def paired(first: str, copy: str, copy_ends: float, status: str = "found", **more: Any) -> Story:
    """A call, its copy, and the next attempt at 3 s, if there is one."""
    setting = {"attempt_timeout": 2.0, "timeout": 90.0, "max_attempts": 2, "delay": 1.0, "on_error": "null"}
    story = Story(hedge={"after": 0.1, "extra": 1.0, "floor": 0.0}, **setting).task()
    story.row(0, 9, key="a", source="call", status=status, attempts=3)
    story.call(0, 0.5 if first == "error" else 2.0, ["a"], first, call="first", **more)
    answers = [{"invalid": "0"}] if copy == "result" else None
    return story.call(0.1, copy_ends, ["a"], copy, copy_of="first", answers=answers)


def test_R4_R5_a_copy_without_an_answer_that_can_be_used_is_no_result() -> None:
    """Seeds 30020845 and 30029661."""
    assert broken(paired("timed_out", "result", 0.5).call(3.0, 4.0, ["a"])) == set()
    assert broken(paired("timed_out", "result", 0.5, status="timed_out").call(3.0, 5.0, ["a"], "timed_out")) == set()


def split(*halves: list[int], **setting: Any) -> Story:
    """A batch of four that fails, and the calls that follow. A key without one fails."""
    story = Story(batch={"max_size": 4}, on_error="null", mode="unordered", **setting).task()
    for row in range(4):
        called = any(row in half for half in halves)
        story.row(0, 2 if called else 1, row, key=row, source="call", status="found" if called else "failed")
    story.call(0, 1, [0, 1, 2, 3], "error")
    for half in halves:
        story.call(1, 2, half)
    return story


def test_B4_a_batch_that_is_called_in_singles_is_seen() -> None:
    assert judged(split([0, 1], [2, 3]), "B4")
    assert broken(split([0], [1], [2], [3])) == {"B4"}
    # Keys of no half: their time has passed, or they would pass a spend limit. A half that would is split uncalled.
    for setting in ({"timeout": 9.0}, {"spend": {"keys": 9.0}}):
        assert broken(split([0], [2, 3], **setting)) == set()


def test_B4_a_half_that_is_not_called_is_seen() -> None:
    assert broken(split([0, 1])) == {"B4"}
    for setting in ({"timeout": 9.0}, {"spend": {"keys": 9.0}, "on_spent": "null"}):
        assert broken(split([0, 1], **setting)) == set()
