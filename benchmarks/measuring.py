"""The functions that several benchmarks share."""

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
    """A runner with the loop of a Python worker."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def seconds_of(frame: DataFrame) -> float:
    """The seconds to compute every column of every row, into Spark's sink ``noop``.

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
    """Returns batches unchanged, for `mapInArrow`: measures Spark's own way through Python and back."""
    yield from batches


async def peak_memory(key: int) -> dict[str, float] | None:
    """A lookup that returns, for some keys, the peak memory of its process in MB as the column "peak". Linux only."""
    if key % 1000:
        return None
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}
