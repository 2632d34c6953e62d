"""The figures of a ledger as text for Prometheus, in its exposition format 0.0.4.

What may get smaller is a gauge: rows of an attempt that has failed are counted by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncio_operator.metrics import COUNTERS_OF_KEYS, Histogram
from asyncio_operator.spark.driver.ledger import Lookup
from asyncio_operator.spark.worker.figures import EnrichmentFigures

PREFIX = "asyncio_operator"

GAUGES = {
    "rows": "Input rows",
    "found": "Input rows with a match",
    "missing": "Input rows without a match",
    "failures": "Input rows whose lookup failed or timed out",
    "skipped": "Failed rows that were dropped",
}

COUNTERS = {
    "calls": "Calls of the enricher",
    **COUNTERS_OF_KEYS,
    "budget_seconds": "Seconds in which calls waited for a budget",
}

HISTOGRAMS = {
    "latency": "Seconds from the first call of a key to its outcome",
    "attempt_latency": "Seconds of each call",
}

BOUNDS = [2.0**power for power in range(-10, 7)]
"""Seconds, from 1 ms to a minute: powers of two, because the buckets of `Histogram` begin there."""

Labels = Mapping[str, str]


def exposition(
    lookups: Sequence[tuple[Lookup, EnrichmentFigures]], in_flight: Mapping[str, int], budgets: Iterable[Any]
) -> str:
    """The text.

    Args:
        in_flight: calls that run now, by the label of their lookup.
        budgets: as the live page has them.
    """
    of = [({"lookup": lookup.label}, figures) for lookup, figures in lookups]
    lines: list[str] = []
    for name, what in GAUGES.items():
        lines += _family(name, "gauge", what, ((name, labels, getattr(one, name)) for labels, one in of))
    running = (("in_flight", labels, in_flight.get(labels["lookup"], 0)) for labels, _ in of)
    lines += _family("in_flight", "gauge", "Calls that run now", running)
    for name, what in COUNTERS.items():
        samples = ((f"{name}_total", labels, getattr(one, name)) for labels, one in of)
        lines += _family(f"{name}_total", "counter", what, samples)
    errors = (
        ("errors_total", labels | {"type": kind}, count) for labels, one in of for kind, count in one.errors.items()
    )
    lines += _family("errors_total", "counter", "Failed attempts for keys, by the type of their error", errors)
    for name, what in HISTOGRAMS.items():
        full = f"{name}_seconds"
        of_each = (sample for labels, one in of for sample in _buckets(full, labels, getattr(one, name)))
        lines += _family(full, "histogram", what, of_each)
    units = [
        ({"budget": one["name"], "unit": unit}, amounts) for one in budgets for unit, amounts in one["units"].items()
    ]
    for name in ("allowed", "used", "reserved", "refused"):
        samples = ((f"budget_{name}", labels, amounts[name]) for labels, amounts in units)
        lines += _family(f"budget_{name}", "gauge", f"Units of a budget: {name}", samples)
    return "\n".join([*lines, ""])


def _family(name: str, kind: str, what: str, samples: Iterable[tuple[str, Labels, float | None]]) -> list[str]:
    """A metric with its samples; nothing if there are none."""
    lines = [_sample(*sample) for sample in samples if sample[2] is not None]
    return [f"# HELP {PREFIX}_{name} {what}", f"# TYPE {PREFIX}_{name} {kind}", *lines] if lines else []


def _sample(name: str, labels: Labels, value: Any) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{PREFIX}_{name}{{{written}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _buckets(name: str, labels: Labels, histogram: Histogram) -> Iterator[tuple[str, Labels, float]]:
    counts, total = histogram.below(BOUNDS), histogram.count
    for bound, count in zip(BOUNDS, counts, strict=True):
        yield f"{name}_bucket", {**labels, "le": repr(bound)}, count
    yield f"{name}_bucket", {**labels, "le": "+Inf"}, total
    yield f"{name}_sum", labels, histogram.sum
    yield f"{name}_count", labels, total
