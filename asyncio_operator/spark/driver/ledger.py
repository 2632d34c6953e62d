"""The ledger in which the driver keeps the figures that tasks report.

Spark's thread for reports writes it, and any thread may read it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from asyncio_operator.spark.worker.figures import EnrichmentFigures, MicroBatch, TaskReport

RECENT = 100
"""The number of micro-batches whose figures are kept. Spark keeps the progress of equally many
(`spark.sql.streaming.numRecentProgressUpdates`)."""


class Ledger:
    """The sums of all reports, by part: in total, and for each of the `RECENT` latest micro-batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, EnrichmentFigures] = {}
        self._batches: dict[MicroBatch, dict[str, EnrichmentFigures]] = {}

    def extend(self, reports: Iterable[TaskReport]) -> None:
        """Add reports of tasks."""
        with self._lock:
            for report in reports:
                _add(self._totals, report)
                if report.batch is not None:
                    _add(self._batches.setdefault(report.batch, {}), report)
            for batch in list(self._batches)[:-RECENT]:
                del self._batches[batch]

    def expect(self, part: str) -> None:
        """Add a part, which `parts` lists even before it has reported."""
        with self._lock:
            self._totals.setdefault(part, EnrichmentFigures())

    def parts(self) -> list[str]:
        """The parts that are expected or have reported, in the order of their first mention."""
        with self._lock:
            return list(self._totals)

    def sum(self, part: str | None = None, batch: MicroBatch | None = None) -> EnrichmentFigures:
        """A copy of the figures. `part` None: all parts. `batch` None: the whole time."""
        total = EnrichmentFigures()
        with self._lock:
            parts = self._totals if batch is None else self._batches.get(batch, {})
            for name, figures in parts.items():
                if part in (None, name):
                    total.add(figures)
        return total

    def has(self, part: str | None, batch: MicroBatch) -> bool:
        """Whether tasks of that micro-batch have reported."""
        with self._lock:
            reported = self._batches.get(batch, {})
            return bool(reported) if part is None else part in reported

    def forget(self, part: str | None = None) -> None:
        """Reset the figures of a part, or of all parts if `part` is None. Parts stay expected."""
        with self._lock:
            for name in self._totals:
                if part in (None, name):
                    self._totals[name] = EnrichmentFigures()
            for figures in self._batches.values():
                for name in [part] if part is not None else list(figures):
                    figures.pop(name, None)


def _add(parts: dict[str, EnrichmentFigures], report: TaskReport) -> None:
    parts.setdefault(report.part, EnrichmentFigures()).add(report.figures)
