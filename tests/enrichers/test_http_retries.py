"""Retries without being asked: which errors `HttpEnricher` lets its callers repeat, how often, and how to say no."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from asyncio_operator import (
    ConfigurationError,
    ElementTimeoutError,
    Enricher,
    EnricherError,
    FixedBackoff,
    Retry,
)
from asyncio_operator.enricher import Found
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers import FunctionEnricher, PostgresEnricher
from enrichers.http import HttpEnricher
from tests.operator.helpers import virtual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = {"x": {"a": 1}}
DOWN = FakeAnswer({"error": "down"}, 503)
LATER = FakeAnswer({"error": "later"}, 429, {"Retry-After": "5"})


async def looked_up(service: FakeService, **options: Any) -> Found | BaseException:
    async with Lookup(HttpEnricher(service.url + "/rows/{key}", schema="a int"), **options) as lookup:
        try:
            return await lookup.get("x")
        except (EnricherError, ElementTimeoutError) as error:
            return error


@pytest.mark.parametrize(
    ("answers", "options", "requests", "found"),
    [
        ([DOWN, DOWN], {}, 3, True),
        ([DOWN, DOWN, DOWN], {}, 3, False),
        ([FakeAnswer(status=500), FakeAnswer({"a": 1}, truncated=True)], {}, 3, True),
        ([LATER, LATER], {"timeout": 30}, 3, True),
        ([LATER, LATER], {"timeout": 9}, 2, False),
        ([DOWN], {"retry": None}, 1, False),
        ([DOWN] * 4, {"retry": Retry(5)}, 5, True),
        ([FakeAnswer(status=520)], {}, 1, False),
        ([FakeAnswer(status=520)], {"retry": Retry(2)}, 2, True),
        ([FakeAnswer(status=400)], {}, 1, False),
        ([FakeAnswer({"error": {"code": "insufficient_quota"}}, 429)], {"retry": Retry(5)}, 1, False),
        ([FakeAnswer({"a": 1}, delay=9)], {"attempt_timeout": 2}, 2, True),
        ([FakeAnswer({"a": 1}, delay=9)], {"attempt_timeout": 2, "retry": None}, 1, False),
        ([FakeAnswer({"a": 1}, delay=9)], {"timeout": 2}, 1, False),
    ],
)
@virtual
async def test_errors_that_may_pass_get_three_attempts_unless_the_caller_says_otherwise(
    answers: list[FakeAnswer], options: dict[str, Any], requests: int, found: bool
) -> None:
    async with FakeService(ROWS) as service:
        service.answer_next(*answers)
        row = await looked_up(service, **options)
        assert (row == {"a": 1}) == found, row
        assert len(service.requests) == requests


class Picky(Enricher):
    """An enricher with a default of its own, which fails twice."""

    default_retry = Retry(3, FixedBackoff(0), on="retryable")

    def __init__(self, retryable: bool | None) -> None:
        self.retryable = retryable
        self.calls = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int64())])

    async def lookup(self, key: Any) -> Found:
        self.calls += 1
        if self.calls < 3:
            raise EnricherError("not yet", retryable=self.retryable)
        return {"a": key}


@pytest.mark.parametrize(("retryable", "calls"), [(True, 3), (None, 1), (False, 1)])
async def test_an_enricher_of_ones_own_may_have_such_a_default(retryable: bool | None, calls: int) -> None:
    picky = Picky(retryable)
    async with Lookup(picky) as lookup:
        try:
            assert await lookup.get(7) == {"a": 7}
        except EnricherError:
            assert retryable is not True
    assert picky.calls == calls


def test_the_others_have_none() -> None:
    assert HttpEnricher.default_retry == Retry(3, on="retryable")
    assert (Enricher.default_retry, PostgresEnricher.default_retry, FunctionEnricher.default_retry) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize("retry", ["never", 2.5, True, Retry])
def test_another_value_is_refused(retry: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r'retry is .*; it must be a Retry, a number of attempts, None or "default"'
    ):
        Lookup(Picky(True), retry=retry)
    broken = Picky(True)
    broken.default_retry = retry
    with pytest.raises(ConfigurationError, match=r"Picky.default_retry is .*; it must be a Retry, or None"):
        Lookup(broken)


@pytest.mark.spark
def test_every_face_of_spark_also_in_sql_retries_by_default(spark: SparkSession) -> None:
    from asyncio_operator.spark import EnrichmentMetrics, enrich, enrich_with, plan, register_lookup

    rows: dict[Any, Any] = {str(i): {"a": i} for i in range(20)}
    keys = spark.range(20, numPartitions=1).selectExpr("cast(id AS string) AS key")
    metrics = EnrichmentMetrics(spark)
    with FakeService(rows, retry_after=0) as service:
        source = HttpEnricher(service.url + "/rows/{key}", schema="a int")
        register_lookup(spark, "retried", source, on="key", remember=None)
        keys.createOrReplaceTempView("keys")
        runs: list[Callable[[], Any]] = [
            lambda: enrich(keys, source, on="key", metrics=metrics),
            lambda: keys.transform(enrich_with(source, on="key")),
            lambda: spark.sql("SELECT * FROM retried(TABLE(keys))"),
        ]
        for run in runs:
            service.answer_next(DOWN, DOWN)
            assert sorted(row["a"] for row in run().collect()) == list(range(20))
        assert metrics.statistics().retries == 2
        assert plan(keys, source, on="key").max_attempts == 3
        assert str(plan(keys, source, on="key")).endswith(" (up to 3 attempts per key)")
        assert plan(keys, source, on="key", retry=None).max_attempts == 1
        assert len(service.requests) == 66
        service.answer_next(DOWN)
        failed = enrich(keys, source, on="key", retry=None, on_error="null", status_column="s").where(
            "s.status = 'failed'"
        )
        assert [row["s"]["attempts"] for row in failed.collect()] == [1]
