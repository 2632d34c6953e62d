"""The two channels between a thread and the loop: nothing is lost, doubled or reordered, and no side waits for ever."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from asyncio_operator.loop.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop.runner import LoopFrame
from asyncio_operator.loop.thread import loop_thread
from tests.operator.helpers import REAL_LOOPS, forever, run_on, virtual

COUNT = 5_000


async def read(source: ToLoop, most: int = COUNT) -> list[Any]:
    """Everything that comes, at most `most` at a time."""
    got: list[Any] = []
    while await source.ready():
        for taken, item in enumerate(source, 1):
            got.append(item)
            if taken == most:
                break
    return got


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def on_the_loop(
    main: Callable[[FromLoop], Coroutine[Any, Any, None]], patience: float = 10, **options: Any
) -> LoopFrame:
    return LoopFrame(loop_thread().loop, lambda _, sink: main(sink), patience=patience, **options)


@contextmanager
def outputs_of(main: Callable[[FromLoop], Coroutine[Any, Any, None]], **options: Any) -> Iterator[FromLoop]:
    """The outputs of a coroutine on the loop thread, while it is entered."""
    with on_the_loop(main, **options) as frame:
        frame.start(lambda: None)
        yield frame.sink


async def silent(sink: FromLoop) -> None:
    await forever()


@contextmanager
def acting_before_line(number: int, function: Callable[..., object], act: Callable[[], object]) -> Iterator[None]:
    """Let the other side act while this side is before the line of that number, counted as they are executed."""
    left = number

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == -1:
                act()
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if frame.f_code is function.__code__ else None)
    try:
        yield
    finally:
        sys.settrace(before)


class Once:
    """Acts once, however often it is called."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.acted = False

    def __call__(self) -> None:
        if not self.acted:
            self.acted = True
            self.act()


@pytest.mark.parametrize("moment", range(10))
@pytest.mark.parametrize("comes", ["element", "end", "element and end"])
@virtual
async def test_O16_what_comes_at_any_moment_of_a_look_wakes_the_loop(moment: int, comes: str) -> None:
    source = ToLoop(asyncio.get_running_loop())

    def come() -> None:
        if "element" in comes:
            source.put(1)
        if "end" in comes:
            source.end()

    act = Once(come)
    # At the latest when the loop waits.
    asyncio.get_running_loop().call_later(1, act)
    with acting_before_line(moment, ToLoop.ready, act):
        async with asyncio.timeout(2):
            assert await source.ready() is ("element" in comes)


@pytest.mark.parametrize("moment", range(10))
@virtual
async def test_O16_room_that_comes_at_any_moment_of_a_look_wakes_the_loop(moment: int) -> None:
    sink = FromLoop(asyncio.get_running_loop(), limit=1)
    outputs = iter(sink)
    act = Once(lambda: sink.waiting() and next(outputs))
    asyncio.get_running_loop().call_later(1, act)
    # Before the first lines there is nothing to take yet.
    asyncio.get_running_loop().call_later(1.5, lambda: sink.waiting() and next(outputs))
    with acting_before_line(moment, FromLoop.put, act):
        async with asyncio.timeout(1.75):
            await sink.put(1)


@pytest.mark.parametrize("moment", range(12))
@pytest.mark.parametrize("comes", ["element", "end", "element and end"])
def test_O16_what_comes_at_any_moment_of_a_look_wakes_the_thread(moment: int, comes: str) -> None:
    sink = FromLoop(asyncio.new_event_loop(), pulse=5.0)

    def come() -> None:
        if "element" in comes:
            sink.put_nowait(1)
        if "end" in comes:
            sink.end()

    act = Once(come)
    timer = threading.Timer(0.02, act)
    timer.start()
    with acting_before_line(moment, FromLoop.__iter__, act):
        assert next(iter(sink), None) == (1 if "element" in comes else None)
    timer.join()
    sink._loop.close()


@pytest.mark.parametrize("loop", REAL_LOOPS)
@pytest.mark.parametrize("limit", [1, 3, 256])
@pytest.mark.parametrize("most", [1, COUNT])
def test_everything_reaches_the_loop_in_order(loop, limit, most):
    async def main():
        source = ToLoop(asyncio.get_running_loop(), limit)
        longest = 0

        def write():
            nonlocal longest
            for i in range(COUNT):
                assert source.put(i)
                longest = max(longest, len(source._items))
            source.end()

        thread = in_thread(write)
        assert await read(source, most) == list(range(COUNT))
        thread.join()
        assert longest <= limit

    run_on(loop, main())


