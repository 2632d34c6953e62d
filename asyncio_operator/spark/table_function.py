"""The worker's side of a table function: the class that Spark calls, and the run of a task behind its calls.

PySpark makes an object of the class for every partition of ``PARTITION BY``, hands it the rows in one call for each
Arrow batch, and calls `terminate` at the end of the partition. Lookups of one partition need not wait for those of the
one before, so all objects of a Spark task share one run. It lives in the `Call`, which Spark sends to a task once, and
which PySpark hands to every object.

Law: the rows are those that `enrich` would give, in their order. None is lost if a PySpark calls in another way: then
every partition is waited for, or the task fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import cloudpickle
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from asyncio_operator.errors import AsyncOperatorError, StateError
from asyncio_operator.spark.pushed import PushedTask
from asyncio_operator.spark.types import arrow_type
from asyncio_operator.spark.worker import EnrichTask

WORTH_A_TRIP = 1_000
"""Rows of small partitions that go through the task together: fewer cost more on the way than in the lookup."""


@dataclass
class Analyzed(AnalyzeResult):
    """What Spark takes from the analysis of a call to every task."""

    call: Call | None = None


class Call:
    """A call of the function: what its analysis has found, and, in a worker, the run of a Spark task."""

    def __init__(self, task: EnrichTask, schema: StructType) -> None:
        # Spark's own pickle does not know lambdas.
        self._found: bytes = cloudpickle.dumps((task.layout, task.options))  # type: ignore[no-untyped-call]
        self._fields = schema.fields
        self._run: PushedTask[pa.RecordBatch, pa.RecordBatch] | None = None
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows_waiting = 0
        self._partitioned = False
        self._next_offset = -1

    def push(self, own: bytes, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; those that are ready.

        Args:
            own: the pickle of the task of the registration, which has what depends on the enricher alone.
        """
        if self._run is None:
            layout, options = cloudpickle.loads(self._found)
            task: EnrichTask = cloudpickle.loads(own)
            self._schema = self._announced(rows.schema)
            self._run = PushedTask(replace(task, layout=layout, options=options))
        offset = rows.column(0).offset
        if offset != self._next_offset:
            # Of an Arrow batch that gives nothing PySpark makes an empty one, of a schema that is not quite the same.
            yield self._batch()
        self._next_offset = offset + rows.num_rows
        self._waiting.append(rows)
        self._rows_waiting += rows.num_rows
        if not self._partitioned or self._rows_waiting >= WORTH_A_TRIP:
            yield from self._push_waiting(self._run)

    def end_partition(self) -> None:
        """There are several in the task, and more will follow."""
        self._partitioned = True

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left."""
        if self._run is not None:
            yield from self._push_waiting(self._run)
            for batch in self._run.finish():
                yield self._batch(batch)
            yield self._batch()
            self._run = None

    def end(self) -> None:
        """The Spark task is over, whatever became of it."""
        if self._run is not None:
            self._run.close()
            self._run = None
            if sys.exc_info()[1] is None:
                raise StateError("PySpark has ended a table function before all of its rows were taken")

    def _push_waiting(self, run: PushedTask[pa.RecordBatch, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
        for rows in waiting if len(waiting) < 2 else pa.Table.from_batches(waiting).combine_chunks().to_batches():
            for batch in run.push(rows):
                yield self._batch(batch)

    def _announced(self, rows: pa.Schema) -> pa.Schema:
        """The columns under their announced names: those of the table in the types they come in, and the added ones."""
        types = [*rows.types, *(arrow_type(field.dataType) for field in self._fields[len(rows) :])]
        return pa.schema([pa.field(f.name, kind, f.nullable) for f, kind in zip(self._fields, types, strict=True)])

    def _batch(self, batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
        if batch is None:
            return pa.RecordBatch.from_pylist([], self._schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


Analysis = Callable[[Sequence[AnalyzeArgument], Mapping[str, AnalyzeArgument]], AnalyzeResult]
"""What columns a call gives, from its arguments without a name and with one."""


def table_function(analysis: Analysis, own: bytes) -> type:
    """The class that Spark wants; `own` is that of `Call.push`."""

    class LookupFunction:
        """It is local, so that it travels with what it needs; workers could not import it by a name."""

        def __init__(self, analyzed: Analyzed) -> None:
            assert analyzed.call is not None
            self._call = analyzed.call

        @staticmethod
        def analyze(*arguments: AnalyzeArgument, **options: AnalyzeArgument) -> AnalyzeResult:
            try:
                return analysis(arguments, options)
            except AsyncOperatorError as error:
                # Spark shows the whole traceback, of which users need the last line.
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
    """Whether `terminate` is called because a partition ends, and not the rows; PySpark tells it by nothing else."""
    return caller.f_code.co_name == "_process_arrow_batch_by_partitions"
