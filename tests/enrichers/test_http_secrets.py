"""What may be secret in a request is hidden in every form in which it is sent, and in which a service may show it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from asyncio_operator import EnricherError
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import failure, hanging_up_after, opened, told


@pytest.mark.parametrize(
    ("options", "echo"),
    [
        ({"params": {"token": "s3cr3t/+abcdef=="}}, lambda sent: "Cannot GET " + sent.target),
        ({"url": "/x/{key}?token=s3cr3t/é=+1234"}, lambda sent: "Cannot GET " + sent.target),
        ({"url": "/x/{key}?v=1&s3cr3t-alone"}, lambda sent: "Cannot GET " + sent.target),
        ({"params": {"token": 's3cr3t"x\\y123'}}, lambda sent: json.dumps(sent.query)),
        ({"headers": {"X-Api": 's3cr3t"x\\y123'}}, lambda sent: json.dumps(sent.headers)),
        ({"headers": {"X-Sig": "s3cr3tvalue"}}, lambda sent: json.dumps(sent.headers).upper()),
        ({"json_body": {"password": "s3cr3t{99", "k": "{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"login": "of s3cr3t-{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"password": "s3cr3t-ü", "k": "{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"secret": {"pin": 12345678}, "k": ["{key}"]}}, lambda sent: sent.body.decode()),
        ({"json_body": {"token": [1.25e7], "k": "{key}"}}, lambda sent: sent.body.decode()),
    ],
)
async def test_X5_what_a_service_says_of_a_request_shows_no_secret(
    options: Any, echo: Callable[[FakeRequest], str]
) -> None:
    method = "POST" if "json_body" in options else "GET"
    async with FakeService(handler=lambda sent: FakeAnswer(echo(sent), 400)) as service:
        url = service.url + options.get("url", "/x" if "json_body" in options else "/x/{key}")
        error = await error_of(HttpEnricher(**{"schema": "v string", "method": method} | options | {"url": url}))
    assert "***" in str(error)
    for part in ("s3cr3t", "12345678", "12500000"):
        assert part not in told(error).lower()


def test_X5_an_item_of_a_query_without_a_name_is_not_shown() -> None:
    enricher = HttpEnricher("http://host/x/{key}?version=12&s3cr3t-alone", schema="v string")
    assert "http://host/x/{key}?version=...&..." in repr(enricher)
    assert "s3cr3t" not in repr(enricher)


async def test_X5_an_error_of_the_client_that_names_the_url_as_sent_is_not_shown() -> None:
    async with hanging_up_after(b"garbage\r\n\r\n") as url:
        error = await error_of(HttpEnricher(url + "/x/{key}", schema="v string", params={"token": "c2VjcmV0/+x=="}))
    assert "c2VjcmV0" not in told(error)


async def test_X5_an_error_of_an_extract_function_shows_no_secret_and_keeps_what_it_says_of_itself() -> None:
    def refused(answer: Any) -> Any:
        raise EnricherError(answer["error"], retryable=True, retry_after=3.0, overload=True)

    async with FakeService(handler=lambda sent: {"error": f"{sent.headers['authorization']} has expired"}) as service:
        enricher = HttpEnricher(
            service.url + "/x/{key}",
            schema="v string",
            extract=refused,
            headers=lambda: {"Authorization": "Bearer s3cr3t-v4lue"},
        )
        error = await error_of(enricher)
    assert "s3cr3t" not in told(error)
    assert "key 'JFK': *** has expired" in str(error)
    assert (error.retryable, error.retry_after, error.overload) == (True, 3.0, True)


async def test_X5_no_frame_of_an_error_holds_what_a_function_for_headers_gave() -> None:
    given = {"Authorization": "Bearer s3cr3t-v4lue"}
    enricher = HttpEnricher("http://127.0.0.1:1/x/{key}", schema="v string", headers=lambda: dict(given))
    error = await error_of(enricher)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert len(frames) > 2
    assert not [frame for frame in frames if any("s3cr3t" in repr(value) for value in frame.f_locals.values())]


async def test_nothing_is_hidden_where_nothing_is_secret() -> None:
    async with FakeService(handler=lambda sent: FakeAnswer("customer is NULL, must not be null", 400)) as service:
        error = await error_of(HttpEnricher(service.url + "/x/{key}", schema="v string"))
    assert "customer is NULL, must not be null" in str(error)


async def error_of(enricher: HttpEnricher) -> EnricherError:
    async with opened(enricher):
        return await failure(enricher, "JFK")
