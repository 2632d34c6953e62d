"""`EnrichmentStatistics`: the figures of enrichments at one moment, as a line and as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from asyncio_operator.metrics import OperatorStatistics
from asyncio_operator.view.tables import Row, html_table


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentStatistics(OperatorStatistics):
    """The fields of `OperatorStatistics` and of `EnrichmentFigures`.

    `admitted` and `emitted` count input rows. `latency` measures keys, from their first call to their outcome;
    `timeout` limits it. `attempt_latency` measures calls; `attempt_timeout` limits it. `in_flight` is that of tasks
    that have reported in the last seconds. Always 0, because they are not measured here: `buffered`, `backing_off` and
    `backpressure_seconds`.
    """

    rows: int = 0
    found: int = 0
    missing: int = 0
    calls: int = 0
    cache_hits: int = 0
    shared: int = 0
    budget_seconds: float = 0.0
    journal_hits: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return html_table([""], rows_of_figures([self]))

    def __str__(self) -> str:
        text = (
            f"{self.rows:,} rows: {self.found:,} found, {self.missing:,} missing, {self.failures:,} failed "
            f"({self.timeouts:,} keys timed out, {self.skipped:,} rows dropped); {self.cache_hits:,} keys from the "
            f"cache, {self.shared:,} shared, {self.calls:,} calls, {self.retries:,} retries"
        )
        if self.hedged:
            text += f" ({self.hedged:,} hedged, {self.hedges_won:,} of these won)"
        if self.journal_hits:
            text += f", {self.journal_hits:,} keys from the journal"
        if self.budget_seconds:
            text += f", {self.budget_seconds:,.1f} s of tasks waited for a budget"
        if not self.calls:
            return text
        latency = (f"{name} {getattr(self.latency, name) * 1000:.2f} ms" for name in ("p50", "p95", "p99", "max"))
        return f"{text}, latency of keys: {', '.join(latency)}"


ALWAYS = ("rows", "found", "missing", "failed", "calls")
"""Figures that are shown when they are 0 too."""


def _milliseconds(part: str) -> Callable[[EnrichmentStatistics], str]:
    return lambda one: f"{1000 * getattr(one.attempt_latency, part):,.2f}" if one.calls else "0"


FIGURES: dict[str, Callable[[EnrichmentStatistics], str]] = {
    "rows": lambda one: f"{one.rows:,}",
    "found": lambda one: f"{one.found:,}",
    "missing": lambda one: f"{one.missing:,}",
    "failed": lambda one: f"{one.failures:,}",
    "of these dropped": lambda one: f"{one.skipped:,}",
    "keys timed out": lambda one: f"{one.timeouts:,}",
    "keys from the cache": lambda one: f"{one.cache_hits:,}",
    "keys from the journal": lambda one: f"{one.journal_hits:,}",
    "keys shared": lambda one: f"{one.shared:,}",
    "calls": lambda one: f"{one.calls:,}",
    "calls in flight": lambda one: f"{one.in_flight:,}",
    "retries": lambda one: f"{one.retries:,}",
    "calls hedged": lambda one: f"{one.hedged:,}",
    "of these won": lambda one: f"{one.hedges_won:,}",
    "s of waits for a budget": lambda one: f"{one.budget_seconds:,.1f}" if one.budget_seconds else "0",
    "call p50, ms": _milliseconds("p50"),
    "call p95, ms": _milliseconds("p95"),
    "call p99, ms": _milliseconds("p99"),
    "call max, ms": _milliseconds("max"),
}


def rows_of_figures(columns: Sequence[EnrichmentStatistics]) -> list[Row]:
    """The figures that are not 0 everywhere, and errors by kind."""
    rows: list[Row] = [(name, [shown(one) for one in columns]) for name, shown in FIGURES.items()]
    kinds = sorted({kind for one in columns for kind in one.errors})
    rows += [(f"errors: {kind}", [f"{one.errors.get(kind, 0):,}" for one in columns]) for kind in kinds]
    return [(name, cells) for name, cells in rows if name in ALWAYS or set(cells) != {"0"}]
