"""Daft: an async function as a column expression.

The semaphore is in the function, because `max_concurrency` lets every row of a batch start at once.

The function is made again for each task, because Daft keeps a loop for its functions, and clients belong to a loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import daft  # type: ignore[import-not-found]

from benchmarks.peers.functions import SCHEMAS, Asynchronous
from benchmarks.peers.task import Answer, Task, serve

TYPES = {"long": daft.DataType.int64(), "string": daft.DataType.string()}


def measure(task: Task) -> Answer:
    """Do a task."""
    if task.work == "skew" and task.ordered:
        return Answer(cannot="keeps no order across its batches")
    function = Asynchronous(task)
    limit = asyncio.Semaphore(task.capacity)
    columns = dict(column.split() for column in SCHEMAS[task.work].split(", "))
    answer = daft.DataType.struct({name: TYPES[kind] for name, kind in columns.items()})

    @daft.func(return_dtype=answer, max_concurrency=task.capacity)  # type: ignore[untyped-decorator]
    async def call(key: Any) -> Any:
        async with limit:
            row = await function.call(key)
        return None if row is None else dict(zip(columns, row, strict=True))

    frame = daft.from_pydict({"key": task.values()})
    started = time.perf_counter()
    answers = frame.select(call(frame["key"]).alias("answer")).to_arrow().column("answer")
    seconds = time.perf_counter() - started
    function.end()
    counted = dict(Counter("" if row is None else row["name"] for row in answers.to_pylist())) if task.count else None
    return Answer(seconds, len(answers), len(answers) - answers.null_count, counted)


if __name__ == "__main__":
    serve(measure)
