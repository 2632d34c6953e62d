"""What a live page shows: the figures of a ledger once a second, with those of budgets, and the slowest keys of traces.

A sample has totals, so the page computes rates from any two, and a lost one does no harm. Percentiles are those of the
last `WINDOW` samples. Everything here is plain data for JSON.

Prometheus gets the figures as text, in its exposition format 0.0.4. What may get smaller is a gauge: rows of an attempt
that has failed are counted by the next one.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from asyncio_operator.budget.spec import Budget
from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import StateError
from asyncio_operator.figures import FIGURES, NUMBERS, Figures, Kind
from asyncio_operator.metrics import Histogram
from asyncio_operator.spark.driver.ledger import MOST_TASKS, Ledger, Lookup, TaskView
from asyncio_operator.trace import Trace
from asyncio_operator.trace.stories import slowest

KEPT = 900
"""Samples that are kept: a quarter of an hour."""

WINDOW = 5
"""Samples over which percentiles are computed. With fewer, they jump; with more, a change shows late."""

SLOWEST = 20
"""Keys of each trace that are shown."""

LATER = 30.0
"""Seconds until a budget that did not answer is queried again."""

SHOWN = [
    (name, one.title, one.kind.name, one.always) for name, one in FIGURES.items() if name in (*NUMBERS, "in_flight")
]
"""What the page needs to know of each figure that is a number."""

FIELDS = ("time", "in_flight", *NUMBERS, "refused", "p50", "p95", "p99")
"""The numbers of a sample: seconds since the epoch, totals, calls that a circuit breaker refused, and percentiles in
milliseconds."""


class LiveSamples:
    """Takes samples of a ledger. `take` is called by one thread, and `page` by any.

    Args:
        time: returns seconds since the epoch.
    """

    def __init__(self, ledger: Ledger, time: Clock = wall, clock: Clock = monotonic) -> None:
        self._ledger = ledger
        self._time = time
        self._clock = clock
        self._lock = threading.Lock()
        self._number = 0
        self._samples: dict[str, deque[tuple[int, list[float]]]] = {}
        self._before: dict[str, deque[Histogram]] = {}
        self._budgets: dict[str, dict[str, Any]] = {}
        self._used: dict[str, deque[tuple[int, list[Any]]]] = {}
        self._not_before: dict[str, float] = {}
        self._slowest: dict[str, list[dict[str, Any]]] = {}
        self._traces: dict[str, tuple[int, int, int]] = {}

    def take(self) -> None:
        """Take a sample."""
        calls, lookups = _in_flight(self._ledger.tasks()), self._ledger.lookups()
        now = self._time()
        budgets = {one.budget.name: one.budget for one, _ in lookups if one.budget is not None}
        # Outside of the lock: a coordinator may take its time, and so may a long trace.
        asked = {name: self._asked(budget) for name, budget in budgets.items()}
        found = self._slowest_now([lookup for lookup, _ in lookups], calls)
        with self._lock:
            self._number += 1
            self._slowest |= found
            for lookup, figures in lookups:
                sample = self._sample(lookup.label, figures, calls[lookup.label], now)
                self._samples.setdefault(lookup.label, deque(maxlen=KEPT)).append((self._number, sample))
            for gone in self._samples.keys() - {lookup.label for lookup, _ in lookups}:
                del self._samples[gone], self._before[gone]
                self._slowest.pop(gone, None)
                self._traces.pop(gone, None)
            for gone in self._budgets.keys() - budgets.keys():
                del self._budgets[gone], self._used[gone]
            for name, budget in asked.items():
                if budget is not None:
                    self._budgets[name] = budget
                    used = {unit: [one["used"], one["allowed"]] for unit, one in budget["units"].items()}
                    self._used.setdefault(name, deque(maxlen=KEPT)).append((self._number, [now, used]))

    def _slowest_now(self, lookups: list[Lookup], calls: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
        """The slowest keys of traces that have changed: of a new lookup and of one without calls at once, else every
        `WINDOW` samples."""
        found: dict[str, list[dict[str, Any]]] = {}
        for lookup in lookups:
            trace, label = lookup.trace, lookup.label
            if trace is None or (label in self._traces and calls[label] and self._number % WINDOW):
                continue
            state = id(trace), trace.runs, trace.size
            if self._traces.get(label) != state:
                self._traces[label] = state
                found[label] = _slowest_keys(trace)
        return found

    def _sample(self, label: str, figures: Figures, calls: int, now: float) -> list[float]:
        before = self._before.setdefault(label, deque(maxlen=WINDOW))
        recent = Histogram()
        recent.merge(figures.attempt_latency)
        # After a reset of the metrics there are fewer samples than before.
        if before and before[0].count <= recent.count:
            recent.subtract(before[0])
        before.append(figures.attempt_latency)
        latency = recent.percentiles() if recent.count else Histogram().percentiles()
        totals = [getattr(figures, name) for name in NUMBERS]
        refused = figures.errors["CircuitOpenError"]
        return [now, calls, *totals, refused, *(round(1000 * p, 3) for p in (latency.p50, latency.p95, latency.p99))]

    def _asked(self, budget: Budget) -> dict[str, Any] | None:
        if self._clock() < self._not_before.get(budget.name, 0.0):
            return None
        try:
            found = budget.statistics()
        except Exception:
            # Its coordinator may be away, or no task has asked it yet.
            self._not_before[budget.name] = self._clock() + LATER
            return None
        units = {
            unit: {"allowed": one.allowed, "used": one.used, "reserved": one.reserved, "refused": one.refused}
            for unit, one in found.units.items()
        }
        return {"name": budget.name, "units": units, "workers": found.workers, "paused_for": found.paused_for}

    def exposition(self) -> str:
        """The figures as they are now, for Prometheus."""
        lookups, calls = self._ledger.lookups(), _in_flight(self._ledger.tasks())
        with self._lock:
            budgets = [*self._budgets.values()]
        return exposition(lookups, calls, budgets)

    def page(self, after: int = 0) -> dict[str, Any]:
        """The figures for a page that has all samples up to number `after`."""
        lookups, tasks = self._ledger.lookups(), self._ledger.tasks()
        calls = _in_flight(tasks)
        with self._lock:
            return {
                "number": self._number,
                "fields": FIELDS,
                "figures": SHOWN,
                "lookups": [
                    {
                        "label": lookup.label,
                        "totals": _totals(figures, calls[lookup.label]),
                        "errors": dict(figures.errors.most_common(SLOWEST)),
                        "samples": _later(self._samples.get(lookup.label), after),
                        "slowest": self._slowest.get(lookup.label),
                    }
                    for lookup, figures in lookups
                ],
                "running": len({one.origin.attempt for one in tasks if one.state == "running"}),
                "tasks": [_task(one) for one in tasks[:MOST_TASKS]],
                "budgets": [one | {"samples": _later(self._used[name], after)} for name, one in self._budgets.items()],
            }


def _later(samples: deque[tuple[int, Any]] | None, after: int) -> list[Any]:
    return [sample for number, sample in samples or () if number > after]


def _in_flight(tasks: Iterable[TaskView]) -> Counter[str]:
    """Calls that run now, by the label of their lookup."""
    calls = Counter[str]()
    for task in tasks:
        calls[task.label] += task.in_flight
    return calls


def _totals(figures: Figures, in_flight: int) -> dict[str, Any]:
    numbers = {name: getattr(figures, name) for name in NUMBERS}
    numbers |= {"in_flight": in_flight, "keys_called": figures.latency.count}
    for name in ("latency", "attempt_latency"):
        found = getattr(figures, name).percentiles()
        numbers |= {f"{name}_{part}": round(1000 * getattr(found, part), 3) for part in ("p50", "p95", "p99", "max")}
    return numbers


def _task(task: TaskView) -> dict[str, Any]:
    figures, origin = task.figures, task.origin
    return {
        "lookup": task.label,
        "stage": origin.stage,
        "partition": origin.partition,
        "attempt": origin.attempt,
        "state": task.state,
        "age": round(task.age, 1),
        "rows": figures.rows,
        "calls": figures.calls,
        "in_flight": task.in_flight,
        "retries": figures.retries,
        "failures": figures.failures,
        "p99": round(1000 * figures.attempt_latency.percentiles().p99, 3),
    }


def _slowest_keys(trace: Trace) -> list[dict[str, Any]]:
    with suppress(StateError):  # It is empty.
        return [
            {
                "key": one.life.key or one.life.value,
                "milliseconds": round(1000 * one.seconds, 3),
                "attempts": len(one.life.calls),
                "outcome": one.life.outcome or "running",
                "error": one.error,
            }
            for one in slowest(trace.story(), SLOWEST)
        ]
    return []


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
