"""The part of `enrich` that runs in the Python worker: it enriches the batches of a task.

The feeder thread finds the keys, the loop thread looks them up, and the task's main thread builds the output.
`task_frame` is the frame. Clients that are opened on the loop stay open for the next task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import wall
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ResultError, describe
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import caches
from asyncio_operator.lookup.key_batch import Failure, KeyBatch
from asyncio_operator.lookup.key_failures import missing_key_error, run_error
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.loop.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.figures import EnrichmentFigures
from asyncio_operator.spark.worker.rows import Enrichment, Layout
from asyncio_operator.spark.worker.shared import clients, limiters
from asyncio_operator.spark.worker.task_frame import outputs_of
from asyncio_operator.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.spark.worker.figures import Tracing


@dataclass(frozen=True, slots=True)
class EnrichTask:
    """A function for `mapInArrow`. It is sent to the workers.

    Attributes:
        fingerprint: fingerprint of the enricher. Tasks with equal ones share a client.
        report: called with the figures of the task when it ends, on its main thread.
        tracing: makes the trace of the task, and reports it.
        answers: all columns of the enricher. The cache keeps only answers that fit them.
        owner: the owner of cached answers (`cache_owner`).
        tables: the tables of an enricher that answers in columns.
    """

    enricher: Enricher
    fingerprint: str
    layout: Layout
    options: LookupOptions
    answers: pa.Schema
    owner: str
    report: Callable[[EnrichmentFigures], None] | None = None
    tracing: Tracing | None = None
    tables: AnswerTables | None = None

    def of_keys(self) -> EnrichTask:
        """The same task for an input that has only key columns."""
        return replace(self, layout=replace(self.layout, keys=tuple(range(len(self.layout.keys))), event_time=None))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, enriched.

        Raises:
            FunctionError: a lookup failed, and `on_error` is "fail".
            MissingKeyError: a key has no row, and `how` is "required".
        """
        return portable_errors(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        life = _Life(self)
        enrichment = Enrichment(self.layout, self._on_result_error, partial(missing_key_error, self.enricher))
        elements = outputs_of(enrichment.keyed(batches), life.run, name=describe(self.enricher))
        try:
            with contextlib.closing(elements):
                for element in elements:
                    if element is PULSE:
                        # An empty batch is still written, and only a write shows that Spark has closed the connection.
                        yield from enrichment.nothing()
                        continue
                    for output, keys, left in self._leaving(enrichment, *element):
                        yield from output
                        # After Spark has taken the rows: room that is given earlier would not bound the memory.
                        loop_thread().loop.call_soon_threadsafe(life.emitted, keys, left)
        finally:
            if self.report is not None:
                self.report(life.figures(enrichment))
            if self.tracing is not None and life.trace is not None:
                self.tracing.report(life.trace)

    def _leaving(
        self, enrichment: Enrichment, batch: KeyBatch, ready: int, ended: bool
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], int, KeyBatch | None]]:
        """The output after a batch was delivered: yields rows, the number of keys that left with them, and the batch if
        all of it has left."""
        if self.options.ordered:
            yield *enrichment.leading(batch, ready), batch if ended else None
        else:
            yield from enrichment.answered(batch, ended)

    def _on_result_error(self, key: Any, error: ResultError) -> Failure:
        if self.options.fail:
            raise run_error(self.enricher, key, error, 1, self.options.remedy)
        return Failure(error, 0.0)


class _Life:
    """The part of a task that runs on the loop."""

    def __init__(self, task: EnrichTask) -> None:
        self._task = task
        self._pipeline: LookupPipeline | None = None
        self.trace: Trace | None = None

    async def run(self, source: ToLoop, sink: FromLoop) -> None:
        task, options = self._task, self._task.options
        enricher = await clients.lease(task.fingerprint, task.enricher)
        try:
            if options.cache is None:
                await self._run(enricher, None, source, sink)
                return
            cache = await caches.lease(task.owner, options.cache)
            try:
                await self._run(enricher, cache, source, sink)
            finally:
                caches.release(task.owner, options.cache)
        finally:
            clients.release(task.fingerprint)

    async def _run(self, enricher: Enricher, cache: LookupCache | None, source: ToLoop, sink: FromLoop) -> None:
        task = self._task
        check = AnswerCheck(task.answers)

        def deliver(batch: KeyBatch, ready: int) -> None:
            sink.put_nowait((batch, ready, batch.ended))

        trace = None if task.tracing is None else Trace(task.tracing.limit)
        with limiters.lent(task.fingerprint, task.options.rate_limit) as limiter:
            self._pipeline = LookupPipeline(
                enricher, source, deliver, task.options, cache, check, trace, limiter, task.tables
            )
            try:
                await self._pipeline.run()
            finally:
                if trace is not None:
                    trace.shift(wall() - clock_of(asyncio.get_running_loop())())
                    self.trace = trace

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        if self._pipeline is not None:
            self._pipeline.emitted(keys, batch)

    def figures(self, enrichment: Enrichment) -> EnrichmentFigures:
        """The figures of the task. Called on its main thread."""
        pipeline = self._pipeline
        if pipeline is None:
            return EnrichmentFigures()
        found, missing, failed = enrichment.kinds.tolist()
        return EnrichmentFigures(
            rows=found + missing + failed,
            found=found,
            missing=missing,
            failures=failed,
            skipped=failed if enrichment.layout.drop_failed else 0,
            calls=pipeline.calls,
            retries=pipeline.retries,
            cache_hits=pipeline.cache_hits,
            shared=pipeline.shared,
            timeouts=pipeline.timeouts,
            latency=pipeline.latency,
            attempt_latency=pipeline.attempt_latency,
        )
