"""Memory does not grow with the number of elements; a leak of a hundred bytes for each would be 40 megabytes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import psutil
import pytest

from asyncio_operator import AsyncWaitOperator, BatchAsyncFunction, Batching, Hedge
from asyncio_operator.engine.flights import Flight
from tests.operator.helpers import collect, forever, run_on, same, virtual

ELEMENTS = 400_000
BOUND = 24 * 2**20


def resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def count(outputs: Any) -> int:
    counted = 0
    async for _ in outputs:
        counted += 1
    return counted


async def sometimes(value: int) -> int:
    """Waits, fails or misses its deadline now and then."""
    if value % 1000 == 1:
        await asyncio.sleep(0)
    if value % 10_000 == 2:
        raise ValueError
    if value % 100_000 == 3:
        await forever()
    return value


def test_many_elements_need_no_more_memory_than_a_few(mode):
    async def main():
        operator = AsyncWaitOperator(sometimes, mode=mode, capacity=200, timeout=0.001, on_error="skip")
        await count(operator.process(range(100_000)))
        before = resident()
        # Four are late, and forty fail; a busy machine may make some more of them late.
        assert ELEMENTS - await count(operator.process(range(ELEMENTS))) >= 44
        assert operator.metrics.admitted == operator.metrics.emitted == ELEMENTS
        assert resident() - before < BOUND

    run_on(asyncio.new_event_loop, main())


def test_the_synchronous_face_needs_no_more_memory_either():
    operator = AsyncWaitOperator(same)
    assert sum(1 for _ in operator(range(20_000))) == 20_000
    before = resident()
    assert sum(1 for _ in operator(range(200_000))) == 200_000
    assert resident() - before < BOUND


@pytest.mark.parametrize(
    "options", [{"retry": 3, "timeout": 60.0}, {"retry": 3, "hedge": Hedge(after=9.0)}, {"batching": Batching(2)}]
)
@virtual
async def test_only_elements_in_trouble_have_an_object_of_their_own(options: dict[str, Any]) -> None:
    seen: list[int] = []

    async def slow(value: Any) -> Any:
        """The call of the first element fails once."""
        await asyncio.sleep(1.0)
        if not seen:
            seen.append(0)
            raise ConnectionError
        seen.append(sum(type(one) is Flight for one in gc.get_objects()))
        return value

    class InBatches(BatchAsyncFunction[Any, Any]):
        async def invoke_batch(self, values: Any) -> Any:
            return await slow(values)

    gc.collect()
    function: Any = InBatches() if "batching" in options else slow
    operator = AsyncWaitOperator(function, mode="unordered", capacity=20, on_error="skip", **options)
    assert len(await collect(operator.process(range(100)))) == 98 + 2 * ("retry" in options)
    assert max(seen) == (2 if "batching" in options else 1)
