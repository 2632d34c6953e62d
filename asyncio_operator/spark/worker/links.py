"""The lookups of a task, one behind the other, on one loop: a `Link` for each, and a `Hop` between two.

A link has the keys of a lookup, its pipeline on the loop, its output and its figures. Clients that are opened on the
loop stay open for the next task. The feeder thread finds the keys of the first link, and the task's main thread builds
the output of the last. `task_frame` is the frame. Between two links no row changes its thread: the later link reads its
input from the hop, which builds the output of the earlier link, on the loop, piece by piece. So each link has its own
bounds. An earlier link gets room when the later one has taken its rows, and a link that stands still holds back all
links before it. Building in a thread was measured: 5 % less time with costly keys, 8 % more with cheap ones, and calls
wait as long.

Law: the first failure ends all links at once, and no other error is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from asyncio_operator.arrow.answer_tables import row_finder
from asyncio_operator.arrow.columns import load_pandas
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.failures import stray_run
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.lent import IDLE
from asyncio_operator.engine.timing import clock_of, error_of, start_task, wait_through, wake
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck, missing_key_error
from asyncio_operator.lookup.cache_directories import lent_cache
from asyncio_operator.lookup.column_places import ColumnPlaces
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline, in_slices
from asyncio_operator.loop.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.policies.shutdown import TASK_END
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES, OUTPUT_ROWS
from asyncio_operator.spark.worker.process import WorkerProcess, this_process
from asyncio_operator.spark.worker.reporting import LONGEST_NAME
from asyncio_operator.spark.worker.rows import Enrichment, Layout
from asyncio_operator.spark.worker.task_frame import ASKED, outputs_of, until_spark_reads
from asyncio_operator.spark.worker.task_journal import JournalTask, TaskJournal
from asyncio_operator.trace import Trace

if TYPE_CHECKING:
    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.spark.worker.reporting import Reporting, Tracing
    from asyncio_operator.telemetry.propagation import Propagated

logger = logging.getLogger("asyncio_operator.tasks")


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


class ChainTask:
    """Lookups one after the other, as a function for `mapInArrow`, with a name for Spark's plans. It is sent to the
    workers."""

    def __init__(self, tasks: Sequence[EnrichTask]) -> None:
        self.tasks = tuple(tasks)
        names = [stage_name(task) for task in tasks]
        self.__name__ = f"enrich: {', '.join(names)} ({len(names)} lookup{'s' * (len(names) > 1)})"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, enriched by each lookup in turn."""
        return portable_errors(enriched(self.tasks, batches))


def stage_name(task: EnrichTask) -> str:
    """The name of a lookup in a plan. In one line: another would break the tree of the plan."""
    return " ".join(describe(task.enricher, LONGEST_NAME).split())


def enriched(
    tasks: Sequence[EnrichTask], batches: Iterator[pa.RecordBatch], *, takes_all: bool = False, asks: bool = False
) -> Generator[pa.RecordBatch]:
    """The rows of `batches` with the columns of all lookups, and empty batches in between. `takes_all`: the caller
    takes every row, whatever Spark reads of its output. `asks`: as in `outputs_of`, an `ASKED` comes among the
    batches."""
    load_pandas()
    context = TaskContext.get()
    # For people who read a journal.
    place = f"{context.stageId()}.{context.partitionId()}.{context.attemptNumber()}" if context is not None else ""
    links = links_of(tasks, place)
    last = links[-1]
    with contextlib.ExitStack() as ending:
        # Each link reports, even if the report of another one fails.
        end_with(ending, links)
        names = ", ".join(link.name for link in links)
        # Each has the context in which it was made: that of the last one is the latest.
        propagated = tasks[-1].propagated
        elements = outputs_of(keyed(links, batches), partial(run, links), name=names, propagated=propagated, asks=asks)
        ending.enter_context(contextlib.closing(elements))
        # Law X15: row by row, each when Spark has read the one before.
        taken = until_spark_reads() if changes_something(links) and not takes_all else None
        for element in elements:
            if element is PULSE:
                # An empty batch is still written, and only a write shows that Spark has closed the connection.
                yield from last.nothing()
                continue
            if element is ASKED:
                yield element
                continue
            for output, keys, left in last.leaving(*element):
                if taken is None:
                    yield from output
                else:
                    for row in (batch.slice(number, 1) for batch in output for number in range(batch.num_rows)):
                        yield row
                        taken()
                # After Spark has taken the rows: room that is given earlier would not bound the memory.
                loop_thread().loop.call_soon_threadsafe(last.emitted, keys, left)


