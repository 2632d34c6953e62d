"""O16: the operator as an ordinary iterator, over the loop thread. Threads wait for events here, never for time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError, StateError
from asyncio_operator.loop.channels import AHEAD
from asyncio_operator.loop.thread import loop_thread
from tests.operator.helpers import Life, one_then_forever, others, same


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncio-operator-reader"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Neither a reading thread, nor a task on the loop."""
    yield
    for thread in readers():
        thread.join(10)
        assert not thread.is_alive()

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    assert asyncio.run_coroutine_threadsafe(tasks(), loop_thread().loop).result(10) == 1


@pytest.mark.parametrize("count", [0, 1, AHEAD - 1, AHEAD, AHEAD + 1, 10 * AHEAD + 7])
def test_O16_every_element_crosses_both_ways(mode, count):
    assert list(AsyncWaitOperator(same, mode=mode)(range(count))) == list(range(count))


def test_O16_a_blocking_input_does_not_stop_the_loop(mode):
    """The input waits for a result of this very run."""
    arrived = threading.Event()

    def source():
        yield 1
        assert arrived.wait(10)
        yield 2

    outputs = AsyncWaitOperator(same, mode=mode)(source())
    assert next(outputs) == 1
    arrived.set()
    assert list(outputs) == [2]


def test_O16_from_several_threads(mode):
    def run(start):
        return list(AsyncWaitOperator(same, mode=mode)(range(start, start + 1000)))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    assert results == [list(range(start, start + 1000)) for start in range(8)]


