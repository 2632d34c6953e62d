"""R1, R2, R4, R6 and R9: deadlines of elements and of attempts, and the clocks of real loops."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.engine import timing
from asyncio_operator.errors import ElementTimeoutError
from tests.operator.attempts import BAD, Act, Script, retry
from tests.operator.helpers import (
    REAL_LOOPS,
    Life,
    collect,
    collect_timed,
    forever,
    late,
    now,
    process,
    run_on,
    virtual,
)

# -- deadlines


@virtual
async def test_R1_the_timeout_runs_from_the_start_of_the_call(mode):
    async def wait(value):
        await asyncio.sleep(3)
        return value

    assert await process(wait, range(6), mode=mode, capacity=1, timeout=3.5) == list(range(6))


@virtual
async def test_R2_an_element_ends_at_its_deadline_exactly(mode):
    ended = []
    await process(
        forever, range(3), mode=mode, capacity=1, timeout=2.5, on_timeout=lambda value: ended.append((value, now()))
    )
    assert ended == [(0, 2.5), (1, 5.0), (2, 7.5)]


@virtual
async def test_R2_a_lane_that_is_watched_for_a_later_deadline_is_watched_for_an_earlier_one():
    """The third lane has its first call at 3, and its second one is the second attempt of the first element."""
    script = Script({"first": [BAD, Act(100.0)], 1: [Act(100.0)], 2: [Act(100.0)]})

    async def source():
        yield "first"
        await asyncio.sleep(1)
        yield 1
        yield 2
        await asyncio.sleep(2)
        yield "quick"

    operator = AsyncWaitOperator(
        script, mode="unordered", capacity=3, timeout=10.0, retry=retry(delay=5.0), on_timeout=late
    )
    got = dict(await collect_timed(operator.process(source())))
    assert got == {"quick": 3.0, ("late", "first"): 10.0, ("late", 1): 11.0, ("late", 2): 11.0}


@pytest.mark.parametrize("limit", [{"timeout": 2.0, "on_timeout": late}, {"attempt_timeout": 2.0, "retry": retry()}])
@pytest.mark.parametrize("levels", range(5))
@pytest.mark.parametrize("wrap", ["task", "wait_for", "gather", "group", "shield", "timeout"])
@virtual
async def test_R4_a_result_that_is_there_at_the_deadline_or_when_the_attempt_is_cut_wins(mode, wrap, levels, limit):
    async def call(value, level=levels):
        if level == 0:
            await asyncio.sleep(2)
            return value
        inner = call(value, level - 1)
        match wrap:
            case "task":
                return await asyncio.create_task(inner)
            case "wait_for":
                return await asyncio.wait_for(inner, 100)
            case "gather":
                return (await asyncio.gather(inner))[0]
            case "shield":
                return await asyncio.shield(inner)
            case "timeout":
                async with asyncio.timeout(100):
                    return await asyncio.create_task(inner)
            case _:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(inner)
                return task.result()

    operator = AsyncWaitOperator(call, mode=mode, **limit)
    assert sorted(await collect(operator.process(range(4)))) == [0, 1, 2, 3]
    assert operator.metrics.retries == 0


@pytest.mark.parametrize("name", ["timeout", "attempt_timeout"])
@pytest.mark.parametrize("none", [None, 0, 0.0, timedelta(0)])
@virtual
async def test_R9_no_timeout_is_none_and_retries_need_none(mode, name, none):
    script = Script({1: [Act(1e6, error=ValueError())]})
    options = {name: none, "on_timeout": pytest.fail}
    assert await process(script, [1], mode=mode, retry=retry(delay=1e6), **options) == [1]
    assert now() == 2e6


def same_sync(value: Any) -> Any:
    return value


# -- real loops


@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_a_deadline_never_comes_early(loop):
    """uvloop's own clock and timers count whole milliseconds."""

    async def main():
        begun = (time.monotonic() for _ in range(40))
        waited = await process(forever, begun, capacity=8, timeout=0.0115, on_timeout=lambda t: time.monotonic() - t)
        assert len(waited) == 40
        assert min(waited) >= 0.0115

    run_on(loop, main())


@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_a_deadline_does_not_keep_the_loop_busy(loop, monkeypatch):
    asked = [0]

    def clock():
        asked[-1] += 1
        return time.monotonic()

    async def main(seconds):
        await process(forever, [1], timeout=seconds, on_timeout=same_sync)

    monkeypatch.setattr(timing, "monotonic", clock)
    run_on(loop, main(0.0115))
    asked.append(0)
    run_on(loop, main(0.0615))
    assert asked[0] > 0
    assert abs(asked[1] - asked[0]) < 10, "the longer it waits, the more often it looks at the clock"


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


@virtual
async def test_R1_R9_without_a_deadline_the_hook_is_never_asked(mode):
    script = Script(lambda value, attempt: Act(9.0))
    options = {"attempt_timeout": 2.0, "retry": retry(2), "on_timeout": pytest.fail, "on_error": lambda v, e: type(e)}
    assert await process(script, [1], mode=mode, **options) == [ElementTimeoutError]
    assert script.times(1) == [0, 3]
