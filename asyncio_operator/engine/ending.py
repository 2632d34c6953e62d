"""How a run ends within its time: tasks that are waited for, cancelled, or given up.

The end of a run must not be cut in the middle by a cancellation of the task that waits for it, and must not wait for
ever for code that ignores its own cancellation. This module knows no runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from asyncio_operator.engine.timing import start_task
from asyncio_operator.policies.shutdown import FINAL_WAIT

End = asyncio.Task[BaseException | None]
"""A task that returns its error, and does not raise it."""


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
