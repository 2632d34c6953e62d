"""The common part of programs whose library maps an async function over an iterable, in one process.

The loop is uvloop for each of them. Clients are made before the clock starts, and every result is counted.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterable, Callable
from typing import Any

import uvloop

from benchmarks.peers.functions import Asynchronous
from benchmarks.peers.task import Answer, Task, serve

Results = Callable[[Any, list[Any], Task], AsyncIterable[Any]]
"""A function of the async function, its values, and the task. It returns the results."""


def serve_library(results: Results) -> None:
    """Do tasks with this library until the standard input ends."""

    def measure(task: Task) -> Answer:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measured(results, task))

    serve(measure)


async def _measured(results: Results, task: Task) -> Answer:
    function = Asynchronous(task)
    await function.open()
    try:
        return await timed(results(function.call, task.values(), task), task)
    finally:
        await function.close()


async def timed(results: AsyncIterable[Any], task: Task) -> Answer:
    """The seconds until the last result, and the number of results; what they are, if the task counts them."""
    rows = found = 0
    answers: dict[str, int] = {}
    gc.collect()
    started = time.perf_counter()
    async for result in results:
        rows += 1
        found += result is not None
        if task.count:
            answer = name_of(result)
            answers[answer] = answers.get(answer, 0) + 1
    return Answer(time.perf_counter() - started, rows, found, answers if task.count else None)


def name_of(result: Any) -> str:
    """The answer of a service, by which it is counted."""
    return "" if result is None else str(result["name"] if isinstance(result, dict) else result[0])
