"""What several benchmarks do in the same way."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import uvloop

from examples.stage import cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def worker_loop() -> asyncio.Runner:
    """With the loop that a Python worker has."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def seconds_of(frame: DataFrame) -> float:
    """For every column of every row, into Spark's sink ``noop``.

    Raises:
        RuntimeError: the job failed.
    """
    started = time.perf_counter()
    try:
        frame.write.format("noop").mode("overwrite").save()
    except Exception as error:
        raise RuntimeError(cause(error)) from error
    return time.perf_counter() - started


def passed(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches as they are, for `mapInArrow`: what Spark takes for the way through Python and back."""
    yield from batches


async def peak_memory(key: int) -> dict[str, float] | None:
    """A lookup that tells, for some keys, what its process has had at most, in MB, on Linux, as the column "peak"."""
    if key % 1000:
        return None
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}
