"""The span and the metrics of a call, and the figures of runs as metrics.

Source of the names: OpenTelemetry's semantic conventions for HTTP clients and for databases. A call of anything else is
an internal span with the name of what is called. A duration is recorded while its span is the current one, so that the
SDK can keep the trace of a slow call as an exemplar.

Figures of runs are sums over those that have ended in this process, and those that go on. They are read when a reader
of metrics asks, on its thread. So they cost a run nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from opentelemetry import context as api_context
from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import SpanKind, StatusCode

from asyncio_operator.clock import monotonic, time_left
from asyncio_operator.errors import EnricherError, describe, first_of, text_of
from asyncio_operator.figures import FIGURES, Figures, Kind
from asyncio_operator.telemetry.annotations import HTTP_STATUS, Attributes, Notes

SCOPE = "asyncio_operator"  # The name of the instrumentation, and the beginning of the names of its metrics.
LONGEST_TEXT = 500  # Characters of an error in a span.


_HTTP: tuple[str, ...] = ("http.request.method", HTTP_STATUS, "server.address", "server.port", "url.template")
_DATABASE: tuple[str, ...] = (
    "db.system.name",
    "db.namespace",
    "db.collection.name",
    "db.operation.name",
    "server.address",
    "server.port",
)
# As the conventions advise them.
_HTTP_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
_DATABASE_BUCKETS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]


class Instruments:
    """The metrics of calls: one set for a process, whose API passes them on to whatever provider is set."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE)
        self.calls = meter.create_counter(f"{SCOPE}.calls", "{call}", "Calls that have ended")
        self.errors = meter.create_counter(f"{SCOPE}.errors", "{call}", "Calls that have failed")
        self.in_flight = meter.create_up_down_counter(f"{SCOPE}.calls.in_flight", "{call}", "Calls that run now")
        self.duration = meter.create_histogram(f"{SCOPE}.call.duration", "s", "Durations of calls")
        self.http = meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_HTTP_BUCKETS,
        )
        self.database = meter.create_histogram(
            "db.client.operation.duration",
            "s",
            "Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_DATABASE_BUCKETS,
        )


instruments = cache(Instruments)


class ObservedCalls:
    """The calls of a run, which have these attributes in common. `many`: `invoke` takes a list of keys."""

    def __init__(self, invoke: Callable[[Any], Awaitable[Any]], name: str, attributes: Attributes, many: bool) -> None:
        self._invoke = invoke
        self._many = many
        self._tracer = trace.get_tracer(SCOPE)
        self._instruments = instruments()
        self._labels = {f"{SCOPE}.called": name}
        self._attributes = {**self._labels, **attributes}
        self._database = "db.system.name" in attributes
        # As the conventions ask for: what is done, and to what, with few different names in all.
        parts = ("http.request.method", "url.template", "db.operation.name", "db.collection.name")
        self._name = " ".join(str(attributes[part]) for part in parts if part in attributes) or name
        outside = self._database or "http.request.method" in attributes
        self._kind = SpanKind.CLIENT if outside else SpanKind.INTERNAL

    async def call(self, value: Any) -> Any:
        """The call, with its span."""
        instruments, labels = self._instruments, self._labels
        keys = len(value) if self._many else 1
        own = {**self._attributes, f"{SCOPE}.keys": keys}
        if keys == 1:
            own[f"{SCOPE}.key"] = describe(value[0] if self._many else value)
        elif self._database:
            own["db.operation.batch.size"] = keys
        span = self._tracer.start_span(self._name, kind=self._kind, attributes=own)
        notes = Notes()
        said = notes.said
        token = api_context.attach(trace.set_span_in_context(span))
        instruments.in_flight.add(1, labels)
        started = monotonic()
        try:
            with notes:
                return await self._invoke(value)
        except BaseException as error:
            problem = str(said.setdefault("error.type", _error_type(error, said)))
            labels = {**labels, "error.type": problem}
            try:
                text = text_of(error, LONGEST_TEXT)
            except BaseException:  # What its `__str__` raises must not take the place of the error.
                text = ""
            span.set_status(StatusCode.ERROR, text)
            instruments.errors.add(1, labels)
            raise
        finally:
            duration = monotonic() - started
            instruments.duration.record(duration, labels)
            # The metric that the conventions require, with their attributes and no others.
            found: dict[str, Any] = {**self._attributes, **said}
            http = "http.request.method" in found
            if http or self._database:
                instrument, names = (instruments.http, _HTTP) if http else (instruments.database, _DATABASE)
                instrument.record(duration, {name: found[name] for name in (*names, "error.type") if name in found})
            instruments.calls.add(1, labels)
            instruments.in_flight.add(-1, self._labels)
            # Another context resets it only if the loop is gone.
            with contextlib.suppress(ValueError):
                api_context.detach(token)
            span.set_attributes(said)
            span.end()


def _error_type(error: BaseException, said: dict[str, Any]) -> str:
    """The status of an HTTP answer that is an error, else the name of the error behind it."""
    status = said.get(HTTP_STATUS, 0)
    if isinstance(status, int) and status >= 400:
        return str(status)
    if isinstance(error, asyncio.CancelledError):
        left = time_left()
        return "timeout" if left is not None and left <= 0 else "cancelled"
    error = first_of(error)
    cause = error.__cause__ if isinstance(error, EnricherError) and error.__cause__ is not None else error
    kind = type(cause)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


UNITS = {Kind.ANSWERS: "{key}", Kind.KEYS: "{key}", Kind.CALLS: "{call}", Kind.SECONDS: "s"}
"""The kinds of figures that are metrics here, with their units."""

EXPORTED = [name for name, one in FIGURES.items() if one.kind in UNITS and name != "calls"]  # `spans` counts calls.

Read = Callable[[], Figures]


class Sums:
    """The sums of this process, by the name of what is called."""

    def __init__(self) -> None:
        self._ended: dict[str, Counter[str]] = {}
        self._running: dict[object, tuple[str, Read]] = {}
        self._lock = threading.Lock()
        meter = metrics.get_meter(SCOPE)
        for name in EXPORTED:
            figure, callback = FIGURES[name], partial(self._observe, name)
            dotted = f"{SCOPE}.{name.replace('_', '.')}"
            meter.create_observable_counter(dotted, [callback], UNITS[figure.kind], figure.help)

    @contextmanager
    def running(self, name: str, read: Read) -> Iterator[None]:
        """Count a run while it goes on, and what it has done afterwards."""
        mark = object()
        self._running[mark] = name, read
        try:
            yield
        finally:
            figures = read()
            counted = {figure: getattr(figures, figure) for figure in EXPORTED}
            # In one step: in between, a reader would count the run twice.
            with self._lock:
                self._ended.setdefault(name, Counter()).update(counted)
                del self._running[mark]

    def _observe(self, figure: str, _options: CallbackOptions) -> list[Observation]:
        with self._lock:
            sums = Counter({name: ended[figure] for name, ended in self._ended.items()})
            running = list(self._running.values())
        for name, read in running:
            sums[name] += getattr(read(), figure)
        return [Observation(total, {f"{SCOPE}.called": name}) for name, total in sums.items()]


sums = cache(Sums)
