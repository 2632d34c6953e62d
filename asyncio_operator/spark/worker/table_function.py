"""The worker's side of a table function: the class that Spark calls, and the run of a task behind its calls.

PySpark makes one object of the class for each partition of ``PARTITION BY``. It passes it the rows in one call for each
Arrow batch, and calls `terminate` at the end of the partition. The lookups of a partition need not wait for those of
the previous one, so all objects of a Spark task share one run. The run is kept in the `Call`, which Spark sends to each
task once, and which PySpark passes to every object.

`mapInArrow` passes a task an iterator, and the task reads ahead as far as it wants. A table function gets one batch per
call, and returns the outputs that are ready. `PushedTask` joins the two.

Laws: the rows are those that `enrich` would return, in their order. If another PySpark version calls in another way, no
row is lost: each partition is then waited for, or the task fails.

A `PushedTask` runs in a thread of its own, so its lookups continue from one call to the next: `push` gives it a batch
when it asks for one, and returns the outputs made meanwhile. Laws: no side waits for what cannot come, and little is
held in memory: at most one batch waits to be read, and few outputs wait to be taken. The task waits while its outputs
are not taken, and `push` waits while the task does not read. Closing ends the run, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from asyncio_operator.errors import AsyncOperatorError, StateError
from asyncio_operator.policies.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.links import ChainTask
from asyncio_operator.spark.worker.task_frame import TakingThread, spark_watch, until_spark_reads
from asyncio_operator.spark.worker.versions import AnalyzeResult, arrow_type

if TYPE_CHECKING:
    from pyspark.sql.udtf import AnalyzeArgument

In = TypeVar("In")
Out = TypeVar("Out")

AHEAD = 2
"""The maximum number of outputs that wait: one is on its way to Spark while the next is made."""

LONGEST_END = WATCH_INTERVAL + TASK_END
"""Seconds that `close` waits: until the task notices the end, and then for the end of what the task waits for."""

WORTH_A_TRIP = 1_000
"""Rows of small partitions that go through the task together. Sending fewer costs more than their lookups."""

Analysis = Callable[[Sequence["AnalyzeArgument"], Mapping[str, "AnalyzeArgument"]], AnalyzeResult]
"""Returns the columns of a call, from its arguments without names and with names."""


def table_function(analysis: Analysis, own: bytes) -> type:
    """The class that Spark calls. `own` is that of `Call.push`."""

    class LookupFunction:
        """It is a local class, so it is pickled by value: workers could not import it by name."""

        def __init__(self, analyzed: Analyzed) -> None:
            assert analyzed.call is not None
            self._call = analyzed.call

        @staticmethod
        def analyze(*arguments: AnalyzeArgument, **options: AnalyzeArgument) -> AnalyzeResult:
            try:
                return analysis(arguments, options)
            except AsyncOperatorError as error:
                # Spark shows the whole traceback, but users need only the last line.
                raise error.with_traceback(None) from None

        def eval(self, table: pa.RecordBatch, **_: Any) -> Iterator[pa.RecordBatch]:
            yield from self._call.push(own, table)

        def terminate(self) -> Iterator[pa.RecordBatch]:
            if _more_partitions_follow(sys._getframe(1)):
                self._call.end_partition()
                return iter(())
            return self._call.finish()

        def cleanup(self) -> None:
            self._call.end()

    return LookupFunction


def _more_partitions_follow(caller: FrameType) -> bool:
    """Whether `terminate` is called at the end of a partition, not of all rows. PySpark shows it in no other way."""
    return caller.f_code.co_name == "_process_arrow_batch_by_partitions"


@dataclass
class Analyzed(AnalyzeResult):  # type: ignore[misc]
    """The result of the analysis of a call, which Spark sends to every task."""

    call: Call | None = None


class Call:
    """A call of the function: what its analysis has found, and, in a worker, the run of a Spark task."""

    def __init__(self, task: EnrichTask, schema: StructType) -> None:
        # With cloudpickle, because Spark's own pickle does not support lambdas.
        self._found: bytes = cloudpickle.dumps((task.layout, task.options))  # type: ignore[no-untyped-call]
        self._fields = schema.fields
        self._run: PushedTask[pa.RecordBatch, pa.RecordBatch] | None = None
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows_waiting = 0
        self._partitioned = False
        self._next_offset = -1

    def push(self, own: bytes, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows. Yields the rows that are ready.

        Args:
            own: the pickled task of the registration, which contains everything that depends only on the enricher.
        """
        if self._run is None:
            layout, options = cloudpickle.loads(self._found)
            task: EnrichTask = cloudpickle.loads(own)
            self._schema = self._announced(rows.schema)
            chain = ChainTask([replace(task, layout=layout, options=options)])
            self._run = PushedTask(chain, until_read=not task.enricher.idempotent)
        offset = rows.column(0).offset
        if offset != self._next_offset:
            # If an Arrow batch gives no output, PySpark makes an empty one, with a slightly different schema.
            yield self._batch()
        self._next_offset = offset + rows.num_rows
        self._waiting.append(rows)
        self._rows_waiting += rows.num_rows
        if not self._partitioned or self._rows_waiting >= WORTH_A_TRIP:
            yield from self._push_waiting(self._run)

    def end_partition(self) -> None:
        """Note that the task has several partitions, and that more may follow."""
        self._partitioned = True

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the remaining rows."""
        if self._run is not None:
            yield from self._push_waiting(self._run)
            for batch in self._run.finish():
                yield self._batch(batch)
            yield self._batch()
            self._run = None

    def end(self) -> None:
        """End the run when the Spark task ends, in whatever way."""
        if self._run is not None:
            self._run.close()
            self._run = None
            if sys.exc_info()[1] is None:  # No error is on its way, so rows would be lost without a word.
                raise StateError("PySpark has ended a table function before all of its rows were taken")

    def _push_waiting(self, run: PushedTask[pa.RecordBatch, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
        for rows in waiting if len(waiting) < 2 else pa.Table.from_batches(waiting).combine_chunks().to_batches():
            for batch in run.push(rows):
                yield self._batch(batch)

    def _announced(self, rows: pa.Schema) -> pa.Schema:
        """The columns with their announced names: the table's in the types in which they come, then the added ones."""
        types = [*rows.types, *(arrow_type(field.dataType) for field in self._fields[len(rows) :])]
        return pa.schema([pa.field(f.name, kind, f.nullable) for f, kind in zip(self._fields, types, strict=True)])

    def _batch(self, batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
        if batch is None:
            return pa.RecordBatch.from_pylist([], self._schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


class PushedTask(Generic[In, Out]):
    """A run of a task that gets its input by `push`. All methods must be called by one thread.

    Args:
        task: returns outputs for inputs, both as iterators. It ends when its input ends.
        until_read: whether the task waits, where it asks for that, until Spark has read its outputs (law X15).
    """

    def __init__(self, task: Callable[[Iterator[In]], Iterator[Out]], until_read: bool = False) -> None:
        self._task = task
        self._changed = threading.Condition()
        self._input: deque[In] = deque()
        self._asked = False
        self._over = False
        self._outputs: deque[Out] = deque()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._check_spark = spark_watch()
        self._until_read = until_spark_reads() if until_read else None
        self._given = self._passed_on = 0
        waiting = self._wait_until_read if until_read else None
        self._thread = TakingThread("asyncio-operator-pushed", self._run, self._look, waiting)
        self._thread.start()

    # -- the caller's side

    def push(self, element: In) -> Iterator[Out]:
        """Give the task an element as soon as it asks for one. Yields outputs that are ready before and after that.

        It raises what the task raises.
        """
        yield from self._outputs_until(lambda: self._asked)
        with self._changed:
            self._asked = False
            self._input.append(element)
            self._changed.notify_all()
        yield from self._outputs_until(lambda: not self._outputs)

    def finish(self) -> Iterator[Out]:
        """End the input. Yields the remaining outputs. It raises what the task raises."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        yield from self._outputs_until(lambda: False)

    def close(self) -> None:
        """End the run, if it has not ended, and wait for its end, at most `LONGEST_END` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LONGEST_END)

    def _outputs_until(self, reached: Callable[[], bool]) -> Iterator[Out]:
        """Yields outputs until the condition `reached` holds, or until the run has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: reached() or self._outputs or self._ended)
                if self._ended and not self._outputs:
                    break
                if reached() and not self._ended:
                    return
                output = self._outputs.popleft()
                self._changed.notify_all()
            # Without the lock: Spark may take its time, and the task goes on meanwhile.
            yield output
            if self._until_read is not None:
                self._until_read()
                with self._changed:
                    self._passed_on += 1
                    self._changed.notify_all()
        if self._error is not None:
            raise self._error

    # -- the task's side

    def _run(self) -> None:
        """What the thread runs."""
        outputs: Iterator[Out] | None = None
        try:
            outputs = self._task(self._read())
            for output in outputs:
                self._give(output)
        except BaseException as error:
            # The generator is closed here, on its own thread. A second error is dropped: the first is the run's.
            if isinstance(outputs, Generator):
                with contextlib.suppress(BaseException):
                    outputs.close()
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            # Law O6: no row leaves after the failure.
            if error is not None:
                self._outputs.clear()
            self._error = error
            self._ended = True
            self._changed.notify_all()

    def _give(self, output: Out) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._outputs) < AHEAD or self._closed)
            self._check_open()
            self._outputs.append(output)
            self._given += 1
            self._changed.notify_all()

    def _read(self) -> Iterator[In]:
        """The task's input."""
        while True:
            with self._changed:
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._input or self._over or self._closed)
                self._check_open()
                if not self._input:
                    return
                element = self._input.popleft()
            yield element

    def _wait_until_read(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._passed_on == self._given or self._closed)
            self._check_open()

    def _look(self) -> None:
        """Raise if Spark has closed the socket, or this run was closed, however long the task's calls still take."""
        self._check_open()
        if self._check_spark is not None:
            self._check_spark()

    def _check_open(self) -> None:
        """Raise `ClosedError` if the run was closed."""
        if self._closed:
            raise ClosedError


class ClosedError(Exception):
    """The run was closed, so outputs are no longer taken."""
