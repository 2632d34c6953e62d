"""Ways to run a test: on virtual time, and on every real loop; each fails on what asyncio only logs."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any

import uvloop

from asyncio_operator import AsyncFunction, AsyncWaitOperator
from asyncio_operator.testing import VirtualTimeLoop

REAL_LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> Any:
    """What ``asyncio.run`` would do; whatever the loop's exception handler hears of is a failure."""
    heard: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: heard.append(context))
        result = runner.run(main)
    gc.collect()
    assert heard == []
    return result


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test on virtual time, which starts at 0."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_on(VirtualTimeLoop, test(*args, **kwargs))

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def block(seconds: float) -> None:
    """What blocks the loop for so long does to virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.advance(seconds)


async def collect(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


async def process(function: Any, elements: Iterable[Any], **options: Any) -> list[Any]:
    """Everything a run gives."""
    return await collect(AsyncWaitOperator(function, **options).process(elements))


async def collect_timed(outputs: AsyncIterator[Any]) -> list[Any]:
    """Pairs of an output and the time at which it came."""
    return [(output, now()) async for output in outputs]


async def collect_until(outputs: AsyncIterator[Any], got: list[Any], pause: float = 0.0) -> None:
    """Take outputs into `got`, with a pause after each, until there are no more or the run fails."""
    async for output in outputs:
        got.append(output)
        await asyncio.sleep(pause)


async def same(value: Any) -> Any:
    return value


async def forever(value: Any = None) -> Any:
    await asyncio.get_running_loop().create_future()


async def fail(value: Any) -> Any:
    raise ValueError(value)


async def one_then_forever(value: Any) -> Any:
    """The first of ``range`` returns; no other call ever does."""
    return value if value == 0 else await forever()


async def nap(seconds: Any) -> Any:
    """The value is the seconds it takes."""
    await asyncio.sleep(seconds)
    return seconds


async def turns_during(call: Awaitable[Any]) -> int:
    """How often the loop turns until it has returned."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.ensure_future(turn())
    await call
    turning.cancel()
    return turns


def late(value: Any) -> Any:
    """A hook for `on_timeout`."""
    return "late", value


def others() -> set[asyncio.Task[Any]]:
    """The tasks of the loop without the present one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


class Life(AsyncFunction[Any, Any]):
    """Records what happens to a function: "open", "close", and the values of calls, with "-" when they have ended."""

    def __init__(self, call: Callable[[Any], Coroutine[Any, Any, Any]] = same) -> None:
        self.call = call
        self.events: list[Any] = []
        self.running = 0
        self.most = 0

    async def open(self) -> None:
        self.events.append("open")

    async def invoke(self, value: Any) -> Any:
        self.events.append(value)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.call(value)
        finally:
            self.running -= 1
            self.events.append(f"-{value}")

    async def close(self) -> None:
        assert self.running == 0, "closed while calls are running"
        self.events.append("close")


class Doors(Life):
    """A function whose `open` and `close` do what its arguments say."""

    def __init__(self, opening: Any = None, closing: Any = None, call: Any = same) -> None:
        super().__init__(call)
        self.opening = opening
        self.closing = closing

    async def open(self) -> None:
        self.events.append("open")
        if self.opening is not None:
            await self.opening()

    async def close(self) -> None:
        await super().close()
        if self.closing is not None:
            await self.closing()


def raising(error: BaseException) -> Any:
    async def act() -> None:
        await asyncio.sleep(1)
        raise error

    return act


class Source:
    """Counts what is read of it."""

    def __init__(self, elements: Iterator[Any]) -> None:
        self.elements = elements
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        element = next(self.elements)
        self.read += 1
        return element


def cancel_all(*spared: Any) -> None:
    """Cancel all tasks of the loop but these, as no function may."""
    for task in asyncio.all_tasks():
        if task not in spared:
            task.cancel()
