"""What a task of `send` does: a call for each row, and at the end rows for the driver.

These are the rows that were not sent, and one more with the numbers of all. So the numbers are those of the attempt
that gave the rows, whatever Spark has killed or repeated. Nothing waits until Spark has read rows, as `enrich` does for
such calls (law X15): every row is taken here. A row that is not sent never fails the task, because Spark would repeat
that, and send the rows before it again: the task ends early, and the driver raises the error.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.links import enriched, stage_name

SENT, REFUSED, FAILED, SKIPPED = OUTCOMES = ("sent", "refused", "failed", "skipped")

ADDED = pa.schema(
    [
        ("status", pa.string()),
        ("http_status", pa.int32()),
        ("message", pa.string()),
        *((outcome, pa.int64()) for outcome in OUTCOMES),
    ]
)
"""What follows the columns of the input. A row that was not sent has the first three, and the row of numbers the
others."""

NO_KEY = "a part of its key is null, or a value that Python cannot hold"


class SendTask:
    """A function for `mapInArrow`. It is sent to the workers.

    Attributes:
        __name__: the label of the stage, which Spark shows in its plans.

    Args:
        task: its last columns are those of `RowCalls`, and the status column.
        stops: the task ends after the first row that is not sent.
    """

    def __init__(self, task: EnrichTask, stops: bool) -> None:
        self._task = task
        self._stops = stops
        self.__name__ = f"send: {stage_name(task)}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that were not sent, and the numbers."""
        return portable_errors(self._results(batches))

    def _results(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers: Counter[str] = Counter()
        # The number of a row follows the columns of the input.
        own, schema = self._task.layout.keys[-1], None
        with contextlib.closing(enriched((self._task,), batches, takes_all=True)) as answered:
            for batch in answered:
                schema = pa.schema([*(batch.schema.field(i).with_nullable(True) for i in range(own)), *ADDED])
                outcomes = _outcomes(batch)
                numbers.update(outcomes.to_pylist())
                left = pc.or_(pc.equal(outcomes, REFUSED), pc.equal(outcomes, FAILED))
                rows = batch.filter(left)
                # An empty one too: only a write shows that Spark has ended the task.
                yield _not_sent(rows, outcomes.filter(left), own, schema)
                if self._stops and rows.num_rows:
                    break
        if schema is not None:
            columns = [pa.nulls(1, field.type) for field in list(schema)[: -len(OUTCOMES)]]
            columns += [pa.array([numbers[outcome]]) for outcome in OUTCOMES]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _outcomes(batch: pa.RecordBatch) -> pa.Array:
    """The outcome of each row."""
    status = batch.column(batch.num_columns - 1)
    found = pc.equal(pc.struct_field(status, "status"), "found")
    known = pc.equal(pc.struct_field(status, "source"), "journal")
    refused = pc.fill_null(batch.column(batch.num_columns - 4), False)
    answered = pc.if_else(known, SKIPPED, pc.if_else(refused, REFUSED, SENT))
    return pc.if_else(found, answered, FAILED)


def _not_sent(rows: pa.RecordBatch, outcomes: pa.Array, own: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows for the driver. `own` is the number of columns of the input."""
    status = rows.column(rows.num_columns - 1)
    http = pc.coalesce(rows.column(rows.num_columns - 3), pc.struct_field(status, "http_status"))
    numbers = [pa.nulls(rows.num_rows, pa.int64())] * len(OUTCOMES)
    messages = pc.coalesce(rows.column(rows.num_columns - 2), pc.struct_field(status, "error_message"), NO_KEY)
    columns = [*rows.columns[:own], outcomes, http, messages, *numbers]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
