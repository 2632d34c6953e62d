"""The lanes of a run: how many there are, how long they keep the loop, and what a failure does to them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.lookup.key_batch import Failure
from asyncio_operator.testing import VirtualTimeLoop
from tests.lookup.helpers import Recorded, batch_of, look_up
from tests.operator.attempts import stop
from tests.operator.helpers import REAL_LOOPS, collect, forever, run_on, same, virtual


@virtual
async def test_a_lane_starts_only_when_all_others_are_busy() -> None:
    async def source() -> Any:
        for number in range(60):
            if number % 3 == 0:
                await asyncio.sleep(1)
            yield number

    operator = AsyncWaitOperator(same, capacity=100)
    async for _ in operator.process(source()):
        assert operator._run is not None
        assert len(operator._run.lanes.tasks()) <= 2


@virtual
async def test_a_failure_declared_inside_of_a_call_ends_everything_at_once(caplog: pytest.LogCaptureFixture) -> None:
    called = []

    async def call(value: int) -> int:
        called.append(value)
        if value == 1:
            assert operator._run is not None
            operator._run.lanes.fail(ValueError("declared"))
        return value

    operator = AsyncWaitOperator(call)
    with pytest.raises(ValueError, match="declared"):
        await collect(operator.process(range(9)))
    assert called == [0, 1]
    assert operator.metrics.in_flight == 0
    assert caplog.records == []


@pytest.mark.parametrize("buffer", [1, 10**6])
@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_calls_that_return_at_once_let_the_loop_turn(loop: Any, buffer: int) -> None:
    """In one window, and in many of one element each."""

    async def main() -> None:
        outputs = AsyncWaitOperator(same, capacity=2, buffer=buffer).process(count())
        reading = asyncio.ensure_future(collect(outputs))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        await stop(outputs, reading)

    run_on(loop, main())


def test_the_clock_of_a_loop_is_its_time_in_full() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        clock = clock_of(loop)
        assert clock() == pytest.approx(loop.time(), abs=0.5)
        return len({clock() for _ in range(1000)})

    for loop in REAL_LOOPS:
        assert run_on(loop, main()) > 100
    assert run_on(VirtualTimeLoop, main()) == 1


@virtual
async def test_O4_answers_are_stored_at_the_places_of_their_keys_and_other_outcomes_are_failures() -> None:
    variable = ContextVar("variable", default=0)

    async def answer(key: int) -> dict[str, int]:
        assert variable.get() == 0
        if key == 1:
            variable.set(key)  # From now on the calls of its lane have contexts of their own.
        if key == 2:
            raise KeyError
        if key == 3:
            with suppress(asyncio.CancelledError):
                await forever()
        return {"x": key}

    batch = batch_of(range(6))
    await look_up(Recorded(answer), [batch], capacity=2, timeout=10.0)
    assert [outcome if type(outcome) is dict else type(outcome) for outcome in batch.outcomes] == [
        {"x": 0}, {"x": 1}, Failure, Failure, {"x": 4}, {"x": 5},
    ]  # fmt: skip