def changes_something(links: Sequence[Link]) -> bool:
    """Whether the calls of a link change something, so that none may be made ahead of the rows that Spark takes."""
    return not all(link.task.enricher.idempotent for link in links)


def links_of(tasks: Sequence[EnrichTask], place: str, process: WorkerProcess = this_process) -> list[Link]:
    """The links of a task. `place` names the task of Spark."""
    # The number in a label tells apart two enrichers of one class.
    labels = (f"{i} {type(one.enricher).__name__}" if len(tasks) > 1 else "" for i, one in enumerate(tasks, 1))
    return [Link(task, label, place, process) for task, label in zip(tasks, labels, strict=True)]


def end_with(ending: contextlib.ExitStack, links: Sequence[Link]) -> None:
    """Let the links write their journals and report when the stack ends, on the task's main thread."""
    for link in reversed(links):
        ending.push(link.report)
        ending.push(link.close_journal)


def keyed(links: Sequence[Link], batches: Iterator[pa.RecordBatch]) -> Iterator[KeyBatch]:
    """The input of the first link."""
    for batch in batches:
        schema = batch.schema
        # Before any row leaves: a task without output still has to give Spark the schema of the last link.
        for link in links:
            schema = link.expect(schema)
        yield links[0].keys_of(batch)


async def run(links: Sequence[Link], source: ToLoop, sink: FromLoop) -> None:
    """Run all links, on the loop."""

    def deliver(batch: KeyBatch, ready: int) -> None:
        sink.put_nowait((batch, ready, batch.ended))

    if len(links) == 1:
        await links[0].run(source, deliver)
        return
    hops = [Hop(*pair, holding=changes_something(links[: i + 1])) for i, pair in enumerate(pairwise(links))]

    async def run_one(number: int, failing: Callable[[], None]) -> None:
        link, inputs = links[number], source if number == 0 else hops[number - 1]
        if link is links[-1]:
            await link.run(inputs, deliver, failing)
        else:
            await link.run(inputs, hops[number].deliver, failing)
            hops[number].end()

    await _together([link.name for link in links], [partial(run_one, number) for number in range(len(links))])


async def _together(names: Sequence[str], works: Sequence[Callable[[Callable[[], None]], Awaitable[None]]]) -> None:
    """Do works side by side. The first error cancels the others, and is raised when all have ended. Each work gets a
    function to call when it has failed: what it has begun may take longer to end."""
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def fail(number: int) -> None:
        if not failed.done():
            failed.set_result(number)

    tasks = [start_task(error_of(partial(work, partial(fail, number)))) for number, work in enumerate(works)]
    running, error = set(tasks), None
    try:
        while running and error is None and not failed.done():
            either: list[asyncio.Future[Any]] = [*running, failed]
            ended, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            running = {task for task in running if task not in ended}
            errors = [_error(task, name) for task, name in zip(tasks, names, strict=True) if task in ended]
            error = next(filter(None, errors), None)
    except asyncio.CancelledError as cancelled:
        error = cancelled
    first = failed.result() if failed.done() and error is None else None
    # All at once, so that the times in which they may ignore their cancellation run side by side.
    for number, task in enumerate(tasks):
        if task in running and number != first:
            task.cancel()
    if running:
        await wait_through(running, TASK_END)
    if first is not None:
        # It has ended the calls that it could, and says why it failed.
        await asyncio.wait([tasks[first]])
        error = _error(tasks[first], names[first])
    if isinstance(error, asyncio.CancelledError):
        # A work that was cancelled by code of its own says so.
        own = [task.result() for task in tasks if task.done() and not task.cancelled()]
        error = next((one for one in own if one and not isinstance(one, asyncio.CancelledError)), error)
    if error is not None:
        raise error


