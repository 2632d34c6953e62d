"""R1 to R9, O15: deadlines, what a call knows of its own, which attempts are made again and when, and hooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    EnricherError,
    ExponentialBackoff,
    FixedBackoff,
    FunctionError,
    ResultError,
    Retry,
    StateError,
)
from asyncio_operator.engine import timing
from asyncio_operator.enricher import time_left
from asyncio_operator.testing import VirtualTimeLoop
from asyncio_operator.trace import Trace
from tests.operator.attempts import BAD, OK, Act, Script, retry
from tests.operator.helpers import (
    REAL_LOOPS,
    Life,
    block,
    collect,
    collect_timed,
    forever,
    late,
    now,
    process,
    run_on,
    virtual,
)

# -- R1, R2: one deadline over everything


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
async def test_R5_an_attempt_is_retried_if_its_error_is_one_of_on_and_does_not_say_retryable_False(mode):
    errors = [KeyError(), ValueError(), UnicodeError(), EnricherError("no", retryable=False), EnricherError("?")]
    script = Script({number: [Act(error=error)] for number, error in enumerate(errors)})
    policy = retry(on=(ValueError, OSError, EnricherError))
    got = await process(script, range(5), mode=mode, retry=policy, on_error=lambda v, e: -v)
    assert sorted(got) == [-3, 0, 1, 2, 4]
    assert [len(script.times(number)) for number in range(5)] == [1, 2, 2, 1, 2]


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


# -- R8: what an element in back-off holds, and what not


@virtual
async def test_R8_an_element_in_back_off_holds_no_call_slot():
    script = Script({0: [BAD, OK]})
    operator = AsyncWaitOperator(script, mode="unordered", capacity=1, retry=retry(delay=10.0))
    got = await collect_timed(operator.process(range(100)))
    assert got == [*[(value, 0.0) for value in range(1, 100)], (0, 10.0)]


@pytest.mark.parametrize("deaf", [0.0, 3.0])
@virtual
async def test_R8_it_goes_before_new_input_also_after_a_call_that_was_cut(deaf):
    script = Script({0: [BAD, OK], 1: [Act(100.0, deaf=deaf), OK]})
    operator = AsyncWaitOperator(script, mode="unordered", capacity=1, attempt_timeout=4.0, retry=retry(delay=1.0))
    await collect(operator.process(range(3)))
    end = 4 + deaf
    assert script.starts[:4] == [(0, 0), (1, 0), (0, end), (1, end) if deaf else (2, end)]


@virtual
async def test_R8_those_that_are_due_go_in_the_order_they_became_so():
    script = Script({value: [Act(error=EnricherError("", retry_after=9 - value)), OK] for value in range(4)})
    script.acts[9] = [Act(10.0)]  # type: ignore[index]
    operator = AsyncWaitOperator(script, mode="unordered", capacity=1, retry=retry())
    await collect(operator.process([0, 1, 2, 3, 9]))
    assert [value for value, _ in script.starts] == [0, 1, 2, 3, 9, 3, 2, 1, 0]


# -- O15: hooks


class Broken(BaseException):
    pass


def broken(*_: Any) -> Any:
    raise Broken("broken")


def forgets(*_: Any) -> Any:
    return forever()


HOOKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "retry.if_result": lambda hook: {"retry": retry(if_result=hook)},
    "retry.on": lambda hook: {"retry": retry(on=hook), "attempt_timeout": 1.0},
    "on_timeout": lambda hook: {"on_timeout": hook},
    "on_error": lambda hook: {"on_error": hook, "attempt_timeout": 1.0},
    "key": lambda hook: {"key": hook, "mode": "key_ordered"},
    "the function's timeout": lambda hook: {},
}


@pytest.mark.parametrize(
    ("hook", "cause", "says"),
    [
        (broken, Broken, "Broken: broken"),
        (forgets, ResultError, "ResultError: .* returned a coroutine; hooks are ordinary functions: "),
    ],
)
@pytest.mark.parametrize("what", HOOKS)
@virtual
async def test_O15_what_a_hook_raises_ends_the_run_and_names_it(what, hook, cause, says):
    function = Life(Script({"element": [Act(0.0 if what == "retry.if_result" else 9.0)]}))
    if what == "the function's timeout":
        function.timeout = hook  # type: ignore[method-assign]
    options: dict[str, Any] = {"timeout": 2.0, "retry": retry(1)}
    operator = AsyncWaitOperator(function, **options | HOOKS[what](hook))
    with pytest.raises(FunctionError, match=f"^{what} failed for element 'element'.* with {says}") as failure:
        await collect(operator.process(["element"]))
    assert isinstance(failure.value.__cause__, cause)
    assert failure.value.element == "'element'"


@virtual
async def test_O15_a_truth_that_if_result_cannot_tell_is_an_error_of_it(mode):
    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("neither true nor false")

    with pytest.raises(FunctionError, match=r"^retry.if_result failed for element 1 in attempt 1"):
        await process(Script({}), [1], mode=mode, retry=retry(if_result=lambda result: Neither()))


# -- what blocks the loop, and odd clocks


@virtual
async def test_R3_no_attempt_starts_after_a_deadline_that_passed_with_the_back_off_while_the_loop_was_blocked():
    starts: list[Any] = []

    async def call(value):
        starts.append(value)
        if value == "retried":
            raise ConnectionError
        await asyncio.sleep(0.5)
        block(10.0)
        return value

    operator = AsyncWaitOperator(
        call, capacity=2, timeout=5.0, retry=retry(delay=1.0), on_timeout=lambda value: f"late: {value}"
    )
    # The call that blocks is late too, and its result is there.
    assert await collect(operator.process(["retried", "blocks"])) == ["late: retried", "blocks"]
    assert starts == ["retried", "blocks"]


def test_R8_back_offs_end_by_a_clock_below_zero_too():
    async def main():
        assert await process(Script({0: [BAD, OK]}), [0], timeout=5.0, retry=retry(delay=1.0)) == [0]
        assert now() == -999.0

    run_on(lambda: VirtualTimeLoop(-1000.0), main())


@virtual
async def test_R8_calls_that_fail_at_once_let_the_loop_turn_where_the_clock_stands_still():
    up: list[int] = []

    async def call(value):
        if not up:
            raise ConnectionError
        return value

    async def service():
        for _ in range(20):
            await asyncio.sleep(0)
        up.append(1)

    serving = asyncio.ensure_future(service())
    assert await process(call, [1], retry=retry(10**9, delay=0)) == [1]
    await serving


@virtual
async def test_O6_after_a_failure_no_element_ends_by_its_deadline():
    late: list[Any] = []
    script = Script({0: [BAD] * 3, 1: [Act(1.5, KeyError())], 2: [Act(100.0, deaf=20.0)]})
    operator = AsyncWaitOperator(
        script,
        capacity=2,
        timeout=10.0,
        retry=Retry(3, FixedBackoff(1.2), on=ValueError),
        on_timeout=late.append,
    )
    with pytest.raises(FunctionError, match="element 1"):
        await collect(operator.process(range(3)))
    assert (late, operator.metrics.timeouts) == ([], 0)


@virtual
async def test_a_second_run_that_is_refused_leaves_the_trace_of_the_first():
    trace = Trace()
    operator = AsyncWaitOperator(Script({0: [Act(1.0)]}), trace=trace)
    outputs = operator.process(range(3))
    await anext(outputs)
    events = len(trace.events())
    with pytest.raises(StateError, match="is running"):
        await anext(operator.process([7]))
    assert len(trace.events()) >= events
    assert await collect(outputs) == [1, 2]
    assert operator.metrics.emitted == 3


@virtual
async def test_R3_an_error_after_which_the_deadline_leaves_no_attempt_says_so():
    def operator(**options: Any) -> AsyncWaitOperator:
        return AsyncWaitOperator(Script({0: [BAD, BAD]}), **options)

    asked = iter((True, False))
    policy = retry(delay=5.0, on=lambda error: next(asked))
    with pytest.raises(FunctionError, match=r"in attempt 1 .*; there was no time left for another attempt; on_error"):
        await collect(operator(timeout=1.0, retry=policy).process([0]))
    for options in ({}, {"retry": Retry(2, FixedBackoff(0.0))}):
        with pytest.raises(FunctionError) as caught:
            await collect(operator(timeout=1.0, **options).process([0]))
        assert "no time" not in str(caught.value)


# -- R1, R2, R4, R6 and R9


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


# -- `time_left`


async def after_a_second(value):
    await asyncio.sleep(value)
    return time_left()


@virtual
async def test_a_call_knows_the_time_that_its_timeout_leaves_it():
    assert await process(after_a_second, [0, 1, 4], timeout=5.0, capacity=1) == [5.0, 4.0, 1.0]


@virtual
async def test_a_task_of_a_call_knows_the_calls_time():
    async def in_a_task(value):
        return await asyncio.ensure_future(after_a_second(value))

    assert await process(in_a_task, [1, 2], timeout=5.0) == [4.0, 3.0]


@virtual
async def test_an_attempt_knows_the_nearer_of_its_own_limit_and_the_deadline():
    left = []

    async def fails(value):
        left.append(time_left())
        await asyncio.sleep(2.0)
        raise OSError

    with pytest.raises(Exception, match=r"timeout of 5\.0 s"):
        await process(fails, [1], timeout=5.0, attempt_timeout=4.0, retry=Retry(backoff=FixedBackoff(0)))
    assert left == [4.0, 3.0, 1.0]


@virtual
async def test_without_a_limit_there_is_no_time_left_to_tell():
    assert await process(after_a_second, [0]) == [None]
    assert time_left() is None
