"""O1 to O7, O13 to O15: what is under way, that every element ends once, failures, results, metrics, hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncio_operator import (
    AdaptiveCapacity,
    AsyncFunction,
    AsyncWaitOperator,
    BatchAsyncFunction,
    BlockingFunction,
    ElementTimeoutError,
    FunctionError,
    Record,
    ResultError,
    Retry,
    StateError,
    Watermark,
)
from tests.operator.attempts import OK, Act, Batches, Script, retry, stop
from tests.operator.helpers import (
    Life,
    Source,
    collect,
    collect_until,
    fail,
    forever,
    nap,
    now,
    process,
    run_on,
    same,
    virtual,
)

# -- O1, O2: bounds


@virtual
async def test_O1_at_most_capacity_calls_run(mode):
    function = Life(nap)
    await process(function, [3, 1, 2, 1, 3, 1, 2], mode=mode, capacity=3)
    assert function.most == 3


@virtual
async def test_O12_calls_that_outlive_their_deadline_count_too(mode):
    function = Life(Script(lambda value, attempt: Act(10.0, deaf=5.0)))
    got = await process(function, range(6), mode=mode, capacity=2, timeout=1.0, on_timeout=lambda value: value)
    assert sorted(got) == list(range(6))
    assert function.most == 2
    assert now() == 3 * 6.0


@virtual
async def test_O1_nothing_is_read_ahead_of_a_free_slot(mode):
    source = Source(iter(range(10)))
    release = asyncio.Event()

    async def wait(value):
        await release.wait()
        return value

    run = AsyncWaitOperator(wait, mode=mode, capacity=3).process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    assert source.read == 3
    release.set()
    assert await first == 0
    await run.aclose()


@virtual
async def test_O1_at_most_buffer_elements_are_admitted_and_not_emitted():
    source = Source(iter([9, 1, 1, 1, 1, 1, 1]))
    operator = AsyncWaitOperator(nap, mode="ordered", capacity=2, buffer=4)
    run = operator.process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(8)
    assert source.read == operator.metrics.buffered == 4
    assert operator.metrics.in_flight == 1
    await first
    await run.aclose()


@virtual
async def test_O2_a_slow_consumer_stops_admission(mode):
    source = Source(iter(range(100)))
    run = AsyncWaitOperator(same, mode=mode, capacity=2, buffer=5).process(source)
    for taken in range(1, 20):
        await anext(run)
        await asyncio.sleep(1)
        assert source.read <= taken + 5
    await run.aclose()


# -- O3 to O5: every element, once


@virtual
async def test_O3_values_are_passed_on_as_they_are(mode):
    values = [[1], {"a": 2}, object()]
    got = await process(same, values, mode=mode)
    assert all(any(value is output for output in got) for value in values)


@virtual
async def test_O4_results_timeouts_and_skips_each_come_once(mode):
    async def mixed(value):
        await asyncio.sleep(value % 5)
        if value % 3 == 0:
            raise ValueError
        return value

    function = Life(mixed)
    options: dict[str, Any] = {"timeout": 3.5, "on_timeout": lambda value: -value, "on_error": "skip"}
    got = await process(function, range(1, 200), mode=mode, capacity=7, buffer=11, **options)
    expected = [-v if v % 5 == 4 else v for v in range(1, 200) if v % 5 == 4 or v % 3]
    assert (got if mode == "ordered" else sorted(got, key=abs)) == expected
    assert sorted(value for value in function.events if isinstance(value, int)) == list(range(1, 200))


@virtual
async def test_O5_everything_in_flight_is_finished_at_the_end_of_input(mode):
    assert sorted(await process(nap, [5, 1, 3], mode=mode)) == [1, 3, 5]
    assert now() == 5


@virtual
async def test_O2_an_asynchronous_input_is_not_asked_while_the_buffer_is_full():
    read: list[int] = []

    async def elements() -> AsyncIterator[int]:
        for value in range(9):
            read.append(value)
            # An element that was read too early would be offered again and again, and time would stand still.
            yield value if value < 2 else await forever()

    first = asyncio.ensure_future(anext(run := AsyncWaitOperator(forever, capacity=9, buffer=2).process(elements())))
    await asyncio.sleep(1)
    assert read == [0, 1]
    await stop(run, first)


# -- O6


@virtual
async def test_O6_the_first_failure_ends_the_run_while_nobody_reads(mode):
    async def call(value):
        if value == 3:
            await asyncio.sleep(2)
            raise ValueError("three")
        return await (same(value) if value < 2 else forever())

    function = Life(call)
    operator = AsyncWaitOperator(function, mode=mode)
    run = operator.process(range(9))
    assert await anext(run) == 0
    await asyncio.sleep(3)
    assert function.events[-1] == "close"
    assert function.running == 0
    with pytest.raises(FunctionError, match="failed for element 3") as failure:
        await anext(run)
    assert isinstance(failure.value.__cause__, ValueError)
    assert (failure.value.element, failure.value.attempts) == ("3", 1)


@virtual
async def test_O6_the_outputs_of_one_input_stop_at_the_failure_too():
    async def call(value):
        if value == 1:
            await asyncio.sleep(2)
            raise ValueError
        return range(9)

    got: list[Any] = []
    with pytest.raises(FunctionError):
        await collect_until(AsyncWaitOperator(call, flatten=True).process(range(2)), got, pause=1)
    assert got in ([0, 1], [0, 1, 2])


ENDING = [KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("error", [ValueError, StopAsyncIteration, *ENDING])
@pytest.mark.parametrize("on_error", ["fail", "skip", lambda value, error: None], ids=["fail", "skip", "function"])
@virtual
async def test_O6_an_error_belongs_to_the_run_and_one_that_asks_the_process_to_end_is_never_hidden(
    mode, error, on_error
):
    calls: list[Any] = []

    async def call(value):
        calls.append(value)
        raise error

    options: dict[str, Any] = {"mode": mode, "on_error": on_error, "retry": retry() if error in ENDING else None}
    if on_error != "fail" and error not in ENDING:
        assert len(await process(call, range(5), **options)) == (0 if on_error == "skip" else 5)
        return
    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), **options)
    assert isinstance(failure.value.__cause__, error)
    assert calls.count(0) == 1


@virtual
async def test_O6_an_error_that_cannot_be_shown_is_told_all_the_same(mode):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    async def call(value):
        raise MuteError

    with pytest.raises(FunctionError, match="MuteError"):
        await process(call, [1], mode=mode)


class Unclear:
    def __bool__(self):
        raise SystemExit


@pytest.mark.parametrize("value", [property(lambda error: error.headers["Retry-After"]), Unclear()])
@pytest.mark.parametrize("attribute", ["retryable", "retry_after", "overload", "any_key"])
@virtual
async def test_O6_an_error_that_cannot_say_what_it_is_is_judged_as_if_it_did_not(attribute, value):
    kind = type("UnclearError", (ValueError,), {attribute: value, "headers": {}})
    script = Script({1: [Act(error=kind()), OK]})
    assert await process(script, range(3), retry=retry()) == [0, 1, 2]
    assert script.times(1) == [0, 1]
    always = Script(lambda value, attempt: Act(error=kind()) if value == 1 else OK)
    assert await process(always, range(3), capacity=AdaptiveCapacity(), on_error="skip") == [0, 2]

    def poisoned(values, number):
        if 1 in values:
            raise kind
        return values

    assert await process(Batches(poisoned), range(3), on_error="skip") == [0, 2]


# -- O7 and O13 to O15


# -- O7: results


@virtual
async def test_O7_None_is_a_result(mode):
    async def nothing(value):
        return None

    assert await process(nothing, range(3), mode=mode) == [None] * 3


@virtual
async def test_O7_flatten_gives_every_item_or_none(mode):
    async def repeat(value):
        return (item for item in [value] * value)

    assert await process(repeat, [0, 3, 1, 0, 2], mode=mode, flatten=True) == [3, 3, 3, 1, 2, 2]


@pytest.mark.parametrize("result", ["text", b"bytes", bytearray(b"x"), {"a": 1}, 5, None])
@virtual
async def test_O7_what_cannot_be_flattened_is_a_result_error(mode, result):
    errors = []

    def on_error(value, error):
        errors.append(error)
        return ["instead"]

    got = await process(same, [result], mode=mode, flatten=True, on_error=on_error)
    assert got == ["instead"]
    assert isinstance(errors[0], ResultError)
    with pytest.raises(FunctionError) as failure:
        await process(same, [result], mode=mode, flatten=True)
    assert isinstance(failure.value.__cause__, ResultError)


class ForgetsEach(BatchAsyncFunction[Any, Any]):
    async def invoke_batch(self, values):
        return [same(value) for value in values]


async def forgets(value):
    return same(value)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("function", [forgets, ForgetsEach(), BlockingFunction(lambda one: same(one))])  # noqa: PLW0108
def test_O7_a_coroutine_is_no_result(mode, function, flatten):
    """Nor is Python's own warning of it left to be seen."""
    errors = []

    def on_error(value, error):
        errors.append(error)
        return [value]

    async def main() -> None:
        got = await process(function, [1, 2], mode=mode, flatten=flatten, on_error=on_error, retry=Retry())
        assert got == ([1, 2] if flatten else [[1], [2]])

    run_on(asyncio.new_event_loop, main())
    assert {type(error) for error in errors} == {ResultError}
    assert {str(error) for error in errors} == {"the function returned a coroutine; `await` is missing in it"}


