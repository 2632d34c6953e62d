"""The operator alone: its price per element, order under skew, and the cost of pending timeouts.

Both sides of a row run in turns on the same loop, and the median of all rounds is taken. "Theirs" is hand-written code:
a task per element, without limit and deadline, or the usual semaphore with ``wait_for``. Every measurement is made on
asyncio's own loop and on uvloop.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import uvloop

from asyncio_operator import AsyncWaitOperator
from benchmarks import Rows

ROUNDS = 5
CAPACITY = 200
TIMEOUT = 30.0
MODES = ("ordered", "unordered")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Function = Callable[[int], Coroutine[Any, Any, int]]
Side = Callable[[], Coroutine[Any, Any, None]]


def s1() -> Rows:
    """A function that returns at once, compared with a bare task per element, as many at a time."""
    yield from _overhead("S1", "returns at once", _at_once, 300_000, "<= 0.5")


def s2() -> Rows:
    """The same function, compared with the usual idiom: semaphore, wait_for and gather."""
    count = 60_000
    for loop in LOOPS:
        *ours, idiom = _measure(loop, *_operators(_at_once, count), lambda: _idiom(_at_once, count))
        for mode, seconds in zip(MODES, ours, strict=True):
            yield _row("S2", f"returns at once, {mode}, {loop} / usual idiom", seconds, idiom, count, "<= 1/15")


def s3() -> Rows:
    """A function that suspends once, compared with a bare task per element, as many at a time."""
    yield from _overhead("S3", "suspends once", _suspends, 100_000, "<= 0.8")


def s4() -> Rows:
    """Ordered throughput compared with unordered, if one call in two hundred takes a hundred times as long."""
    count = 10_000
    for loop in LOOPS:
        ordered, unordered = _measure(loop, *_operators(_skewed, count, capacity=100, timeout=None))
        figures = (f"{count / ordered:,.0f}/s", f"{count / unordered:,.0f}/s")
        yield "S4", f"skew, ordered / unordered, {loop}", *figures, unordered / ordered, ">= 0.9"


def s12() -> Rows:
    """Threads in the process while 10,000 timeouts are pending, compared with none pending."""
    for loop, new_loop in LOOPS.items():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            ours, theirs = runner.run(_threads(10_000))
        yield "S12", f"threads, 10,000 timeouts pending / none, {loop}", str(ours), str(theirs), ours / theirs, "= 1"


def _overhead(name: str, what: str, function: Function, count: int, target: str) -> Rows:
    for loop in LOOPS:
        *ours, tasks = _measure(loop, *_operators(function, count), lambda: _tasks(function, count))
        for mode, seconds in zip(MODES, ours, strict=True):
            yield _row(name, f"{what}, {mode}, {loop} / a task each", seconds, tasks, count, target)


def _row(name: str, what: str, ours: float, theirs: float, count: int, target: str) -> tuple[str | float, ...]:
    figures = (f"{ours / count * 1e6:.2f} us", f"{theirs / count * 1e6:.2f} us")
    return name, what, *figures, ours / theirs, target


def _measure(loop: str, *sides: Side) -> list[float]:
    """Median seconds of each side. The sides run in turns."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(_take_turns(sides))


async def _take_turns(sides: Sequence[Side]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, taken in zip(sides, seconds, strict=True):
            gc.collect()  # what one side has left behind is not charged to the next
            started = perf_counter()
            await side()
            taken.append(perf_counter() - started)
    return list(map(median, seconds))


def _operators(function: Function, count: int, **options: Any) -> list[Side]:
    """A run over `count` elements in each of the modes."""

    async def run(mode: Any) -> None:
        operator = AsyncWaitOperator(function, mode=mode, **{"capacity": CAPACITY, "timeout": TIMEOUT} | options)
        outputs = 0
        async for _ in operator.process(range(count)):
            outputs += 1
        assert outputs == count

    return [partial(run, mode) for mode in MODES]


async def _tasks(function: Function, count: int) -> None:
    loop = asyncio.get_running_loop()
    for start in range(0, count, CAPACITY):
        values = range(start, min(start + CAPACITY, count))
        outputs = await asyncio.gather(*[loop.create_task(function(value)) for value in values])
        assert len(outputs) == len(values)


async def _idiom(function: Function, count: int) -> None:
    slots = asyncio.Semaphore(CAPACITY)

    async def bounded(value: int) -> int:
        async with slots:
            return await asyncio.wait_for(function(value), TIMEOUT)

    outputs = await asyncio.gather(*[bounded(value) for value in range(count)])
    assert len(outputs) == count


async def _threads(count: int) -> tuple[int, int]:
    before = threading.active_count()
    pending = asyncio.Event()

    async def wait(value: int) -> None:
        if value == count - 1:
            pending.set()
        await asyncio.get_running_loop().create_future()

    outputs = AsyncWaitOperator(wait, capacity=count, timeout=3600.0).process(range(count))
    consumer = asyncio.ensure_future(anext(outputs))
    await pending.wait()
    during = threading.active_count()
    consumer.cancel()
    await asyncio.wait([consumer])
    return during, before


async def _at_once(value: int) -> int:
    return value


async def _suspends(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _skewed(value: int) -> int:
    await asyncio.sleep(0.2 if value % 200 == 100 else 0.002)
    return value
