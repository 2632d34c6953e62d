"""The `http_status` of the status column: that of the last answer, null where there was none."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Hedge, Retry
from asyncio_operator.enricher import annotate
from asyncio_operator.lookup.key_batch import Failure, shared
from asyncio_operator.spark.worker.answers import FOUND, statuses_of
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import opened
from tests.lookup.helpers import Recorded, batch_of, look_up
from tests.operator.helpers import virtual

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
    async with FakeService(handler=answer) as service:
        enricher = HttpEnricher(service.url + "/{key}", schema="a int", missing_statuses=(404, 410), empty_key="miss")
        keys = ["ok", "new", "404", "410", "500", ""]
        assert await statuses(enricher, keys, retry=retry) == [200, 201, 404, 410, 500, None, None]


@pytest.mark.parametrize("retry", [None, Retry(2, on="retryable")], ids=["plain", "managed"])
async def test_X6_an_answer_of_which_no_row_is_made_shows_its_status(retry: Retry | None) -> None:
    async with FakeService(handler=answer) as service:
        enricher = HttpEnricher(service.url + "/{key}", schema="a int", max_response_bytes=500)
        keys = [path[1:] for path in USELESS]
        wanted = [status for _, status in USELESS.values()]
        assert await statuses(enricher, keys, retry=retry) == [*wanted, None]


async def test_X6_all_keys_of_a_batch_have_the_status_of_its_answer() -> None:
    async with FakeService(handler=answer) as service:
        batch_url = service.url + "/many?keys={keys}"
        enricher = HttpEnricher(service.url + "/{key}", schema="a int", batch_url=batch_url, empty_key="miss")
        assert await statuses(enricher, ["ok", "new", "x"]) == [200, 200, 200, None]
        assert await statuses(enricher, ["404"]) == [404, None]


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_X6_the_status_is_that_of_the_call_that_answered(max_batch: int) -> None:
    async def slow(key: Any) -> Any:
        first = len(enricher.calls) == 1
        annotate(lambda: {"http.response.status_code": 200 if first else 203})
        await asyncio.sleep(5.0 if first else 100.0)
        return [ROW] * len(key) if isinstance(key, list) else ROW

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
        return [ROW for _ in keys]

    batch = batch_of([1, 2])
    await look_up(Recorded(several, 4), [batch], timed=True)
    assert [outcome.http_status for outcome in batch.outcomes] == [None, None]


@virtual
async def test_X6_without_a_status_column_no_call_is_asked_for_its_status() -> None:
    async def silent(key: int) -> Any:
        annotate(lambda: pytest.fail("nothing wants it"))
        return ROW

    for retry in (None, Retry(2)):
        batch = batch_of([1])
        await look_up(Recorded(silent), [batch], retry=retry)
        assert not isinstance(batch.outcomes[0], Failure)
