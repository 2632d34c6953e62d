"""What a task of `send` does: a call for each row, and at the end rows for the driver.

These are the rows that were not sent, and one more with the numbers of all. So the numbers are those of the attempt
that gave the rows, whatever Spark has killed or repeated. Nothing waits until Spark has read rows, as `enrich` does for
such calls (law X15): every row is taken here. A row that is not sent never fails the task, because Spark would repeat
that, and send the rows before it again: the task ends early, and the driver raises the error.

`RowCalls` is an enricher whose keys are rows, so that every row has a call of its own (law W1). The key of a row is its
key for the enricher, and its number among the rows with that key. So equal rows are different keys: none shares the
call of another, and a journal has an entry for each. An answer that says no for good is an answer too: it is in the
journal, and is not asked for again.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from asyncio_operator.arrow.key_identity import storable
from asyncio_operator.enricher import Enricher, Row
from asyncio_operator.errors import describe, text_of, verdict
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.links import enriched, stage_name
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.telemetry.annotations import Attributes

OCCURRENCE = "_occurrence"
"""The last part of a key: the number of a row among those with the same key, from 0."""

ANSWER = pa.schema([("refused", pa.bool_()), ("http_status", pa.int32()), ("message", pa.string())])
"""What a call has brought, if the service has decided."""

LATER = (408, 425, 429)
"""The statuses of class 4xx that ask for another attempt later. They speak of the moment, and not of the row."""

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


class RowCalls(Enricher):
    """Makes the calls of `send`. A row that was sent, or refused for good, has an answer (`ANSWER`)."""

    idempotent = False

    def __init__(self, enricher: Enricher) -> None:
        self._enricher = enricher
        self.default_retry = enricher.default_retry
        self.max_calls = enricher.max_calls
        self.optional_keys = enricher.optional_keys

    def schema(self) -> pa.Schema:
        # As every caller does: an enricher may learn its columns there.
        self._enricher.schema()
        return ANSWER

    def key_schema(self) -> pa.Schema | None:
        known = self._enricher.key_schema()
        if known is None:
            return None
        # Without metadata: the warning that they ask for was given for the enricher's own key.
        parts = [pa.field(part.name, part.type) for part in known]
        return pa.schema([*parts, pa.field(OCCURRENCE, pa.int64())])

    def check_keys(self, keys: pa.Schema) -> None:
        self._enricher.check_keys(keys.remove(len(keys) - 1))

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return self._enricher.weigh([_own(key) for key in keys])

    def call_attributes(self) -> Attributes:
        return self._enricher.call_attributes()

    def journal_identity(self) -> str:
        return f"send: {identity_of(self._enricher)}"

    async def open(self) -> None:
        await self._enricher.open()

    async def close(self) -> None:
        await self._enricher.close()

    async def lookup(self, key: Any) -> Row:
        """Send a row.

        Raises:
            Exception: it was not sent, and may be sent later.
        """
        try:
            await self._enricher.send(_own(key), row_id(key))
        except Exception as error:
            if not is_refusal(error):
                raise
            code = verdict(error)["code"]
            return {"refused": True, "http_status": code if type(code) is int else None, "message": text_of(error)}
        return {"refused": False}

    def __repr__(self) -> str:
        return describe(self._enricher)


def _own(key: tuple[Any, ...]) -> Any:
    """The key of the enricher."""
    return key[0] if len(key) == 2 else key[:-1]


def row_id(key: tuple[Any, ...]) -> str:
    """The name of a row: equal in every process, attempt and run, and different for all other keys."""
    return str(uuid.UUID(bytes=hashlib.sha256(serialize_key(storable(key))).digest()[:16], version=5))


def is_refusal(error: Exception) -> bool:
    """Whether the service says no for good. Another attempt would have the same answer."""
    said = verdict(error)
    code = said["code"]
    if type(code) is int and code >= 400:
        return code < 500 and code not in LATER and said["retryable"] is not True
    return said["retryable"] is False
