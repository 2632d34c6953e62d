"""`trace=`: what every task has recorded comes together on the driver."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import FixedBackoff, Retry
from asyncio_operator.spark import enrich
from asyncio_operator.testing import check_history, history_of_trace
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher


def enricher() -> FunctionEnricher:
    # Its own specification: a worker gives equal enrichers one client, which would have seen the keys of another test.
    seen: set[object] = {uuid4().hex}

    async def look_up(key: int) -> Any:
        await asyncio.sleep(0.002)
        if key % 10 == 0 and key not in seen:
            seen.add(key)
            raise ValueError(key)
        return None if key % 10 == 1 else {"x": key}

    return FunctionEnricher(look_up, "x long")


@pytest.mark.spark
def test_V2_every_key_of_every_task_has_its_life_in_the_trace(spark: SparkSession, tmp_path: Path) -> None:
    trace = Trace()
    df = enrich(
        spark.range(0, 600, 1, 3).selectExpr("id", "id AS key"),
        enricher(),
        on="key",
        retry=Retry(2, FixedBackoff(0.001)),
        trace=trace,
    )
    assert trace.events() == []
    assert len(df.collect()) == 600
    story = trace.story()
    assert sorted(life.value for life in story.lives) == sorted(str(key) for key in range(600))
    assert Counter(life.outcome for life in story.lives) == {"result": 600}
    for life in story.lives:
        assert life.completed is not None
        assert life.emitted == life.completed
        assert [attempt.outcome for attempt in life.attempts] == (
            ["error", "result"] if int(life.value) % 10 == 0 else ["result"]
        )
    assert {name.rpartition(" ")[2] for _, name in story.parts} == {"0", "1", "2"}
    times = [event.time for event in trace.events()]
    assert times == sorted(times)
    assert 0 <= times[-1] < 60
    trace.html(tmp_path / "trace.html")
    assert (tmp_path / "trace.html").stat().st_size > 1000
    enrich(spark.range(1), enricher(), on="id", trace=trace)
    assert trace.events() == []


@pytest.mark.spark
def test_a_trace_that_is_given_twice_records_the_second(spark: SparkSession) -> None:
    trace = Trace()
    first = enrich(spark.range(0, 20, 1, 2), enricher(), on="id", trace=trace, on_error="null")
    second = enrich(spark.range(20, 30, 1, 2), enricher(), on="id", trace=trace, on_error="null")
    assert len(first.collect()) == 20
    assert trace.events() == []
    assert len(second.collect()) == 10
    assert len(first.collect()) == 20
    assert {int(life.value) for life in trace.story().lives} == set(range(20, 30))


@pytest.mark.spark
def test_tasks_that_do_not_fit_any_more_are_left_out_as_a_whole(spark: SparkSession) -> None:
    trace = Trace(limit=120)
    retry = Retry(2, FixedBackoff(0.001))
    enrich(spark.range(0, 60, 1, 3), enricher(), on="id", retry=retry, trace=trace).collect()
    assert 0 < len(trace.story().lives) < 60
    assert trace.dropped == 0
    assert all(life.outcome == "result" for life in trace.story().lives)


@pytest.mark.spark
def test_Y2_the_tasks_of_a_traced_enrichment_keep_the_laws(spark: SparkSession) -> None:
    trace = Trace()
    rows = spark.range(0, 200, 1, 3).selectExpr("id", "id % 50 AS key")
    retry = Retry(3, FixedBackoff(0.01))
    assert enrich(rows, enricher(), on="key", retry=retry, capacity=4, trace=trace).count() == 200
    # Wall clocks: what is measured in a worker and what is recorded may differ by some milliseconds.
    history = history_of_trace(
        trace, mode="unordered", capacity=4, max_attempts=3, delay=0.01, remember=60.0, slack=0.005
    )
    assert sum(event["event"] == "task_started" for event in history) == 3
    report = check_history(history)
    report.raise_if_broken()
    # R7 is decided only where the times are sure.
    assert {"O1", "O4", "O9", "O18", "R5", "L1", "L2", "L12"} <= report.held.keys()


@pytest.mark.spark
def test_Y2_the_history_of_an_ordered_enrichment_does_not_say_when_rows_leave(spark: SparkSession) -> None:
    async def slow(key: int) -> dict[str, int]:
        await asyncio.sleep(0.05 if key % 7 == 0 else 0.001)
        return {"value": key}

    trace = Trace()
    traced = enrich(spark.range(40), FunctionEnricher(slow, "value int"), on="id", capacity=5, trace=trace)
    assert [row.id for row in traced.collect()] == [*range(40)]
    for mode in ({"mode": "ordered"}, {}):
        report = check_history(history_of_trace(trace, capacity=5, slack=0.005, **mode))
        report.raise_if_broken()
        assert "X2" in report.undecided
