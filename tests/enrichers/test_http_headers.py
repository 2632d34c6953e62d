"""Headers of `HttpEnricher` that come from a function: when it is asked, and what an error says when it fails."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from asyncio_operator.testing import FakeService
from tests.enrichers.helpers import asked as asked_for
from tests.enrichers.helpers import failure

asked = partial(asked_for, schema="v string")


async def test_a_header_function_is_called_once_and_again_after_401() -> None:
    calls: list[int] = []

    def headers() -> dict[str, str]:
        calls.append(1)
        return {"Authorization": f"Bearer t{len(calls)}", "user-agent": "me"}

    async with (
        FakeService({"x": {"v": "1"}}, token="t1") as service,
        asked(service, "/rows/{key}", headers=headers) as enricher,
    ):
        await asyncio.gather(*(enricher.lookup("x") for _ in range(10)))
        assert len(calls) == 1
        assert service.requests[0].headers["user-agent"] == "me"
        service.token = "t2"
        service.requests.clear()
        assert await asyncio.gather(*(enricher.lookup("x") for _ in range(10))) == [{"v": "1"}] * 10
        assert len(calls) == 2, "those who were refused together ask once"
        assert len(service.requests) <= 20
        service.token = "never"
        error = await failure(enricher, "x")
        assert "refuses the credentials (401 Unauthorized)" in str(error)
        assert (error.retryable, error.any_key) == (False, True)
        assert len(calls) == 3


async def test_headers_that_are_the_same_again_are_not_tried_again() -> None:
    async def headers() -> dict[str, str]:
        return {"Authorization": "Bearer old"}

    async with FakeService(token="new") as service, asked(service, "/rows/{key}", headers=headers) as enricher:
        await failure(enricher, "x")
        assert len(service.requests) == 1


async def test_headers_are_asked_for_again_when_they_are_old() -> None:
    calls: list[int] = []

    async def headers() -> dict[str, str]:
        calls.append(1)
        return {}

    async with (
        FakeService({"x": {"v": "1"}}) as service,
        asked(service, "/rows/{key}", headers=headers, headers_max_age=0) as enricher,
    ):
        for _ in range(3):
            await enricher.lookup("x")
        assert len(calls) == 3


async def test_a_lookup_that_is_cancelled_takes_the_headers_from_nobody() -> None:
    asking, go = asyncio.Event(), asyncio.Event()

    async def headers() -> dict[str, str]:
        asking.set()
        await go.wait()
        return {}

    async with FakeService({"x": {"v": "1"}}) as service, asked(service, "/rows/{key}", headers=headers) as enricher:
        first, second = asyncio.ensure_future(enricher.lookup("x")), asyncio.ensure_future(enricher.lookup("x"))
        await asking.wait()
        first.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await second == {"v": "1"}
        with pytest.raises(asyncio.CancelledError):
            await first
