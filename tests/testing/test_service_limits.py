"""`FakeService` with limits: it refuses what exceeds a window, reports as providers do, and knows what was exceeded."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, Limit, RateLimit
from asyncio_operator.testing import ExceededWindow, FakeAnswer, FakeRequest, FakeService, VirtualTimeLoop
from asyncio_operator.testing.fake_service.window_limits import ServiceLimits, go_duration
from enrichers.http.error_bodies import lasting_refusal
from enrichers.http.limit_headers import read_hints
from tests.operator.helpers import run_on, virtual

PER_MINUTE = [Limit(3, 60.0), Limit(1000, 60.0, "tokens")]


class Client:
    """Sends requests to a service, and keeps the last answer."""

    def __init__(self, service: FakeService, session: aiohttp.ClientSession) -> None:
        self.service = service
        self.session = session
        self.headers: Mapping[str, str] = {}
        self.body: Any = None

    async def post(self, **body: Any) -> int:
        async with self.session.post(self.service.url + "/chat", json=body) as response:
            self.headers = response.headers
            self.body = None if response.status == 500 else await response.json(content_type=None)
            return response.status


def served(work: Callable[[Client], Awaitable[None]], **options: Any) -> FakeService:
    """The service after work that was done with it, on virtual time."""
    service = FakeService(**({"handler": lambda request: {"text": "hello"}} | options))

    async def main() -> None:
        async with service, aiohttp.ClientSession() as session:
            await work(Client(service, session))

    run_on(VirtualTimeLoop, main())
    return service


def test_requests_beyond_a_limit_are_refused_until_the_window_has_passed() -> None:
    async def work(client: Client) -> None:
        assert [await client.post(max=400) for _ in range(3)] == [200, 200, 429]
        assert client.headers["retry-after"] == "60"
        await asyncio.sleep(59.9)
        assert await client.post(max=400) == 429
        await asyncio.sleep(0.1)
        assert [await client.post(max=10) for _ in range(4)] == [200, 200, 200, 429]

    service = served(work, limits=PER_MINUTE, headers="openai", weigh={"tokens": "max"})
    assert [request.status for request in service.requests] == [200, 200, 429, 429, 200, 200, 200, 429]
    assert service.requests[0].weights == {"calls": 1.0, "tokens": 400.0}
    exceeded = service.windows_exceeded()
    assert [(window.unit, window.used) for window in exceeded] == [
        ("tokens", 1200.0),
        ("calls", 4.0),
        ("tokens", 1600.0),
        ("calls", 4.0),
        ("calls", 5.0),
    ]
    assert exceeded[-1] == ExceededWindow("calls", service.requests[-1].time - 60, service.requests[-1].time, 5.0, 3.0)


@pytest.mark.parametrize("headers", ["openai", "azure", "anthropic", "ietf"])
def test_every_answer_reports_the_limits_as_the_provider_does(headers: str) -> None:
    """Read by the module that reads the headers of real providers."""

    async def work(client: Client) -> None:
        assert await client.post(max=400) == 200
        await asyncio.sleep(15)
        assert await client.post(max=100) == 200
        hints = read_hints(200, client.headers.items(), None, 0.0)
        assert hints.limits["calls"]["remaining"] == 1
        assert hints.limits["tokens"]["remaining"] == 500
        assert {hints.limits[unit]["limit"] for unit in ("calls", "tokens")} == {3, 1000}
        reset = hints.limits["tokens"]["reset_after"]
        assert reset == pytest.approx(45 if headers == "ietf" else 60, abs=1.001)
        assert hints.limits["tokens"]["refills"] == (headers != "ietf")
        assert await client.post(max=501) == 429
        refused = read_hints(429, client.headers.items(), client.body, 0.0)
        assert refused.retry_after == pytest.approx(45, abs=0.01)
        assert not [*hints.ignored, *refused.ignored]
        assert lasting_refusal(429, json.dumps(client.body).encode(), client.body) is None

    service = served(work, limits=PER_MINUTE, headers=headers, weigh={"tokens": "max"})
    assert [request.status for request in service.requests] == [200, 200, 429]


def test_azure_reports_a_limit_that_it_does_not_have_as_unknown() -> None:
    async def work(client: Client) -> None:
        await client.post()
        assert client.headers["x-ratelimit-limit-tokens"] == client.headers["x-ratelimit-remaining-tokens"] == "-1"
        assert set(read_hints(200, client.headers.items(), None, 0.0).limits) == {"calls"}

    served(work, limits=[Limit(5)], headers="azure")


def test_without_a_style_a_refusal_has_a_retry_after_alone() -> None:
    async def work(client: Client) -> None:
        assert [await client.post(), await client.post()] == [200, 429]
        assert client.headers["Retry-After"] == "10"
        assert "x-ratelimit-limit-requests" not in client.headers

    served(work, limits=[RateLimit(1, 10)])


def test_the_weight_that_an_answer_reports_counts_in_place_of_the_estimate() -> None:
    def answer(request: FakeRequest) -> Any:
        return {"usage": {"total": request.json()["really"]}}

    async def work(client: Client) -> None:
        assert await client.post(really=900) == 200
        assert await client.post(really=50) == 429, "200 more are expected"
        assert client.headers["x-ratelimit-remaining-tokens"] == "100"
        await asyncio.sleep(60)
        assert await client.post(really=10) == await client.post(really=10) == 200
        assert client.headers["x-ratelimit-remaining-tokens"] == "980"

    options = {"weigh": lambda request: {"tokens": 200}, "usage": {"tokens": "usage.total"}}
    service = served(work, limits=[Limit(1000, 60, "tokens")], headers="openai", handler=answer, **options)
    assert [request.weights["tokens"] for request in service.requests] == [900, 200, 10, 10]
    assert [window.used for window in service.windows_exceeded()] == [1100]


def test_a_request_that_fits_into_no_window_is_refused_always() -> None:
    async def work(client: Client) -> None:
        assert await client.post(max=1001) == 429
        await asyncio.sleep(100)
        assert await client.post(max=1001) == 429
        assert client.headers["retry-after"] == "60"

    served(work, limits=PER_MINUTE, headers="openai", weigh={"tokens": "max"})


@pytest.mark.parametrize("name", ["x-ratelimit-remaining-requests", "X-RateLimit-Remaining-Requests"])
def test_planned_answers_and_faults_count_and_report_too(name: str) -> None:
    async def work(client: Client) -> None:
        client.service.answer_next(FakeAnswer({}, 500), FakeAnswer({}, 201, {name: "77"}))
        assert await client.post() == 500
        assert client.headers["x-ratelimit-remaining-requests"] == "1"
        assert await client.post() == 201
        assert client.headers["x-ratelimit-remaining-requests"] == "77"
        assert await client.post() == 429

    service = served(work, limits=[Limit(2)], headers="openai")
    assert [request.status for request in service.requests] == [500, 201, 429]


def test_journeys_may_differ_by_what_is_said() -> None:
    async def work(client: Client) -> None:
        await client.post()
        await asyncio.sleep(0.97)
        await client.post()

    for journey, status, exceeded in ((0.0, 429, 1), (0.05, 200, 0)):
        service = served(work, limits=[RateLimit(1)], journey=journey)
        assert [request.status for request in service.requests] == [200, status]
        assert len(service.windows_exceeded()) == exceeded


@pytest.mark.parametrize("amount", ["NaN", "-1000", "Infinity", "1e999", "1" + 400 * "0", '"5"', "true"])
def test_what_can_be_no_amount_neither_frees_a_limit_nor_fills_it(amount: str) -> None:
    statuses = []

    async def work(client: Client) -> None:
        for text in (amount, "5", "5", "1"):
            async with client.session.post(client.service.url + "/chat", data=f'{{"max": {text}}}') as response:
                statuses.append(response.status)

    service = served(work, limits=[Limit(10, 1.0, "tokens")], weigh={"tokens": "max"})
    assert statuses == [200, 200, 200, 429]
    assert [window.used for window in service.windows_exceeded()] == [11]


@pytest.mark.parametrize("weights", [None, {"tokens": math.nan}, {"tokens": -5}, {"tokens": "5"}, {5: 5.0}])
def test_a_request_that_is_weighed_wrongly_fails(weights: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: Client) -> None:
        assert await client.post(max=400) == 500

    served(work, limits=[Limit(10, 1.0, "tokens")], weigh=lambda request: weights)
    assert "weigh" in str(caplog.records[0].exc_info)


@virtual
async def test_a_service_that_starts_again_has_forgotten() -> None:
    service = FakeService(handler=lambda request: {}, limits=[Limit(1)])

    for _ in range(2):
        async with service, aiohttp.ClientSession() as session:
            assert await Client(service, session).post() == 200
        assert service.windows_exceeded() == []


def arrival(time: float, tokens: float) -> FakeRequest:
    return FakeRequest("GET", "/", "/", {}, {}, json.dumps({"tokens": tokens}).encode(), time)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=40),
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_windows_are_exact_wherever_they_begin(steps: list[tuple[int, int]], rate: int, burst: int, per: int) -> None:
    limits = ServiceLimits([Limit(rate, per, "tokens", burst)], None, {"tokens": "tokens"}, None, 0.0)
    now = 0
    accepted: list[tuple[int, int]] = []
    exceeded: list[int] = []
    arrived: list[tuple[int, int]] = []
    for step, tokens in steps:
        now += step
        request = arrival(now, tokens)
        limits.arrived(request)
        arrived.append((now, tokens))
        exceeded += [now] * (sum(units for at, units in arrived if at > now - per) > rate + burst)
        fits = sum(units for at, units in accepted if at > now - per) + tokens <= rate + burst
        wait = limits.refusal_after(request)
        assert (wait is None) == fits
        if wait is None:
            limits.admit(request)
            accepted.append((now, tokens))
        elif tokens <= rate + burst:
            then = now + wait
            assert sum(units for at, units in accepted if at > then - per) + tokens <= rate + burst
            assert sum(units for at, units in accepted if at > then - 0.5 - per) + tokens > rate + burst
    assert [window.end for window in limits.windows_exceeded()] == exceeded


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (3723.5, "1h2m3.5s")],
)
def test_durations_are_written_as_in_go(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limits": 5}, "limits is 5; it must be a list of Limit objects"),
        ({"limits": [5]}, "a limit is 5; it must be a Limit or a RateLimit"),
        ({"limits": [Limit(5, unit="tokens")]}, "a limit counts 'tokens', but nothing says how many"),
        ({"limits": [Limit(5)], "headers": "gemini"}, "headers is 'gemini'; it must be \"openai\" |"),
        ({"headers": "openai"}, "there are no limits to report"),
        ({"limits": [Limit(5)], "weigh": 7}, "weigh is 7; it must be a function of a request"),
        ({"limits": [Limit(5)], "weigh": lambda: None}, "it must take one argument, the request"),
        ({"limits": [Limit(5)], "journey": -1}, "journey is -1"),
        ({"limits": [Limit(5)], "usage": "tokens"}, "usage is 'tokens'; it must be a mapping from units to paths"),
        ({"limits": [Limit(5)], "usage": {"tokens": ""}}, "usage is {'tokens': ''}"),
        ({"limits": [Limit(5)], "weigh": {"tokens": 5}}, "weigh is {'tokens': 5}"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FakeService(**options)
    assert problem in str(caught.value)
