"""O8 and O14: however a run ends, also by its consumer or with its loop, what runs is awaited, and closed once."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from asyncio_operator import AsyncFunction, AsyncWaitOperator, FunctionError, Record, StateError
from tests.operator.attempts import MODES, retry
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


WAYS: dict[str, dict[str, Any]] = {"plain": {}, "managed": {"retry": retry(2, 1.0)}}


async def third_is_slow(value: int) -> int:
    await asyncio.sleep(10 if value == 2 else 0)
    return value


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O8_a_run_that_its_consumers_cancellation_has_ended_says_so_at_every_further_step(way):
    function = Life(third_is_slow)
    operator = AsyncWaitOperator(function, capacity=2, buffer=3, **WAYS[way])
    outputs = operator.process(range(6))
    assert [await asyncio.wait_for(anext(outputs), 1.0) for _ in range(2)] == [0, 1]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(outputs), 1.0)
    assert function.events[-1] == "close"
    for step in (anext, collect, lambda outputs: outputs.asend(None)):
        with pytest.raises(StateError, match=r"asyncio\.wait_for.* 3 elements .* restore=.* asyncio\.wait\("):
            await step(outputs)
    await outputs.aclose()
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == [2, 3, 4]
    assert await collect(operator.process([5], restore=snapshot)) == [2, 3, 4, 5]


@virtual
async def test_O8_an_error_that_is_thrown_into_the_outputs_ends_the_run():
    function = Life(third_is_slow)
    outputs = AsyncWaitOperator(function).process(range(3))
    await anext(outputs)
    with pytest.raises(ZeroDivisionError):
        await outputs.athrow(ZeroDivisionError())
    assert function.events[-1] == "close"
    assert await collect(outputs) == []


# -- loops


async def opening() -> None:
    await asyncio.sleep(0.001)


async def short(value: Any) -> Any:
    await asyncio.sleep(0.001)
    return value


async def endless() -> Any:
    yield 1
    yield Record(2, 2)
    await forever()


class Closing(AsyncFunction[Any, Any]):
    def __init__(self, call: Any = short, closing: Any = opening) -> None:
        self.call = call
        self.closing = closing

    async def invoke(self, value: Any) -> Any:
        return await self.call(value)

    async def close(self) -> None:
        await self.closing()


PHASES: dict[str, tuple[Any, Any]] = {
    "a call": (lambda: Closing(lambda value: short(value) if value == 0 else forever()), lambda: range(100)),
    "the input": (lambda: Closing(short), endless),
    "the end": (lambda: Closing(short, forever), lambda: range(1)),
    "all over but the end": (lambda: Closing(short), lambda: range(1)),
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("loop_factory", REAL_LOOPS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_O14_a_run_whose_loop_was_closed_is_over(phase, mode, loop_factory, kept, caplog):
    """One warning says so, and asyncio complains of no task."""
    make, elements = PHASES[phase]
    function = make()
    operator = AsyncWaitOperator(function, **MODES[mode])
    complaints: list[dict[str, Any]] = []
    loop = loop_factory()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    outputs: Any = operator.process(elements())
    loop.run_until_complete(anext(outputs))
    loop.close()
    if not kept:
        del outputs

    function.closing = opening
    again = operator.process([])
    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        assert asyncio.run(collect(again)) == []
    assert ["was closed while a run of" in record.getMessage() for record in caplog.records] == [True]
    if kept:
        with pytest.raises(StateError, match="another event loop"):
            asyncio.run(collect(outputs))
        del outputs
    del operator, again
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("way", WAYS)
def test_O14_a_run_is_read_on_the_loop_on_which_it_began(way):
    function = Life(third_is_slow)
    operator = AsyncWaitOperator(function, capacity=1, **WAYS[way])
    outputs = operator.process(range(4))
    first = asyncio.new_event_loop()
    assert first.run_until_complete(anext(outputs)) == 0
    with pytest.raises(StateError, match="another event loop"):
        asyncio.run(collect(outputs))
    # It ends where it began, once that loop runs again.
    for _ in range(500):
        first.run_until_complete(asyncio.sleep(0.01))
        if function.events[-1] == "close":
            break
    assert function.events[-1] == "close"

    async def main() -> list[Any]:
        assert not others()
        return await collect(operator.process([1]))

    assert first.run_until_complete(main()) == [1]
    first.close()
