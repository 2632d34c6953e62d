"""Headers of `HttpEnricher` from a function or `OAuth2`: when they are asked for, and errors if there are none."""

from __future__ import annotations

import asyncio
import base64
import copy
import pickle
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs

import pytest

from asyncio_operator import ConfigurationError
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import HttpEnricher, OAuth2
from tests.enrichers.helpers import asked, failure, told


async def test_a_header_function_is_called_once_and_again_after_401() -> None:
    calls: list[int] = []

    def headers() -> dict[str, str]:
        calls.append(1)
        return {"Authorization": f"Bearer t{len(calls)}", "user-agent": "me"}

    async with (
        FakeService({"x": {"a": 1}}, token="t1") as service,
        asked(service, "/rows/{key}", headers=headers) as enricher,
    ):
        await asyncio.gather(*(enricher.lookup("x") for _ in range(10)))
        assert len(calls) == 1
        assert service.requests[0].headers["user-agent"] == "me"
        service.token = "t2"
        service.requests.clear()
        assert await asyncio.gather(*(enricher.lookup("x") for _ in range(10))) == [{"a": 1}] * 10
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
        FakeService({"x": {"a": 1}}) as service,
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

    async with FakeService({"x": {"a": 1}}) as service, asked(service, "/rows/{key}", headers=headers) as enricher:
        first, second = asyncio.ensure_future(enricher.lookup("x")), asyncio.ensure_future(enricher.lookup("x"))
        await asking.wait()
        first.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await second == {"a": 1}
        with pytest.raises(asyncio.CancelledError):
            await first


# -- OAuth2


SECRET = "hunter2 hunter2/+"


class Tokens(FakeService):
    """A token service: `t1`, `t2`, ... for those who know the secret."""

    def __init__(self) -> None:
        super().__init__(handler=self.give)
        self.status = 200
        self.answer: dict[str, Any] = {"token_type": "bearer", "expires_in": 3600}
        self.asked = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def give(self, request: FakeRequest) -> FakeAnswer:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.status != 200:
            return FakeAnswer({"error": "invalid_client", "about": SECRET}, self.status)
        return FakeAnswer({"access_token": f"t{len(self.requests)}", **self.answer})

    def only_request(self) -> tuple[Mapping[str, str], dict[str, list[str]]]:
        """The headers and the form of the only request."""
        [request] = self.requests
        return request.headers, parse_qs(request.body.decode())


@pytest.fixture
async def tokens() -> AsyncIterator[Tokens]:
    async with Tokens() as tokens:
        yield tokens


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService({"x": {"a": 1}}, token="t1") as service:
        yield service


async def test_a_token_is_requested_once_for_all_requests(tokens: Tokens, service: FakeService) -> None:
    headers = OAuth2(tokens.url + "/token", "me & you", SECRET, "read write", headers={"X-Version": "2"})
    async with asked(service, headers=headers) as enricher:
        assert await asyncio.gather(*(enricher.lookup("x") for _ in range(10))) == [{"a": 1}] * 10
    sent, form = tokens.only_request()
    assert form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    pair = base64.b64decode(sent["Authorization"].removeprefix("Basic ")).decode()
    assert pair == "me+%26+you:hunter2+hunter2%2F%2B"
    assert service.requests[0].headers["x-version"] == "2"


async def test_name_and_secret_may_be_sent_in_the_form(tokens: Tokens, service: FakeService) -> None:
    headers = OAuth2(tokens.url + "/token", "me", lambda: SECRET, send="form", params={"audience": "api"})
    async with asked(service, headers=headers) as enricher:
        assert await enricher.lookup("x") == {"a": 1}
    sent, form = tokens.only_request()
    assert "Authorization" not in sent
    assert (form["client_id"], form["client_secret"], form["audience"]) == (["me"], [SECRET], ["api"])


async def test_a_token_is_renewed_once_at_401(tokens: Tokens, service: FakeService) -> None:
    async with asked(service, headers=OAuth2(tokens.url + "/token", "me", SECRET)) as enricher:
        await enricher.lookup("x")
        service.token = "t2"
        assert await asyncio.gather(*(enricher.lookup("x") for _ in range(10))) == [{"a": 1}] * 10
        assert len(tokens.requests) == 2


@pytest.mark.parametrize(
    ("expires_in", "requested"), [(0.000_001, 3), ("0.000001", 3), (3600, 1), (None, 1), ("soon", 1), (-1, 1)]
)
async def test_a_token_is_replaced_before_it_expires(
    tokens: Tokens, service: FakeService, expires_in: Any, requested: int
) -> None:
    tokens.answer["expires_in"] = expires_in
    service.token = None
    async with asked(service, headers=OAuth2(tokens.url + "/token", "me", SECRET)) as enricher:
        for _ in range(3):
            await enricher.lookup("x")
    assert len(tokens.requests) == requested


