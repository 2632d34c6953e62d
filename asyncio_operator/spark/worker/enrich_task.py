"""The functions that `enrich` gives to `mapInArrow`: they enrich the batches of a task, in the Python worker.

They are data for the workers. `links` and `link` do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.spark.worker.figures import EnrichmentFigures
from asyncio_operator.spark.worker.links import run_links
from asyncio_operator.spark.worker.rows import Layout

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.spark.worker.figures import Tracing


@dataclass(frozen=True, slots=True)
class EnrichTask:
    """One lookup, as a function that enriches batches. It is sent to the workers.

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
        return portable_errors(run_links([self], batches))


LONGEST_NAME = 100
"""Characters of an enricher in a plan: the name of a server and a table, and few enough for three in a line."""


class ChainTask:
    """Lookups one after the other, as a function for `mapInArrow`. It is sent to the workers.

    Attributes:
        __name__: the label of the stage, which Spark shows in its plans.
    """

    def __init__(self, tasks: Sequence[EnrichTask]) -> None:
        self.tasks = tuple(tasks)
        # In one line: another would break the tree of a plan.
        names = [" ".join(describe(task.enricher, LONGEST_NAME).split()) for task in tasks]
        self.__name__ = f"enrich: {', '.join(names)} ({len(names)} lookup{'s' * (len(names) > 1)})"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, enriched by every lookup. It raises what `EnrichTask` raises."""
        return portable_errors(run_links(self.tasks, batches))
