"""Laws that meet in one run: retries of empty results, hooks that fail, closing with results at hand, chains."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

from asyncio_operator import AsyncWaitOperator, Watermark
from tests.operator.attempts import retry, stop
from tests.operator.helpers import collect, now, same, virtual


@virtual
async def test_R2_an_element_that_has_left_is_held_by_no_deadline_or_timer(any_mode):
    class Value:
        def __init__(self, number: int) -> None:
            self.number = number

        def __mod__(self, other: int) -> int:
            return self.number % other

    alive: weakref.WeakSet[Value] = weakref.WeakSet()

    def values() -> Iterator[Value]:
        for number in range(50):
            value = Value(number)
            alive.add(value)
            yield value
            del value

    async def call(value: Value) -> int:
        await asyncio.sleep(1 if value.number < 49 else 100)
        return value.number

    operator = AsyncWaitOperator(call, capacity=50, timeout=3600.0, retry=retry(3, 1.0), **any_mode)
    run = operator.process(values())
    for _ in range(49):
        await anext(run)
    step = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    gc.collect()
    # The run may hold the element that left last.
    assert 49 in {value.number for value in alive}
    assert len(alive) <= 2
    assert await step == 49
    assert await collect(run) == []
    gc.collect()
    assert not alive
    assert now() < 3600


@virtual
async def test_O8_O10_results_at_hand_when_a_run_is_closed_are_in_its_snapshot_and_not_emitted(any_mode):
    """As at the drain of a job that goes on from its checkpoint: the next run gives them."""
    release = [asyncio.Event() for _ in range(3)]

    async def call(value: int) -> int:
        await release[value].wait()
        return value

    operator = AsyncWaitOperator(call, capacity=5, **any_mode)
    run = operator.process([0, 1, 2, Watermark(7)])
    release[0].set()
    assert await anext(run) == 0
    for value in (2, 1):
        release[value].set()
        await asyncio.sleep(1)
    await stop(run)
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == [1, 2, Watermark(7)]
    again = AsyncWaitOperator(same, **any_mode).process([], restore=snapshot)
    assert await collect(again) == [1, 2, Watermark(7)]