@pytest.mark.parametrize(
    ("status", "answer", "says", "retryable"),
    [
        (401, {}, 'refuses the credentials (401 Unauthorized): {"error": "invalid_client"', False),
        (503, {}, "is not available (503 Service Unavailable)", True),
        (200, {"access_token": None}, "its answer has no access_token", False),
        (200, {"access_token": "a\nb"}, "its access_token cannot be sent in a header", False),
        (200, {"token_type": "mac"}, "its token_type is 'mac'; only bearer tokens can be sent", False),
        (200, {"token_type": f"for {SECRET}"}, "its token_type is 'for ***'; only bearer tokens can be sent", False),
    ],
)
async def test_X5_a_service_without_a_token_is_told_without_the_secret(
    tokens: Tokens, service: FakeService, status: int, answer: dict[str, Any], says: str, retryable: bool
) -> None:
    tokens.status = status
    tokens.answer |= answer
    async with asked(service, headers=OAuth2(tokens.url + "/token", "me", SECRET)) as enricher:
        error = await failure(enricher, "x")
    assert f"the token service {tokens.url}/token: " in str(error)
    assert says in str(error)
    assert (error.retryable, error.any_key) == (retryable, True)
    assert "hunter2" not in told(error)
    frames = [error.__traceback__]
    while frames[-1] is not None:
        assert SECRET not in frames[-1].tb_frame.f_locals.values()
        frames.append(frames[-1].tb_next)
    assert service.requests == []


async def test_a_token_service_that_is_not_there_is_retryable(service: FakeService, unused_tcp_port: int) -> None:
    headers = OAuth2(f"http://127.0.0.1:{unused_tcp_port}/token", "me", SECRET)
    async with asked(service, headers=headers) as enricher:
        error = await failure(enricher, "x")
    assert "the service is not reachable" in str(error)
    assert (error.retryable, error.any_key) == (True, True)


async def test_a_lookup_that_closes_while_a_token_is_on_its_way_waits_for_nothing(
    tokens: Tokens, service: FakeService
) -> None:
    tokens.hold = asyncio.Event()
    async with asked(service, headers=OAuth2(tokens.url + "/token", "me", SECRET)) as enricher:
        waiting = asyncio.ensure_future(enricher.lookup("x"))
        await tokens.asked.wait()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    tokens.hold.set()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"token_url": "auth.example/token"}, "token_url (not shown, it may hold a secret): it does not begin with"),
        ({"token_url": "https://me:hunter2@auth.example/token"}, "pass them as client_id and secret"),
        ({"client_id": ""}, "client_id is ''; it must be a text"),
        ({"secret": None}, "is an environment variable not set in this process"),
        ({"secret": " "}, "it is empty"),
        ({"secret": "hunter2\udcff"}, "secret (not shown, it may hold a password): it holds a character that"),
        ({"client_id": "me\ud800"}, "client_id is "),
        ({"scope": "a\ud800"}, "scope is "),
        ({"params": {"a": "hunter2\ud800"}}, "params (not shown) must be a mapping of texts"),
        ({"scope": ["read"]}, "scope is ['read']"),
        ({"send": "query"}, """send is 'query'; it must be "basic" or "form\""""),
        ({"params": {"a": 1}}, "params (not shown) must be a mapping of texts"),
        ({"headers": {"authorization": "hunter2"}}, "where the token is sent: leave it out"),
        ({"headers": {"a b": "hunter2"}}, "'a b', which is not a valid header name"),
    ],
    ids=repr,
)
def test_X4_a_wrong_argument_is_refused_at_once(wrong: dict[str, Any], says: str) -> None:
    arguments = {"token_url": "https://auth.example/token", "client_id": "me", "secret": SECRET} | wrong
    with pytest.raises(ConfigurationError) as caught:
        OAuth2(**arguments)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_X5_a_secret_of_a_function_that_cannot_be_sent_is_not_shown(tokens: Tokens, service: FakeService) -> None:
    async with asked(service, headers=OAuth2(tokens.url + "/token", "me", lambda: "hunter2\udcff")) as enricher:
        error = await failure(enricher, "x")
    assert "returned no usable client secret: secret (not shown" in str(error)
    assert "hunter2" not in told(error) + repr(error.__cause__) + repr(error.__context__)


def test_X5_the_secret_is_in_no_repr_no_identity_and_not_in_a_pickle_if_a_function_gives_it() -> None:
    headers = OAuth2("https://auth.example/token", "me", SECRET, params={"key": "hunter2"}, headers={"X": "hunter2"})
    enricher = HttpEnricher("http://api.example/{key}", schema="a int", headers=headers)
    assert "OAuth2(token_url='https://auth.example/token', client_id='me'" in repr(enricher)
    assert "hunter2" not in repr(enricher) + identity_of(enricher)
    same = copy.deepcopy(enricher)
    assert same == enricher == pickle.loads(pickle.dumps(enricher))
    assert hash(same) == hash(enricher)
    assert enricher != HttpEnricher(
        "http://api.example/{key}", schema="a int", headers=OAuth2(headers.token_url, "me", "b")
    )
    assert b"hunter2" not in pickle.dumps(OAuth2("https://auth.example/token", "me", of_vault))


def of_vault() -> str:
    return SECRET