@virtual
async def test_O7_an_error_while_flattening_is_a_failure_of_the_element(mode):
    async def call(value):
        def items():
            yield value
            raise ValueError

        return items()

    # Not "Retry(on=...) does not include ValueError": it does, and the call has succeeded.
    says = "^iterating over the result of the function failed for element 1 in attempt 1 with ValueError; on_error="
    with pytest.raises(FunctionError, match=says) as failure:
        await process(call, [1], mode=mode, flatten=True, retry=3)
    assert isinstance(failure.value.__cause__, ValueError)
    assert await process(call, [1], mode=mode, flatten=True, on_error="skip") == []


@virtual
async def test_O7_an_input_is_emitted_with_its_last_output(mode):
    async def pair(value):
        return [value, value]

    operator = AsyncWaitOperator(pair, mode=mode, flatten=True)
    run = operator.process([1])
    await anext(run)
    assert (operator.metrics.emitted, operator.metrics.buffered) == (0, 1)
    await anext(run)
    assert (operator.metrics.emitted, operator.metrics.buffered) == (1, 0)
    await run.aclose()


# -- O13 to O15


@virtual
async def test_O13_records_give_records_and_values_values(mode):
    elements = [1, Record(2, 20), Record(3), 4, Watermark(30)]
    assert await process(same, elements, mode=mode) == elements