def _error(task: asyncio.Task[BaseException | None], name: str) -> BaseException | None:
    """The error of a work that has ended, and that was not cancelled here."""
    error = asyncio.CancelledError() if task.cancelled() else task.result()
    return stray_run(name) if isinstance(error, asyncio.CancelledError) and task.cancelling() else error


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
        async with contextlib.AsyncExitStack() as stack:
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
            places = ColumnPlaces(Figures(), check, wanted, *about)
            limited = Limited(allowance=allowance, hedger=hedger)
            self._pipeline = LookupPipeline(enricher, source, deliver, options, places, limited, trace, task.tables)
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


class Hop(Input):
    """The input of a link: the output of the link before it. It is built when it is read.

    Delivered parts that wait are joined to batches of the usual size: a batch costs the same however few its rows are.
    """

    instant = False

    def __init__(self, earlier: Link, later: Link, *, holding: bool = False) -> None:
        self._earlier = earlier
        self._later = later
        # The earlier link gets room when its rows have left the later one, and not when that has read them. So its
        # calls, which change something, are not made ahead of the rows that leave the chain (law X15).
        self._holding = holding
        # Reported to the earlier link when a batch of the later link has left; and what belongs to the next batch.
        self._held: dict[int, list[tuple[int, KeyBatch | None]]] = {}
        self._emitted: list[tuple[int, KeyBatch | None]] = []
        if holding:
            later.on_left = self._left
        self._delivered: deque[tuple[KeyBatch, int, bool]] = deque()
        self._built: Iterator[pa.RecordBatch] | None = None
        self._next: pa.RecordBatch | None = None
        self._over = False
        self._waiting: asyncio.Future[None] | None = None

    # -- the earlier link's side

    def deliver(self, batch: KeyBatch, ready: int) -> None:
        """Nothing is built here: a timer of the earlier link may call this, and an error would be lost."""
        self._delivered.append((batch, ready, batch.ended))
        wake(self._waiting)

    def end(self) -> None:
        """The earlier link has delivered everything."""
        self._over = True
        wake(self._waiting)

    # -- the later link's side

    async def ready(self) -> bool:
        while not self.has_some():
            if self._over:
                return False
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return True

    def has_some(self) -> bool:
        return bool(self._delivered) or self._built is not None

    def __iter__(self) -> Iterator[KeyBatch]:
        while (batch := self._joined()) is not None:
            keyed = self._later.keys_of(batch)
            if self._holding:
                self._held[id(keyed)], self._emitted = self._emitted, []
            yield keyed
        # Nothing is read, so what has left was without rows: they were dropped.
        self._tell(self._emitted)
        self._emitted = []

    async def release(self) -> None:
        self._delivered.clear()
        self._held.clear()
        self._built = self._next = None

    def _joined(self) -> pa.RecordBatch | None:
        """The next batch: as many parts as are delivered and fit into it. None if there is none."""
        parts: list[pa.RecordBatch] = []
        rows, size = 0, 0
        while rows < OUTPUT_ROWS:
            part, self._next = self._next, None
            if part is None:
                if self._built is None:
                    self._built = self._build()
                # The part before it has then left the earlier link.
                part = next(self._built, None)
                if part is None:
                    self._built = None
                    break
            rows, size = rows + part.num_rows, size + part.nbytes
            if parts and (rows > OUTPUT_ROWS or size > OUTPUT_BYTES):
                self._next = part
                break
            parts.append(part)
        if len(parts) < 2:
            return parts[0] if parts else None
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _build(self) -> Iterator[pa.RecordBatch]:
        while self._delivered:
            for output, keys, left in self._earlier.leaving(*self._delivered.popleft()):
                yield from output
                if self._holding:
                    self._emitted.append((keys, left))
                else:
                    self._earlier.emitted(keys, left)

    def _left(self, batch: KeyBatch) -> None:
        """All of a batch has left the later link."""
        self._tell(self._held.pop(id(batch), ()))

    def _tell(self, emitted: Sequence[tuple[int, KeyBatch | None]]) -> None:
        for keys, left in emitted:
            self._earlier.emitted(keys, left)
