"""H1: tasks of a Python worker that follow each other share the latencies, and the share of copies."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from asyncio_operator import Hedge
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.lent import Lent
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.spark.worker.process import MOST_HEDGERS
from asyncio_operator.spark.worker.process import hedgers as new_hedgers
from tests.lookup.helpers import Consumer, Recorded, Source, batches_of, kept_of
from tests.operator.helpers import virtual

HEDGE = Hedge(extra=0.1)

Hedgers = Lent[tuple[str, Hedge], Hedger]


def lent(hedgers: Hedgers, owner: str) -> AbstractContextManager[Hedger]:
    return hedgers.lent((owner, HEDGE), lambda: Hedger(HEDGE))


async def task(hedgers: Hedgers, owner: str, keys: int, slow: int = -1) -> int:
    """The number of copies that a task makes of the one call that takes long."""
    asked: list[Any] = []

    async def answer(key: Any) -> Any:
        asked.append(key)
        await asyncio.sleep(50.0 if key == slow and asked.count(key) == 1 else 1.0)
        return {"x": key}

    batches = batches_of(keys)
    consumer, options = Consumer(batches, ordered=True), LookupOptions(hedge=HEDGE)
    with lent(hedgers, owner) as hedger:
        consumer.pipeline = LookupPipeline(
            Recorded(answer),
            Source(batches),
            consumer.deliver,
            options,
            kept_of(options),
            Limited(hedger=hedger),
        )
        await consumer.pipeline.run()
    return int(consumer.pipeline.figures.hedged)


@virtual
async def test_H1_a_task_begins_with_the_latencies_of_the_one_before_it() -> None:
    hedgers = new_hedgers()
    assert await task(hedgers, "a", 30, slow=3) == 0
    assert await task(hedgers, "a", 30) == 0
    assert await task(hedgers, "a", 30, slow=3) == 1


@virtual
async def test_H1_tasks_at_the_same_time_have_one_each_and_few_are_kept() -> None:
    hedgers = new_hedgers()
    with lent(hedgers, "a") as first, lent(hedgers, "a") as second:
        assert first is not second
    for owner in range(MOST_HEDGERS - 1):
        with lent(hedgers, str(owner)):
            pass
    with lent(hedgers, "a") as again:
        assert again is first
    for owner in range(MOST_HEDGERS):
        with lent(hedgers, str(owner)):
            pass
    with lent(hedgers, "a") as anew:
        assert anew is not first
