"""The figures of runs. A figure is one line in a class of statistics, with its kind, its title and its help text.

`FIGURES` is the table of these lines. What a run counts (`Figures`), what a task reports, the sums on the driver, the
statistics, the tables, the live page, and the metrics of Prometheus and OpenTelemetry are made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from asyncio_operator.metrics import Histogram, Latency

if TYPE_CHECKING:
    from asyncio_operator.view.tables import Row

PERCENTILES = ("p50", "p95", "p99", "max")  # The fields of `Latency`.

S = TypeVar("S", bound="OperatorStatistics")


class Kind(Enum):
    """What a figure counts. Tables show the kinds in this order."""

    ROWS = auto()
    """Input rows. Their number may fall: rows of an attempt that has failed are counted by the next one."""
    ANSWERS = auto()
    """Keys that were answered without a call of their own."""
    CALLS = auto()
    NOW = auto()
    """Calls that run now. They are not added up."""
    KEYS = auto()
    SECONDS = auto()
    LATENCIES = auto()
    """A `Histogram` while it is counted, and a `Latency` in statistics."""
    ERRORS = auto()
    """Numbers by the type of the error."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table.

    Attributes:
        title: what tables call it; "" if they do not show it.
        help: what a metric says about it.
        always: whether tables show it when it is 0.
    """

    kind: Kind
    title: str
    help: str
    always: bool = False


_COUNTED: dict[Kind, Callable[[], Any]] = {Kind.SECONDS: float, Kind.LATENCIES: Histogram, Kind.ERRORS: Counter}
_SHOWN: dict[Kind, Callable[[], Any]] = {Kind.SECONDS: float, Kind.LATENCIES: Latency, Kind.ERRORS: dict}


def figure(kind: Kind, title: str, what: str, always: bool = False) -> Any:
    """A field of statistics that is a line of the table."""
    return field(default_factory=_SHOWN.get(kind, int), metadata={"figure": Figure(kind, title, what, always)})


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """The figures of an operator's latest run. They count records, not watermarks.

    Attributes:
        admitted: elements read from the input.
        emitted: elements whose outputs were all passed on, including `skipped` ones.
        in_flight: calls that run now.
        buffered: elements admitted and not yet emitted.
        backing_off: elements that wait for their next attempt.
        retries: attempts beyond the first of an element.
        timeouts: elements that passed their deadline.
        failures: elements that ended in an error, whatever `on_error` is.
        skipped: elements dropped by ``on_error="skip"``.
        backpressure_seconds: time in which no input was read because the buffer was full.
        latency: from admission to completion of an element.
        attempt_latency: from start to end of a call; every call counts, except those that the end of the run cancels.
        hedged: slow calls that were made a second time.
        hedges_won: second calls that gave the answer.
        cache_hits: elements whose result was in the cache.
        shared: elements that took the outcome of a call for an earlier element of their key.
    """

    admitted: int = 0
    emitted: int = 0
    in_flight: int = figure(Kind.NOW, "calls in flight", "Calls that run now")
    buffered: int = 0
    backing_off: int = 0
    retries: int = figure(Kind.KEYS, "retries", "Attempts beyond the first of a key")
    timeouts: int = figure(Kind.KEYS, "keys timed out", "Keys that passed their deadline")
    failures: int = figure(Kind.ROWS, "failed", "Input rows whose lookup failed or timed out", True)
    skipped: int = figure(Kind.ROWS, "of these dropped", "Failed rows that were dropped")
    backpressure_seconds: float = 0.0
    # The linter takes the type of these two for that of the default, which is a field.
    latency: Latency = figure(Kind.LATENCIES, "", "Seconds from the first call of a key to its outcome")  # noqa: RUF009
    attempt_latency: Latency = figure(Kind.LATENCIES, "call", "Seconds of each call")  # noqa: RUF009
    hedged: int = figure(Kind.CALLS, "calls hedged", "Slow calls that were made a second time")
    hedges_won: int = figure(Kind.CALLS, "of these won", "Second calls that gave the answer")
    cache_hits: int = figure(Kind.ANSWERS, "keys from the cache", "Keys that were answered from the cache")
    shared: int = figure(Kind.ANSWERS, "keys shared", "Keys that took the outcome of a call that already ran")

    def _repr_html_(self) -> str:
        """A table for a notebook."""
        # Imported here: only a notebook needs it.
        from asyncio_operator.view.tables import html_table

        rows = []
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Latency):
                shown = ", ".join(f"{part} {1000 * getattr(value, part):,.2f} ms" for part in PERCENTILES)
            else:
                shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            rows.append((name, [shown]))
        return html_table([""], rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentStatistics(OperatorStatistics):
    """The figures of enrichments: all tasks together, or a part of them.

    `admitted` and `emitted` count input rows. `latency` measures keys, from their first call to their outcome, waits
    between attempts included; `timeout` limits it. `attempt_latency` measures calls; `attempt_timeout` limits it.
    `in_flight` is that of tasks that have reported in the last seconds. Always 0, because they are not measured here:
    `buffered`, `backing_off` and `backpressure_seconds`.

    Attributes:
        rows: input rows.
        found, missing: input rows with a match, and without one.
        failures: input rows whose lookup failed or timed out. `skipped`: those of them that were dropped.
        cache_hits: distinct keys of batches that were found in the cache.
        journal_hits: distinct keys of batches whose answer the journal had.
        shared: keys that took the outcome of a call that already ran.
        calls: calls of the enricher, copies of slow ones included.
        retries: attempts beyond the first of a key.
        timeouts: keys that passed their deadline.
        budget_seconds: seconds in which calls waited for a budget.
        errors: failed attempts for keys, by the type of their error; those that were repeated too.
    """

    rows: int = figure(Kind.ROWS, "rows", "Input rows", True)
    found: int = figure(Kind.ROWS, "found", "Input rows with a match", True)
    missing: int = figure(Kind.ROWS, "missing", "Input rows without a match", True)
    calls: int = figure(Kind.CALLS, "calls", "Calls of the enricher", True)
    journal_hits: int = figure(Kind.ANSWERS, "keys from the journal", "Keys that were answered from the journal")
    budget_seconds: float = figure(
        Kind.SECONDS, "s of waits for a budget", "Seconds in which calls waited for a budget"
    )
    errors: Mapping[str, int] = figure(Kind.ERRORS, "errors", "Failed attempts for keys, by the type of their error")

    def _repr_html_(self) -> str:
        from asyncio_operator.view.tables import html_table

        return html_table([""], rows_of_figures([self]))

    def __str__(self) -> str:
        text = ", ".join(f"{cells[0]} {title}" for title, cells in rows_of_figures([self], latencies=False))
        if not self.calls:
            return text
        latency = (f"{name} {getattr(self.latency, name) * 1000:.2f} ms" for name in PERCENTILES)
        return f"{text}, latency of keys: {', '.join(latency)}"


FIGURES: dict[str, Figure] = {
    f.name: f.metadata["figure"]
    for f in sorted(
        (f for f in fields(EnrichmentStatistics) if f.metadata),
        key=lambda f: (f.metadata["figure"].kind.value, f in fields(OperatorStatistics)),
    )
}
"""The table of all figures, in the order in which they are shown."""

COUNTED = tuple(name for name, one in FIGURES.items() if one.kind is not Kind.NOW)
"""The figures that can be added up: those of one task, or of several."""

NUMBERS = tuple(name for name in COUNTED if FIGURES[name].kind not in (Kind.LATENCIES, Kind.ERRORS))
"""Those of them that are one number each."""


class Figures:
    """What is added up: the figures of a run as it counts them, of one task, or of several. It has all of `COUNTED`.

    The thread of a run writes. Any thread may read.
    """

    __slots__ = COUNTED

    if TYPE_CHECKING:
        latency: Histogram
        attempt_latency: Histogram
        errors: Counter[str]

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **given: Any) -> None:
        for name in COUNTED:
            setattr(self, name, _COUNTED.get(FIGURES[name].kind, int)())
        for name, value in given.items():
            setattr(self, name, value)

    def add(self, other: Figures) -> None:
        for name in COUNTED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.merge(theirs)
            else:
                setattr(self, name, mine + theirs)

    def subtract(self, other: Figures) -> None:
        """Remove figures that were added before."""
        for name in COUNTED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.subtract(theirs)
            else:
                setattr(self, name, mine - theirs)

    def statistics(self, kind: type[S], **others: Any) -> S:
        """The statistics of this kind, with percentiles instead of histograms.

        Args:
            others: the fields that are no figures.
        """
        for name in {f.name for f in fields(kind)}.intersection(COUNTED):
            value = getattr(self, name)
            others[name] = value.percentiles() if isinstance(value, Histogram) else value
        return kind(**others)

    def as_json(self) -> dict[str, Any]:
        """The figures that are not 0."""
        found = {name: getattr(self, name) for name in COUNTED}
        histograms = {n: one.as_json() for n, one in found.items() if isinstance(one, Histogram) and one.count}
        return {n: one for n, one in found.items() if one and not isinstance(one, Histogram)} | histograms

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Figures:
        """From the result of `as_json`."""
        read: dict[type, Callable[[Any], Any]] = {list: Histogram.of_json, dict: Counter}
        return cls(**{n: read.get(type(one), lambda number: number)(one) for n, one in values.items()})


def rows_of_figures(columns: Sequence[EnrichmentStatistics], latencies: bool = True) -> list[Row]:
    """The figures that are not 0 everywhere, with percentiles of latencies if `latencies` is set."""
    rows: list[Row] = []
    for name, one in FIGURES.items():
        values = [getattr(column, name) for column in columns]
        if one.kind is Kind.ERRORS:
            kinds = sorted({kind for counts in values for kind in counts})
            rows += [(f"{one.title}: {kind}", [f"{counts.get(kind, 0):,}" for counts in values]) for kind in kinds]
        elif one.kind is Kind.LATENCIES:
            for part in PERCENTILES if latencies and one.title and any(column.calls for column in columns) else ():
                cells = [f"{1000 * getattr(value, part):,.2f}" for value in values]
                rows.append((f"{one.title} {part}, ms", cells))
        elif one.always or any(values):
            rows.append(
                (one.title, [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in values])
            )
    return rows
