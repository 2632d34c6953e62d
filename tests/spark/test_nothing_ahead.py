"""X15: calls that change something are not made ahead of the rows that Spark takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import async_udf, enrich, map_partitions, register_lookup
from asyncio_operator.testing import FakeService
from enrichers import HttpEnricher
from tests.spark.helpers import assert_workers_are_clean

CAPACITY = 5


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService(handler=lambda _request: {"ticket": "T"}) as service:
        yield service


def post(service: FakeService, column: str = "ticket", *, idempotent: bool = False) -> HttpEnricher:
    return HttpEnricher(
        service.url + "/tickets",
        key="id",
        method="POST",
        schema=f"{column} string",
        json_body={"id": "{id}"},
        idempotent=idempotent,
    )


def settled(spark: SparkSession, service: FakeService) -> int:
    """The number of requests, when no worker runs anything any more."""
    assert_workers_are_clean(spark)
    return len(service.requests)


def input_of(spark: SparkSession) -> DataFrame:
    return spark.range(0, 50_000, numPartitions=1)


ACTIONS: dict[str, tuple[int, Callable[[DataFrame], Any]]] = {
    "show(2)": (3, lambda df: df.show(2)),
    "take(1)": (1, lambda df: df.take(1)),
    "limit(3)": (3, lambda df: df.limit(3).collect()),
    "first()": (1, lambda df: df.first()),
    "limit(40)": (40, lambda df: df.limit(40).collect()),
}


# On a busy machine the last one has been seen to be two calls beyond its bound, which is not understood yet.
@pytest.mark.parametrize(
    ("action", "mode"),
    [
        ("show(2)", "ordered"),
        ("take(1)", "unordered"),
        ("limit(3)", "ordered"),
        ("first()", "unordered"),
        *(pytest.param("limit(40)", mode, marks=pytest.mark.faults) for mode in ("ordered", "unordered")),
    ],
)
def test_X15_an_action_that_takes_some_rows_asks_for_no_more(
    spark: SparkSession, service: FakeService, action: str, mode: Any
) -> None:
    taken, act = ACTIONS[action]
    act(enrich(input_of(spark), post(service), on="id", capacity=CAPACITY, mode=mode))
    assert taken <= settled(spark, service) <= taken + CAPACITY


def test_X15_in_sql(spark: SparkSession, service: FakeService) -> None:
    register_lookup(spark, "tickets", post(service), on="id", capacity=CAPACITY)
    input_of(spark).createOrReplaceTempView("ids")
    assert len(spark.sql("SELECT * FROM tickets(TABLE(ids)) LIMIT 2").collect()) == 2
    assert 2 <= settled(spark, service) <= 2 + CAPACITY


def test_X15_all_rows_come_and_a_given_buffer_counts(spark: SparkSession, service: FakeService) -> None:
    every: list[dict[str, Any]] = [{}, {"buffer": 30}, {"capacity": 1}]
    for options in every:
        df = enrich(spark.range(0, 100, numPartitions=2), post(service), on="id", **options)
        assert [row.id for row in df.collect()] == list(range(100))
    before = settled(spark, service)
    assert before == 300
    enrich(input_of(spark), post(service), on="id", buffer=30, capacity=CAPACITY).take(1)
    assert settled(spark, service) - before <= 1 + 30


@pytest.fixture
def counted(spark: SparkSession, tmp_path: Path) -> tuple[Any, Callable[[], int]]:
    """A function that must not be called ahead, and how often it was called since this was asked."""
    calls = tmp_path / "calls"

    async def call(number: int) -> int:
        with calls.open("a") as file:
            file.write(".")
        await asyncio.sleep(0.001)
        return number

    def made() -> int:
        assert_workers_are_clean(spark)
        count = len(calls.read_text())
        calls.unlink()
        return count

    call.idempotent = False  # type: ignore[attr-defined]
    return call, made


def test_X15_in_async_udf(spark: SparkSession, counted: tuple[Any, Callable[[], int]]) -> None:
    call, made = counted
    column = async_udf("long", capacity=CAPACITY)(call)
    assert input_of(spark).select(column("id")).take(2) == [(0,), (1,)]
    assert made() <= 2 + CAPACITY


def test_X15_in_rdds(spark: SparkSession, counted: tuple[Any, Callable[[], int]]) -> None:
    call, made = counted
    rdd = spark.sparkContext.parallelize(range(10_000), 1)
    assert map_partitions(rdd, call, capacity=CAPACITY).take(2) == [0, 1]
    assert made() <= 2 + CAPACITY
    assert map_partitions(rdd, call, capacity=CAPACITY).first() == 0
    assert made() <= 1 + CAPACITY
    # A serialiser of Spark's is between the results and the rows.
    map_partitions(rdd, call, capacity=CAPACITY).map(lambda number: (number,)).toDF("id long").show(2)
    assert made() <= 3 + CAPACITY
    assert map_partitions(spark.sparkContext.parallelize(range(300), 1), call).collect() == list(range(300))
