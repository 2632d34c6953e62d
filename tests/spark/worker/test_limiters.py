"""R10 from one task to the next: those that follow one another in a worker share the window of their rate limit."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import math
import os
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from asyncio_operator import RateLimit
from asyncio_operator.engine.lent import Lent
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.policies.rate_limit import RateWindow
from asyncio_operator.spark import enrich
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.links import ChainTask
from asyncio_operator.spark.worker.process import limiters as new_limiters
from asyncio_operator.spark.worker.rows import Layout
from enrichers import FunctionEnricher
from tests.lookup.helpers import Consumer, Source, batches_of
from tests.operator.helpers import now, virtual

Windows = Lent[tuple[str, RateLimit], RateWindow]

_names = itertools.count()


async def look_up(key: int) -> Any:
    return {"x": key}


async def task(limiters: Windows, owner: str, limit: RateLimit, keys: int) -> list[float]:
    """When the lookups of a task start that leaves its window to the next."""
    starts: list[float] = []

    async def noted(key: int) -> Any:
        starts.append(now())
        return {"x": key}

    batches = batches_of(keys)
    consumer = Consumer(batches, ordered=True)
    enricher, options = FunctionEnricher(noted, "x long"), LookupOptions(rate_limit=limit)
    with limiters.lent((owner, limit), lambda: RateWindow.of(limit)) as limiter:
        source = Source(batches)
        consumer.pipeline = LookupPipeline(enricher, source, consumer.deliver, options, limiter=limiter)
        await consumer.pipeline.run()
    return starts


@given(
    rate=st.integers(1, 4),
    burst=st.none() | st.integers(0, 3),
    tasks=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.1, 0.9, 3.0])), min_size=2, max_size=8),
)
def test_R10_tasks_that_follow_one_another_start_no_more_than_one_would(rate: int, burst: Any, tasks: Any) -> None:
    limit = RateLimit(rate, burst=burst)

    @virtual
    async def run() -> None:
        limiters, starts = new_limiters(), []
        for keys, pause in tasks:
            starts += await task(limiters, "a", limit, keys)
            await asyncio.sleep(pause)
        most = rate + (burst or 0)
        assert all(late - early >= 1.0 for early, late in zip(starts, starts[most:], strict=False))
        for first, start in enumerate(starts):
            # Of a bucket that is full, and refills, no more can come.
            for last in range(first, len(starts)):
                assert last - first + 1 <= most + (starts[last] - start) * rate + 1e-3

    run()


@virtual
async def test_R10_tasks_at_the_same_time_have_a_window_each_and_leave_as_many() -> None:
    limiters, limit = new_limiters(), RateLimit(2)
    first = await asyncio.gather(task(limiters, "a", limit, 2), task(limiters, "a", limit, 2))
    assert [*itertools.chain(*first)] == [0.0] * 4
    then = await asyncio.gather(*[task(limiters, "a", limit, 2) for _ in range(3)])
    assert sorted(itertools.chain(*then)) == [0.0] * 2 + [1.0] * 4


@virtual
async def test_R10_another_owner_or_another_limit_has_another_window() -> None:
    limiters, limit = new_limiters(), RateLimit(2)
    for owner, given_ in [("a", limit), ("b", limit), ("a", RateLimit(3)), ("a", RateLimit(2, 2.0))]:
        assert await task(limiters, owner, given_, 2) == [now()] * 2 == [0.0] * 2
    assert await task(limiters, "a", RateLimit(2, timed := 1.0), 1) == [timed]


@virtual
async def test_R10_a_window_is_kept_as_long_as_it_matters() -> None:
    limiters, limit = new_limiters(), RateLimit(2, 10.0, burst=2)
    await task(limiters, "a", limit, 4)
    await asyncio.sleep(10.0)
    await task(limiters, "b", limit, 0)
    assert len(limiters.all()) == 1, "its bucket is not full again"
    await asyncio.sleep(10.0)
    await task(limiters, "b", limit, 0)
    assert len(limiters.all()) == 0


@virtual
async def test_R10_a_task_that_fails_leaves_its_window_too() -> None:
    limiters, limit = new_limiters(), RateLimit(1, 5.0)

    def fail() -> None:
        with limiters.lent(("a", limit), lambda: RateWindow.of(limit)) as limiter:
            limiter.start(now())
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        fail()
    assert await task(limiters, "a", limit, 1) == [5.0]


@pytest.mark.parametrize("burst", [None, 3])
@given(starts=st.lists(st.sampled_from([0.0, 0.1, 0.4, 1.0, 2.5]), min_size=1, max_size=12))
def test_R10_a_window_that_has_rested_allows_what_a_new_one_does(burst: int | None, starts: list[float]) -> None:
    limit = RateLimit(3, 1.0, burst)
    old, new = RateWindow.of(limit), RateWindow.of(limit)
    assert old.rested_at() == -math.inf
    time_ = 0.0
    for wait in starts:
        time_ = old.next_start(time_ + wait)
        old.start(time_)
    time_ = old.rested_at()
    for wait in [0.0] * 9:
        expected = new.next_start(time_ + wait)
        assert old.next_start(time_ + wait) == pytest.approx(expected)
        old.start(expected)
        new.start(expected)


def test_R10_the_next_task_of_a_worker_finds_the_window_of_the_last() -> None:
    """On the real loop thread; the window is a day, so nothing here depends on how long anything takes."""
    enricher = FunctionEnricher(look_up, "x long")
    layout, name = Layout((0,), enricher.schema(), False), f"limited {next(_names)}"

    def outputs(keys: int) -> Any:
        options = LookupOptions(rate_limit=RateLimit(5, 86_400.0))
        run = EnrichTask(enricher, name, layout, options, enricher.schema(), "")
        return ChainTask([run])(iter([pa.RecordBatch.from_pydict({"id": range(keys)})]))

    assert sum(map(len, outputs(5))) == 5
    with contextlib.closing(outputs(1)) as waiting:
        # Every second comes a batch: without a row where none is ready.
        assert len(next(waiting)) == 0


@pytest.mark.spark
def test_R10_many_short_tasks_of_a_job_do_not_start_more_than_their_worker_may(spark: SparkSession) -> None:
    async def noted(key: int) -> Any:
        return {"pid": os.getpid(), "at": time.monotonic()}

    enricher, share = FunctionEnricher(noted, "pid long, at double"), 4
    numbers = spark.range(0, 20, numPartitions=20)
    limit = RateLimit(2 * share, per=0.5)
    rows = enrich(numbers, enricher, on="id", scope="job", tasks_at_once=2, rate_limit=limit).collect()
    assert len(rows) == 20
    starts: dict[int, list[float]] = collections.defaultdict(list)
    for row in rows:
        starts[row.pid].append(row.at)
    for times in starts.values():
        # Half a window less, for a note that comes later than its start.
        windows = math.ceil(len(times) / share) - 1.5
        assert max(times) - min(times) >= windows * 0.5
