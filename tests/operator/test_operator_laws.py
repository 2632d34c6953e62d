"""O1 to O5: how much is under way, and that every element gives what it has to, once and in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from asyncio_operator import AsyncWaitOperator
from tests.operator.attempts import Act, Script, stop
from tests.operator.helpers import Life, Source, forever, nap, now, process, same, virtual

# -- O1, O2: bounds


@virtual
async def test_O1_at_most_capacity_calls_run(mode):
    function = Life(nap)
    await process(function, [3, 1, 2, 1, 3, 1, 2], mode=mode, capacity=3)
    assert function.most == 3


@virtual
async def test_O12_calls_that_outlive_their_deadline_count_too(mode):
    function = Life(Script(lambda value, attempt: Act(10.0, deaf=5.0)))
    got = await process(function, range(6), mode=mode, capacity=2, timeout=1.0, on_timeout=lambda value: value)
    assert sorted(got) == list(range(6))
    assert function.most == 2
    assert now() == 3 * 6.0


@virtual
async def test_O1_nothing_is_read_ahead_of_a_free_slot(mode):
    source = Source(iter(range(10)))
    release = asyncio.Event()

    async def wait(value):
        await release.wait()
        return value

    run = AsyncWaitOperator(wait, mode=mode, capacity=3).process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    assert source.read == 3
    release.set()
    assert await first == 0
    await run.aclose()


@virtual
async def test_O1_at_most_buffer_elements_are_admitted_and_not_emitted():
    source = Source(iter([9, 1, 1, 1, 1, 1, 1]))
    operator = AsyncWaitOperator(nap, mode="ordered", capacity=2, buffer=4)
    run = operator.process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(8)
    assert source.read == operator.metrics.buffered == 4
    assert operator.metrics.in_flight == 1
    await first
    await run.aclose()


@virtual
async def test_O2_a_slow_consumer_stops_admission(mode):
    source = Source(iter(range(100)))
    run = AsyncWaitOperator(same, mode=mode, capacity=2, buffer=5).process(source)
    for taken in range(1, 20):
        await anext(run)
        await asyncio.sleep(1)
        assert source.read <= taken + 5
    await run.aclose()


# -- O3 to O5: every element, once


@virtual
async def test_O3_values_are_passed_on_as_they_are(mode):
    values = [[1], {"a": 2}, object()]
    got = await process(same, values, mode=mode)
    assert all(any(value is output for output in got) for value in values)


@virtual
async def test_O4_results_timeouts_and_skips_each_come_once(mode):
    async def mixed(value):
        await asyncio.sleep(value % 5)
        if value % 3 == 0:
            raise ValueError
        return value

    function = Life(mixed)
    options: dict[str, Any] = {"timeout": 3.5, "on_timeout": lambda value: -value, "on_error": "skip"}
    got = await process(function, range(1, 200), mode=mode, capacity=7, buffer=11, **options)
    expected = [-v if v % 5 == 4 else v for v in range(1, 200) if v % 5 == 4 or v % 3]
    assert (got if mode == "ordered" else sorted(got, key=abs)) == expected
    assert sorted(value for value in function.events if isinstance(value, int)) == list(range(1, 200))


@virtual
async def test_O5_everything_in_flight_is_finished_at_the_end_of_input(mode):
    assert sorted(await process(nap, [5, 1, 3], mode=mode)) == [1, 3, 5]
    assert now() == 5


@virtual
async def test_O2_an_asynchronous_input_is_not_asked_while_the_buffer_is_full():
    read: list[int] = []

    async def elements() -> AsyncIterator[int]:
        for value in range(9):
            read.append(value)
            # An element that was read too early would be offered again and again, and time would stand still.
            yield value if value < 2 else await forever()

    first = asyncio.ensure_future(anext(run := AsyncWaitOperator(forever, capacity=9, buffer=2).process(elements())))
    await asyncio.sleep(1)
    assert read == [0, 1]
    await stop(run, first)
