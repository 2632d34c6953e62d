"""Retries of `HttpEnricher` without being asked, and the status that the status column shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, ElementTimeoutError, EnricherError, Hedge, Retry
from asyncio_operator.enricher import Found, annotate
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.key_batch import Failure, shared
from asyncio_operator.spark.worker.rows import FOUND, statuses_of
from asyncio_operator.testing import FakeAnswer, FakeEnricher, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import opened
from tests.lookup.helpers import Recorded, batch_of, look_up
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


@pytest.mark.parametrize("retry", ["never", 2.5, True, Retry])
def test_another_value_is_refused(retry: Any) -> None:
    class Picky(FakeEnricher):
        default_retry = retry

    with pytest.raises(
        ConfigurationError, match=r'retry is .*; it must be a Retry, a number of attempts, None or "default"'
    ):
        Lookup(FakeEnricher({1: {"a": 1}}), retry=retry)
    with pytest.raises(ConfigurationError, match=r"default_retry is .*; it must be a Retry, or None"):
        Lookup(Picky({1: {"a": 1}}))


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
        assert "(up to 3 attempts per key)" in str(plan(keys, source, on="key"))
        assert plan(keys, source, on="key", retry=None).max_attempts == 1
        assert len(service.requests) == 66
        service.answer_next(DOWN)
        failed = enrich(keys, source, on="key", retry=None, on_error="null", status_column="s").where(
            "s.status = 'failed'"
        )
        assert [row["s"]["attempts"] for row in failed.collect()] == [1]


# -- the status column


ROW = {"a": 1}


async def statuses(enricher: HttpEnricher, keys: list[str], **options: Any) -> list[int | None]:
    """What the status column says of the keys, and of the null key."""
    batch = batch_of(keys)
    async with opened(enricher):
        await look_up(enricher, [batch], timed=True, **options)
    kinds = pa.array([FOUND] * (len(keys) + 1)).to_numpy()
    column = statuses_of(batch.outcomes, kinds)
    found: list[int | None] = column.field("http_status").to_pylist()
    return found


USELESS = {
    "/nothing": (FakeAnswer(None, 204), 204),
    "/page": (FakeAnswer(b"<html>", headers={"Content-Type": "text/html"}), 200),
    "/text": ({"a": "x"}, 200),
    "/other": ({"b": 1}, 200),
    "/away": (FakeAnswer(None, 302, headers={"Location": "http://other.example/x"}), 302),
    "/odd": (FakeAnswer(None, 302, headers={"Location": "ftp://h/x"}), 302),
    "/large": ({"a": 1, "b": "x" * 1000}, 200),
}
"""Answers of which no row is made, and their statuses."""


def answer(request: FakeRequest) -> Any:
    path = request.target.partition("?")[0]
    if path == "/many":
        return dict.fromkeys(request.target.partition("=")[2].split(","), ROW)
    if path == "/new":
        return FakeAnswer(ROW, 201)
    if path in USELESS:
        return USELESS[path][0]
    return FakeAnswer({}, int(path[1:])) if path[1:].isdecimal() else ROW


@pytest.mark.parametrize("retry", [None, Retry(2, on="retryable")], ids=["plain", "managed"])
async def test_X6_the_status_column_has_the_http_status_of_the_last_answer(retry: Retry | None) -> None:
    """Also if no row is made of it."""
    options: dict[str, Any] = {"missing_statuses": (404, 410), "empty_key": "miss", "max_response_bytes": 500}
    async with FakeService(handler=answer) as service:
        enricher = HttpEnricher(service.url + "/{key}", schema="a int", **options)
        keys = ["ok", "new", "404", "410", "500", "", *(path[1:] for path in USELESS)]
        wanted = [200, 201, 404, 410, 500, None, *(status for _, status in USELESS.values()), None]
        assert await statuses(enricher, keys, retry=retry) == wanted


async def test_X6_all_keys_of_a_batch_have_the_status_of_its_answer() -> None:
    async with FakeService(handler=answer) as service:
        batch_url = service.url + "/many?keys={keys}"
        enricher = HttpEnricher(service.url + "/{key}", schema="a int", batch_url=batch_url, empty_key="miss")
        assert await statuses(enricher, ["ok", "new", "x"]) == [200, 200, 200, None]
        assert await statuses(enricher, ["404"]) == [404, None]


RECORDED = {"x": 1}
"""An answer of `Recorded`."""


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_X6_the_status_is_that_of_the_call_that_answered(max_batch: int) -> None:
    async def slow(key: Any) -> Any:
        first = len(enricher.calls) == 1
        annotate(lambda: {"http.response.status_code": 200 if first else 203})
        await asyncio.sleep(5.0 if first else 100.0)
        return [RECORDED] * len(key) if isinstance(key, list) else RECORDED

    enricher = Recorded(slow, max_batch)
    batch = batch_of([1])
    await look_up(enricher, [batch], timed=True, hedge=Hedge(2.0, extra=0.5), capacity=4)
    assert len(enricher.calls) == 2
    assert (batch.outcomes[0].http_status, shared(batch.outcomes[0]).http_status) == (200, 200)


@virtual
async def test_X6_a_row_has_no_status_where_its_call_had_several() -> None:
    async def several(keys: list[int]) -> Any:
        for status in (200, 404):
            annotate(lambda status=status: {"http.response.status_code": status})  # type: ignore[misc]
        return [RECORDED for _ in keys]

    batch = batch_of([1, 2])
    await look_up(Recorded(several, 4), [batch], timed=True)
    assert [outcome.http_status for outcome in batch.outcomes] == [None, None]


@virtual
async def test_X6_without_a_status_column_no_call_is_asked_for_its_status() -> None:
    async def silent(key: int) -> Any:
        annotate(lambda: pytest.fail("nothing wants it"))
        return RECORDED

    for retry in (None, Retry(2)):
        batch = batch_of([1])
        await look_up(Recorded(silent), [batch], retry=retry)
        assert not isinstance(batch.outcomes[0], Failure)
