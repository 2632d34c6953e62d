"""O7 and O13 to O15: results, records and values, metrics, and hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import (
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
from tests.operator.helpers import Life, collect, fail, forever, process, run_on, same, virtual

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

    with pytest.raises(FunctionError) as failure:
        await process(call, [1], mode=mode, flatten=True)
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


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, StopIteration])
@virtual
async def test_O15_what_on_error_raises_ends_the_run(mode, error):
    def on_error(value, _):
        raise error

    with pytest.raises(FunctionError, match="on_error failed for element 1") as failure:
        await process(fail, [1], mode=mode, on_error=on_error)
    assert isinstance(failure.value.__cause__, error)


@virtual
async def test_O15_the_functions_own_timeout_is_asked_unless_on_timeout_is_given(mode):
    class Late(AsyncFunction[Any, Any]):
        async def invoke(self, value):
            await forever()

        def timeout(self, value):
            return f"own {value}"

    assert await process(Late(), [1], mode=mode, timeout=1.0) == ["own 1"]
    assert await process(Late(), [1], mode=mode, timeout=1.0, on_timeout=lambda v: f"given {v}") == ["given 1"]
