"""The worker's side of a table function: the class that Spark calls, and the run of a task behind its calls.

PySpark makes one object of the class for each partition of ``PARTITION BY``. It passes it the rows in one call for each
Arrow batch, and calls `terminate` at the end of the partition. The lookups of a partition need not wait for those of
the previous one, so all objects of a Spark task share one run. The run is kept in the `Call`, which Spark sends to each
task once, and which PySpark passes to every object.

`mapInArrow` passes a task an iterator, and the task reads ahead as far as it wants. A table function gets one batch per
call, and returns the outputs that are ready. So the feeder of the task reads a queue, and says when it waits for the
next batch (`ASKED`): a call returns the outputs that came before that, and puts its batch into the queue. The lookups
continue from one call to the next.

Laws: the rows are those that `enrich` would return, in their order. If another PySpark version calls in another way, no
row is lost: each partition is then waited for, or the task fails. No side waits for what cannot come, and little is
held in memory: at most one batch waits in the queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from asyncio_operator.errors import AsyncOperatorError, StateError
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.spark.worker.links import EnrichTask, enriched
from asyncio_operator.spark.worker.task_frame import ASKED
from asyncio_operator.spark.worker.versions import AnalyzeResult, arrow_type

if TYPE_CHECKING:
    from pyspark.sql.udtf import AnalyzeArgument

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
            # Whether it is called at the end of a partition, not of all rows. PySpark shows it in no other way.
            if sys._getframe(1).f_code.co_name == "_process_arrow_batch_by_partitions":
                self._call.is_partitioned = True
                return iter(())
            return self._call.finish()

        def cleanup(self) -> None:
            self._call.end()

    return LookupFunction


@dataclass
class Analyzed(AnalyzeResult):  # type: ignore[misc]
    """The result of the analysis of a call, which Spark sends to every task."""

    call: Call | None = None


class Call:
    """A call of the function: what its analysis has found, and, in a worker, the run of a Spark task. If
    `is_partitioned`, the task has several partitions, and more may follow."""

    def __init__(self, task: EnrichTask, schema: StructType) -> None:
        # With cloudpickle, because Spark's own pickle does not support lambdas.
        self._found: bytes = cloudpickle.dumps((task.layout, task.options))  # type: ignore[no-untyped-call]
        self._fields = schema.fields
        self._outputs: Generator[Any] | None = None
        self._input: SimpleQueue[pa.RecordBatch | None]
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows_waiting = 0
        self.is_partitioned = False
        self._next_offset = -1

    def push(self, own: bytes, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows. Yields the rows that are ready. `own` is the pickled task of the registration, which contains
        everything that depends only on the enricher."""
        if self._outputs is None:
            layout, options = cloudpickle.loads(self._found)
            task: EnrichTask = cloudpickle.loads(own)
            # With their announced names: the table's columns in the types in which they come, then the added ones.
            types = [*rows.schema.types, *(arrow_type(one.dataType) for one in self._fields[rows.num_columns :])]
            named = zip(self._fields, types, strict=True)
            self._schema = pa.schema([pa.field(one.name, kind, one.nullable) for one, kind in named])
            self._input = SimpleQueue()
            outputs = enriched([replace(task, layout=layout, options=options)], iter(self._input.get, None), asks=True)
            self._outputs = cast(Generator[Any], portable_errors(outputs))
        offset = rows.column(0).offset
        if offset != self._next_offset:
            # If an Arrow batch gives no output, PySpark makes an empty one, with a slightly different schema.
            yield self._batch()
        self._next_offset = offset + rows.num_rows
        self._waiting.append(rows)
        self._rows_waiting += rows.num_rows
        if not self.is_partitioned or self._rows_waiting >= WORTH_A_TRIP:
            yield from self._push_waiting()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the remaining rows."""
        if self._outputs is not None:
            yield from self._push_waiting()
            self._input.put(None)
            for batch in self._outputs:
                if batch is not ASKED:
                    yield self._batch(batch)
            yield self._batch()
            self._outputs = None

    def end(self) -> None:
        """End the run when the Spark task ends, in whatever way."""
        if self._outputs is not None:
            self._input.put(None)
            self._outputs.close()
            self._outputs = None
            if sys.exc_info()[1] is None:  # No error is on its way, so rows would be lost without a word.
                raise StateError("PySpark has ended a table function before all of its rows were taken")

    def _push_waiting(self) -> Iterator[pa.RecordBatch]:
        waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
        for rows in waiting if len(waiting) < 2 else pa.Table.from_batches(waiting).combine_chunks().to_batches():
            assert self._outputs is not None
            while (batch := next(self._outputs)) is not ASKED:
                yield self._batch(batch)
            self._input.put(rows)

    def _batch(self, batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
        if batch is None:
            return pa.RecordBatch.from_pylist([], self._schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
