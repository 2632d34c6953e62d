"""Law V4: with OpenTelemetry, calls are spans and metrics of the global providers; without it nothing is imported."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from asyncio_operator import AsyncWaitOperator, BatchAsyncFunction, Batching, Cache, EnricherError, Retry
from asyncio_operator.enricher import annotate
from asyncio_operator.figures import Figures
from asyncio_operator.lookup import Lookup
from asyncio_operator.telemetry import calls
from asyncio_operator.telemetry.calls import observed
from asyncio_operator.telemetry.propagation import in_task
from asyncio_operator.testing import FakeService, VirtualTimeLoop
from enrichers import HttpEnricher, SqlEnricher, enricher
from tests.enrichers.helpers import in_sqlite
from tests.telemetry.helpers import Seen, telemetry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def seen() -> Iterator[Seen]:
    with telemetry() as seen:
        yield seen


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def fetch(number: int) -> int:
    await asyncio.sleep(0.01)
    if number < 0:
        raise ValueError(f"no number below 0: {number}")
    return 2 * number


def run_of(operator: AsyncWaitOperator, values: list[Any]) -> list[Any]:
    async def collected() -> list[Any]:
        return [output async for output in operator.process(values)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(collected())


# -- without it


def test_V4_without_a_provider_a_run_calls_its_own_function() -> None:
    assert observed(fetch, "fetch") is fetch


def test_V4_a_provider_of_the_environment_that_cannot_be_loaded_fails_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "_logged", set())
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "no_such_provider")
    for _ in range(2):
        assert run_of(AsyncWaitOperator(fetch), [1]) == [2]
    assert caplog.text.count("OpenTelemetry has no provider for opentelemetry.trace") == 1


def test_V4_a_provider_that_cannot_export_fails_no_task_and_is_logged_once(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise OSError("no collector")

    monkeypatch.setattr(calls, "_logged", set())
    monkeypatch.setattr(trace.get_tracer_provider(), "force_flush", fails, raising=False)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        with in_task(None):
            assert run_of(AsyncWaitOperator(fetch), [1]) == [2]
    assert len(seen.spans) == 2
    assert caplog.text.count("no collector") == 1


def test_V4_nothing_of_it_is_imported_by_runs_lookups_and_enrichers() -> None:
    program = """
import asyncio, sys
from asyncio_operator import AsyncWaitOperator
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeService
from enrichers import HttpEnricher

async def fetch(number):
    return number

async def looked_up(url):
    async with Lookup(HttpEnricher(url + "/rows/{key}", schema="name string")) as lookup:
        return await lookup.get("a")

assert list(AsyncWaitOperator(fetch)(range(9))) == list(range(9))
with FakeService({"a": {"name": "A"}}) as service:
    assert asyncio.run(looked_up(service.url)) == {"name": "A"}
found = sorted(name for name in set(sys.modules) if name.startswith("opentelemetry"))
mine = [name for name in ("spans",) if "asyncio_operator.telemetry." + name in sys.modules]
print(found, mine)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


# -- spans of functions


def test_V4_calls_of_functions_are_spans_of_their_name_below_the_span_around_the_run(seen: Seen) -> None:
    with trace.get_tracer("test").start_as_current_span("job") as job:
        assert run_of(AsyncWaitOperator(fetch, capacity=3), [1, 2, 3, 4]) == [2, 4, 6, 8]
    calls = [span for span in seen.spans if span.name != "job"]
    assert len(calls) == 4
    for span in calls:
        assert "fetch" in span.name
        assert (span.kind, parent(span)) == (SpanKind.INTERNAL, job.get_span_context().span_id)
        assert span.status.status_code is StatusCode.UNSET
    assert sorted(attributes(span)["asyncio_operator.key"] for span in calls) == ["1", "2", "3", "4"]


def test_V4_spans_that_a_call_opens_are_below_its_own_and_no_other(seen: Seen) -> None:
    async def nested(number: int) -> int:
        with trace.get_tracer("test").start_as_current_span(f"step {number}"):
            await asyncio.sleep(0.01)
        return number

    run_of(AsyncWaitOperator(nested, capacity=2), [1, 2, 3])
    steps = {span.name: span for span in seen.spans if span.name.startswith("step")}
    calls = {attributes(span)["asyncio_operator.key"]: span for span in seen.spans if span.name not in steps}
    for key, span in calls.items():
        assert span.context is not None
        assert parent(steps[f"step {key}"]) == span.context.span_id
        assert span.parent is None


