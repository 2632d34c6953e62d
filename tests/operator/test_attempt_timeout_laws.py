"""R1, R2 and R4 for `attempt_timeout`, which bounds each attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from tests.operator.attempts import Act, Script, retry
from tests.operator.helpers import Life, collect, collect_timed, forever, late, now, virtual


@virtual
async def test_R1_an_attempt_that_exceeds_it_is_cancelled_and_made_again(mode):
    function = Life(Script({1: [Act(9.0), Act(1.0)]}))
    operator = AsyncWaitOperator(function, mode=mode, attempt_timeout=2.0, retry=retry())
    assert await collect_timed(operator.process([1])) == [(1, 4.0)]
    assert function.events == ["open", 1, "-1", 1, "-1", "close"]
    assert (operator.metrics.retries, operator.metrics.timeouts, operator.metrics.failures) == (1, 0, 0)


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


@pytest.mark.parametrize("attempt_timeout", [5.0, 1e9])
@virtual
async def test_R1_one_that_is_longer_than_timeout_is_allowed_and_never_comes(mode, attempt_timeout):
    operator = AsyncWaitOperator(
        forever, mode=mode, timeout=2.0, attempt_timeout=attempt_timeout, retry=retry(), on_timeout=late
    )
    assert await collect_timed(operator.process([1])) == [(("late", 1), 2.0)]


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
