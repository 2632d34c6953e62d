"""What the code on the loop waits with: a clock, one timer by it, a task that starts later, and the length of a turn.

Calls that return at once never let the loop turn. A `Turn` limits how long they may keep it, all together: the lanes
ask when the turn ends, work until then, and ask again. If the loop has turned by then, because a lane has waited for
something, there is a new turn. This module knows neither lanes nor what they do.
"""

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


TURN = 0.0005
"""Seconds of a turn: long against the few
microseconds that a turn costs, and so short that what they have done is still in the processor's caches when others go
on with it, and has not yet made Python's garbage collector look for what is dead among it."""

STANDING = 1000
"""Calls that return at once after which the loop turns too where the clock stands still, as that of a test does."""


class Turn:
    """The present turn of a loop; it begins when somebody asks for its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends = 0.0
        self._standing = 0

    def ends(self, now: float) -> float:
        """When it ends, by the clock that gave `now`."""
        if not self._ends:
            self._ends = now + TURN
            self._loop.call_soon(self._turned)
        return self._ends

    def is_over(self, now: float) -> bool:
        """Whether those who were at work have used it up; after ``asyncio.sleep(0)`` there is another."""
        return self._ends != 0.0 and (now > self._ends or self._standing >= STANDING)

    def stands(self) -> bool:
        """Whether one may go on where the clock stands still; to be asked once a call."""
        self._standing += 1
        return self._standing < STANDING

    def _turned(self) -> None:
        self._ends = 0.0
        self._standing = 0