@virtual
async def test_O14_one_run_at_a_time(mode):
    operator = AsyncWaitOperator(same, mode=mode)
    first, second = operator.process([1, 2]), operator.process([3])
    assert await anext(first) == 1
    with pytest.raises(StateError, match="end that run first"):
        await anext(second)
    assert await collect(first) == [2]


@virtual
async def test_O14_a_run_that_is_not_stepped_does_not_run(mode):
    function = Life()
    operator = AsyncWaitOperator(function, mode=mode)
    run = operator.process([1])
    await asyncio.sleep(1)
    assert function.events == []
    await run.aclose()
    assert function.events == []
    assert operator.metrics.admitted == 0


@virtual
async def test_O14_metrics_count_records(mode):
    async def mixed(value):
        if value == "slow":
            await forever()
        if value == "wrong":
            raise ValueError
        return value

    operator = AsyncWaitOperator(mixed, mode=mode, timeout=2.0, on_error="skip", capacity=4)
    elements = ["a", Watermark(1), "slow", "wrong", "slow", Watermark(2), "b"]
    assert await collect(operator.process(elements)) == ["a", Watermark(1), Watermark(2), "b"]
    metrics = operator.metrics
    assert (metrics.admitted, metrics.emitted, metrics.buffered, metrics.in_flight) == (5, 5, 0, 0)
    assert (metrics.timeouts, metrics.failures, metrics.skipped, metrics.retries) == (2, 3, 3, 0)
    assert metrics.latency.max == 2.0
    assert metrics.latency.p50 == 0.0


@virtual
async def test_O14_backpressure_is_the_time_in_which_the_buffer_was_full(mode):
    operator = AsyncWaitOperator(same, mode=mode, capacity=1, buffer=1)
    run = operator.process(range(3))
    await anext(run)
    await asyncio.sleep(2)
    assert operator.metrics.backpressure_seconds == 2
    await anext(run)
    await asyncio.sleep(3)
    assert operator.metrics.backpressure_seconds == 5
    await run.aclose()
    await asyncio.sleep(10)
    assert operator.metrics.backpressure_seconds == 5


@virtual
async def test_O15_on_error_gets_the_bare_error_and_gives_a_result(mode):
    seen = []

    def on_error(value, error):
        seen.append((value, type(error)))
        return "instead"

    assert await process(fail, [1], mode=mode, on_error=on_error) == ["instead"]
    assert await process(forever, [2], mode=mode, timeout=1.0, on_error=on_error) == ["instead"]
    assert seen == [(1, ValueError), (2, ElementTimeoutError)]


@virtual
async def test_O15_the_functions_own_timeout_is_asked_unless_on_timeout_is_given(mode):
    class Late(AsyncFunction[Any, Any]):
        async def invoke(self, value):
            await forever()

        def timeout(self, value):
            return f"own {value}"

    assert await process(Late(), [1], mode=mode, timeout=1.0) == ["own 1"]
    assert await process(Late(), [1], mode=mode, timeout=1.0, on_timeout=lambda v: f"given {v}") == ["given 1"]
