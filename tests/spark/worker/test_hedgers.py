"""H1: tasks of a Python worker that follow each other share the latencies, and the share of copies."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncio_operator import Hedge
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.spark.worker.shared import MOST_HEDGERS, Hedgers
from tests.lookup.helpers import Consumer, Recorded, Source, batches_of
from tests.operator.helpers import virtual

HEDGE = Hedge(extra=0.1)


async def task(hedgers: Hedgers, owner: str, keys: int, slow: int = -1) -> int:
    """The number of copies that a task makes of the one call that takes long."""
    asked: list[Any] = []

    async def answer(key: Any) -> Any:
        asked.append(key)
        await asyncio.sleep(50.0 if key == slow and asked.count(key) == 1 else 1.0)
        return {"x": key}

    batches = batches_of(keys)
    consumer = Consumer(batches, ordered=True)
    with hedgers.lent(owner, HEDGE) as hedger:
        consumer.pipeline = LookupPipeline(
            Recorded(answer), Source(batches), consumer.deliver, LookupOptions(hedge=HEDGE), hedger=hedger
        )
        await consumer.pipeline.run()
    return int(consumer.pipeline.figures.hedged)


@virtual
async def test_H1_a_task_begins_with_the_latencies_of_the_one_before_it() -> None:
    hedgers = Hedgers()
    assert await task(hedgers, "a", 30, slow=3) == 0
    assert await task(hedgers, "a", 30) == 0
    assert await task(hedgers, "a", 30, slow=3) == 1


@virtual
async def test_H1_another_enricher_and_another_process_begin_anew() -> None:
    hedgers = Hedgers()
    assert await task(hedgers, "a", 60) == 0
    assert await task(hedgers, "b", 30, slow=3) == 0
    hedgers.forget_all()
    assert await task(hedgers, "a", 30, slow=3) == 0


def test_H1_tasks_at_the_same_time_have_one_each_and_few_are_kept() -> None:
    hedgers = Hedgers()
    with hedgers.lent("a", HEDGE) as first, hedgers.lent("a", HEDGE) as second:
        assert isinstance(first, Hedger)
        assert first is not second
    for owner in range(MOST_HEDGERS - 1):
        with hedgers.lent(str(owner), HEDGE):
            pass
    with hedgers.lent("a", HEDGE) as again:
        assert again is first
    for owner in range(MOST_HEDGERS):
        with hedgers.lent(str(owner), HEDGE):
            pass
    with hedgers.lent("a", HEDGE) as anew:
        assert anew is not first
    with hedgers.lent("a", None) as none:
        assert none is None
