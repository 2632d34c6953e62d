"""What a worker needs to know of one lookup: plain data, made on the driver and sent to the workers.

`Link` does the work, and `ChainTask` is the function that Spark calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asyncio_operator.enricher import Enricher
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.spark.worker.rows import Layout

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.spark.worker.reporting import Reporting, Tracing
    from asyncio_operator.spark.worker.task_journal import JournalTask
    from asyncio_operator.telemetry.propagation import Propagated


@dataclass(frozen=True, slots=True)
class EnrichTask:
    """One lookup of a stage.

    Attributes:
        fingerprint: fingerprint of the enricher. Tasks with equal ones share a client.
        reporting: reports the figures of the task.
        tracing: makes the trace of the task, and reports it.
        answers: all columns of the enricher. The cache keeps only answers that fit them.
        owner: the owner of cached answers (`cache_owner`).
        tables: the tables of an enricher that answers in columns.
        journal: keeps answers for later tasks, and has those of earlier ones.
        propagated: the driver's trace context, and the function that sets up OpenTelemetry.
    """

    enricher: Enricher
    fingerprint: str
    layout: Layout
    options: LookupOptions
    answers: pa.Schema
    owner: str
    reporting: Reporting | None = None
    tracing: Tracing | None = None
    tables: AnswerTables | None = None
    journal: JournalTask | None = None
    propagated: Propagated | None = None

    def of_keys(self) -> EnrichTask:
        """The same task for an input that has only key columns."""
        return replace(self, layout=replace(self.layout, keys=tuple(range(len(self.layout.keys))), event_time=None))
