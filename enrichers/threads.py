"""Runs a coroutine to its end for a caller that may itself be inside of a running loop, as in a notebook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """The result of a coroutine function, run on a loop of its own in a thread. `name` names the thread."""
    outcome: Future[T] = Future()

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            outcome.set_result(loop.run_until_complete(_whole(work)))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            # Not closed as in `asyncio.run`, which would wait for a thread of the pool that hangs.
            loop.close()

    thread = threading.Thread(target=run, name=f"asyncio-operator-{name}", daemon=True)
    thread.start()
    try:
        return outcome.result()
    finally:
        if outcome.done():  # If the caller was interrupted, the thread may still run.
            thread.join()


async def _whole(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result, once every task that the work has left behind has ended too."""
    try:
        return await work()
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
