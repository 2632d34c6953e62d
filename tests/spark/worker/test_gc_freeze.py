"""What a worker has loaded costs the collections of garbage at the ends of its later tasks nothing.

The test runs in a process without pytest: here every collection would look at all modules of tests, for a second.
"""

from __future__ import annotations

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa

from tests.spark.worker.tasks import batches_of, chained, rows_of, same, task_of


def looked_at() -> list[bool]:
    """Whether a collection looks at what the process has loaded, after each of two tasks; of one that runs one task
    first, and of one that runs several."""
    found = []
    for reused in ({}, {"SPARK_REUSE_WORKER": "1"}):
        os.environ.update(reused)
        for _ in range(2):
            rows_of(chained([task_of("a", same)], batches_of(3)))
            found.append(any(one is pa for one in gc.get_objects()))
    return found


def test_the_first_task_leaves_what_the_process_has_loaded_to_no_later_collection() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        assert alone.submit(looked_at).result(60) == [True, True, False, False]
