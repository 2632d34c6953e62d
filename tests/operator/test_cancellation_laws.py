"""O9, O12: calls that ignore their cancellation, cancellations that a run did not ask for, and waits at its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
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
    cancel_all,
    collect,
    collect_until,
    forever,
    late,
    nap,
    now,
    one_then_forever,
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


# -- O9


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
