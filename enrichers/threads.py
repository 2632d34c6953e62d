"""A coroutine run to its end by a caller that may itself be inside a running loop, as in a notebook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """What a coroutine function gives, run on a loop of its own in a thread; `name` says whose it is."""
    outcome: Future[T] = Future()

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            outcome.set_result(loop.run_until_complete(_whole(work)))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            # Not as `asyncio.run` ends, which would wait for a thread that hangs.
            loop.close()

    thread = threading.Thread(target=run, name=f"asyncio-operator-{name}", daemon=True)
    thread.start()
    try:
        return outcome.result()
    finally:
        if outcome.done():
            thread.join()


async def _whole(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What it gives, when all that it has left behind has ended too."""
    try:
        return await work()
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
