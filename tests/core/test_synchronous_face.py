"""O16: the operator as an ordinary iterator, over the loop thread. Threads wait for events here, never for time."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError, Record, StateError, Watermark
from asyncio_operator.bridge import AHEAD
from asyncio_operator.loop_thread import loop_thread
from tests.core.helpers import Life, forever, same

ROOT = Path(__file__).resolve().parents[2]


async def one_then_forever(value: Any) -> Any:
    return value if value == 0 else await forever()


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


def test_O16_it_gives_what_process_gives(mode):
    elements = [1, Record(2, 20), Watermark(20), 3]
    assert list(AsyncWaitOperator(same, mode=mode)(elements)) == elements


@pytest.mark.parametrize("count", [0, 1, AHEAD - 1, AHEAD, AHEAD + 1, 10 * AHEAD + 7])
def test_O16_every_element_crosses_both_ways(mode, count):
    assert list(AsyncWaitOperator(same, mode=mode)(range(count))) == list(range(count))


def test_O16_the_iterable_is_read_on_a_thread_of_its_own(mode):
    threads = set()

    def source():
        for value in range(1000):
            threads.add(threading.current_thread())
            yield value

    caller = threading.current_thread()
    list(AsyncWaitOperator(same, mode=mode)(source()))
    assert len(threads) == 1
    assert threads.isdisjoint({caller, loop_thread()._thread})


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


def test_O16_inside_a_running_loop(mode):
    async def main():
        return list(AsyncWaitOperator(same, mode=mode)(range(5)))

    assert asyncio.run(main()) == list(range(5))


def test_O16_on_the_loop_thread_it_raises_at_once(mode):
    source = iter(range(5))

    async def main():
        with pytest.raises(StateError, match="would wait for itself"):
            AsyncWaitOperator(same, mode=mode)(source)

    asyncio.run_coroutine_threadsafe(main(), loop_thread().loop).result(10)
    assert next(source) == 0


def test_O16_a_second_run_of_one_operator_is_refused_while_the_first_runs(mode):
    operator = AsyncWaitOperator(same, mode=mode)
    first = operator(range(10_000))
    next(first)
    with pytest.raises(StateError, match="the operator is running"):
        list(operator([1]))
    first.close()  # type: ignore[attr-defined]
    assert list(operator([1])) == [1]


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


def test_O16_closing_early_ends_the_run(mode):
    function = Life(one_then_forever)
    outputs = AsyncWaitOperator(function, mode=mode)(itertools.count())
    assert next(outputs) == 0
    outputs.close()  # type: ignore[attr-defined]
    assert function.running == 0
    assert function.events[-1] == "close"


def test_O16_dropping_it_ends_the_run(mode):
    function = Life(one_then_forever)
    outputs = AsyncWaitOperator(function, mode=mode)(itertools.count())
    assert next(outputs) == 0
    del outputs
    assert function.events[-1] == "close"


def test_O16_closing_it_before_the_first_step_starts_nothing(mode):
    function = Life()
    outputs = AsyncWaitOperator(function, mode=mode)(itertools.count())
    outputs.close()  # type: ignore[attr-defined]
    assert function.events == []
    assert readers() == []


def test_O16_an_error_of_the_iterable_comes_unwrapped(mode):
    def source():
        yield from range(3)
        raise KeyError("input")

    outputs = AsyncWaitOperator(same, mode=mode)(source())
    with pytest.raises(KeyError, match="input"):
        list(outputs)
    assert list(outputs) == []


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


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_O16_exits_from_a_callback_do_not_end_the_loop(mode, error, caplog):
    async def call(value):
        def leave():
            raise error("mine")

        asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return value

    assert list(AsyncWaitOperator(call, mode=mode)([1])) == [1]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("door", ["open", "close"])
def test_O16_errors_of_the_doors_arrive(mode, error, door, caplog):
    class Function(Life):
        async def open(self) -> None:
            if door == "open":
                raise error("mine")

        async def close(self) -> None:
            if door == "close":
                raise error("mine")

    with pytest.raises(error, match="mine"):
        list(AsyncWaitOperator(Function(), mode=mode)([1]))
    assert caplog.records == []


def test_O16_an_error_of_close_comes_out_of_an_early_end(mode):
    class Function(Life):
        async def close(self) -> None:
            raise ValueError("mine")

    outputs = AsyncWaitOperator(Function(), mode=mode)(range(10_000))
    next(outputs)
    with pytest.raises(ValueError, match="mine"):
        outputs.close()  # type: ignore[attr-defined]


def test_metrics_may_be_read_from_another_thread(mode):
    operator = AsyncWaitOperator(same, mode=mode)
    outputs = operator(range(20_000))
    for i, _ in enumerate(outputs):
        if i % 50 == 0:
            metrics = operator.metrics
            assert metrics.emitted + metrics.buffered <= metrics.admitted + 200
    assert operator.metrics.emitted == 20_000


# -- processes


def run_program(program: str, *options: str) -> tuple[list[str], str]:
    """The lines that a program prints, and what it complains of; it has to end by itself, and well."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", PREAMBLE + textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