def test_V4_an_error_a_retry_and_a_timeout_are_told_by_their_spans(seen: Seen) -> None:
    failing = AsyncWaitOperator(fetch, retry=Retry(2, on=ValueError), on_error="skip")
    assert run_of(failing, [-1]) == []
    first, second = seen.spans
    for span in (first, second):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no number below 0: -1")
        assert attributes(span)["error.type"] == "ValueError"
    seen.exporter.clear()
    run_of(AsyncWaitOperator(fetch, timeout=0.005, on_error="skip"), [1])
    assert [attributes(span)["error.type"] for span in seen.spans] == ["timeout"]


def test_V4_an_error_without_a_text_and_a_status_that_is_text_stay_what_they_are(seen: Seen) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def fails(number: int) -> int:
        annotate(lambda: {"http.response.status_code": "503"})
        raise MuteError

    assert run_of(AsyncWaitOperator(fails, retry=Retry(2, on=MuteError), on_error="skip"), [1]) == []
    assert [attributes(span)["error.type"].rpartition(".")[2] for span in seen.spans] == ["MuteError"] * 2


def test_V4_a_batch_is_one_span_with_its_number_of_keys(seen: Seen) -> None:
    class Doubled(BatchAsyncFunction[int, int]):
        async def invoke_batch(self, values: Any) -> list[int]:
            return [2 * value for value in values]

    run_of(AsyncWaitOperator(Doubled(), batching=Batching(10)), [*range(10)])
    [span] = seen.spans
    assert attributes(span)["asyncio_operator.keys"] == 10
    assert "db.operation.batch.size" not in attributes(span)


# -- spans of enrichers, and their durations

LAST = ("error.type", "http.response.status_code")


def durations(seen: Seen, of: str, what: str = "request") -> list[dict[str, Any]]:
    """The attributes of the metric of the conventions."""
    points = seen.metric(f"{of}.{what}.duration")
    assert all(point.count == 1 and (of != "db.client" or 0.001 in point.explicit_bounds) for point in points)
    return [dict(point.attributes) for point in points]


async def rows(enricher: Any, keys: list[Any], **options: Any) -> list[Any]:
    async with Lookup(enricher, **options) as lookup:
        return await asyncio.gather(*[lookup.get(key) for key in keys], return_exceptions=True)


async def test_V4_a_request_has_the_attributes_of_http_and_no_value_of_its_query(seen: Seen) -> None:
    async with FakeService({"a b": {"name": "A"}}) as service:
        url = service.url.replace("http://", "http://user:hunter2@") + "/rows/{key}?api_key=s3cret&lang=en&t0k3n-alone"
        assert await rows(HttpEnricher(url, schema="name string"), ["a b", "none"]) == [{"name": "A"}, None]
        port = int(service.url.rpartition(":")[2])
    one, none = seen.spans if "a%20b" in str(attributes(seen.spans[0])["url.full"]) else seen.spans[::-1]
    assert one.name == "GET /rows/{key}"
    assert one.kind is SpanKind.CLIENT
    assert attributes(one) == {
        "asyncio_operator.called": attributes(one)["asyncio_operator.called"],
        "asyncio_operator.key": "'a b'",
        "asyncio_operator.keys": 1,
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": port,
        "url.full": f"http://127.0.0.1:{port}/rows/a%20b?api_key=REDACTED&lang=REDACTED&REDACTED",
        "url.template": "/rows/{key}",
    }
    assert "hunter2" not in one.to_json()
    assert "s3cret" not in one.to_json()
    assert "t0k3n" not in one.to_json()
    # A miss is no error.
    assert attributes(none)["http.response.status_code"] == 404
    assert none.status.status_code is StatusCode.UNSET
    called = {"http.request.method": "GET", "server.address": "127.0.0.1", "server.port": port}
    called["url.template"] = "/rows/{key}"
    assert sorted(durations(seen, "http.client"), key=repr) == [
        called | {"http.response.status_code": status} for status in (200, 404)
    ]


