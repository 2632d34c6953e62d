"""O12: calls that do not honour their cancellation, and cancellations that nobody asked for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncio_operator import FunctionError
from tests.core.helpers import forever, late, process, virtual


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
async def test_O12_an_honoured_cancellation_is_not_logged(mode, caplog):
    await process(forever, range(3), mode=mode, capacity=2, timeout=1.0, on_timeout=late)
    assert caplog.records == []


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


@virtual
async def test_the_functions_own_timeouts_stay_its_own(mode):
    async def call(value):
        try:
            async with asyncio.timeout(1):
                await forever()
        except TimeoutError:
            return "own"

    assert await process(call, [1], mode=mode, timeout=2.0, on_timeout=late) == ["own"]
    assert await process(call, [1], mode=mode, timeout=0.5, on_timeout=late) == [("late", 1)]


@virtual
async def test_a_timeout_in_the_function_at_the_same_moment_as_the_deadline(mode):
    async def call(value):
        try:
            async with asyncio.timeout(1):
                await forever()
        except TimeoutError:
            return "own"

    assert await process(call, range(3), mode=mode, capacity=1, timeout=1.0, on_timeout=late) == ["own"] * 3


@virtual
async def test_calls_inside_a_task_group_are_cancelled_at_the_deadline(mode):
    ended = []

    async def inner(value):
        try:
            await forever()
        finally:
            ended.append(value)

    async def call(value):
        async with asyncio.TaskGroup() as group:
            group.create_task(inner(value))
            group.create_task(inner(value))
        await asyncio.gather(inner(value), inner(value))

    assert await process(call, [1, 2], mode=mode, timeout=1.0, on_timeout=late) == [("late", 1), ("late", 2)]
    assert sorted(ended) == [1, 1, 2, 2]


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


@virtual
async def test_O12_a_call_that_fails_and_leaves_a_cancellation_behind_fails_alone(mode):
    async def call(value):
        if value == 3:
            cancel_myself()
            raise ValueError(value)
        return value

    assert sorted(await process(call, range(6), mode=mode, capacity=1, on_error="skip")) == [0, 1, 2, 4, 5]
