"""Reports of tasks that run in this process, without Spark."""

from __future__ import annotations

from typing import Any

from asyncio_operator.figures import Figures
from asyncio_operator.spark.worker.reporting import Reporting, TaskReport


class Added:
    """Takes what a task reports."""

    def __init__(self, figures: list[Figures]) -> None:
        self._figures = figures

    def add(self, reports: list[TaskReport]) -> None:
        self._figures.extend(report.figures for report in reports)


def reporting(figures: list[Figures]) -> Reporting:
    """Puts the figures that a task reports at its end into the list."""
    destination: Any = Added(figures)
    return Reporting(destination, "", "an enrichment")
