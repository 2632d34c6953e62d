"""The tools of code on the loop that waits: a clock, a task that starts later, a wait that ends, the length of a turn.

Calls that return at once never let the loop turn. A `Turn` limits the time for which all of them together may keep it:
the lanes ask when the turn ends, work until then, and ask again. If the loop has turned meanwhile, because a lane has
waited for something, a new turn has begun.

The end of a run must not be cut in the middle by a cancellation of the task that waits for it, and must not wait for
ever for code that ignores its own cancellation (`close_within`). This module knows no lanes and no runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from asyncio_operator.clock import monotonic
from asyncio_operator.policies.shutdown import FINAL_WAIT

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


LAST_TURNS = 10
"""Turns of the loop that a late call is given to finish without waiting. A result that has arrived takes one turn to
reach the coroutine, and one or two more for each task it has been wrapped in."""


def after_last_turns(loop: asyncio.AbstractEventLoop, call: Callable[[], object], turns: int = LAST_TURNS) -> None:
    """Make this call when results that have arrived have had their turns."""
    if turns:
        loop.call_soon(after_last_turns, loop, call, turns - 1)
    else:
        call()


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


End = asyncio.Task[BaseException | None]  # A task that returns its error, and does not raise it.


async def error_of(work: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Call and await it, and return the error that it raises: ``SystemExit`` of a task would pass through the loop."""
    try:
        await work()
    except BaseException as error:
        return error
    return None


async def wait_through(tasks: Collection[asyncio.Task[Any]], seconds: float) -> asyncio.CancelledError | None:
    """Wait for tasks, even if the waiting task is cancelled. Returns the cancellation."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    interrupted: asyncio.CancelledError | None = None
    while tasks:
        try:
            # With no time left they still get one turn of the loop.
            await asyncio.wait(tasks, timeout=max(0.0, ends - loop.time()))
        except asyncio.CancelledError as error:
            interrupted = error
        if all(task.done() for task in tasks) or loop.time() >= ends:
            break
    return interrupted


async def close_within(
    name: str,
    close: Callable[[], Awaitable[object]],
    seconds: float,
    *,
    limit: str = "",
    remedy: str = "",
    tasks: list[End] | None = None,
) -> BaseException | None:
    """Close something in a task of its own, even if the waiting task is cancelled. After `seconds` the closing is
    cancelled, and gets `FINAL_WAIT` more.

    Args:
        name: of what is closed, for the message.
        limit: the name of the option that gives the seconds, and `=`.
        remedy: the end of the message.
        tasks: gets the task, so that it can be dropped if the loop is closed meanwhile.

    Returns:
        the error of closing: a `TimeoutError` if it was cancelled. Otherwise the cancellation of the waiting task.
    """
    closing: End = start_task(error_of(close))
    if tasks is not None:
        tasks.append(closing)
    interrupted = await wait_through([closing], seconds)
    if closing.done():
        error = closing.result()
        return interrupted if error is None else error
    closing.cancel()
    await wait_through([closing], FINAL_WAIT)
    return TimeoutError(f"closing {name} took longer than {limit}{seconds} s and was cancelled{remedy}")
