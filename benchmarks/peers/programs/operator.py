"""This library in one process: `AsyncWaitOperator` over the common function, or over a `Lookup`.

The operator has a deadline for each element, as `enrich` has by default. If the function would have to retry by itself,
the operator does it, and the enricher for the protocol replaces the hand-written loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import uvloop

from asyncio_operator import AsyncWaitOperator, Batching, RateLimit, Retry
from asyncio_operator.enricher import Enricher
from asyncio_operator.lookup import Lookup
from benchmarks.peers.functions import ATTEMPTS, CONNECTIONS, INSTRUCTIONS, SCHEMAS, Asynchronous
from benchmarks.peers.programs.library import timed
from benchmarks.peers.services import RATE
from benchmarks.peers.task import SERVED, Answer, Task, serve
from enrichers import HttpEnricher, ModelEnricher, PostgresEnricher

TIMEOUT = 60.0

PROMPTS = 10
"""A request takes longer for each further key, and all keys of a storm fit into the calls of its first second."""

LINGER = 0.05
"""Seconds that a request to a model waits for more keys, because each costs the system text again."""


def enricher_of(task: Task) -> Enricher:
    """The function that looks up the keys of a task."""
    if task.side in ("model", "distinct"):
        options: dict[str, Any] = {"schema": SCHEMAS[task.work], "base_url": f"{task.url}/v1", "batch": PROMPTS}
        return ModelEnricher("fake", prompt="{key}", system=INSTRUCTIONS, **options)
    if task.work in SERVED:
        return HttpEnricher(task.url + "/rows/{key}", schema=SCHEMAS[task.work], per_host=task.capacity)
    columns = ["manufacturer", "model", "seats"]
    return PostgresEnricher(task.dsn, table=task.planes, key="tailnum", columns=columns, pool_size=CONNECTIONS)


def retrying(task: Task) -> dict[str, Any]:
    """The options for a service with a rate limit and failures; none for the other works."""
    options: dict[str, Any] = {}
    if task.work in SERVED:
        options["retry"] = Retry(max_attempts=ATTEMPTS)
    if task.rate:
        # All that the service allows in a second, in a longer window: calls of two windows may arrive within a second.
        options["rate_limit"] = RateLimit(RATE, per=RATE / task.rate)
    if task.patience:
        options["attempt_timeout"] = task.patience
    return options


async def _measured(task: Task) -> Answer:
    if task.side in ("lookup", "model"):
        # The service of "q13" takes one key in a request: keys are shared and remembered there, not sent together.
        # Its calls keep to the limits, and not the rows: a request to a model has several.
        options = retrying(task) if task.work == "postgres" else {"cache": True, **retrying(task)}
        if task.side == "model":
            options["batching"] = Batching(PROMPTS, linger=LINGER)
        elif task.work == "postgres":
            options["batching"] = Batching()
        lookup = Lookup(enricher_of(task), **options)
        return await _run(lookup.get, task, lookup, {})
    if task.work in SERVED:
        enricher = enricher_of(task)
        return await _run(enricher.lookup, task, enricher, retrying(task))
    function = Asynchronous(task)
    return await _run(function.call, task, function, retrying(task))


async def _run(call: Any, task: Task, owner: Any, options: dict[str, Any]) -> Answer:
    await owner.open()
    try:
        mode: Literal["ordered", "unordered"] = "ordered" if task.ordered else "unordered"
        # Each row that waits for a batch is in flight.
        rows = task.capacity * (PROMPTS if task.side == "model" else 1)
        operator = AsyncWaitOperator(call, mode=mode, capacity=rows, timeout=TIMEOUT, **options)
        return await timed(operator.process(task.values()), task)
    finally:
        await owner.close()


def measure(task: Task) -> Answer:
    """Do a task."""
    if task.side == "model" and not task.count:
        return Answer(cannot="asks models only")
    if task.side == "lookup" and task.work not in ("postgres", "q13"):
        return Answer(cannot="nothing that can be shared or asked for in batches")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measured(task))


if __name__ == "__main__":
    serve(measure)