@pytest.mark.parametrize("limit", [1, 2, 3, 256])
def test_everything_reaches_the_thread_in_order(limit):
    async def write(sink: FromLoop) -> None:
        for i in range(COUNT):
            await sink.put(i)
            assert len(sink._items) <= limit

    with outputs_of(write, ahead=limit) as sink:
        assert list(sink) == list(range(COUNT))


@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_an_error_comes_behind_the_last_element(loop):
    async def main():
        source = ToLoop(asyncio.get_running_loop())
        source.put(1)
        source.end(KeyError("mine"))
        assert await source.ready()
        assert list(source) == [1]
        with pytest.raises(KeyError, match="mine"):
            await source.ready()

    run_on(loop, main())


@pytest.mark.parametrize("loop", REAL_LOOPS)
def test_closing_tells_a_thread_that_waits_and_one_that_comes_later(loop):
    async def main():
        source = ToLoop(asyncio.get_running_loop(), 1)
        told = asyncio.get_running_loop().create_future()

        def write():
            answer = source.put(1)
            asyncio_loop.call_soon_threadsafe(told.set_result, answer)

        asyncio_loop = asyncio.get_running_loop()
        thread = in_thread(write)
        while not source._items:  # noqa: ASYNC110
            await asyncio.sleep(0)
        source.close()
        assert await told is False
        assert source.put(2) is False
        thread.join()

    run_on(loop, main())


def test_an_error_takes_the_place_of_what_was_not_taken():
    async def fail(sink: FromLoop) -> None:
        sink.put_nowait(1)
        raise KeyError("mine")

    with outputs_of(fail) as sink:
        assert sink.wait_for_end(10)
        with pytest.raises(KeyError, match="mine"):
            list(sink)


def test_a_thread_that_waits_gets_pulses_and_then_its_elements():
    go = asyncio.Event()

    async def wait_and_write(sink: FromLoop) -> None:
        await go.wait()
        sink.put_nowait(1)

    with outputs_of(wait_and_write, pulse=0.001) as sink:
        elements = iter(sink)
        assert [next(elements) for _ in range(3)] == [PULSE] * 3
        loop_thread().loop.call_soon_threadsafe(go.set)
        assert [element for element in elements if element is not PULSE] == [1]


def test_X7_elements_that_never_stop_coming_do_not_keep_the_pulses_away():
    with outputs_of(silent, pulse=0.001) as sink:
        for i in range(COUNT):
            sink.put_nowait(i)
        elements, seen = iter(sink), 0
        while (element := next(elements)) is not PULSE:
            assert element == seen
            seen += 1
            sink.put_nowait(COUNT + element)
        assert next(elements) == seen


def test_stopping_a_task_before_its_first_step_ends_it():
    blocked, go = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go.wait(10)

    loop_thread().loop.call_soon_threadsafe(block)
    assert blocked.wait(10)
    frame = on_the_loop(silent)
    frame.start(lambda: None)
    stopper = in_thread(frame.__exit__)
    while not frame._stopped:
        pass
    go.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert list(frame.sink) == []


def test_stopping_a_task_that_was_not_started_does_not_wait():
    with on_the_loop(silent, patience=3600) as frame:
        pass
    assert list(frame.sink) == []


@pytest.mark.parametrize("wait", [lambda sink: next(iter(sink)), lambda sink: sink.wait_for_end(0.001)])
def test_the_loop_never_waits_for_a_thread_that_is_called_away(wait):
    """A signal, or the garbage collector, may call it away between any two lines, to something that needs the loop."""
    lines = 0
    for moment in range(100):
        sink = FromLoop(loop_thread().loop, pulse=0.001)
        lines = 0

        def trace(frame: Any, event: str, argument: Any, sink: FromLoop = sink, moment: int = moment) -> Any:
            nonlocal lines
            lines += 1
            if lines == moment:
                helper = in_thread(lambda: sink.put_nowait(1))
                helper.join(10)
                assert not helper.is_alive()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            wait(sink)
        finally:
            sys.settrace(before)
        if lines < moment:
            break
    assert 5 < lines < moment


def test_a_task_that_is_cancelled_by_somebody_else_does_not_look_as_if_it_had_ended_well():
    async def main(sink: FromLoop) -> None:
        raise asyncio.CancelledError

    with outputs_of(main) as sink, pytest.raises(asyncio.CancelledError):
        list(sink)


def test_patience_ends_with_a_message(caplog):
    go = asyncio.Event()

    async def deaf(sink: FromLoop) -> None:
        sink.put_nowait(1)
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    with outputs_of(deaf, patience=0.01) as sink:
        assert next(iter(sink)) == 1
    assert ["did not end within" in record.getMessage() for record in caplog.records] == [True]
    loop_thread().loop.call_soon_threadsafe(go.set)
    assert sink.wait_for_end(10)