PREAMBLE = """
import asyncio, itertools, os, sys, threading
from asyncio_operator import *

PARENT = os.getpid()

def tell(*words):
    # One system call, because two processes write.
    line = " ".join(map(str, words)) + ("" if os.getpid() == PARENT else " in the child")
    os.write(1, line.encode() + b"\\n")

class Function(AsyncFunction):
    async def open(self):
        tell("open")

    async def invoke(self, value):
        return value if value < 1000 else await asyncio.sleep(3600)

    async def close(self):
        tell("close")
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_O16_the_interpreter_ends_with_a_run_left_open(loop):
    without = "sys.modules['uvloop'] = None\n" if loop == "asyncio" else ""
    lines, complaints = run_program(
        without
        + """
outputs = AsyncWaitOperator(Function())(itertools.count())
tell(next(outputs))
"""
    )
    assert lines == ["open", "0", "close"]
    assert complaints == ""


def test_O16_the_interpreter_ends_by_an_exit_in_the_middle_of_a_run():
    program = """
try:
    for output in AsyncWaitOperator(Function())(itertools.count()):
        if output == 500:
            sys.exit(0)
finally:
    tell("left")
"""
    lines, complaints = run_program(program)
    assert sorted(lines) == ["close", "left", "open"]
    assert complaints == ""


def test_O16_the_interpreter_ends_while_another_thread_waits_for_outputs():
    program = """
began = threading.Event()

def consume():
    try:
        for output in AsyncWaitOperator(Function())(itertools.count()):
            began.set()
    except BaseException as error:
        tell(type(error).__name__)

threading.Thread(target=consume, daemon=True).start()
began.wait()
"""
    lines, complaints = run_program(program)
    assert lines[:1] == ["open"]
    assert "close" in lines
    assert complaints == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "pass"])
def test_O16_a_forked_child_has_a_loop_thread_of_its_own(loop, leave):
    """And leaves the parent's alone, whose descriptors it shares."""
    without = "sys.modules['uvloop'] = None\n" if loop == "asyncio" else ""
    lines, complaints = run_program(
        without
        + f"""
outputs = AsyncWaitOperator(Function())(iter(range(900)))
next(outputs)
pid = os.fork()
if pid == 0:
    tell(sum(AsyncWaitOperator(Function())(range(10))))
    {leave}
else:
    tell("left", os.waitpid(pid, 0)[1])
    tell(sum(outputs))
    tell(sum(AsyncWaitOperator(Function())(range(10))))
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    child = [line.removesuffix(" in the child") for line in lines if "child" in line]
    parent = [line for line in lines if "child" not in line]
    assert child == ["open", "close", "45"]
    assert sorted(parent[:4]) == sorted(["open", "left 0", "close", str(sum(range(900)))])
    assert parent[4:] == ["open", "close", "45"]
    assert complaints == ""


def test_O16_nothing_starts_before_it_is_needed():
    program = """
operator = AsyncWaitOperator(Function())
print(threading.active_count())
outputs = operator([1])
"""
    assert run_program(program) == (["1"], "")
