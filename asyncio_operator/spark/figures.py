"""Figures of an enrichment that can be added up. Apart from `metrics`, so that the worker's side knows no pyspark."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from asyncio_operator.metrics import Histogram


@dataclass(slots=True)
class EnrichmentFigures:
    """Figures that can be added up: of a task, or of all of them.

    Attributes:
        rows: input rows.
        found, missing: input rows with a match, and without one.
        failures: input rows whose lookup failed or timed out; `skipped`, those of them that were dropped.
        calls: calls of the enricher.
        retries: attempts of keys beyond their first.
        cache_hits: keys, of batches of rows, that were found in the cache.
        shared: keys that took the outcome of a call that ran already.
        timeouts: keys that passed their deadline.
        latency: of keys that were called for, from their first call to their outcome, waits between attempts included.
        attempt_latency: of calls.
    """

    rows: int = 0
    found: int = 0
    missing: int = 0
    failures: int = 0
    skipped: int = 0
    calls: int = 0
    retries: int = 0
    cache_hits: int = 0
    shared: int = 0
    timeouts: int = 0
    latency: Histogram = field(default_factory=Histogram)
    attempt_latency: Histogram = field(default_factory=Histogram)

    def add(self, other: EnrichmentFigures) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Histogram):
                mine.merge(theirs)
            else:
                setattr(self, f.name, mine + theirs)
