"""aiometer: `run_all`, which gives all results at the end in their order, or `amap`; both know a rate."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import aiometer  # type: ignore[import-not-found]

from benchmarks.peers.programs.library import serve_library
from benchmarks.peers.task import Task


async def results(function: Any, values: list[Any], task: Task) -> AsyncIterator[Any]:
    """One after the other."""
    limits = {"max_at_once": task.capacity, "max_per_second": task.rate or None}
    if task.ordered:
        for result in await aiometer.run_all([functools.partial(function, value) for value in values], **limits):
            yield result
    else:
        async with aiometer.amap(function, values, **limits) as mapped:
            async for result in mapped:
                yield result


if __name__ == "__main__":
    serve_library(results)
