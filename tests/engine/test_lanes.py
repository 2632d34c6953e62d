"""The driver by itself: windows, the seeker, and what an intake may do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.options import CallOptions
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.helpers import REAL_LOOPS, forever, now, run_on, same, virtual


class Batch:
    """A window over the numbers of a batch."""

    instant = True
    begin = ended = None

    def __init__(self, intake: Batches, values: range) -> None:
        self.working = 0
        self.results = intake.results
        self.final = intake.results is not None
        self.intake = intake
        self.left_over = len(values)
        self.work = self.hand_out(values)

    def hand_out(self, values: range) -> Iterator[tuple[Any, Any]]:
        for value in values:
            self.left_over -= 1
            yield value, value

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.work

    def complete(self, slot: Any, result: Any, started: float) -> None:
        self.intake.outcomes.append((slot, "result", result))

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        self.intake.outcomes.append((slot, type(error), started))
        self.intake.on_failure()

    def timed_out(self, slot: Any, started: float) -> None:
        self.intake.outcomes.append((slot, "late", started))

    def returned(self, slot: Any, error: BaseException | None) -> None:
        pass

    def value_of(self, slot: Any) -> Any:
        return slot

    def left(self) -> None:
        self.intake.left += 1


class Batches:
    """Hands out batches of numbers, a second apart; the present one as long as there is something left of it."""

    def __init__(self, *sizes: int, pause: float = 1.0) -> None:
        self.sizes = list(sizes)
        self.pause = pause
        self.given = 0
        self.current: Batch | None = None
        self.seeking = 0
        self.left = 0
        self.results: list[Any] | None = None
        self.outcomes: list[tuple[Any, ...]] = []
        self.on_failure: Callable[[], object] = lambda: None

    def is_urgent(self, now: float) -> bool:
        return False

    def stop(self) -> None:
        """There is nothing to end."""

    async def window(self) -> Batch | None:
        assert self.seeking == 0, "two lanes wait for work"
        if self.current is not None and self.current.left_over:
            return self.current
        if not self.sizes:
            return None
        self.seeking += 1
        if self.pause:
            await asyncio.sleep(self.pause)
        self.seeking -= 1
        size = self.sizes.pop(0)
        self.given += size
        self.current = Batch(self, range(self.given - size, self.given))
        return self.current


def lanes(invoke: Any, intake: Batches, clock: Any = now, **options: Any) -> Lanes:
    chosen = CallOptions(**{"capacity": 3, "grace_period": 5.0} | options)
    return Lanes(invoke, intake, chosen, timers=Timers(clock), name="it")


@virtual
async def test_a_lane_starts_only_when_all_others_are_busy():
    driver = lanes(same, Batches(*[3] * 20), capacity=100)
    await driver.run()
    assert len(driver._lanes) == 0
    assert now() == 20


@virtual
async def test_a_failure_declared_by_the_intake_ends_everything_at_once():
    """Also if the intake goes on as if nothing had happened."""
    intake = Batches(9)
    called = []

    async def call(value):
        called.append(value)
        if value == 1:
            raise KeyError
        return value

    driver = lanes(call, intake)
    intake.on_failure = lambda: driver.fail(ValueError("declared"))
    with pytest.raises(ValueError, match="declared"):
        await driver.run()
    assert called == [0, 1]
    assert driver.failed
    assert driver.in_flight == 0


@virtual
async def test_a_failure_declared_inside_of_a_call_ends_everything_at_once(caplog):
    intake = Batches(9)
    called = []

    async def call(value):
        called.append(value)
        if value == 1:
            driver.fail(ValueError("declared"))
        return value

    driver = lanes(call, intake)
    with pytest.raises(ValueError, match="declared"):
        await driver.run()
    assert called == [0, 1]
    assert caplog.records == []


@virtual
async def test_the_latency_of_every_call_is_kept():
    driver = lanes(asyncio.sleep, Batches(4), capacity=4)
    await driver.run()
    assert driver.latency.percentiles().max == 3


@pytest.mark.parametrize("windows", [[10**9], [1] * 10**6])
@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_calls_that_return_at_once_let_the_loop_turn(loop, windows):
    """In one window, and in many of one element each."""

    async def main():
        intake = Batches(pause=0)
        intake.sizes = windows.copy()
        driver = lanes(same, intake, capacity=2, clock=clock_of(asyncio.get_running_loop()))
        run = asyncio.ensure_future(driver.run())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not run.done()
        run.cancel()
        await asyncio.wait([run])

    run_on(loop, main())


def test_the_clock_of_a_loop_is_its_time_in_full():
    async def main():
        loop = asyncio.get_running_loop()
        clock = clock_of(loop)
        assert clock() == pytest.approx(loop.time(), abs=0.5)
        return len({clock() for _ in range(1000)})

    for loop in REAL_LOOPS:
        assert run_on(loop, main()) > 100
    assert run_on(VirtualTimeLoop, main()) == 1


@virtual
async def test_O4_results_are_stored_at_the_places_of_their_slots_and_other_outcomes_are_not():
    intake = Batches(6)
    intake.results = [None] * 6
    variable = ContextVar("variable", default=0)

    async def call(value):
        assert variable.get() == 0
        if value == 1:
            variable.set(value)  # From now on the calls of its lane have contexts of their own.
        if value == 2:
            raise KeyError
        if value == 3:
            with suppress(asyncio.CancelledError):
                await forever()
        return value

    await lanes(call, intake, capacity=2, timeout=10.0).run()
    assert intake.results == [0, 1, None, None, 4, 5]
    assert intake.outcomes == [(2, KeyError, 1.0), (3, "late", 1.0)]