def on_the_loop_thread(step: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return step()

    return asyncio.run_coroutine_threadsafe(main(), loop_thread().loop).result(10)


def test_O16_made_elsewhere_and_stepped_on_the_loop_thread_it_raises_at_once(mode):
    function, source = Life(), iter(range(5))
    outputs = AsyncWaitOperator(function, mode=mode)(source)
    with pytest.raises(StateError, match="would wait for itself"):
        on_the_loop_thread(lambda: next(outputs))
    assert function.events == []
    assert next(source) == 0


def test_O16_begun_elsewhere_it_raises_on_the_loop_thread_where_it_would_wait_and_ends(mode):
    function = Life(one_then_forever)
    outputs = AsyncWaitOperator(function, mode=mode)(range(5))
    assert next(outputs) == 0
    with pytest.raises(StateError, match="would wait for itself"):
        on_the_loop_thread(lambda: next(outputs))
    assert list(outputs) == []
    assert list(AsyncWaitOperator(same, mode=mode)([1])) == [1]
    assert function.events[-1] == "close"


def test_O16_the_input_is_read_ahead_by_a_bounded_number(mode):
    """A consumer that stops stops everything."""
    read = 0
    stalled = threading.Event()

    class Source:
        def __iter__(self) -> Iterator[int]:
            nonlocal read
            for value in itertools.count():
                read = value + 1
                if read == 2 * AHEAD + 10 + 2:
                    stalled.set()
                yield value

    outputs = AsyncWaitOperator(same, mode=mode, capacity=10, buffer=10)(Source())
    next(outputs)
    # It settles: one channel of inputs, the buffer, one channel of outputs, and what was taken.
    settled = -1
    while settled != read:
        settled = read
        stalled.wait(0.05)
    assert read <= 2 * AHEAD + 10 + 2
    assert list(itertools.islice(outputs, 5000)) == list(range(1, 5001))
    outputs.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("grace_period", [0, 1e8, 1e10, timedelta.max])
def test_O8_it_ends_early_with_any_grace_period(mode, grace_period):
    function = Life()
    outputs = AsyncWaitOperator(function, mode=mode, grace_period=grace_period)(itertools.count())
    assert next(outputs) == 0
    outputs.close()  # type: ignore[attr-defined]
    assert function.events[-1] == "close"


def test_O16_a_thread_that_cannot_be_started_leaves_no_run_behind(mode, monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    operator = AsyncWaitOperator(same, mode=mode)
    loop_thread()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        list(operator([1]))
    monkeypatch.undo()
    assert list(operator([1])) == [1]


def test_O16_dropping_it_ends_the_run(mode):
    function = Life(one_then_forever)
    outputs = AsyncWaitOperator(function, mode=mode)(itertools.count())
    assert next(outputs) == 0
    del outputs
    assert function.events[-1] == "close"


@pytest.mark.parametrize("on_the_loop", [True, False])
def test_O16_an_abandoned_run_ends_when_the_garbage_collector_meets_it_and_stops_nobody(mode, on_the_loop, caplog):
    function = Life(one_then_forever)

    def abandon() -> None:
        outputs = AsyncWaitOperator(function, mode=mode, grace_period=0)(itertools.count())
        cycle = [outputs, next(outputs)]
        cycle.append(cycle)

    async def collect(value):
        gc.collect()
        return value

    async def all_others() -> None:
        await asyncio.gather(*others(), return_exceptions=True)

    gc.collect()
    gc.disable()
    try:
        abandon()
        if on_the_loop:
            assert list(AsyncWaitOperator(collect, mode=mode)([1])) == [1]
        else:
            gc.collect()
    finally:
        gc.enable()
    asyncio.run_coroutine_threadsafe(all_others(), loop_thread().loop).result(10)
    assert function.events[-1] == "close"
    assert caplog.records == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_O16_whatever_the_iterable_raises_arrives(mode, error, caplog):
    def source():
        yield 0
        raise error("mine")

    function = Life()
    with pytest.raises(error):
        list(AsyncWaitOperator(function, mode=mode)(source()))
    assert function.events[-1] == "close"
    assert caplog.records == []


def test_O16_a_failure_arrives_while_the_iterable_blocks(mode):
    go = threading.Event()

    def source():
        yield 0
        go.wait(10)

    async def call(value):
        raise ValueError

    with pytest.raises(FunctionError):
        list(AsyncWaitOperator(call, mode=mode)(source()))
    go.set()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("inner", [False, True])
def test_O16_exits_fail_the_run_and_leave_the_loop_thread_alive(mode, error, inner, caplog):
    async def leave():
        await asyncio.sleep(0)
        raise error("mine")

    async def call(value):
        if value == 3:
            await (asyncio.create_task(leave()) if inner else leave())
        return value

    thread = loop_thread()
    with pytest.raises(FunctionError) as failure:
        list(AsyncWaitOperator(call, mode=mode)(range(5)))
    assert isinstance(failure.value.__cause__, error)
    assert loop_thread() is thread
    assert list(AsyncWaitOperator(same, mode=mode)(range(5))) == list(range(5))
    # An exit from a task that the user has made himself passes through the loop; one from a call never does.
    assert len(caplog.records) == inner


class Hostile(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("mine")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("handler", [logging.NullHandler(), Hostile()])
def test_O16_exits_from_a_callback_do_not_end_the_loop_not_even_with_a_log_that_fails(mode, error, handler, caplog):
    async def call(value):
        def leave():
            raise error("mine")

        asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return value

    logging.getLogger("asyncio_operator").addHandler(handler)
    try:
        assert list(AsyncWaitOperator(call, mode=mode)([1])) == [1]
    finally:
        logging.getLogger("asyncio_operator").removeHandler(handler)
    assert isinstance(handler, Hostile) or len(caplog.records) == 1


def test_O16_an_error_of_close_comes_out_of_an_early_end(mode):
    class Function(Life):
        async def close(self) -> None:
            raise ValueError("mine")

    outputs = AsyncWaitOperator(Function(), mode=mode)(range(10_000))
    next(outputs)
    with pytest.raises(ValueError, match="mine"):
        outputs.close()  # type: ignore[attr-defined]


def test_metrics_may_be_read_from_another_thread(mode):
    operator = AsyncWaitOperator(same, mode=mode, capacity=10, buffer=10)
    outputs = operator(range(20_000))
    for i, _ in enumerate(outputs):
        if i % 50 == 0:
            metrics = operator.metrics
            assert metrics.emitted >= 0 <= metrics.buffered
            assert metrics.emitted + metrics.buffered <= operator.metrics.admitted
    assert operator.metrics.emitted == 20_000
