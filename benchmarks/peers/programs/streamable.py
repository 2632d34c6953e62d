"""streamable: `stream.map` with `concurrency`, and `throttle` for the rate."""

from __future__ import annotations

from collections.abc import AsyncIterable
from datetime import timedelta
from typing import Any

from streamable import stream  # type: ignore[import-not-found]

from benchmarks.peers.programs.library import serve_library
from benchmarks.peers.task import Task


def results(function: Any, values: list[Any], task: Task) -> AsyncIterable[Any]:
    """The stream."""
    source = stream(values)
    if task.rate:
        source = source.throttle(task.rate, per=timedelta(seconds=1))
    mapped: AsyncIterable[Any] = source.map(function, concurrency=task.capacity, as_completed=not task.ordered)
    return mapped


if __name__ == "__main__":
    serve_library(results)
