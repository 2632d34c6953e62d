"""R1, R2 and R4 for `attempt_timeout`, which bounds each attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, ElementTimeoutError, FunctionError
from tests.operator.attempts import BAD, OK, Act, Script, retry
from tests.operator.helpers import Life, collect, collect_timed, forever, late, now, process, virtual


@virtual
async def test_R1_an_attempt_that_exceeds_it_is_cancelled_and_made_again(mode):
    function = Life(Script({1: [Act(9.0), Act(1.0)]}))
    operator = AsyncWaitOperator(function, mode=mode, attempt_timeout=2.0, retry=retry())
    assert await collect_timed(operator.process([1])) == [(1, 4.0)]
    assert function.events == ["open", 1, "-1", 1, "-1", "close"]
    assert (operator.metrics.retries, operator.metrics.timeouts, operator.metrics.failures) == (1, 0, 0)


@virtual
async def test_R1_back_off_starts_when_the_attempt_is_cut_though_its_call_goes_on(mode):
    script = Script({1: [Act(9.0, deaf=50.0), Act(1.0)]})
    operator = AsyncWaitOperator(script, mode=mode, attempt_timeout=2.0, retry=retry(delay=3.0))
    assert await collect_timed(operator.process([1])) == [(1, 6.0)]
    assert script.times(1) == [0, 5]


@virtual
async def test_R1_an_attempt_that_was_cut_counts_as_failed_with_ElementTimeoutError(mode):
    errors: list[Any] = []
    script = Script(lambda value, attempt: Act(9.0))
    await process(script, [1], mode=mode, attempt_timeout=2.0, retry=retry(), on_error=lambda v, e: errors.append(e))
    assert script.times(1) == [0, 3, 6]
    assert isinstance(errors[0], ElementTimeoutError)
    assert str(errors[0]) == "attempt 3 for element 1 had no result within attempt_timeout=2.0 s"
    with pytest.raises(FunctionError, match="element 1 in attempt 2 with ElementTimeoutError: attempt 2") as failure:
        await process(script, [1], mode=mode, attempt_timeout=2.0, retry=retry(2))
    assert isinstance(failure.value.__cause__, ElementTimeoutError)


@virtual
async def test_R1_it_is_retried_only_if_it_is_one_of_on(mode):
    script = Script(lambda value, attempt: Act(9.0))
    policy = retry(on=(ValueError,))
    assert await process(script, [1], mode=mode, attempt_timeout=2.0, retry=policy, on_error="skip") == []
    assert script.times(1) == [0]


@virtual
async def test_R1_without_retry_it_is_an_error(mode):
    operator = AsyncWaitOperator(forever, mode=mode, timeout=9.0, attempt_timeout=2.0, on_error="skip", on_timeout=late)
    assert await collect(operator.process([1])) == []
    assert now() == 2
    assert (operator.metrics.failures, operator.metrics.timeouts) == (1, 0)


@virtual
async def test_R1_the_hooks_are_for_the_deadline_only(mode):
    script = Script(lambda value, attempt: Act(9.0))
    hooked: list[float] = []
    operator = AsyncWaitOperator(
        script, mode=mode, timeout=7.0, attempt_timeout=2.0, retry=retry(9), on_timeout=lambda v: hooked.append(now())
    )
    assert await collect_timed(operator.process([1])) == [(None, 7.0)]
    assert script.times(1) == [0, 3, 6]
    assert hooked == [7.0]
    assert operator.metrics.timeouts == 1


@virtual
async def test_R1_each_attempt_has_the_whole_of_it(mode):
    script = Script({1: [Act(1.9, error=ValueError()), Act(1.9, error=ValueError()), Act(1.9)]})
    assert await process(script, [1], mode=mode, attempt_timeout=2.0, retry=retry()) == [1]


@virtual
async def test_R1_at_the_deadline_of_both_it_is_the_deadline(mode):
    operator = AsyncWaitOperator(forever, mode=mode, timeout=2.0, attempt_timeout=2.0, retry=retry(), on_timeout=late)
    assert await collect_timed(operator.process([1])) == [(("late", 1), 2.0)]


@pytest.mark.parametrize("attempt_timeout", [5.0, 1e9])
@virtual
async def test_R1_one_that_is_longer_than_timeout_is_allowed_and_never_comes(mode, attempt_timeout):
    operator = AsyncWaitOperator(
        forever, mode=mode, timeout=2.0, attempt_timeout=attempt_timeout, retry=retry(), on_timeout=late
    )
    assert await collect_timed(operator.process([1])) == [(("late", 1), 2.0)]


@virtual
async def test_R1_a_retry_after_the_cut_that_would_pass_the_deadline_ends_the_element_at_once(mode):
    operator = AsyncWaitOperator(
        forever, mode=mode, timeout=4.0, attempt_timeout=2.0, retry=retry(delay=3.0), on_timeout=late, on_error="skip"
    )
    assert await collect(operator.process([1])) == []
    assert now() == 2
    assert operator.metrics.timeouts == 0


@pytest.mark.parametrize("levels", range(4))
@virtual
async def test_R4_a_result_that_is_there_when_the_attempt_is_cut_wins(mode, levels):
    async def call(value: Any, level: int = levels) -> Any:
        if level == 0:
            await asyncio.sleep(2)
            return value
        return await asyncio.create_task(call(value, level - 1))

    operator = AsyncWaitOperator(call, mode=mode, attempt_timeout=2.0, retry=retry())
    assert sorted(await collect(operator.process(range(4)))) == [0, 1, 2, 3]
    assert operator.metrics.retries == 0


@virtual
async def test_R4_an_error_that_is_there_when_the_attempt_is_cut_wins(mode):
    script = Script({1: [Act(2.0, error=ValueError("there"))]})
    assert await process(script, [1], mode=mode, attempt_timeout=2.0, on_error=lambda v, e: str(e)) == ["there"]


@virtual
async def test_R4_a_result_at_the_deadline_wins_in_a_later_attempt_too(mode):
    script = Script({1: [BAD, Act(2.0)]})
    assert await process(script, [1], mode=mode, timeout=3.0, retry=retry(), on_timeout=late) == [1]


@virtual
async def test_R9_an_attempt_timeout_of_none_or_0_is_none(mode):
    for none in (None, 0, 0.0):
        script = Script({1: [Act(1e5), OK]})
        assert await process(script, [1], mode=mode, attempt_timeout=none, retry=retry()) == [1]


@virtual
async def test_O1_a_call_that_was_cut_and_goes_on_counts_against_capacity(mode):
    script = Script(lambda value, attempt: Act(9.0, deaf=10.0) if attempt == 0 else OK)
    operator = AsyncWaitOperator(script, mode=mode, capacity=3, attempt_timeout=2.0, retry=retry())
    assert sorted(await collect(operator.process(range(9)))) == list(range(9))
    assert script.most == 3


@virtual
async def test_many_attempts_are_cut_each_at_its_own_time():
    script = Script(lambda value, attempt: Act(1e6) if attempt < 2 else Act(0.5))
    operator = AsyncWaitOperator(script, mode="unordered", capacity=7, attempt_timeout=2.5, retry=retry(3, 0.25))
    assert sorted(await collect(operator.process(range(40)))) == list(range(40))
    for value in range(40):
        first, second, third = script.times(value)
        assert second - first >= 2.75
        assert third - second >= 2.75
