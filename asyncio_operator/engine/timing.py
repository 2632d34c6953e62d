"""What the loop's side works and waits with: a task that starts later, a future that may be completed twice, a timer by
another clock, and that clock."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from asyncio_operator.clock import monotonic

COARSEST = 0.001
"""Seconds that the coarsest of loops' clocks counts. Such a loop may wake too early; then it wakes this later again."""


class Alarm:
    """At most one timer of a loop, for a time of another clock.

    Args:
        clock: gives seconds.
        ring: called when the time has come, perhaps a little early.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], ring: Callable[[], object]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at this time of the clock, and at no other."""
        self.cancel()
        self._timer = self._loop.call_at(at + (self._loop.time() - self._clock()), self._ring)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


T = TypeVar("T")


def start_task(coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
    """A task of the running loop that takes its first step in a later turn.

    The loop's task factory is not asked: that of eager tasks would run the first step inside of the code that starts
    the task, and has not yet written down that it did.
    """
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), context=context)


def drop(task: Any) -> None:
    """Let the garbage collector have a task whose loop was closed, without a complaint of asyncio's."""
    # The switch that asyncio.gather uses for this, too.
    task._log_destroy_pending = False
    if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:
        task.get_coro().close()


async def error_of(work: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Call and await it, and return the error that it raises: ``SystemExit`` of a task would pass through the loop."""
    try:
        await work()
    except BaseException as error:
        return error
    return None


async def wait_through(task: asyncio.Task[Any], seconds: float) -> asyncio.CancelledError | None:
    """Wait for a task, also when cancelled: the code that cancels waits as long. Gives the cancellation."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    interrupted: asyncio.CancelledError | None = None
    while True:
        try:
            # Without any time it is still given a turn.
            await asyncio.wait([task], timeout=max(0.0, ends - loop.time()))
        except asyncio.CancelledError as error:
            interrupted = error
        if task.done() or loop.time() >= ends:
            return interrupted


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Complete a future that somebody may be waiting for."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's time, exactly and cheaply.

    asyncio's own loops wrap a Python frame around the monotonic clock, which doubles its price, and uvloop cuts it off
    to milliseconds, with which a deadline would come too early.
    """
    plain = isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is asyncio.BaseEventLoop.time
    return monotonic if plain or type(loop).__module__.partition(".")[0] == "uvloop" else loop.time
