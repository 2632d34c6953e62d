"""Laws that meet in one run: retries of empty results, hooks that fail, closing with results at hand, chains."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, Record, Watermark
from tests.operator.attempts import Act, Script, retry, stop
from tests.operator.helpers import Life, collect, now, process, same, virtual


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


@virtual
async def test_O13_each_value_goes_once_through_a_chain_with_its_timestamp():
    async def double(value: int) -> int:
        await asyncio.sleep(value % 3)
        return value * 2

    async def plus_one(elements: Any) -> Any:
        async for record in elements:
            yield Record(record.value + 1, record.timestamp)

    first, second = Life(double), Life(double)
    upper = AsyncWaitOperator(first, mode="ordered", capacity=6)
    lower = AsyncWaitOperator(second, mode="unordered", capacity=3)
    got = await collect(lower.process(plus_one(upper.process(Record(5 + n, n) for n in range(5)))))
    assert sorted(got, key=lambda record: record.value) == [Record(22 + 4 * n, n) for n in range(5)]
    assert first.events[0] == second.events[0] == "open"
    assert first.events[-1] == second.events[-1] == "close"


@pytest.mark.parametrize("capacity", [1, 2, 3, 9])
@virtual
async def test_Q6_Q7_watermarks_stay_between_their_records_and_keys_in_order_whatever_the_capacity(any_mode, capacity):
    values = [1, 1, 2, 3, 2, 3, 2, 3]
    elements: list[Any] = [Record(value, at) for at, value in enumerate(values)]
    for place, at in ((2, 2), (7, 7), (8, 8)):
        elements.insert(place, Watermark(at))
    script = Script(lambda value, attempt: Act(seconds=value))
    got = await process(script, elements, capacity=capacity, **any_mode)

    def parts(outputs: list[Any]) -> list[Any]:
        found: list[Any] = [[]]
        for output in outputs:
            if isinstance(output, Watermark):
                found += [output, []]
            else:
                found[-1].append(output)
        return found

    for part, expected in zip(parts(got), parts(elements), strict=True):
        if isinstance(expected, Watermark):
            assert part == expected
        else:
            assert sorted(part, key=lambda record: record.timestamp) == expected
    if any_mode["mode"] != "unordered":
        for key in (1, 2, 3):
            mine = [element for element in elements if isinstance(element, Record) and element.value == key]
            assert [output for output in got if isinstance(output, Record) and output.value == key] == mine
