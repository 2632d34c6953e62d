"""The figures of a ledger as text for Prometheus, in its exposition format 0.0.4.

What may get smaller is a gauge: rows of an attempt that has failed are counted by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncio_operator.figures import FIGURES, Figures, Kind
from asyncio_operator.metrics import Histogram
from asyncio_operator.spark.driver.ledger import Lookup

PREFIX = "asyncio_operator"

BOUNDS = [2.0**power for power in range(-10, 7)]
"""Seconds, from 1 ms to a minute: powers of two, because the buckets of `Histogram` begin there."""

Labels = Mapping[str, str]


def exposition(lookups: Sequence[tuple[Lookup, Figures]], in_flight: Mapping[str, int], budgets: Iterable[Any]) -> str:
    """The text.

    Args:
        in_flight: calls that run now, by the label of their lookup.
        budgets: as the live page has them.
    """
    of = [({"lookup": lookup.label}, figures) for lookup, figures in lookups]
    lines: list[str] = []
    for name, figure in FIGURES.items():
        if figure.kind is Kind.ROWS:
            lines += _family(name, "gauge", figure.help, ((name, labels, getattr(one, name)) for labels, one in of))
        elif figure.kind is Kind.NOW:
            now = ((name, labels, in_flight.get(labels["lookup"], 0)) for labels, _ in of)
            lines += _family(name, "gauge", figure.help, now)
        elif figure.kind is Kind.LATENCIES:
            full = f"{name}_seconds"
            samples = (sample for labels, one in of for sample in _buckets(full, labels, getattr(one, name)))
            lines += _family(full, "histogram", figure.help, samples)
        else:
            full = f"{name}_total"
            samples = (
                (full, labels | more, count) for labels, one in of for more, count in _counts(getattr(one, name))
            )
            lines += _family(full, "counter", figure.help, samples)
    units = [
        ({"budget": one["name"], "unit": unit}, amounts) for one in budgets for unit, amounts in one["units"].items()
    ]
    for name in ("allowed", "used", "reserved", "refused"):
        samples = ((f"budget_{name}", labels, amounts[name]) for labels, amounts in units)
        lines += _family(f"budget_{name}", "gauge", f"Units of a budget: {name}", samples)
    return "\n".join([*lines, ""])


def _counts(value: Any) -> Iterator[tuple[dict[str, str], float]]:
    """The numbers of a figure: one, or one for each type of error."""
    if isinstance(value, Mapping):
        yield from (({"type": kind}, count) for kind, count in value.items())
    else:
        yield {}, value


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
