"""Global providers of OpenTelemetry for one test. The API lets a process set each of them only once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry import metrics, trace
from opentelemetry.metrics import _internal as metrics_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from asyncio_operator.telemetry import propagation


class Seen(NamedTuple):
    """What was exported."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def metric(self, name: str, **labels: str) -> list[Any]:
        """The points of a metric whose attributes have these values."""
        wanted = {name.replace("__", "."): value for name, value in labels.items()}
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if wanted.items() <= dict(point.attributes or {}).items()
        ]


@contextmanager
def telemetry() -> Iterator[Seen]:
    """Real providers of traces and metrics, whose exporters keep everything in memory."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    try:
        yield Seen(exporter, reader)
    finally:
        forget()
        meters.shutdown()


def forget() -> None:
    """As if no provider had been set."""
    from asyncio_operator.telemetry import spans

    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()
    metrics_api._METER_PROVIDER, metrics_api._METER_PROVIDER_SET_ONCE = None, Once()
    spans.instruments.cache_clear()
    spans.sums.cache_clear()
    propagation._chosen = None
