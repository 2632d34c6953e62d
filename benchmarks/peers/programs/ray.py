"""Ray Data: `Dataset.map` with an asynchronous callable class, in one actor that keeps its client and its loop.

`map` keeps up to `RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY` rows in flight across its blocks, and gives them in
their order; the default is 16. `map_batches` would wait for the slowest row of each batch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.peers.functions import Asynchronous
from benchmarks.peers.task import Answer, Task, serve

CAPACITY = 100
"""That of every task: the variable is read when Ray starts."""

os.environ |= {
    "RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY": str(CAPACITY),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}

import ray  # type: ignore[import-not-found]  # noqa: E402
import ray.data  # type: ignore[import-not-found]  # noqa: E402


class Call:
    """A work of a task, for each row."""

    def __init__(self, task: Task) -> None:
        self.function = Asynchronous(task)

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its answer, as text."""
        answer = await self.function.call(row["key"])
        return {"answer": None if answer is None else str(answer[0])}


def measure(task: Task) -> Answer:
    """Do a task."""
    if task.capacity != CAPACITY:
        return Answer(cannot=f"is set up for {CAPACITY} calls at once")
    rows = ray.data.from_items([{"key": key} for key in task.values()], override_num_blocks=1).materialize()
    started = time.perf_counter()
    results = rows.map(Call, fn_constructor_args=[task], compute=ray.data.ActorPoolStrategy(size=1))
    answers = [row["answer"] for row in results.iter_rows()]
    seconds = time.perf_counter() - started
    found = sum(answer is not None for answer in answers)
    counted = dict(Counter(answer or "" for answer in answers)) if task.count else None
    return Answer(seconds, len(answers), found, counted)


def main() -> None:
    """Start Ray on this machine, and serve."""
    place = Path(tempfile.gettempdir()) / "ray"
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=str(place), logging_level="warning")
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        serve(measure)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
