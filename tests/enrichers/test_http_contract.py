"""`HttpEnricher` against the contract of all enrichers, and in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService, check_enricher
from enrichers.http import HttpEnricher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = {"JFK": {"city": "New York", "rank": 6}, "a/b": {"city": "Ü", "rank": None}, "two": [{"rank": 1}, {"rank": 2}]}
SECRET = "hunter2hunter2"


@pytest.mark.parametrize("batch", [None, "map", "list"])
def test_it_keeps_the_contract_of_all_enrichers(batch: str | None) -> None:
    with FakeService(ROWS, batch=batch or "map") as service:
        options: dict[str, Any] = {"headers": {"Authorization": f"Bearer {SECRET}"}, "params": {"token": SECRET}}
        if batch is not None:
            options["batch_url"] = service.url + "/rows?keys={keys}"

        def make() -> HttpEnricher:
            return HttpEnricher(service.url + "/rows/{key}", schema="city string, rank int", **options)

        known = {
            "JFK": {"city": "New York", "rank": 6},
            "a/b": {"city": "Ü", "rank": None},
            "two": [{"city": None, "rank": 1}, {"city": None, "rank": 2}],
        }
        check_enricher(make, known=known, missing=["LAX", "é"], secrets=[SECRET])


@pytest.mark.spark
def test_X6_in_spark_a_key_that_fails_takes_no_other_with_it(spark: SparkSession) -> None:
    from asyncio_operator.spark import enrich

    rows: dict[Any, Any] = {str(i): {"v": i} for i in range(40)}
    rows |= {"17": {"v": "no number"}, "23": {"v": 2**40}}
    long = "x" * 9_000
    keys = [*(str(i) for i in range(45)), "", "..", "a,b", None, long]
    with FakeService(rows) as service:
        enricher = HttpEnricher(
            service.url + "/rows/{key}",
            schema="v int",
            batch_url=service.url + "/rows?keys={keys}",
            max_batch=16,
        )
        df = spark.createDataFrame([(key,) for key in keys], "k string").coalesce(1)
        found = enrich(df, enricher, on="k", on_error="null", status_column="s").collect()
    statuses = {row["k"]: row["s"]["status"] for row in found}
    values = {row["k"]: row["v"] for row in found}
    failed = {"17", "23", long}
    assert {key for key, status in statuses.items() if status == "failed"} == failed
    assert {key for key, status in statuses.items() if status == "missing"} == {
        *("", "..", "a,b", None),
        *(str(i) for i in range(40, 45)),
    }
    assert all(values[str(i)] == i for i in range(40) if str(i) not in failed)
    messages = {row["k"]: row["s"]["error_message"] for row in found if row["k"] in failed}
    assert "key '17'" in messages["17"]
    assert "the column 'v' holds 'no number' (a text), which does not fit int:" in messages["17"]
    assert "cannot be sent" in messages[long]


@pytest.mark.spark
def test_X6_retries_rate_limits_and_tokens_in_spark(spark: SparkSession) -> None:
    from asyncio_operator import ExponentialBackoff, Retry
    from asyncio_operator.spark import enrich

    rows: dict[Any, Any] = {str(i): {"v": i} for i in range(200)}

    def flaky(request: FakeRequest) -> Any:
        return FakeAnswer({"v": int(request.path.rpartition("/")[2])})

    with FakeService(rows, handler=flaky, errors={503: 0.1, 500: 0.05}, retry_after=0, truncated=0.05) as service:
        enricher = HttpEnricher(
            service.url + "/flaky/{key}", schema="v int", headers=lambda: {"Authorization": "Bearer t"}
        )
        df = spark.range(200).selectExpr("cast(id as string) as k")
        backoff = ExponentialBackoff(initial=0.001, maximum=0.01)
        found = enrich(df, enricher, on="k", capacity=8, retry=Retry(max_attempts=20, backoff=backoff)).collect()
    assert sorted(row["v"] for row in found) == list(range(200))
    assert len(service.requests) > 200
