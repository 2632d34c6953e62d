"""aiostream: `stream.map` with `task_limit`, and `spaceout` for the rate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiostream import stream  # type: ignore[import-not-found]

from benchmarks.peers.programs.library import serve_library
from benchmarks.peers.task import Task


async def results(function: Any, values: list[Any], task: Task) -> AsyncIterator[Any]:
    """Of the stream."""
    source = stream.iterate(values)
    if task.rate:
        source = stream.spaceout(source, 1 / task.rate)
    mapped = stream.map(source, function, ordered=task.ordered, task_limit=task.capacity)
    async with mapped.stream() as streamed:
        async for result in streamed:
            yield result


if __name__ == "__main__":
    serve_library(results)
