"""O8 and O14 for consumers: one that is cancelled in a step, one on another loop, and one whose loop is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from asyncio_operator import AsyncFunction, AsyncWaitOperator, Record, StateError
from tests.operator.attempts import MODES, retry
from tests.operator.helpers import REAL_LOOPS, Life, collect, forever, others, virtual

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
async def test_O8_a_step_that_waits_in_a_task_may_be_waited_for_as_long_as_one_likes():
    outputs = AsyncWaitOperator(third_is_slow, capacity=2).process(range(4))
    got, waited = [], 0
    step = asyncio.ensure_future(anext(outputs, None))
    while True:
        done, _ = await asyncio.wait([step], timeout=1.0)
        if not done:
            waited += 1
        elif (output := step.result()) is None:
            break
        else:
            got.append(output)
            step = asyncio.ensure_future(anext(outputs, None))
    assert (got, waited) == ([0, 1, 2, 3], 10)


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
    first.run_until_complete(asyncio.sleep(0.01))
    assert function.events[-1] == "close"

    async def main() -> list[Any]:
        assert not others()
        return await collect(operator.process([1]))

    assert first.run_until_complete(main()) == [1]
    first.close()
