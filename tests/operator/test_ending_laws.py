"""O8: however a run ends, what runs is cancelled and awaited, and the function is closed once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError
from tests.operator.helpers import (
    Doors,
    Life,
    collect,
    forever,
    now,
    one_then_forever,
    others,
    process,
    raising,
    same,
    virtual,
)


async def interrupt(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


# -- closing early


@virtual
async def test_O8_closing_early_cancels_and_awaits_what_runs(mode):
    async def call(value):
        try:
            return await one_then_forever(value)
        finally:
            await asyncio.sleep(value)

    function = Life(call)
    run = AsyncWaitOperator(function, mode=mode, capacity=4).process(range(9))
    assert await anext(run) == 0
    await run.aclose()
    assert function.running == 0
    assert function.events[-1] == "close"
    assert function.events.count("close") == 1
    assert now() == 3
    assert others() == set()


@virtual
async def test_O8_closing_twice_is_closing_once(mode):
    function = Life(one_then_forever)
    run = AsyncWaitOperator(function, mode=mode).process(range(3))
    await anext(run)
    await run.aclose()
    await run.aclose()
    assert function.events.count("close") == 1
    with pytest.raises(StopAsyncIteration):
        await anext(run)


@virtual
async def test_O8_closing_before_the_first_step_opens_nothing(mode):
    function = Life()
    run = AsyncWaitOperator(function, mode=mode).process(range(3))
    await run.aclose()
    assert function.events == []
    assert others() == set()


@virtual
async def test_O8_a_dropped_run_is_closed_by_its_loop(mode):
    function = Life(one_then_forever)
    run = AsyncWaitOperator(function, mode=mode).process(range(3))
    await anext(run)
    del run
    gc.collect()
    await asyncio.sleep(1)
    assert function.events[-1] == "close"
    assert others() == set()


@virtual
async def test_an_ended_run_keeps_nothing_alive(mode):
    class Value:
        pass

    operator = AsyncWaitOperator(same, mode=mode)
    values = [Value() for _ in range(5)]
    watched = [weakref.ref(value) for value in values]
    assert len(await collect(operator.process(iter(values)))) == 5
    del values
    gc.collect()
    assert [ref() for ref in watched] == [None] * 5


# -- open and close


@pytest.mark.parametrize("error", [ValueError("open"), asyncio.CancelledError("open"), SystemExit(3)])
@virtual
async def test_O8_open_failing_ends_the_run_with_that_error_and_closes_once(mode, error):
    function = Doors(opening=raising(error))
    with pytest.raises(type(error)) as failure:
        await process(function, range(3), mode=mode)
    assert failure.value is error
    assert function.events == ["open", "close"]


@virtual
async def test_O8_closing_while_open_runs_and_swallows_its_cancellation(mode):
    async def stubborn():
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(1)

    function = Doors(opening=stubborn)
    run = AsyncWaitOperator(function, mode=mode, buffer=1).process(range(3))
    consumer = asyncio.create_task(collect(run))
    await asyncio.sleep(1)
    await interrupt(consumer)
    assert function.events == ["open", "close"]


@virtual
async def test_O8_closing_while_close_runs_waits_for_it(mode):
    done = []

    async def slowly():
        await asyncio.sleep(5)
        done.append(now())

    function = Doors(closing=slowly)
    run = AsyncWaitOperator(function, mode=mode).process([0])
    assert await anext(run) == 0
    await asyncio.sleep(1)
    await run.aclose()
    assert done == [5]
    assert function.events.count("close") == 1


class FalsyError(Exception):
    """Holds a list, which is empty."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("error", [ValueError("close"), asyncio.CancelledError("close"), SystemExit(3), FalsyError()])
@virtual
async def test_O8_an_error_of_close_is_raised_if_the_run_had_none(mode, error):
    with pytest.raises(type(error)) as failure:
        await process(Doors(closing=raising(error)), range(3), mode=mode)
    assert failure.value is error


@virtual
async def test_O8_an_error_of_close_is_a_note_on_the_runs_error(mode):
    async def call(value):
        raise KeyError

    function = Doors(closing=raising(ValueError("the door is stuck")), call=call)
    with pytest.raises(FunctionError) as failure:
        await process(function, range(3), mode=mode)
    assert failure.value.__notes__ == ["closing the function failed too: ValueError: the door is stuck"]
    function = Doors(opening=raising(KeyError()), closing=raising(ValueError("the door is stuck")))
    with pytest.raises(KeyError) as other:
        await process(function, range(3), mode=mode)
    assert other.value.__notes__ == failure.value.__notes__


# -- errors of the input


class Broken:
    """Raises at its third step, and would go on after it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.steps = 0

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> int:
        self.steps += 1
        if self.steps == 3:
            raise self.error
        return self.steps

    def __aiter__(self) -> Broken:
        return self

    async def __anext__(self) -> int:
        return self.__next__()


class BrokenSync(Broken):
    __aiter__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("source", [Broken, BrokenSync])
@pytest.mark.parametrize("error", [ValueError("input"), asyncio.CancelledError("input"), SystemExit(3)])
@pytest.mark.parametrize("call", [same, one_then_forever])
@virtual
async def test_O8_an_error_of_the_input_ends_the_run_unwrapped(mode, source, error, call):
    function = Life(call)
    elements = source(error)
    with pytest.raises(type(error)) as failure:
        await process(function, elements, mode=mode)
    assert failure.value is error
    assert elements.steps == 3
    assert function.events[-1] == "close"
