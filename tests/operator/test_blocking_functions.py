"""O11: a blocking function's thread cannot be cancelled; real threads, which wait for events."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, BlockingFunction, FunctionError
from tests.operator.helpers import REAL_LOOPS, collect, process, run_on


class Gate:
    """A blocking function whose calls wait until the test lets them go, and say when they have begun."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.running = self.most = self.ended = 0

    def __call__(self, value: Any) -> Any:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.began.release()
        self.go.wait()
        with self.lock:
            self.running -= 1
            self.ended += 1
        return value


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.fixture(params=REAL_LOOPS)
def loop(request: pytest.FixtureRequest) -> Any:
    return request.param


async def until(condition: Any) -> None:
    """Turn the loop until a thread has done its part."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_O11_calls_run_in_threads_at_once(mode, loop):
    together = threading.Barrier(4)

    def call(value):
        together.wait(10)
        return value

    got = run_on(loop, process(BlockingFunction(call), range(8), mode=mode, capacity=4))
    assert sorted(got) == list(range(8))


def test_a_thread_sees_the_context_of_the_run(mode, loop):
    trace_id = contextvars.ContextVar("trace_id", default="none")

    async def main() -> None:
        trace_id.set("mine")
        function: BlockingFunction[Any, Any] = BlockingFunction(lambda value: (value, trace_id.get()))
        assert await process(function, [1], mode=mode) == [(1, "mine")]

    run_on(loop, main())


def test_O11_at_its_deadline_the_element_ends_and_the_thread_keeps_its_slot(mode, loop, gate):
    async def main():
        operator = AsyncWaitOperator(
            BlockingFunction(gate), mode=mode, capacity=2, timeout=0.01, on_timeout=lambda v: ("late", v)
        )
        run = operator.process(range(4))
        assert {await anext(run), await anext(run)} == {("late", 0), ("late", 1)}
        assert gate.running == operator.metrics.in_flight == 2
        assert operator.metrics.admitted == 2
        third = asyncio.ensure_future(anext(run))
        await asyncio.sleep(0.005)
        assert gate.most == operator.metrics.admitted == 2
        gate.go.set()
        assert await third in (2, 3)
        await collect(run)
        assert gate.ended == 4
        assert gate.most == 2

    run_on(loop, main())


def test_O11_an_honest_thread_is_not_reported(mode, loop, gate, caplog):
    """It cannot know of its cancellation, so it has swallowed none."""

    async def main():
        run = AsyncWaitOperator(BlockingFunction(gate), mode=mode, timeout=0.01, on_timeout=lambda v: v).process([1])
        assert await anext(run) == 1
        gate.go.set()
        assert await collect(run) == []

    run_on(loop, main())
    assert caplog.records == []


def test_O11_an_early_end_waits_for_the_threads(mode, loop, gate):
    async def main():
        run = AsyncWaitOperator(BlockingFunction(gate), mode=mode, capacity=2).process(range(4))
        first = asyncio.ensure_future(collect(run))
        await until(lambda: gate.running == 2)
        first.cancel()
        await asyncio.sleep(0.005)
        assert not first.done()
        gate.go.set()
        await asyncio.wait([first])
        assert first.cancelled()
        assert (gate.ended, gate.running) == (2, 0)

    run_on(loop, main())


def test_O11_threads_that_outlast_the_grace_period_are_left(mode, loop, gate, caplog):
    async def main():
        run = AsyncWaitOperator(
            BlockingFunction(gate), mode=mode, timeout=0.01, grace_period=0.01, on_timeout=lambda v: v
        ).process([1])
        assert await collect(run) == [1]
        assert gate.running == 1
        gate.go.set()
        await until(lambda: gate.ended == 1)
        await asyncio.sleep(0)

    run_on(loop, main())
    assert ["is left behind" in record.getMessage() for record in caplog.records] == [True]


def test_O11_no_more_calls_at_once_than_threads(mode, loop, gate):
    """Else an element would spend its deadline in the pool's queue."""

    async def main():
        operator = AsyncWaitOperator(BlockingFunction(gate, max_workers=3), mode=mode, capacity=50)
        run = asyncio.ensure_future(collect(operator.process(range(9))))
        await until(lambda: gate.running == 3)
        assert operator.metrics.in_flight == operator.metrics.admitted == 3
        gate.go.set()
        assert sorted(await run) == list(range(9))

    run_on(loop, main())
    assert gate.most == 3


def test_O11_the_threads_end_with_the_run(mode, loop):
    names = []

    def call(value):
        names.append(threading.current_thread())
        return value

    function = BlockingFunction(call)
    run_on(loop, process(function, range(5), mode=mode))
    for thread in names:
        thread.join(10)
        assert not thread.is_alive()
        assert thread.name.startswith("asyncio-operator-blocking")


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError])
def test_whatever_a_thread_raises_is_the_elements_failure(mode, loop, error):
    def call(value):
        raise error("mine")

    with pytest.raises(FunctionError) as failure:
        run_on(loop, process(BlockingFunction(call), [1], mode=mode))
    cause = failure.value.__cause__
    assert isinstance(cause, RuntimeError if error is StopIteration else error)
    assert isinstance(cause.__cause__ if error is StopIteration else cause, error)


def test_several_operators_may_share_a_blocking_function(gate: Gate) -> None:
    """The pool closes with the last of them."""
    function = BlockingFunction(gate)
    gate.go.set()
    first, second = AsyncWaitOperator(function)(range(50)), AsyncWaitOperator(function)(range(50))
    got = [next(first), next(second)]
    got += list(first)
    got += list(second)
    assert sorted(got) == sorted([*range(50)] * 2)
    assert function._pool is None
