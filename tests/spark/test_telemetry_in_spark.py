"""Law V4 in real tasks: workers have providers of their own, and their spans belong to the trace of the driver."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from pyspark.sql import SparkSession

from asyncio_operator.spark import async_udf, enrich, map_partitions
from asyncio_operator.telemetry import set_up
from enrichers import enricher
from tests.pages import run_programs
from tests.spark.helpers import FROM_4_1
from tests.telemetry.helpers import forget


def exporting_to(directory: str) -> Callable[[], None]:
    """A function that sets up the process which calls it: spans of workers go to files, some seconds later."""
    driver = os.getpid()

    def configure() -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        provider = TracerProvider(shutdown_on_exit=False)
        if os.getpid() != driver:
            out = open(f"{directory}/{os.getpid()}", "a", encoding="utf-8")  # noqa: SIM115
            exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\n")
            provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)

    return configure


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Callable[[], list[Any]]]:
    """The spans that workers have exported."""
    set_up(exporting_to(str(tmp_path)))

    def spans() -> list[Any]:
        return [
            json.loads(line) for file in tmp_path.iterdir() for line in file.read_text(encoding="utf-8").splitlines()
        ]

    yield spans
    getattr(trace.get_tracer_provider(), "shutdown")()  # noqa: B009
    forget()


@enricher("double bigint")
async def doubled(number: int) -> Any:
    await asyncio.sleep(0.001)
    return {"double": 2 * number}


async def tripled(number: int) -> int:
    return 3 * number


@pytest.mark.spark
@FROM_4_1
def test_V4_calls_in_workers_are_spans_of_the_trace_in_which_the_driver_made_them(
    alone: SparkSession, exported: Callable[[], list[Any]]
) -> None:
    with trace.get_tracer("test").start_as_current_span("nightly") as job:
        df = enrich(alone.range(0, 6, 1, 2), doubled, on="id")
        df = df.withColumn("triple", async_udf("bigint")(tripled)("id"))
    # The job runs when the span is over: what counts is where the lookup was made.
    assert len(df.collect()) == 6
    context = job.get_span_context()
    spans = exported()
    assert len(spans) == 12
    for span in spans:
        assert span["context"]["trace_id"] == f"0x{context.trace_id:032x}"
        assert span["parent_id"] == f"0x{context.span_id:016x}"
    keys = sorted(span["attributes"]["asyncio_operator.key"] for span in spans if "doubled" in span["name"])
    assert keys == list("012345")

    with trace.get_tracer("test").start_as_current_span("later") as later:
        rdd = map_partitions(alone.sparkContext.range(3), _same)
    assert rdd.collect() == [0, 1, 2]
    parents = {span["parent_id"] for span in exported() if "_same" in span["name"]}
    assert parents == {f"0x{later.get_span_context().span_id:016x}"}


async def _same(number: int) -> int:
    return number


@pytest.mark.spark
def test_V4_a_worker_that_cannot_be_set_up_does_its_work_without_spans(
    alone: SparkSession, exported: Callable[[], list[Any]]
) -> None:
    driver = os.getpid()

    def fails_elsewhere() -> None:
        if os.getpid() != driver:
            raise RuntimeError("no collector")

    set_up(fails_elsewhere)
    assert len(enrich(alone.range(6), doubled, on="id").collect()) == 6
    assert exported() == []


@pytest.mark.spark
@pytest.mark.usefixtures("exported")
def test_the_programs_about_opentelemetry_run(alone: SparkSession) -> None:
    names = run_programs("watch.md", "OpenTelemetry", spark=alone)
    assert names["Ledger"]().call_attributes()["db.system.name"] == "ledger"
