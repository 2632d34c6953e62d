"""Laws R3, R5 and R7: which attempts are made again, and when."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.errors import (
    CircuitOpenError,
    ConfigurationError,
    ElementTimeoutError,
    EnricherError,
    ResultError,
)
from asyncio_operator.policies.retry import ExponentialBackoff, FixedBackoff, Retry

PLAIN = ExponentialBackoff(0.5, 2.0, 10.0, jitter=False)


def no_chance():
    raise AssertionError("nobody should ask")


def asks(seconds):
    error = EnricherError("busy", retryable=True)
    error.retry_after = seconds
    return error


class FinalError(OSError):
    retryable = False


class StubbornResultError(ResultError):
    retryable = True


@pytest.mark.parametrize(
    ("on", "error", "expected"),
    [
        ((Exception,), OSError(), True),
        ((Exception,), ElementTimeoutError(), True),
        ((Exception,), CircuitOpenError(), True),
        ((Exception,), EnricherError("x"), True),
        ((Exception,), EnricherError("x", retryable=True), True),
        ((Exception,), EnricherError("x", retryable=False), False),
        ((Exception,), FinalError(), False),
        ((Exception,), ResultError(), False),
        ((ResultError,), StubbornResultError(), False),
        ((OSError, KeyError), ConnectionResetError(), True),
        ((OSError, KeyError), ValueError(), False),
        (OSError, OSError(), True),
        ((), OSError(), False),
        ((TimeoutError,), ElementTimeoutError(), True),
        ((OSError,), EnricherError("x", retryable=True), False),
        ((Exception,), asyncio.CancelledError(), True),
        ((OSError,), asyncio.CancelledError(), False),
        ((asyncio.CancelledError,), asyncio.CancelledError(), True),
        ((Exception,), SystemExit(), False),
        ((Exception,), KeyboardInterrupt(), False),
        ((Exception,), GeneratorExit(), False),
    ],
)
def test_R5_an_error_is_retried_if_it_is_one_of_on_and_does_not_refuse(on, error, expected):
    assert Retry(on=on).retries(error) is expected


def test_R5_results_are_retried_if_if_result_says_so():
    assert Retry().unsatisfied(None) is False
    assert Retry(if_result=lambda result: result is None).unsatisfied(None) is True
    assert Retry(if_result=lambda result: result is None).unsatisfied(5) is False
    assert Retry(if_result=lambda result: "true enough").unsatisfied(5) is True
    with pytest.raises(ZeroDivisionError):
        Retry(if_result=lambda result: 1 / result).unsatisfied(0)


@pytest.mark.parametrize(("deadline", "expected"), [(None, 100.5), (100.6, 100.5), (100.5, 100.5), (100.4, None)])
def test_R3_no_attempt_is_planned_after_the_deadline(deadline, expected):
    assert Retry(3, PLAIN).next_start(1, OSError(), 100.0, deadline, no_chance) == expected
    assert Retry(3, PLAIN, if_result=callable).next_start(1, None, 100.0, deadline, no_chance) == expected


@given(
    attempts=st.integers(1, 20),
    now=st.floats(0, 1e9),
    room=st.floats(-5, 20),
    chance=st.floats(0, 1, exclude_max=True),
    after=st.none() | st.floats(0, 30),
)
def test_R3_R7_the_next_start_is_within_the_deadline_or_there_is_none(attempts, now, room, chance, after):
    retry = Retry(10, ExponentialBackoff())
    error = OSError() if after is None else asks(after)
    start = retry.next_start(attempts, error, now, now + room, lambda: chance)
    wait = retry.backoff.wait(attempts, lambda: chance) if after is None else after
    fits = attempts < 10 and now + wait <= now + room
    assert start == (now + wait if fits else None)


@given(st.integers(1, 10**30), st.floats(0, 10), st.floats(1, 100), st.floats(0, 1e6))
def test_R7_the_wait_is_computed_from_the_number_of_attempts_alone(attempts, initial, multiplier, more):
    backoff = ExponentialBackoff(initial, multiplier, initial + more, jitter=False)
    wait = backoff.wait(attempts, no_chance)
    assert initial <= wait <= initial + more
    assert wait <= backoff.wait(attempts + 1, no_chance)
    if attempts <= 50:
        assert wait == min(initial + more, initial * multiplier ** (attempts - 1))


def test_R7_the_waits_grow_up_to_the_maximum():
    waits = [PLAIN.wait(attempts, no_chance) for attempts in (1, 2, 3, 4, 5, 6, 7, 2000, 10**400)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert ExponentialBackoff(0, jitter=False).wait(10**6, no_chance) == 0
    assert ExponentialBackoff(1, 1, jitter=False).wait(10**400, no_chance) == 1
    assert FixedBackoff(3).wait(10**400, no_chance) == 3


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_R7_full_jitter_is_a_part_of_the_computed_wait(attempts, part):
    assert ExponentialBackoff().wait(attempts, lambda: part) == part * min(10.0, 0.1 * 2.0 ** (attempts - 1))


@pytest.mark.parametrize(
    ("asked", "wait"), [(7, 7.0), (0.25, 0.25), (0, 0.0), (timedelta(minutes=1), 60.0), ("3", 3.0)]
)
def test_R7_retry_after_replaces_the_computed_wait(asked, wait):
    assert Retry(backoff=PLAIN).next_start(1, asks(asked), 100.0, None, no_chance) == 100.0 + wait


@pytest.mark.parametrize("asked", [None, math.nan, -1, True, "-1", "inf", "soon", 10**400, [], timedelta(-1)])
def test_R7_a_retry_after_that_makes_no_sense_is_ignored(asked):
    assert Retry(backoff=PLAIN).next_start(1, asks(asked), 100.0, None, no_chance) == 100.5


@pytest.mark.parametrize(("deadline", "start"), [(None, None), (100.0 + 7200.0, 100.0 + 3601.0)])
def test_R7_a_wait_of_more_than_an_hour_needs_a_deadline_that_allows_it(deadline, start):
    retry = Retry(backoff=PLAIN)
    assert retry.next_start(1, asks(3601), 100.0, deadline, no_chance) == start
    assert retry.next_start(1, asks(3600), 100.0, None, no_chance) == 3700.0
    assert "the source asks to wait 3601 s" in retry.refusal(asks(3601), 1, again=True)


@pytest.mark.parametrize(
    ("retry", "error", "attempts", "why"),
    [
        (Retry(2), ValueError(), 2, ""),
        (Retry(2), EnricherError("no", retryable=False), 1, "the error says that it would fail again"),
        (Retry(2, on=(OSError,)), ValueError(), 1, "Retry(on=...) does not include ValueError"),
        (Retry(2), ResultError("odd"), 1, "not retried: the answer is invalid"),
        (Retry(2), ValueError(), 1, "no time left"),
    ],
)
def test_R5_a_message_can_say_why_no_other_attempt_followed(
    retry: Retry, error: Exception, attempts: int, why: str
) -> None:
    said = retry.refusal(error, attempts, retry.retries(error))
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (EnricherError("busy", retryable=True), True),
        (EnricherError("odd"), False),
        (EnricherError("no", retryable=False), False),
        (ElementTimeoutError("cut"), True),
        (OSError(), False),
        (ResultError("odd"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_R5_only_errors_that_say_so_may_be_retried(error: BaseException, retried: bool) -> None:
    retry = Retry(2, on="retryable")
    assert retry.retries(error) is retried
    assert retried == ("no time left" in retry.refusal(error, 1, retried))
    assert retry == Retry(2, on="retryable") != Retry(2)


def test_R5_a_function_of_the_error_decides_unless_the_error_refuses() -> None:
    asked: list[BaseException] = []

    def is_busy(error: BaseException) -> bool:
        asked.append(error)
        return "busy" in str(error)

    retry = Retry(on=is_busy)
    busy, gone, refused = OSError("busy"), OSError("gone"), EnricherError("busy", retryable=False)
    assert [
        retry.retries(error) for error in (busy, gone, refused, ResultError("busy"), KeyboardInterrupt("busy"))
    ] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert asked == [busy, gone], "an error that refuses is not asked about"
    assert retry.retries(ExceptionGroup("", [busy, busy]))
    assert not retry.retries(ExceptionGroup("", [busy, gone]))
    assert retry.refusal(gone, 1, again=False) == "not retried: the function Retry(on=...) says no"


async def says_yes(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize("on", [says_yes, lambda: True, 5, "no"])
def test_R5_what_cannot_decide_is_refused(on: Any) -> None:
    with pytest.raises(ConfigurationError, match="on is"):
        Retry(on=on)
