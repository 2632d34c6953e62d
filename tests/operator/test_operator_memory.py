"""Memory does not grow with the number of elements; a leak of a hundred bytes for each would be 40 megabytes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import psutil

from asyncio_operator import AsyncWaitOperator
from tests.operator.helpers import forever, run_on, same

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


def test_the_synchronous_face_needs_no_more_memory_either(mode):
    operator = AsyncWaitOperator(same, mode=mode)
    assert sum(1 for _ in operator(range(20_000))) == 20_000
    before = resident()
    assert sum(1 for _ in operator(range(200_000))) == 200_000
    assert resident() - before < BOUND
