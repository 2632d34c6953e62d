"""One lookup of a task: what the driver sends of it, its keys, its pipeline on the loop, its output, its figures.

It runs alone, or as a link of a chain: `links` connects them. Clients that are opened on the loop stay open for the
next task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from asyncio_operator.arrow.answer_tables import row_finder
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.lent import IDLE
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck, missing_key_error
from asyncio_operator.lookup.cache_directories import lent_cache
from asyncio_operator.lookup.column_places import ColumnPlaces
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import Kept, LookupPipeline, in_slices
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.spark.worker.rows import Enrichment, Layout
from asyncio_operator.spark.worker.task_journal import JournalTask, TaskJournal
from asyncio_operator.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.spark.worker.process import WorkerProcess
    from asyncio_operator.spark.worker.reporting import Reporting, Tracing
    from asyncio_operator.telemetry.propagation import Propagated


@dataclass(frozen=True, slots=True)
class EnrichTask:
    """One lookup of a stage."""

    enricher: Enricher
    fingerprint: str  # Fingerprint of the enricher. Tasks with equal ones share a client.
    layout: Layout
    options: LookupOptions
    answers: pa.Schema  # All columns of the enricher. The cache keeps only answers that fit them.
    owner: str  # The owner of cached answers (`cache_owner`).
    reporting: Reporting | None = None  # Reports the figures of the task.
    tracing: Tracing | None = None  # Where the trace of the task goes.
    tables: AnswerTables | None = None  # The tables of an enricher that answers in columns.
    journal: JournalTask | None = None  # Keeps answers for later tasks, and has those of earlier ones.
    propagated: Propagated | None = None  # The driver's trace context, and the function that sets up OpenTelemetry.


logger = logging.getLogger("asyncio_operator.tasks")


class Link:
    """One lookup of a task.

    `keys_of` is called by one thread, `leaving` and `nothing` by one thread, and `run` and `emitted` on the loop.
    """

    def __init__(self, task: EnrichTask, label: str, place: str, process: WorkerProcess) -> None:
        self.name = describe(task.enricher)
        self._process = process  # Runs the task.
        self._label = label  # Tells its keys in a trace from those of other links; may be empty.
        self._place = place  # Names the task of Spark.
        self.task = task
        whole = in_slices(task.options, task.enricher, task.tracing is not None)
        missing = partial(missing_key_error, task.enricher)
        cheap = whole and row_finder(task.enricher) is not None
        self._enrichment = Enrichment(task.layout, missing, cheap, held=not whole)
        self._pipeline: LookupPipeline | None = None
        self._trace: Trace | None = None
        self.on_left: Callable[[KeyBatch], None] | None = None  # Called on the loop when all of a batch was taken.
        journal = task.journal
        self._journal = None
        if journal is not None:
            self._journal = TaskJournal(journal, task.layout.found, task.options.timed, place, process)
        reporting = task.reporting
        self._reporter = None
        if reporting is not None:
            self._reporter = reporting.begin(
                self._figures, lambda: 0 if self._pipeline is None else self._pipeline.in_flight
            )

    def expect(self, rows: pa.Schema) -> pa.Schema:
        """Note the schema of the input, and return that of the output."""
        has_known = self._journal is not None and self._journal.column
        # The last column is that of known answers.
        return self._enrichment.expect(rows.remove(len(rows) - 1) if has_known else rows)

    def keys_of(self, batch: pa.RecordBatch) -> KeyBatch:
        """The next batch of the input, with its distinct keys."""
        if self._journal is None or not self._journal.column:
            return self._enrichment.keys_of(batch)
        *columns, known = batch.columns
        own = type(batch).from_arrays(columns, schema=batch.schema.remove(len(columns)))
        keyed = self._enrichment.keys_of(own)
        self._journal.recall(keyed, known)
        return keyed

    def nothing(self) -> Iterator[pa.RecordBatch]:
        """An output batch without rows, if the schema is known."""
        return self._enrichment.nothing()

    def leaving(
        self, batch: KeyBatch, ready: int, ended: bool
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], int, KeyBatch | None]]:
        """The output after a batch was delivered: yields rows, the number of keys that left with them, and the batch if
        all of it has left."""
        if self.task.options.ordered:
            yield *self._enrichment.leading(batch, ready), batch if ended else None
        else:
            yield from self._enrichment.answered(batch, ended)

    async def run(
        self, source: Input, deliver: Callable[[KeyBatch, int], None], failing: Callable[[], None] | None = None
    ) -> None:
        """Look up the keys of the input, until it has ended and all of it is delivered; see `LookupPipeline.run`."""
        task, options, process = self.task, self.task.options, self._process
        hedge, budget = options.hedge, options.budget
        allowance = None if budget is None else process.shares.allowance(budget, IDLE)
        trace = None if task.tracing is None else Trace(task.tracing.limit)
        cache, hedger = None, None
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            enricher = await enter(process.opened(task.fingerprint, task.enricher))
            if options.cache is not None:
                cache = await enter(lent_cache(process.caches, task.owner, options.cache, task.answers, process.wall))
            if hedge is not None:
                hedger = stack.enter_context(process.hedgers.lent((task.fingerprint, hedge), partial(Hedger, hedge)))
            known = () if self._journal is None else (self._journal,)
            check = wanted = AnswerCheck(task.layout.found, in_columns=True, declared=task.layout.declared)
            if cache is not None or known or task.tables is not None:
                check = AnswerCheck(task.answers, in_columns=cache is None or not cache.has_objects)
            clock = clock_of(asyncio.get_running_loop())
            about = cache, known, options.timed, options.remember, clock
            kept = Kept(check, ColumnPlaces(Figures(), check, wanted, *about), task.tables)
            limited = Limited(allowance=allowance, hedger=hedger)
            self._pipeline = LookupPipeline(enricher, source, deliver, options, kept, limited, trace)
            if self._reporter is not None:
                self._reporter.running()
            try:
                await self._pipeline.run(failing)
            finally:
                if trace is not None:
                    name = ""
                    if self._place:
                        stage, partition, attempt = self._place.split(".")
                        repeated = f", attempt {attempt}" if attempt != "0" else ""
                        name = f"stage {stage}, partition {partition}{repeated}"
                    ahead = process.wall() - clock_of(asyncio.get_running_loop())()
                    trace.become_part(ahead, name, self._label)
                    self._trace = trace

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """The rows of `keys` keys and, if `batch` is given, all of that batch were taken."""
        if self._pipeline is not None:
            self._pipeline.emitted(keys, batch)
        if batch is not None and self.on_left is not None:
            self.on_left(batch)

    def close_journal(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Wait until new answers are written. For an `ExitStack`, on the task's main thread, when the run has ended."""
        if self._journal is not None:
            self._journal.finish(failed=kind is not None)

    def report(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Report the figures and the trace. Called on the task's main thread, at the end, with the task's error."""
        if logger.isEnabledFor(logging.DEBUG):
            done = self._figures()
            end = "is over" if error is None else f"ends with {type(error).__name__}"
            logger.debug(
                "a run of %s %s: %d rows, %d calls, %d retries", self.name, end, done.rows, done.calls, done.retries
            )
        if self._reporter is not None:
            by_spark = isinstance(error, GeneratorExit | ConnectionError | EOFError)
            self._reporter.end("succeeded" if error is None else "ended" if by_spark else "failed")
        tracing = self.task.tracing
        if tracing is not None and self._trace is not None:
            tracing.destination.add([self._trace])

    def _figures(self) -> Figures:
        figures = Figures()
        if self._pipeline is not None:
            figures.add(self._pipeline.figures)
            figures.found, figures.missing, figures.failures = self._enrichment.kinds.tolist()
            figures.rows = figures.found + figures.missing + figures.failures
            figures.skipped = figures.failures if self.task.layout.drop_failed else 0
        return figures
