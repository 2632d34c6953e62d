"""O1 to O7 and O13 to O15: what the operator gives, in which order, and how much of it is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    ElementTimeoutError,
    FunctionError,
    Record,
    ResultError,
    StateError,
    Watermark,
)
from tests.core.helpers import Life, collect, collect_timed, collect_until, forever, now, process, same, virtual


async def nap(seconds: Any) -> Any:
    """The value is the seconds it takes."""
    await asyncio.sleep(seconds)
    return seconds


async def fail(value: Any) -> Any:
    raise ValueError(value)


# -- O1, O2: bounds


@virtual
async def test_O1_at_most_capacity_calls_run(mode):
    function = Life(nap)
    await process(function, [3, 1, 2, 1, 3, 1, 2], mode=mode, capacity=3)
    assert function.most == 3


@virtual
async def test_O1_calls_that_outlive_their_deadline_count_too(mode):
    async def stubborn(value):
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(5)

    function = Life(stubborn)
    got = await process(function, range(6), mode=mode, capacity=2, timeout=1.0, on_timeout=lambda value: value)
    assert sorted(got) == list(range(6))
    assert function.most == 2
    assert now() == 3 * 6.0


class Source:
    """Counts what is read of it."""

    def __init__(self, elements: Iterator[Any]) -> None:
        self.elements = elements
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        element = next(self.elements)
        self.read += 1
        return element


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
async def test_O1_watermarks_count_against_the_buffer(mode):
    source = Source(iter([5, Watermark(1), Watermark(2), Watermark(3)]))
    run = AsyncWaitOperator(nap, mode=mode, capacity=9, buffer=3).process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    assert source.read == 3
    await first
    await run.aclose()


@virtual
async def test_O1_a_buffer_below_the_capacity_bounds_the_calls(mode):
    function = Life(nap)
    await process(function, [1] * 9, mode=mode, capacity=9, buffer=2)
    assert function.most == 2
    assert now() == 5


@virtual
async def test_O2_a_slow_consumer_stops_admission(mode):
    source = Source(iter(range(100)))
    run = AsyncWaitOperator(same, mode=mode, capacity=2, buffer=5).process(source)
    for taken in range(1, 20):
        await anext(run)
        await asyncio.sleep(1)
        assert source.read <= taken + 5
    await run.aclose()


@virtual
async def test_O2_an_asynchronous_input_is_read_one_at_a_time(mode):
    read = 0

    async def source() -> AsyncIterator[int]:
        nonlocal read
        for value in range(9):
            read += 1
            yield value

    run = AsyncWaitOperator(forever, mode=mode, capacity=3).process(source())
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    assert read == 3
    first.cancel()
    await asyncio.wait([first])


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
async def test_O5_an_empty_input_gives_nothing(mode):
    function = Life()
    assert await process(function, [], mode=mode) == []
    assert function.events == ["open", "close"]


@virtual
async def test_ordered_results_leave_in_input_order():
    assert await process(nap, [5, 1, 3], mode="ordered") == [5, 1, 3]


@virtual
async def test_unordered_results_leave_as_they_complete():
    got = await collect_timed(AsyncWaitOperator(nap, mode="unordered").process([5, 1, 3]))
    assert got == [(1, 1), (3, 3), (5, 5)]


@virtual
async def test_nothing_crosses_a_watermark(mode):
    elements = [Record(3, 1), Record(1, 2), Watermark(2), Record(1, 3), Watermark(4)]
    got = await process(nap, elements, mode=mode)
    if mode == "unordered":
        elements[:2] = elements[1::-1]
    assert got == elements


@virtual
async def test_a_watermark_passes_an_idle_operator_at_once(mode):
    async def source() -> AsyncIterator[Any]:
        yield Watermark(1)
        await asyncio.sleep(100)

    run = AsyncWaitOperator(same, mode=mode).process(source())
    assert await anext(run) == Watermark(1)
    assert now() == 0
    await run.aclose()


# -- O6: failure


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
async def test_O6_nothing_is_emitted_after_the_failure(mode):
    async def call(value):
        if value == 5:
            raise ValueError
        return value

    run = AsyncWaitOperator(call, mode=mode).process(range(9))
    got: list[Any] = []
    with pytest.raises(FunctionError):
        await collect_until(run, got, pause=1)
    assert len(got) <= 1
    assert await collect(run) == []


@virtual
async def test_O6_no_call_starts_after_the_failure(mode):
    async def call(value):
        if value == 1:
            raise ValueError
        return value

    function = Life(call)
    source = Source(iter(range(1000)))
    with pytest.raises(FunctionError):
        await process(function, source, mode=mode)
    assert source.read == 2
    assert [event for event in function.events if isinstance(event, int)] == [0, 1]


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


@virtual
async def test_O6_the_first_failure_in_time_is_the_one_told(mode):
    async def call(value):
        await asyncio.sleep(10 - value)
        raise ValueError(value)

    with pytest.raises(FunctionError, match="failed for element 4"):
        await process(call, range(5), mode=mode)


@virtual
async def test_O6_what_a_cancelled_call_raises_is_not_told_instead(mode):
    async def call(value):
        if value == 0:
            await asyncio.sleep(1)
            raise ValueError("first")
        try:
            await forever()
        finally:
            raise KeyError("while cancelled")

    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), mode=mode)
    assert isinstance(failure.value.__cause__, ValueError)


@virtual
async def test_O6_calls_are_cancelled_and_awaited(mode):
    async def call(value):
        if value == 0:
            await asyncio.sleep(1)
            raise ValueError
        try:
            await forever()
        finally:
            await asyncio.sleep(2)

    function = Life(call)
    with pytest.raises(FunctionError):
        await process(function, range(5), mode=mode)
    assert function.running == 0
    assert function.events[-1] == "close"
    assert now() == 3


@virtual
async def test_O6_a_timeout_is_a_failure_with_a_timeout_as_its_cause(mode):
    with pytest.raises(FunctionError, match=r"within its timeout of 1\.5 s") as failure:
        await process(forever, [7], mode=mode, timeout=1.5)
    assert isinstance(failure.value.__cause__, ElementTimeoutError)
    assert failure.value.element == "7"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopAsyncIteration])
@virtual
async def test_O6_whatever_a_call_raises_belongs_to_the_run(mode, error):
    async def call(value):
        raise error

    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), mode=mode)
    assert isinstance(failure.value.__cause__, error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("on_error", ["skip", lambda value, error: None], ids=["skip", "function"])
@virtual
async def test_O6_what_asks_the_process_to_end_is_never_hidden(mode, error, on_error):
    async def call(value):
        raise error

    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), mode=mode, on_error=on_error)
    assert isinstance(failure.value.__cause__, error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("on_error", ["skip", lambda value, error: "instead"])
@virtual
async def test_O6_what_asks_the_process_to_end_is_hidden_by_no_hook(mode, error, on_error):
    async def call(value):
        raise error

    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), mode=mode, on_error=on_error)
    assert isinstance(failure.value.__cause__, error)


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


@virtual
async def test_O6_the_consumer_may_come_late(mode):
    run = AsyncWaitOperator(fail, mode=mode).process([1])
    with pytest.raises(FunctionError):
        await anext(run)
    with pytest.raises(StopAsyncIteration):
        await anext(run)


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


@virtual
async def test_O7_without_flatten_a_list_is_one_result(mode):
    assert await process(same, [[1, 2]], mode=mode) == [[1, 2]]


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
async def test_O13_the_function_gets_the_bare_value(mode):
    seen = []

    async def see(value):
        seen.append(value)

    await process(see, [1, Record(2, 20)], mode=mode)
    assert seen == [1, 2]


@virtual
async def test_O13_flattened_outputs_have_the_inputs_timestamp(mode):
    assert await process(same, [Record([1, 2], 7)], mode=mode, flatten=True) == [Record(1, 7), Record(2, 7)]


@virtual
async def test_O13_hooks_get_the_bare_value(mode):
    seen = []

    def see(value, *_):
        seen.append(value)

    await process(fail, [Record(1, 1)], mode=mode, on_error=see)
    await process(forever, [Record(2, 1)], mode=mode, timeout=1.0, on_timeout=see)
    assert seen == [1, 2]


@virtual
async def test_O14_one_run_at_a_time(mode):
    operator = AsyncWaitOperator(same, mode=mode)
    first, second = operator.process([1, 2]), operator.process([3])
    assert await anext(first) == 1
    with pytest.raises(StateError, match="end that run first"):
        await anext(second)
    assert await collect(first) == [2]


@virtual
async def test_O14_runs_one_after_the_other_are_independent(mode):
    function = Life()
    operator = AsyncWaitOperator(function, mode=mode)
    for _ in range(3):
        assert await collect(operator.process([1])) == [1]
        assert operator.metrics.admitted == 1
    assert function.events == ["open", 1, "-1", "close"] * 3


@virtual
async def test_O14_a_run_may_follow_one_that_failed_or_was_closed(mode):
    async def call(value):
        if value < 0:
            raise ValueError
        return value

    operator = AsyncWaitOperator(call, mode=mode)
    with pytest.raises(FunctionError):
        await collect(operator.process([-1]))
    closed = operator.process([1, 2])
    await anext(closed)
    await closed.aclose()
    assert await collect(operator.process([3])) == [3]


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
async def test_O14_the_latency_of_a_late_element_ends_at_its_deadline(mode):
    async def stubborn(value):
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(10)

    operator = AsyncWaitOperator(stubborn, mode=mode, timeout=2.0, on_error="skip")
    await collect(operator.process(range(3)))
    assert operator.metrics.latency.max == operator.metrics.latency.p50 == 2.0


@virtual
async def test_O14_metrics_speak_of_the_present(mode):
    operator = AsyncWaitOperator(nap, mode=mode, capacity=3)
    run = operator.process([5, 5, 5, 5])
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    assert (operator.metrics.in_flight, operator.metrics.buffered, operator.metrics.emitted) == (3, 3, 0)
    await first
    assert operator.metrics.emitted == 1
    await run.aclose()
    assert operator.metrics.in_flight == 0


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
async def test_O15_what_on_error_returns_is_flattened_too(mode):
    assert await process(fail, [1], mode=mode, flatten=True, on_error=lambda *_: [1, 2]) == [1, 2]
    with pytest.raises(FunctionError, match="on_error failed") as failure:
        await process(fail, [1], mode=mode, flatten=True, on_error=lambda *_: 1)
    assert isinstance(failure.value.__cause__, ResultError)


@virtual
async def test_O15_a_timeout_hook_that_fails_goes_to_on_error(mode):
    def on_timeout(value):
        raise KeyError

    seen = []
    got = await process(
        forever, [1], mode=mode, timeout=1.0, on_timeout=on_timeout, on_error=lambda _, error: seen.append(error)
    )
    assert got == [None]
    assert isinstance(seen[0], KeyError)


@virtual
async def test_O15_the_functions_own_timeout_is_asked_unless_on_timeout_is_given(mode):
    class Late(AsyncFunction[Any, Any]):
        async def invoke(self, value):
            await forever()

        def timeout(self, value):
            return f"own {value}"

    assert await process(Late(), [1], mode=mode, timeout=1.0) == ["own 1"]
    assert await process(Late(), [1], mode=mode, timeout=1.0, on_timeout=lambda v: f"given {v}") == ["given 1"]


@virtual
async def test_O15_a_timeout_result_is_flattened_too(mode):
    assert await process(forever, [1], mode=mode, timeout=1.0, flatten=True, on_timeout=lambda v: [v, v]) == [1, 1]
    with pytest.raises(FunctionError) as failure:
        await process(forever, [1], mode=mode, timeout=1.0, flatten=True, on_timeout=lambda v: v)
    assert isinstance(failure.value.__cause__, ResultError)
