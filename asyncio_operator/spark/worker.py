"""What runs in the Python worker: a task's batches of rows, enriched.

Three threads share the work of a task, and only whole batches cross between them: a feeder reads Spark's input and
finds the keys, the loop thread looks them up, and the task's main thread builds the output and hands it to Spark. The
feeder and the run end with the task; the loop thread and the clients on it stay for the next one.
"""

from __future__ import annotations

import asyncio
import select
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from asyncio_operator.bridge import LoopTask
from asyncio_operator.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.clock import wall
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ResultError, describe
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.keys import Failure, KeyBatch
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.outcomes import run_error
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.loop_thread import loop_thread
from asyncio_operator.loop_watch import LoopWatch
from asyncio_operator.spark.arrow import Enrichment, Layout
from asyncio_operator.spark.caches import caches
from asyncio_operator.spark.clients import clients
from asyncio_operator.spark.figures import EnrichmentFigures
from asyncio_operator.spark.portable import portable
from asyncio_operator.trace import Trace
from asyncio_operator.waiting import clock_of

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.spark.tracing import Tracing

READ_AHEAD = 2
"""Batches read from Spark and not yet taken by the loop: one is being taken while the next is read."""

WATCH = 1.0
"""Seconds between two looks whether Spark is still there, and what holds the loop; with the grace period, within the
5 s of law X7."""


@dataclass(frozen=True, slots=True)
class EnrichTask:
    """A function for `mapInArrow`; it travels to the workers.

    Attributes:
        fingerprint: of the enricher; equal ones share their clients.
        report: called with the figures of the task when it ends, on its main thread.
        tracing: makes the trace of the task, and reports it.
        answers: the columns that an answer has to fit for the cache to keep it: all of the enricher's.
        owner: whose answers the cache keeps.
    """

    enricher: Enricher
    fingerprint: str
    layout: Layout
    options: LookupOptions
    answers: pa.Schema
    owner: str
    report: Callable[[EnrichmentFigures], None] | None = None
    tracing: Tracing | None = None

    def of_keys(self) -> EnrichTask:
        """The same for an input that is nothing but keys."""
        return replace(self, layout=replace(self.layout, keys=tuple(range(len(self.layout.keys))), event_time=None))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, enriched.

        Raises:
            FunctionError: a lookup failed, and failures are not to be hidden.
        """
        try:
            yield from self._rows(batches)
        except BaseException as error:
            told = portable(error)
            if told is error:
                raise
            raise told from told.__cause__

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        thread, is_spark_there = loop_thread(), _spark_watch()
        loop, held = thread.loop, LoopWatch(thread.ident, describe(self.enricher))
        source, sink = ToLoop(loop, READ_AHEAD), FromLoop(loop, pulse=WATCH)
        life = _Life(self, source, sink)
        enrichment = Enrichment(self.layout, self._on_result_error)
        threading.Thread(
            target=_feed, args=(batches, enrichment, source), name="asyncio-operator-feeder", daemon=True
        ).start()
        run = LoopTask(loop, life.run, sink)
        try:
            run.start()
            for element in sink:
                if element is PULSE:
                    held.look()
                    if is_spark_there is not None:
                        yield from enrichment.nothing()
                        is_spark_there()
                    continue
                for output, keys, left in self._leaving(enrichment, *element):
                    yield from output
                    loop.call_soon_threadsafe(life.emitted, keys, left)
        finally:
            source.close()
            if self.report is not None:
                self.report(life.figures(enrichment))
            run.stop(self.options.grace_period + 1.0)
            if self.tracing is not None and life.trace is not None:
                self.tracing.report(life.trace)

    def _leaving(
        self, enrichment: Enrichment, batch: KeyBatch, ready: int, ended: bool
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], int, KeyBatch | None]]:
        """What may leave now that a batch has been delivered: rows, how many keys left with them, and the batch that
        has left as a whole, if one has."""
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

    def __init__(self, task: EnrichTask, source: ToLoop, sink: FromLoop) -> None:
        self._task = task
        self._source = source
        self._sink = sink
        self._pipeline: LookupPipeline | None = None
        self.trace: Trace | None = None

    async def run(self) -> None:
        task, options = self._task, self._task.options
        enricher = await clients.lease(task.fingerprint, task.enricher)
        try:
            if options.cache is None:
                await self._run(enricher, None)
                return
            cache = await caches.lease(task.owner, options.cache)
            try:
                await self._run(enricher, cache)
            finally:
                caches.release(task.owner, options.cache)
        finally:
            clients.release(task.fingerprint)

    async def _run(self, enricher: Enricher, cache: LookupCache | None) -> None:
        task = self._task
        check = AnswerCheck(task.answers)
        trace = None if task.tracing is None else Trace(task.tracing.limit)
        self._pipeline = LookupPipeline(enricher, self._source, self._deliver, task.options, cache, check, trace)
        try:
            await self._pipeline.run()
        finally:
            if trace is not None:
                trace.shift(wall() - clock_of(asyncio.get_running_loop())())
                self.trace = trace

    def _deliver(self, batch: KeyBatch, ready: int) -> None:
        self._sink.put_nowait((batch, ready, batch.ended))

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        if self._pipeline is not None:
            self._pipeline.emitted(keys, batch)

    def figures(self, enrichment: Enrichment) -> EnrichmentFigures:
        """What the task has done; called from its main thread."""
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


def _feed(batches: Iterator[pa.RecordBatch], enrichment: Enrichment, source: ToLoop) -> None:
    """Read Spark's input and find the keys."""
    try:
        for batch in enrichment.keyed(batches):
            if not source.put(batch):
                return
    except BaseException as error:
        source.end(error)
    else:
        source.end()


def _spark_watch() -> Callable[[], None] | None:
    """What a task does from time to time: hand what is ready to Spark, and raise if Spark is gone.

    Spark's own buffer leaves for the JVM when 64 KB are in it; a task that waits for a slow answer would keep the rows
    of the fast ones that long. And Spark ends a task that has failed, or has enough rows (`limit`), by closing its end
    of the socket, which a worker that waits would notice only at its next write. It has to write something before each
    look: while input that it does not read yet fills the socket, the end of the connection waits behind that, and only
    data that nobody takes any more is answered by the kernel at once. Where the socket, which is not handed to user
    code, is not found on the stack, all this comes late.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not hasattr(frame.f_locals.get("outfile"), "flush"):
        frame = frame.f_back
    if frame is None:
        return None
    output: Any = frame.f_locals["outfile"]
    poll = _poll_for_hangup(output)

    def watch() -> None:
        output.flush()
        if poll is not None and poll.poll(0):
            raise BrokenPipeError("Spark has closed the connection to this Python worker: the task is over")

    return watch


def _poll_for_hangup(output: Any) -> Any:
    """None on Windows, and where Spark forks no daemon: there it kills the worker when the task ends."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    try:
        poll.register(output.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except OSError:
        return None
    return poll
