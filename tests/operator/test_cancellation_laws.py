"""O12: calls that do not honour their cancellation, and cancellations that the run did not ask for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError, Retry
from tests.operator.helpers import (
    REAL_LOOPS,
    cancel_all,
    collect,
    collect_until,
    forever,
    late,
    nap,
    others,
    process,
    run_on,
    same,
    virtual,
)


def cancel_myself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def swallow(value: Any) -> Any:
    try:
        await forever()
    except asyncio.CancelledError:
        return "swallowed"


async def translate(value: Any) -> Any:
    try:
        await forever()
    except asyncio.CancelledError:
        raise ConnectionError from None


async def swallow_slowly(value: Any) -> Any:
    await swallow(value)
    await asyncio.sleep(5)


@pytest.mark.parametrize("call", [swallow, swallow_slowly, translate])
@pytest.mark.parametrize("capacity", [1, 5])
@virtual
async def test_O12_a_swallowed_cancellation_is_logged_once_and_the_late_outcome_dropped(mode, call, capacity, caplog):
    """Also if it returns when there is nothing left but to wait for it."""
    elements = ["one", "two", "three"]
    got = await process(call, elements, mode=mode, capacity=capacity, timeout=1.0, on_timeout=late)
    assert got == [("late", element) for element in elements]
    messages = [record.getMessage() for record in caplog.records if record.name == "asyncio_operator"]
    assert len(messages) == len(elements)
    assert all("ignored its cancellation" in message for message in messages)
    assert all(any(repr(element) in message for message in messages) for element in elements)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@virtual
async def test_O12_a_cancellation_nobody_asked_for_is_a_failed_attempt(mode):
    async def cancelled(value):
        raise asyncio.CancelledError

    async def of_a_task(value):
        task = asyncio.create_task(forever())
        asyncio.get_running_loop().call_later(1, task.cancel)
        await task

    async def of_itself(value):
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(1, task.cancel)
        await forever()

    for call in (cancelled, of_a_task, of_itself):
        assert await process(call, range(5), mode=mode, on_error=lambda v, e: type(e)) == [asyncio.CancelledError] * 5
        with pytest.raises(FunctionError) as failure:
            await process(call, [1], mode=mode)
        assert isinstance(failure.value.__cause__, asyncio.CancelledError)


async def failing_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(forever())
        raise ValueError


@virtual
async def test_a_stale_cancellation_does_not_leak_into_the_lanes_next_call(mode):
    """A lane that was cancelled before has to work with everything that counts cancellations."""

    async def call(value):
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        match value % 5:
            case 0:
                await forever()
            case 1:
                return await swallow(value)
            case 2:
                raise asyncio.CancelledError
            case 4:
                asyncio.get_running_loop().call_soon(task.cancel)
                await forever()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await forever()
        with pytest.raises(ExceptionGroup):
            await failing_group()
        await asyncio.wait_for(asyncio.sleep(0.1), 1)
        return value

    options: dict[str, Any] = {"on_timeout": late, "on_error": lambda value, _: ("error", value)}
    got = await process(call, range(20), mode=mode, capacity=1, timeout=1.0, **options)
    assert got == [v if v % 5 == 3 else ("late", v) if v % 5 < 2 else ("error", v) for v in range(20)]


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("pause", [0, 1])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
@virtual
async def test_O12_a_cancellation_that_a_call_leaves_behind_hits_nobody(mode, capacity, pause, on_error):
    """As a library leaves it whose timeout raced with a result."""

    async def call(value):
        if value == 3:
            cancel_myself()
            return value
        if pause:
            await asyncio.sleep(pause)
        return value

    assert sorted(await process(call, range(8), mode=mode, capacity=capacity, on_error=on_error)) == [*range(8)]


@pytest.mark.parametrize("deadline", [None, 1.0])
@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_O12_a_call_that_cancels_itself_and_raises_that_itself_fails_alone(mode, deadline, waits):
    """The cancellation that it has asked for is not thrown before it has ended."""

    async def call(value):
        if value == 1:
            cancel_myself()
            raise asyncio.CancelledError
        if value == 2 and deadline is not None:
            try:
                await forever()
            finally:
                cancel_myself()
        await asyncio.sleep(0.001)
        return value

    async def elements():
        for value in range(5):
            await asyncio.sleep(0.001 * waits)
            yield value

    options: dict[str, Any] = {} if deadline is None else {"timeout": deadline, "on_timeout": lambda _v: "late"}
    options["on_error"] = lambda _v, error: type(error).__name__
    got = await process(call, elements(), mode=mode, capacity=1, **options)
    assert got == [0, "CancelledError", 2 if deadline is None else "late", 3, 4]


async def cancels_all(value: Any) -> Any:
    if value == 3:
        cancel_all()
    await asyncio.sleep(1)
    return value


async def trickle(count: int) -> Any:
    for number in range(count):
        yield number
        await asyncio.sleep(0.5)


WAYS: dict[str, dict[str, Any]] = {"plain": {}, "managed": {"retry": Retry()}, "skip": {"on_error": "skip"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capacity", [1, 5])
@pytest.mark.parametrize("elements", [range, trickle])
@virtual
async def test_O12_a_call_that_cancels_all_tasks_of_the_loop_is_named(mode, way, capacity, elements):
    with pytest.raises(
        FunctionError, match=r"cancels_all.* cancelled tasks that are not its own in the call for"
    ) as told:
        await process(cancels_all, elements(10), mode=mode, capacity=capacity, **WAYS[way])
    assert told.value.element == "3"
    assert "may cancel only tasks that it has started itself" in str(told.value)
    assert others() == set()


@virtual
async def test_O12_so_is_one_that_does_it_in_a_task_of_its_own_or_spares_the_consumer(mode):
    consumer = asyncio.current_task()

    async def in_a_task(value):
        async def inner():
            cancel_all()

        await asyncio.gather(inner())

    async def spares(value):
        cancel_all(consumer, asyncio.current_task())
        return value

    for call in (in_a_task, spares):
        with pytest.raises(FunctionError, match=f"{call.__name__}.* that cancels tasks|{call.__name__}.* not its own"):
            await process(call, range(5), mode=mode)
        assert others() == set()


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O12_a_timer_that_hits_a_lane_which_waits_for_input_is_told(mode, way):
    async def call(value):
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(1, task.cancel)
        return value

    async def source():
        yield 1
        await forever()

    got: list[Any] = []
    with pytest.raises(FunctionError, match=r"call.* was cancelled between two calls; .* leave no timer"):
        await collect_until(AsyncWaitOperator(call, mode=mode, **WAYS[way]).process(source()), got)
    assert got == [1]
    assert others() == set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [0.0, 0.2, 1.2])
@virtual
async def test_O12_a_consumer_that_is_cancelled_gets_a_cancellation(mode, way, at):
    """Also if the canceller cancels everything, as `asyncio.run` does at its end."""
    for cancel in (lambda consumer: consumer.cancel(), lambda consumer: cancel_all()):
        outputs = AsyncWaitOperator(nap, mode=mode, **WAYS[way]).process([1, 2, 3])
        consumer = asyncio.create_task(collect(outputs))
        asyncio.get_running_loop().call_later(at, cancel, consumer)
        try:
            await asyncio.wait([consumer])
        except asyncio.CancelledError:
            await asyncio.wait([consumer])
        assert consumer.cancelled()
        assert others() == set()


@virtual
async def test_O12_a_call_may_cancel_its_consumer_alone(mode):
    consumer = asyncio.current_task()
    assert consumer is not None

    async def call(value):
        consumer.cancel()
        await forever()

    with pytest.raises(asyncio.CancelledError):
        await process(call, range(3), mode=mode)
    assert others() == set()


@virtual
async def test_O12_somebody_else_who_cancels_the_run_and_not_its_consumer_is_told(mode):
    consumer = asyncio.current_task()

    async def meanwhile():
        await asyncio.sleep(1)
        cancel_all(consumer, asyncio.current_task())

    stranger = asyncio.create_task(meanwhile())
    with pytest.raises(FunctionError, match=r"the run of .*forever was cancelled by code that does not read"):
        await process(forever, range(3), mode=mode)
    await stranger
    assert others() == set()


@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_O12_a_call_that_cancels_all_is_named_on_real_loops_and_by_the_synchronous_face(loop):
    async def call(value):
        cancel_all()
        await forever()

    with pytest.raises(FunctionError, match="in the call for element 7"):
        run_on(loop, process(call, [7]))
    with pytest.raises(FunctionError, match="in the call for element 7"):
        list(AsyncWaitOperator(call)([7]))
    assert list(AsyncWaitOperator(same)([7])) == [7]
