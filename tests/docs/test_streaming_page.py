"""The programs of docs/streaming.md and docs/watch.md run, and the figures that are described are those there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from asyncio_operator.spark import EnrichmentStatistics
from tests.pages import run_programs, section_of
from tests.spark.helpers import wait_until


class Ended(StreamingQueryListener):
    """Counts the queries whose end Spark has reported to all listeners, after everything else about them."""

    def __init__(self) -> None:
        self.queries: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.queries.add(str(event.id))


@pytest.fixture
def _listeners_are_silent(spark: SparkSession) -> Iterator[None]:
    """No listener of a page prints into a later test."""
    ended = Ended()
    spark.streams.addListener(ended)
    yield
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    query.stop()
    wait_until(lambda: str(query.id) in ended.queries, 30, "Spark tells that a query has ended")
    spark.streams.removeListener(ended)


@pytest.mark.spark
@pytest.mark.usefixtures("_listeners_are_silent")
def test_the_programs_about_streams_run(spark: SparkSession) -> None:
    names = run_programs("streaming.md", spark=spark)
    base = names["base"]
    expected = [("air", None), ("ink", 7.0), ("ink", 7.0), ("tea", 3.5), ("tea", 3.5), ("tea", 3.5)]
    for written in ("priced", "all"):
        rows = spark.read.parquet(str(base / written)).orderBy("product").collect()
        assert [(row["product"], row.price) for row in rows] == expected
    assert [row["product"] for row in spark.read.json(str(base / "unknown")).collect()] == ["air"]
    assert names["metrics"].statistics().rows == 6
    # All windows at the end, for files of the same millisecond come in any order.
    writer = names["revenue"].writeStream.outputMode("complete").format("memory").queryName("revenue")
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(row["sum(price)"] for row in spark.table("revenue").collect()) == [3.5, 7.0, 14.0]


@pytest.mark.spark
@pytest.mark.usefixtures("_listeners_are_silent")
def test_the_programs_about_metrics_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    run_programs("watch.md", "Figures", spark=spark)
    told = capsys.readouterr().out

    def listened() -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return "prices.missing:8|c" in told

    wait_until(listened, 30, "the listener has printed its figure")
    assert re.search(r"^ +others +old prices +new prices +total\nrows +0 +3 +3 +6$", told, re.MULTILINE)
    assert re.search(r"^rows +10 +0 +0 +10\nfound +2 +0 +0 +2\nmissing +8 +0 +0 +8$", told, re.MULTILINE)


def test_every_figure_is_described() -> None:
    table = section_of("watch.md", "Figures").partition("| figure |")[2].partition("\n\n")[0]
    described = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(EnrichmentStatistics)} <= described
