"""Tasks without Spark: hand-made batches in, batches out, on the real loop thread."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator import Enricher
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.links import ChainTask, EnrichTask
from asyncio_operator.spark.worker.rows import Layout
from enrichers import FunctionEnricher
from tests.spark.helpers import wait_until

ENDS = 20.0
"""Seconds in which everything here must end, on however busy a machine."""

Batches = Iterator[pa.RecordBatch]

numbers = itertools.count()


def task_for(enricher: Enricher, *keys: int, **options: Any) -> EnrichTask:
    """A lookup with a client of its own. Options of the layout, of the lookup and of the task differ by their names."""

    def those_of(kind: Any) -> dict[str, Any]:
        return {option: options.pop(option) for option in kind.__dataclass_fields__ if option in options}

    answers, fingerprint = enricher.schema(), f"link {next(numbers)}"
    layout = Layout(keys or (0,), answers, **those_of(Layout))
    lookup = LookupOptions(**those_of(LookupOptions))
    return EnrichTask(enricher, fingerprint, layout, lookup, answers, fingerprint, **options)


def task_of(name: str, function: Any, key: int = 0, **options: Any) -> EnrichTask:
    """A lookup that adds the column `name`."""
    return task_for(FunctionEnricher(function, f"{name} long"), key, **options)


def chained(tasks: Sequence[EnrichTask], batches: Iterable[pa.RecordBatch]) -> Batches:
    return ChainTask(tasks)(iter(batches))


def rows_of(output: Batches) -> list[dict[str, Any]]:
    return [row for batch in output for row in batch.to_pylist()]


def batches_of(*sizes: int) -> Batches:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"id": pa.array(range(start, start + size), pa.int64())})
        start += size


async def same(key: int) -> Any:
    return {"a": key, "b": key, "c": key}


class Gate:
    """Lookups wait in it for an event that a thread sets; it counts those that wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.cancelled = 0
        self._event: asyncio.Event | None = None

    async def wait(self) -> None:
        self._event = self._event or asyncio.Event()
        self.waiting += 1
        try:
            await self._event.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    def open(self) -> None:
        wait_for(lambda: self._event is not None)
        assert self._event is not None
        loop_thread().loop.call_soon_threadsafe(self._event.set)


def wait_for(condition: Callable[[], object]) -> None:
    wait_until(lambda: bool(condition()), ENDS, "the condition holds")
