"""O9: the end of a run waits for its calls, but not for ever; and the end of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncio_operator import AsyncFunction, AsyncWaitOperator, FunctionError, Retry
from asyncio_operator.policies.shutdown import longest_end
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.helpers import (
    REAL_LOOPS,
    Doors,
    Life,
    collect,
    forever,
    now,
    one_then_forever,
    others,
    process,
    run_on,
    same,
    virtual,
)


class Deaf:
    """Calls that ignore every cancellation until the test lets them go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, value: Any = None) -> Any:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                continue
        return value


@pytest.mark.parametrize("ending", ["drained", "failed", "closed"])
@virtual
async def test_O9_the_wait_for_deaf_calls_is_bounded_and_reported(mode, ending, caplog):
    deaf = Deaf()
    events = []

    class Function(Life):
        async def close(self) -> None:
            events.append(("close", now()))

    async def call(value):
        if value == "fail":
            await asyncio.sleep(1)
            raise ValueError
        return await (same(value) if value == "ok" else deaf(value))

    operator = AsyncWaitOperator(
        Function(call), mode="unordered", capacity=5, timeout=1.0, on_timeout=lambda v: v, grace_period=7.0
    )
    run = operator.process(["ok", "deaf one", "deaf two", *(["fail"] if ending == "failed" else [])])
    match ending:
        case "drained":
            assert set(await collect(run)) == {"ok", "deaf one", "deaf two"}
            assert events == [("close", 8.0)]
        case "failed":
            with pytest.raises(FunctionError):
                await collect(run)
            assert events == [("close", 8.0)]
        case _:
            await anext(run)
            await run.aclose()
            assert events == [("close", 7.0)]
    left = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(left) == 2
    assert all("ignored its cancellation for the grace period of 7.0 s" in message for message in left)
    assert any("'deaf two'" in message for message in left)
    deaf.go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert others() == set()
    assert len(events) == 1


@virtual
async def test_O9_an_input_that_ignores_its_cancellation_is_left_behind(mode, caplog):
    deaf = Deaf()

    async def source() -> AsyncIterator[int]:
        yield 1
        await deaf()

    run = AsyncWaitOperator(same, mode=mode, grace_period=2.0).process(source())
    await anext(run)
    await run.aclose()
    assert now() == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the input ignored its cancellation for the grace period of 2.0 s and is left behind"
    ]
    deaf.go.set()
    await asyncio.sleep(0)


@virtual
async def test_O9_close_is_bounded_by_the_grace_period_too(mode):
    with pytest.raises(TimeoutError, match=r"closing the function took longer than grace_period=3.0 s"):
        await process(Doors(closing=forever), [1], mode=mode, grace_period=3.0)
    assert now() == 3


@virtual
async def test_O9_the_wait_for_calls_survives_more_cancellations(mode):
    """An impatient user cancels again and again; the run still ends in its order."""

    async def call(value):
        try:
            await forever()
        finally:
            await asyncio.sleep(5)

    function = Life(call)
    run = AsyncWaitOperator(function, mode=mode).process(range(3))
    consumer = asyncio.create_task(collect(run))
    await asyncio.sleep(1)
    consumer.cancel()
    await asyncio.sleep(1)
    consumer.cancel()
    await asyncio.wait([consumer])
    assert now() == 2
    await asyncio.sleep(10)
    assert function.events[-1] == "close"
    assert function.running == 0
    assert others() == set()


# -- the end of the loop


@pytest.mark.parametrize("loop", [*REAL_LOOPS, VirtualTimeLoop])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("held", [True, False])
def test_the_loop_may_end_with_a_run_in_the_middle(mode, loop, on_error, held):
    function = Life(one_then_forever)
    kept = []

    async def main():
        run = AsyncWaitOperator(function, mode=mode, on_error=on_error, timeout=60.0, capacity=3).process(range(9))
        assert await anext(run) == 0
        if held:
            kept.append(run)

    run_on(loop, main())
    kept.clear()
    gc.collect()
    assert function.running == 0
    assert function.events.count("close") == 1