async def test_V4_an_error_of_http_is_its_status_and_a_lost_connection_the_name_of_its_error(seen: Seen) -> None:
    async with FakeService({"a": {"name": "A"}}, errors={500: 1.0}) as service:
        http = HttpEnricher(service.url + "/rows/{key}", schema="name string")
        [error] = await rows(http, ["a"], retry=None)
        assert isinstance(error, EnricherError)
    [error] = await rows(http, ["a"], retry=None)
    answered, lost = seen.spans
    assert attributes(answered)["error.type"] == "500"
    assert attributes(answered)["http.response.status_code"] == 500
    assert attributes(lost)["error.type"].startswith("aiohttp.")
    told = [{name: one.get(name) for name in LAST} for one in durations(seen, "http.client")]
    assert sorted(told, key=repr) == sorted(
        [{name: attributes(span).get(name) for name in LAST} for span in seen.spans], key=repr
    )
    assert answered.status.status_code is lost.status.status_code is StatusCode.ERROR


async def test_V4_a_statement_has_the_attributes_of_databases(seen: Seen, tmp_path: Path) -> None:
    create = "CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT)"
    url = in_sqlite(tmp_path / "shop.db", create, "INSERT INTO products VALUES (1, 'tea'), (2, 'ink')")
    sql = SqlEnricher(url, table="products", key="id")
    assert await rows(sql, [1, 2, 3]) == [{"name": "tea"}, {"name": "ink"}, None]
    [span] = seen.spans
    assert (span.name, span.kind) == ("SELECT products", SpanKind.CLIENT)
    found = attributes(span)
    assert (found["db.system.name"], found["db.operation.name"]) == ("sqlite", "SELECT")
    assert (found["db.collection.name"], found["db.query.summary"]) == ("products", "SELECT products")
    assert found["db.operation.batch.size"] == 3
    names = ("db.system.name", "db.operation.name", "db.collection.name")
    [called] = durations(seen, "db.client", "operation")
    assert {name: called[name] for name in names} == {name: found[name] for name in names}


# -- metrics


async def test_V4_figures_are_metrics_while_a_lookup_is_open_and_afterwards(seen: Seen) -> None:
    @enricher("price double")
    async def price(product: str) -> dict[str, float]:
        if product == "ink":
            raise EnricherError("no ink")
        assert seen.metric("asyncio_operator.calls.in_flight")[0].value == 1
        return {"price": 3.5}

    async with Lookup(price, cache=Cache(10)) as lookup:
        assert await lookup.get("tea") == await lookup.get("tea") == {"price": 3.5}
        with pytest.raises(EnricherError):
            await lookup.get("ink")
        assert seen.metric("asyncio_operator.cache.hits")[0].value == 1
    assert seen.metric("asyncio_operator.cache.hits")[0].value == 1
    assert seen.metric("asyncio_operator.calls.in_flight")[0].value == 0
    assert sum(point.value for point in seen.metric("asyncio_operator.calls")) == 2
    [failed] = seen.metric("asyncio_operator.errors")
    assert (failed.value, failed.attributes["error.type"]) == (1, "asyncio_operator.errors.EnricherError")
    assert sum(point.count for point in seen.metric("asyncio_operator.call.duration")) == 2


@pytest.mark.usefixtures("seen")
def test_V4_a_metric_does_not_get_smaller_when_a_run_ends() -> None:
    from asyncio_operator.telemetry.spans import Sums

    sums, over, seen_so_far = Sums(), threading.Event(), [0]

    def run() -> None:
        for _ in range(3000):
            with sums.running("fetch", lambda: Figures(retries=1)):
                pass
        over.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        runs = threading.Thread(target=run)
        runs.start()
        while not over.is_set():
            seen_so_far += [int(one.value) for one in sums._observe("retries", CallbackOptions())]
        runs.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen_so_far == sorted(seen_so_far)


def test_V4_the_trace_of_a_call_is_an_exemplar_of_its_duration(seen: Seen) -> None:
    run_of(AsyncWaitOperator(fetch), [1])
    durations = seen.metric("asyncio_operator.call.duration")
    if not hasattr(durations[0], "exemplars"):
        pytest.skip("the SDK has exemplars since its version 1.28")
    spans = {span.context.span_id for span in seen.spans if span.context is not None}
    assert {one.span_id for point in durations for one in point.exemplars} == spans


async def test_V4_a_request_without_a_port_has_that_of_its_scheme() -> None:
    from enrichers.span_attributes import server

    assert server("https://api.test/x") == {"server.address": "api.test", "server.port": 443}
    assert server("http://api.test/x") == {"server.address": "api.test", "server.port": 80}
    assert server("postgresql://db.test/x") == {"server.address": "db.test"}
