"""O18: once a run has failed or was closed no call starts, whatever its input does with its cancellation."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError, RateLimit, Retry
from asyncio_operator.engine.inputs import NOTHING, AsyncInput, Reader
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.helpers import REAL_LOOPS, collect, forever, now, others, run_on, virtual

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "skipping": {"on_error": "skip"},
    "managed": {"retry": Retry(max_attempts=1)},
    "limited": {"rate_limit": RateLimit(1000)},
    "by key": {"mode": "key_ordered", "key": lambda value: value},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


class Calls:
    """A function that writes down its calls: the first takes a second and is done, all others take for ever."""

    def __init__(self, ending: Any = None) -> None:
        self.made: list[Any] = []
        self.ending = ending

    async def __call__(self, value: Any) -> Any:
        self.made.append(value)
        if len(self.made) > 1:
            await forever()
        await asyncio.sleep(1)
        if self.ending is not None:
            raise self.ending
        return value


async def reluctant(times: int = 1) -> Any:
    """Gives an element more for each of the first cancellations."""
    yield 0
    yield 1
    for number in range(times):
        try:
            await forever()
        except asyncio.CancelledError:
            yield f"left {number}"
    await forever()


@pytest.mark.parametrize("capacity", [2, 5])
@virtual
async def test_O18_a_failure_starts_no_call_and_is_reported_at_once(way, capacity):
    calls = Calls(ValueError())
    outputs = AsyncWaitOperator(calls, capacity=capacity, **way | {"on_error": "fail"}).process(reluctant())
    with pytest.raises(FunctionError):
        await collect(outputs)
    assert (calls.made, now()) == ([0, 1], 1)
    assert others() == set()


@pytest.mark.parametrize("loop", [*REAL_LOOPS, VirtualTimeLoop])
@pytest.mark.parametrize("elements", [range, lambda count: reluctant(2)])
def test_O18_nor_does_the_end_of_the_loop(way, loop, elements):
    """`asyncio.run` cancels what is left, in no order: a lane must not take that for a failed call, and go on."""
    kept, made = [], []

    async def call(value):
        made.append(value)
        if value:
            await forever()

    async def main():
        outputs = AsyncWaitOperator(call, capacity=3, **way).process(elements(100))
        kept.append(outputs)
        await anext(outputs)
        await asyncio.sleep(0.01)
        return made.copy()

    for _ in range(3):
        made.clear()
        assert run_on(loop, main()) == made
        kept.clear()
        gc.collect()


@virtual
async def test_O18_a_reader_that_was_stopped_gives_nothing_in_either_way():
    for wait in (Reader.ready, lambda reader: asyncio.sleep(0.5, reader.read_ahead(lambda: None))):
        reader = Reader(AsyncInput(reluctant()))
        assert [await reader.ready() and reader.read() for _ in range(2)] == [0, 1]
        waiting = asyncio.ensure_future(wait(reader))
        await asyncio.sleep(0.1)
        reader.stop()
        waiting.cancel()
        await asyncio.wait([waiting])
        await reader.close(1)
        assert (reader.read(), list(reader), await reader.ready(), reader.over) == (NOTHING, [], False, True)
        assert reader.input.read_ahead() == ["left 0"]