@pytest.mark.parametrize("loop", [*REAL_LOOPS, VirtualTimeLoop])
@pytest.mark.parametrize("consumer", ["waits", "is done"])
def test_the_loop_may_end_while_some_lanes_are_idle_and_others_busy(mode, loop, consumer):
    """asyncio cancels all tasks in any order: the busy may go on with the next element before the idle know of it."""

    async def source() -> AsyncIterator[int]:
        for value in range(6):
            yield value
            await asyncio.sleep(0)
        for value in range(6, 100):
            yield value

    async def call(value):
        if value % 2:
            await forever()
        for _ in range(8):
            await asyncio.sleep(0)
        return value

    async def main():
        outputs = AsyncWaitOperator(call, mode=mode, capacity=8, buffer=6, on_error="skip").process(source())
        task = asyncio.create_task(collect(outputs))
        for _ in range(60):
            await asyncio.sleep(0)
        if consumer == "is done":
            task.cancel()

    for _ in range(3):
        run_on(loop, main())


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="comes with Python 3.12")
def test_O18_tasks_may_start_eagerly(mode):
    """Thousands of lanes, each of which would appoint the next one inside of itself. uvloop knows no eager tasks."""

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        options: dict[str, Any] = {"mode": mode, "capacity": 5_000, "timeout": 0.01}
        assert await process(same, range(6_000), **options) == list(range(6_000))
        assert len(await process(one_then_forever, range(6_000), on_error="skip", **options)) == 1
        with pytest.raises(FunctionError):
            await process(one_then_forever, range(6_000), **options)

    run_on(asyncio.new_event_loop, main())


@virtual
async def test_O9_a_function_whose_opening_ignores_its_cancellation_is_left_behind(mode, caplog):
    class Deaf(Life):
        async def open(self) -> None:
            for _ in range(100):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue

    outputs = AsyncWaitOperator(Deaf(), mode=mode, grace_period=2.0).process(range(3))
    consumer = asyncio.create_task(collect(outputs))
    await asyncio.sleep(1)
    consumer.cancel()
    await asyncio.wait([consumer])
    assert now() < 11
    assert "opening the function ignores its cancellation" in caplog.text
    for task in others():
        task.cancel()


@virtual
async def test_O12_calls_that_hold_all_places_and_do_not_return_are_told(mode, caplog):
    deaf = Deaf()
    operator = AsyncWaitOperator(
        deaf, mode=mode, capacity=2, timeout=1.0, on_timeout=lambda v: f"late {v}", grace_period=7.0
    )
    results = asyncio.ensure_future(collect(operator.process(["one", "two", "three"])))
    await asyncio.sleep(20)
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    deaf.go.set()
    assert await results == ["late one", "late two", "three"]
    [message] = told
    assert "calls that ignore their cancellation hold all places; one of them is for element '" in message


async def deaf(seconds: float) -> None:
    """Sleeps for this time, and ignores every cancellation."""
    ends = now() + seconds
    while (left := ends - now()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


class Unstoppable(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        if value:
            await deaf(1000.0)
        return value

    async def close(self) -> None:
        await deaf(1000.0)


async def never_ending() -> AsyncIterator[int]:
    try:
        yield 0
        yield 1
        await asyncio.sleep(1e6)
    finally:
        await deaf(1000.0)


@pytest.mark.parametrize("options", [{}, {"retry": Retry()}])
@virtual
async def test_X7_a_run_in_which_all_ignore_their_cancellation_ends_in_the_time_that_is_promised(options, caplog):
    outputs = AsyncWaitOperator(Unstoppable(), capacity=2, grace_period=1.0, **options).process(never_ending())
    assert await anext(outputs) == 0
    began = now()
    with contextlib.suppress(TimeoutError):
        await outputs.aclose()
    assert 1.0 <= now() - began <= longest_end(1.0)
    assert not [record.getMessage() for record in caplog.records if "a run did not end" in record.getMessage()]


@virtual
async def test_O9_close_waits_for_calls_that_a_failure_ended_also_if_the_consumer_is_cancelled_meanwhile(mode, caplog):
    async def call(value):
        if value == 0:
            raise ValueError
        try:
            await forever()
        finally:
            await asyncio.sleep(5)

    function = Life(call)
    consumer = asyncio.create_task(collect(AsyncWaitOperator(function, mode=mode).process([1, 0])))
    await asyncio.sleep(1)
    consumer.cancel()
    await asyncio.wait([consumer])
    assert isinstance(consumer.exception(), FunctionError)
    assert function.events == ["open", 1, 0, "-0", "-1", "close"]
    assert now() == 5
    assert caplog.records == []
