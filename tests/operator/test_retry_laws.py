"""R1 to R3 and R5 to R7, O7 and O12: which attempts are made again, and when."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    EnricherError,
    ExponentialBackoff,
    FunctionError,
    Retry,
)
from tests.operator.attempts import BAD, OK, Act, Script, retry
from tests.operator.helpers import Life, block, collect, collect_timed, late, now, process, virtual

# -- R1, R2: one deadline over everything


@virtual
async def test_R1_the_deadline_runs_over_all_attempts_and_back_offs(mode):
    script = Script(lambda value, attempt: Act(1.5, error=ValueError()))
    operator = AsyncWaitOperator(script, mode=mode, timeout=6.0, retry=retry(100, 1.0), on_timeout=late)
    assert await collect_timed(operator.process([1])) == [(("late", 1), 6.0)]
    assert script.times(1) == [0, 2.5, 5]


@virtual
async def test_R2_a_timeout_hooks_own_error_goes_to_on_error_and_is_never_retried(mode):
    class Function(AsyncFunction[Any, Any]):
        async def invoke(self, value: Any) -> Any:
            started.append(now())
            await asyncio.sleep(10)

        def timeout(self, value: Any) -> Any:
            raise ValueError("from the hook")

    started: list[float] = []
    got = await process(Function(), [1], mode=mode, timeout=2.0, retry=retry(), on_error=lambda v, e: str(e))
    assert got == ["from the hook"]
    assert started == [0]


# -- R3: nothing starts in vain


@virtual
async def test_R3_an_element_whose_back_off_would_end_after_the_deadline_ends_at_once_with_its_last_error(mode):
    script = Script({1: [BAD, Act(error=ValueError("second")), OK]})
    operator = AsyncWaitOperator(
        script, mode=mode, timeout=5.0, retry=retry(9, 3.0), on_error=lambda v, e: str(e), on_timeout=late
    )
    assert await collect_timed(operator.process([1])) == [("second", 3.0)]
    assert script.times(1) == [0, 3]
    assert operator.metrics.timeouts == 0
    assert operator.metrics.failures == 1


@virtual
async def test_R3_no_attempt_starts_after_the_deadline_also_if_the_loop_was_blocked(mode):
    """The deadline has passed before a timer of the loop could tell."""

    async def call(value):
        started.append(value)
        if value == 1:
            raise ValueError
        await asyncio.sleep(2)
        block(100.0)
        return value

    started: list[int] = []
    got = await process(call, [1, 2], mode=mode, capacity=1, timeout=50.0, retry=retry(), on_timeout=late)
    assert sorted(got, key=str) == [("late", 1), 2]
    assert started == [1, 2]


# -- R5: which attempts are made again


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
@virtual
async def test_R5_max_attempts_counts_calls_the_first_one_too(mode, attempts):
    script = Script(lambda value, attempt: BAD)
    operator = AsyncWaitOperator(script, mode=mode, retry=retry(attempts), on_error="skip")
    assert await collect(operator.process([1])) == []
    assert script.times(1) == list(range(attempts))
    assert operator.metrics.retries == attempts - 1


@virtual
async def test_R5_an_attempt_is_retried_if_its_error_is_one_of_on(mode):
    script = Script({1: [Act(error=KeyError())], 2: [Act(error=ValueError())], 3: [Act(error=UnicodeError())]})
    policy = retry(on=(ValueError, OSError))
    got = await process(script, [1, 2, 3], mode=mode, retry=policy, on_error=lambda v, e: "failed")
    assert sorted(got, key=str) == [2, 3, "failed"]
    assert len(script.times(1)) == 1


@virtual
async def test_R5_an_error_that_says_retryable_False_is_not_retried(mode):
    script = Script({1: [Act(error=EnricherError("no", retryable=False))], 2: [Act(error=EnricherError("?"))]})
    got = await process(script, [1, 2], mode=mode, retry=retry(), on_error=lambda v, e: "failed")
    assert sorted(got, key=str) == [2, "failed"]


@virtual
async def test_R5_when_attempts_run_out_the_last_error_goes_to_on_error(mode):
    script = Script(lambda value, attempt: Act(error=ValueError(attempt)))
    got = await process(script, [1], mode=mode, retry=retry(), on_error=lambda v, e: e.args[0])
    assert got == [2]
    with pytest.raises(FunctionError, match="element 2 in attempt 3 with ValueError: 2") as failure:
        await process(script, [2], mode=mode, retry=retry())
    assert failure.value.attempts == 3
    assert failure.value.__cause__ is not None


@virtual
async def test_O7_a_result_that_cannot_be_flattened_is_never_retried(mode):
    script = Script({1: [BAD, Act(result="text")], 2: [BAD, Act(result=[3, 4])]})
    options: dict[str, Any] = {"mode": mode, "flatten": True, "retry": retry()}
    operator = AsyncWaitOperator(script, on_error="skip", **options)
    assert await collect(operator.process([1, 2])) == [3, 4]
    assert script.times(1) == [0, 1]
    assert operator.metrics.skipped == 1
    script = Script({1: [BAD, Act(result="text")]})
    with pytest.raises(FunctionError, match="in attempt 2 with ResultError") as failure:
        await process(script, [1], **options)
    assert failure.value.attempts == 2


@virtual
async def test_R6_an_error_before_the_first_await_is_retried_too(mode):
    calls = []

    def call(value):
        calls.append(value)
        if len(calls) < 3:
            raise ValueError
        return asyncio.sleep(1, value)

    assert await process(Life(call), [1], mode=mode, retry=retry()) == [1]
    assert now() == 3


# -- R7: back-offs


@virtual
async def test_R7_back_off_is_computed_per_element_from_its_own_attempts():
    script = Script(lambda value, attempt: BAD if attempt < value else OK)
    backoff = ExponentialBackoff(initial=1.0, multiplier=2.0, maximum=100.0, jitter=False)
    operator = AsyncWaitOperator(script, mode="unordered", retry=Retry(max_attempts=9, backoff=backoff))
    got = await collect_timed(operator.process([1, 2, 3, 4]))
    assert got == [(1, 1), (2, 3), (3, 7), (4, 15)]
    assert script.times(4) == [0, 1, 3, 7, 15]


@virtual
async def test_R7_jitter_is_full():
    script = Script(lambda value, attempt: BAD if attempt == 0 else OK)
    policy = Retry(backoff=ExponentialBackoff(initial=10.0, maximum=10.0))
    operator = AsyncWaitOperator(script, mode="unordered", capacity=300, retry=policy)
    times = [at for _, at in await collect_timed(operator.process(range(300)))]
    assert len(set(times)) > 290
    assert 0 <= min(times) < 1
    assert 9 < max(times) <= 10


@pytest.mark.parametrize("asked", [4.0, 4, timedelta(seconds=4)])
@virtual
async def test_R7_retry_after_replaces_the_computed_delay(mode, asked):
    error = ValueError()
    error.retry_after = asked  # type: ignore[attr-defined]
    script = Script({1: [Act(error=error), BAD, OK]})
    assert await process(script, [1], mode=mode, retry=retry()) == [1]
    assert script.times(1) == [0, 4, 5]
