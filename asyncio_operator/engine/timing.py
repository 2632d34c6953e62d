"""The tools of code on the loop that waits: a clock, a task that starts later, the length of a turn.

Calls that return at once never let the loop turn. A `Turn` limits the time for which all of them together may keep it:
the lanes ask when the turn ends, work until then, and ask again. If the loop has turned meanwhile, because a lane has
waited for something, a new turn has begun. This module knows no lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from asyncio_operator.clock import monotonic

COARSEST = 0.001
"""The step, in seconds, of the coarsest clock of a loop. Such a loop may wake too early, and then waits this long."""


T = TypeVar("T")


def start_task(
    coroutine: Coroutine[Any, Any, T], context: Context | None = None, loop: asyncio.AbstractEventLoop | None = None
) -> asyncio.Task[T]:
    """A task of the running loop, or of `loop`, that takes its first step in a later turn.

    It does not use the loop's task factory: the one for eager tasks would run the first step inside of the code that
    starts the task, before that code has stored the task.
    """
    return asyncio.Task(coroutine, loop=loop or asyncio.get_running_loop(), context=context)


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Complete a future, if there is one and it is not done."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The fastest function that gives the loop's time exactly.

    asyncio's own loops wrap the monotonic clock in a Python function, which doubles the time of a call. uvloop cuts the
    time off to milliseconds, so a deadline would come too early.
    """
    plain = isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is asyncio.BaseEventLoop.time
    return monotonic if plain or type(loop).__module__.partition(".")[0] == "uvloop" else loop.time


TURN = 0.0005
"""Seconds of a turn: long beside the few microseconds that turning costs. And so short that the results are still in
the processor's caches when other code goes on with them, and that the garbage collector has not run over them yet."""

STANDING = 1000
"""Calls that return at once after which the loop turns if the clock stands still, as the clock of a test does."""


class Turn:
    """The present turn of a loop. It begins when its end is first asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends = 0.0
        self._standing = 0

    def ends(self, now: float) -> float:
        """The end of the turn, by the clock that gave `now`."""
        if not self._ends:
            self._ends = now + TURN
            self._loop.call_soon(self._turned)
        return self._ends

    def is_over(self, now: float) -> bool:
        """Whether the turn is used up. After ``asyncio.sleep(0)`` there is a new one."""
        return self._ends != 0.0 and (now > self._ends or self._standing >= STANDING)

    def stands(self) -> bool:
        """Whether a lane may go on although the clock stands still. Called once for each call."""
        self._standing += 1
        return self._standing < STANDING

    def _turned(self) -> None:
        self._ends = 0.0
        self._standing = 0
