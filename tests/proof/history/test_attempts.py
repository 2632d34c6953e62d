"""The checker of histories and the laws of deadlines and retries."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.history.stories import Story, broken, case, judged, seen


def one_row(out: float, status: str = "found", end: float | None = 100.0, **setting: Any) -> Story:
    """A task with one row."""
    return Story(on_error="null", **setting).task(end=end).row(0, out, key="a", source="call", status=status)


# -- deadlines


@seen("R2", good=[1.0], bad=[1.003])
def test_Y2_a_late_result_that_is_used_is_seen(end: float) -> Story:
    return one_row(end, timeout=1.0).call(0, end, ["a"])


@seen("R2", good=[1.0], bad=[1.003, 0.9], fine=[case(1.1, None)])
def test_Y2_a_row_that_waits_past_its_deadline_is_seen(out: float, consumer: str | None = "ready") -> Story:
    """A slow consumer may be what it waits for."""
    story = one_row(out, "timed_out", timeout=1.0, returns_within=4.0).about(consumer=consumer)
    return story.call(0, 5.0, ["a"], "timed_out")


def test_Y2_a_call_after_the_deadline_is_seen() -> None:
    def story(second: float) -> Story:
        story = one_row(1.0, "timed_out", timeout=1.0, max_attempts=2, delay=0.0)
        return story.call(0, 0.5, ["a"], "error").call(second, second, ["a"], "timed_out")

    assert judged(story(1.0), "R3")
    assert "R3" in broken(story(1.003))


@seen("R3", good=[case("failed", 0.5)], bad=[case("timed_out", 1.0)], fine=[case("timed_out", 1.0, delay=0.5)])
def test_Y2_a_wait_for_a_back_off_that_ends_too_late_is_seen(status: str, out: float, delay: float = 0.6) -> Story:
    story = one_row(out, status, timeout=1.0, max_attempts=2, delay=delay)
    return story.call(0, 0.5, ["a"], "error")


def test_Y2_a_result_that_is_lost_to_a_deadline_is_seen() -> None:
    def story(end: float, status: str = "timed_out") -> Story:
        return one_row(1.0, status, timeout=1.0).call(0, end, ["a"])

    assert judged(story(0.999, "found"), "R4")
    assert broken(story(0.999)) == {"R4"}
    # A result at the deadline may win or not.
    assert broken(story(1.0)) == set()
    assert "R4" not in story(1.0).report().held


def test_Y2_an_attempt_that_takes_too_long_or_is_cut_too_early_is_seen() -> None:
    assert judged(one_row(0.5, attempt_timeout=0.5).call(0, 0.5, ["a"]), "R1")
    assert broken(one_row(0.503, attempt_timeout=0.5).call(0, 0.503, ["a"])) == {"R1"}
    assert broken(one_row(0.4, "failed", attempt_timeout=0.5).call(0, 0.4, ["a"], "timed_out")) == {"R1"}


@pytest.mark.parametrize("outcome", ["timed_out", "cancelled"])
@pytest.mark.parametrize("setting", [{"attempt_timeout": 1.0}, {"attempt_timeout": 1.0, "timeout": 5.0}])
def test_R1_R2_a_row_does_not_time_out_before_its_attempt(outcome: str, setting: dict[str, float]) -> None:
    def story(end: float) -> Story:
        return one_row(end, "timed_out", **setting).call(0, end, ["a"], outcome)

    assert judged(story(1.0), "R2")
    assert broken(story(0.2)) == {"R1", "R2"}
    # A call that gave an error itself may be what the row calls a timeout.
    assert broken(one_row(0.2, "timed_out", **setting).call(0, 0.2, ["a"], "error", error="TimeoutError")) == set()


@pytest.mark.parametrize(("limit", "law"), [("timeout", "R2"), ("attempt_timeout", "R1")])
@pytest.mark.parametrize("outcome", ["timed_out", None])
def test_R1_R2_a_call_does_not_run_on_after_its_limit(limit: str, law: str, outcome: str | None) -> None:
    def story(end: float, within: float | None = 0.0) -> Story:
        story = one_row(1.0, "timed_out", returns_within=within, **{limit: 1.0})
        return story.call(0, None if outcome is None else end, ["a"], outcome or "")

    if outcome:
        assert judged(story(1.0), law)
        assert judged(story(1.5, within=0.5), law)
        assert broken(story(1.6, within=0.5)) == {law}
    assert broken(story(1.01)) == {law}
    # It may ignore its cancellation.
    assert broken(story(50.0, within=None)) == set()
    assert law in story(50.0, within=None).report().undecided


@seen("R2", good=[1.0], bad=[1.1], fine=[case(1.8, "a")])
def test_R2_the_deadline_of_a_retry_is_that_of_its_element(end: float, other: str | None = None) -> Story:
    """It may be the lookup of another row."""
    story = one_row(1.0, "timed_out", timeout=1.0, returns_within=0.0, max_attempts=2, delay=0.0)
    if other is not None:
        story.row(0.7, 1.7, 1, key=other, source="call", status="timed_out")
    return story.call(0, 0.8, ["a"], "error").call(0.8, end, ["a"], "timed_out")


# -- retries


def attempts(count: int, status: str = "failed", outcome: str = "error", **more: Any) -> Story:
    story = one_row(float(count), status, max_attempts=2, delay=0.0)
    for number in range(count):
        story.call(number, number + 1.0, ["a"], outcome, **more)
    return story


def test_Y2_one_attempt_too_many_is_seen() -> None:
    assert judged(attempts(2), "R5")
    assert broken(attempts(3)) == {"R5"}


def test_Y2_an_attempt_after_a_result_or_a_final_error_is_seen() -> None:
    assert broken(attempts(2, "found", "result")) == {"R5"}
    assert broken(attempts(2, "found", "result", retryable=True)) == set()
    assert broken(attempts(2, retryable=False)) == {"R5"}


def test_Y2_a_row_that_gives_up_too_early_is_seen() -> None:
    assert broken(attempts(1, retryable=True)) == {"R5"}
    assert broken(attempts(1)) == set()


@pytest.mark.parametrize(("asked", "laws"), [(3600.5, set()), (7200, set()), (3600, {"R5"})])
def test_Y2_a_row_without_a_deadline_does_not_wait_for_more_than_an_hour(asked: float, laws: set[str]) -> None:
    assert broken(attempts(1, retryable=True, retry_after=asked)) == laws


@pytest.mark.parametrize(
    ("failures", "said", "laws"), [(2, 2, set()), (2, None, set()), (2, 1, {"R5"}), (0, 2, {"R5"})]
)
def test_Y2_a_refusal_of_a_circuit_breaker_is_an_attempt(failures: int, said: int | None, laws: set[str]) -> None:
    breaker = {"failure_ratio": 0.5, "minimum_calls": 4, "open_for": 0.5}
    story = Story(max_attempts=2, delay=0.5, on_error="null", circuit_breaker=breaker).task()
    for number in range(failures):
        story.row(0, 0.1, number, key=number, status="failed").call(0, 0.1, [number], "error", retryable=False)
    story.row(0.2, 0.8, 9, key=9, status="failed", source="call", attempts=said)
    assert broken(story.call(0.7, 0.8, [9], "error", retryable=True)) == laws


@seen("R5", good=[2], bad=[1])
def test_Y2_a_wrong_number_of_attempts_in_the_status_is_seen(said: int) -> Story:
    story = Story(max_attempts=2, delay=0.0).task().row(0, 2.0, key="a", source="call", attempts=said)
    return story.call(0, 1, ["a"], "error").call(1, 2, ["a"])


def test_Y2_attempts_of_several_rows_with_one_key_are_counted_together() -> None:
    def story(calls: int) -> Story:
        story = Story(max_attempts=2, delay=0.0, on_error="null", remember=0).task()
        story.row(0, 9.0, 0, key="a", status="failed", source="call")
        story.row(0, 9.0, 1, key="a", status="failed", source="call")
        for number in range(calls):
            story.call(number, number + 1.0, ["a"], "error")
        return story

    assert judged(story(4), "R5")
    assert broken(story(5)) == {"R5"}
    assert "R7" in story(4).report().undecided


@pytest.mark.parametrize(
    ("setting", "error", "wait"),
    [
        ({"delay": 0.5}, {}, 0.5),
        ({"backoff": {"initial": 0.3, "multiplier": 2.0, "maximum": 1.0, "jitter": False}}, {}, 0.3),
        ({"delay": 0.5}, {"retry_after": 0.2}, 0.2),
        ({"backoff": {"jitter": True}}, {"retry_after": 0.7}, 0.7),
    ],
)
def test_Y2_a_back_off_that_is_too_short_is_seen(setting: dict[str, Any], error: dict[str, Any], wait: float) -> None:
    def story(start: float) -> Story:
        story = one_row(9.0, max_attempts=2, **setting)
        return story.call(0, 1.0, ["a"], "error", **error).call(start, 9.0, ["a"])

    assert judged(story(1.0 + wait), "R7")
    assert broken(story(1.0 + wait - 3e-6)) == {"R7"}


@seen("R8", good=[1.5], bad=[1.501])
def test_Y2_new_input_before_a_due_retry_is_seen(other: float) -> Story:
    story = Story(max_attempts=2, delay=0.5, capacity=1).task()
    story.row(0, 4.0, 0, key="a").row(0, 4.0, 1, key="b")
    story.call(0, 1.0, ["a"], "error")
    return story.call(other, 3.0, ["b"]).call(3.0, 4.0, ["a"])


@seen("R10", good=[2], bad=[1])
def test_Y2_a_refusal_before_enough_failures_is_seen(failures: int) -> Story:
    breaker = {"failure_ratio": 0.5, "minimum_calls": 4, "window": 30.0, "open_for": 10.0}
    story = Story(circuit_breaker=breaker, on_error="null").task()
    for number in range(failures):
        story.row(0, 1, number, key=number, status="failed", source="call").call(0, 1, [number], "error")
    return story.row(0, 1, 9, key=9, status="failed", source="none", error="CircuitOpenError")


def given_up(status: str, outcome: str, out: float = 1.0, retryable: bool | None = True, **setting: Any) -> Story:
    """A row that leaves after the first of three attempts."""
    story = Story(**{"on_error": "null", "max_attempts": 3, "delay": 0.5, **setting}).about(consumer="ready").task()
    error = "E" if outcome == "error" else None
    story.row(0, out, 0, key="a", source="call", attempts=1, status=status, error=error)
    return story.call(0, 1, ["a"], outcome, attempt=1, retryable=retryable, error=error)


def test_R5_an_error_that_is_given_up_before_the_deadline_is_seen() -> None:
    assert broken(given_up("failed", "error", timeout=30.0)) == {"R5"}
    assert broken(given_up("failed", "error", timeout=1.4)) == set()
    assert broken(given_up("failed", "error", timeout=1.6)) == {"R5"}
    # With jitter the wait is at most its maximum.
    backoff = {"initial": 0.1, "maximum": 1.0}
    assert broken(given_up("failed", "error", timeout=30.0, delay=None, backoff=backoff)) == {"R5"}
    assert broken(given_up("failed", "error", timeout=30.0, delay=None)) == set()


def test_R3_an_element_that_waits_for_its_deadline_and_then_fails_is_seen() -> None:
    assert broken(given_up("failed", "error", timeout=1.4)) == set()
    assert broken(given_up("failed", "error", out=1.4, timeout=1.4)) == {"R3"}
