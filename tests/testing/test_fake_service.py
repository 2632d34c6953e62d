"""`FakeService`: what it answers, its faults on request, what it remembers, the limits that it enforces and reports."""

from __future__ import annotations

import asyncio
import email.utils
import gc
import json
import math
import random
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp.web_protocol import RequestHandler
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, Limit, RateLimit
from asyncio_operator.errors import StateError
from asyncio_operator.testing import ExceededWindow, FakeAnswer, FakeRequest, FakeService, VirtualTimeLoop
from asyncio_operator.testing.fake_service.window_limits import ServiceLimits, go_duration
from enrichers.http.error_bodies import lasting_refusal
from enrichers.http.limit_headers import read_hints
from tests.operator.helpers import run_on, virtual

ROWS = {"JFK": {"city": "New York"}, ("JFK", 5): {"temp": 1.5}, 7: [1, 2], "a/b": {"city": "?"}, True: {"yes": 1}}


async def ask(service: FakeService, path: str, **options: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(service.url + path, **options) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/rows/JFK", 200, {"city": "New York"}),
        ("/rows/JFK/5", 200, {"temp": 1.5}),
        ("/rows/7", 200, [1, 2]),
        ("/rows/true", 200, {"yes": 1}),
        ("/rows/LAX", 404, {"error": "no such row"}),
        ("/rows?keys=JFK,LAX,7", 200, {"JFK": {"city": "New York"}, "7": [1, 2]}),
        ("/other", 404, {"error": "no such path"}),
    ],
)
async def test_rows_are_answered_by_key(path: str, status: int, answer: Any) -> None:
    async with FakeService(ROWS) as service:
        assert await ask(service, path) == (status, answer)


async def test_several_keys_come_as_a_list_and_by_post_too() -> None:
    async with FakeService(ROWS, batch="list") as service:
        assert await ask(service, "/rows?keys=JFK,LAX") == (200, [{"city": "New York"}, None])
        async with (
            aiohttp.ClientSession() as session,
            session.post(service.url + "/rows", json=["LAX", 7, ["JFK", 5]]) as response,
        ):
            assert await response.json() == [None, [1, 2], {"temp": 1.5}]


async def test_a_handler_answers_other_paths_and_rows_can_change() -> None:
    async def handler(request: FakeRequest) -> Any:
        return {"path": request.path, "q": request.query} if request.path == "/é" else None

    async with FakeService(handler=handler) as service:
        assert await ask(service, "/%C3%A9?a=1&a=2") == (200, {"path": "/é", "q": {"a": ["1", "2"]}})
        assert (await ask(service, "/rows/x"))[0] == 404
        service.rows["x"] = {"new": True}
        assert await ask(service, "/rows/x") == (200, {"new": True})


async def test_every_request_is_recorded() -> None:
    async with FakeService(ROWS) as service:
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{service.url}/rows?x=%26", data=b"[7]", headers={"X-Y": "z"}) as response:
                    await response.read()
        first = service.requests[0]
        assert (first.method, first.target, first.path) == ("POST", "/rows?x=%26", "/rows")
        assert (first.query, first.headers["X-y"], first.body, first.json()) == ({"x": ["&"]}, "z", b"[7]", [7])
        assert 0 <= first.time <= service.requests[-1].time
        assert service.paths() == ["/rows?x=%26"] * 3
        assert service.connections == 1


async def test_a_connection_that_is_gone_is_counted_and_not_kept() -> None:
    async with FakeService(ROWS) as service:
        for _ in range(20):
            await ask(service, "/rows/JFK")
        assert service.connections == 20
        await asyncio.sleep(0.1)
        gc.collect()
        handlers = [each for each in gc.get_objects() if isinstance(each, RequestHandler) and each.transport is None]
        assert len(handlers) <= 1


@virtual
async def test_latency_is_a_number_or_drawn_and_takes_no_time_on_a_virtual_loop() -> None:
    loop = asyncio.get_running_loop()
    async with FakeService(ROWS, latency=30.0) as service:
        started = loop.time()
        await asyncio.gather(*(ask(service, "/rows/JFK") for _ in range(5)))
        assert loop.time() - started == pytest.approx(30.0)
        assert service.most_at_once == 5
    expected = random.Random(3)
    async with FakeService(ROWS, latency=lambda r: r.expovariate(0.1), seed=3) as service:
        for _ in range(3):
            started = loop.time()
            await ask(service, "/rows/JFK")
            assert loop.time() - started == pytest.approx(expected.expovariate(0.1))


async def test_statuses_come_as_often_as_asked_and_the_same_for_a_seed() -> None:
    async def statuses(seed: int) -> list[int]:
        async with FakeService(ROWS, errors={503: 0.3, 500: 0.2}, seed=seed) as service:
            return [(await ask(service, "/rows/JFK"))[0] for _ in range(100)]

    first = await statuses(1)
    assert first == await statuses(1)
    assert first != await statuses(2)
    assert 15 < first.count(503) < 45
    assert 8 < first.count(500) < 35


@pytest.mark.parametrize("as_date", [False, True])
async def test_retry_after_is_a_number_or_a_date(as_date: bool) -> None:
    async with (
        FakeService(errors={429: 1.0}, retry_after=7, retry_after_date=as_date) as service,
        aiohttp.ClientSession() as session,
        session.get(service.url + "/rows/x") as response,
    ):
        assert response.status == 429
        value = response.headers["Retry-After"]
    when = email.utils.parsedate_to_datetime(value) if as_date else None
    assert 0 < (when - datetime.now(UTC)).total_seconds() <= 8.1 if when else value == "7"


@virtual
async def test_a_rate_limit_of_its_own_is_a_sliding_second() -> None:
    loop = asyncio.get_running_loop()
    async with FakeService(ROWS, rate_limit=3) as service:
        assert [(await ask(service, "/rows/JFK"))[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        await asyncio.sleep(1.0)
        assert (await ask(service, "/rows/JFK"))[0] == 200
        assert loop.time() < 2


async def test_a_token_is_demanded() -> None:
    async with FakeService(ROWS, token="t0ken") as service:
        assert (await ask(service, "/rows/JFK"))[0] == 401
        assert (await ask(service, "/rows/JFK", headers={"Authorization": "Bearer t0ken"}))[0] == 200


async def test_faults_of_the_connection() -> None:
    async with FakeService(ROWS, resets=1.0) as service:
        with pytest.raises(aiohttp.ClientOSError):
            await ask(service, "/rows/JFK")
    async with FakeService(ROWS, truncated=1.0) as service:
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(service, "/rows/JFK")
    async with FakeService(ROWS, garbage=1.0) as service:
        with pytest.raises(json.JSONDecodeError):
            await ask(service, "/rows/JFK")


@virtual
async def test_a_slow_body_is_spread_over_its_time() -> None:
    loop = asyncio.get_running_loop()
    async with FakeService(ROWS, slow=1.0, slow_for=60.0) as service:
        started = loop.time()
        assert await ask(service, "/rows/JFK") == (200, {"city": "New York"})
        assert loop.time() - started == pytest.approx(60.0)


@virtual
async def test_clients_that_hang_up_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeService(ROWS, latency=10.0) as service:
        service.answer_next(FakeAnswer(delay=50.0), FakeAnswer("[1, 2, 3]", slow=50.0), FakeAnswer("[1, 2]", slow=1.0))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20):
                    await ask(service, "/rows/JFK")
        await asyncio.sleep(1)
        assert service.abandoned == 2
        assert await ask(service, "/rows/JFK") == (200, [1, 2])
        assert await ask(service, "/rows/JFK") == (200, {"city": "New York"})
        assert (service.abandoned, service.most_at_once) == (2, 1)
    assert caplog.text == ""


@virtual
async def test_planned_answers_come_first_in_their_order() -> None:
    loop = asyncio.get_running_loop()
    async with FakeService(ROWS) as service:
        service.answer_next(
            FakeAnswer({"n": 1}, 201, {"X-A": "b"}), FakeAnswer("[2]", delay=9.0), FakeAnswer(b"3", slow=10.0)
        )
        assert await ask(service, "/rows/JFK") == (201, {"n": 1})
        assert await ask(service, "/x") == (200, [2])
        assert loop.time() == pytest.approx(9.0)
        assert await ask(service, "/x") == (200, 3)
        assert loop.time() == pytest.approx(19.0)
        assert await ask(service, "/rows/JFK") == (200, {"city": "New York"})


@virtual
async def test_an_answer_of_the_handler_waits_its_delay_after_the_latency() -> None:
    loop = asyncio.get_running_loop()
    late = FakeAnswer({"n": 1}, delay=9.0)
    async with FakeService(latency=1.0, handler=lambda request: late if request.path == "/late" else 2) as service:
        assert await ask(service, "/late") == (200, {"n": 1})
        assert loop.time() == pytest.approx(10.0)
        assert await ask(service, "/x") == (200, 2)
        assert loop.time() == pytest.approx(11.0)


def test_it_serves_synchronous_tests_from_a_thread_with_and_without_a_block_at_its_place() -> None:
    service = FakeService(ROWS)
    with pytest.raises(StateError, match="the service is not running; enter it with"):
        service.url  # noqa: B018
    url = ""
    for answered in (1, 2):
        with service:
            url = service.url
            with urllib.request.urlopen(f"{url}/rows/JFK") as response:
                assert json.load(response) == {"city": "New York"}
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"{url}/rows/JFK")
        assert service.url == url
        assert len(service.requests) == answered
    service.stop()  # Nothing runs.
    assert service.start() is service
    for start in (service.start, service.__enter__):  # One that runs goes on, and is still the one to stop.
        with pytest.raises(StateError, match="the service is running already; stop it first"):
            start()
    with pytest.raises(StateError, match="running already"):
        asyncio.run(service.__aenter__())
    with urllib.request.urlopen(service.url + "/rows/JFK") as response:
        assert json.load(response) == ROWS["JFK"]
    service.stop()
    service.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(service.url + "/rows/JFK")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rows": [{"city": "New York"}]}, "rows is [{'city': 'New York'}]; it must be a mapping of keys to rows"),
        ({"rows": lambda request: None}, "rows is <function"),
        ({"latency": -1}, "latency is -1"),
        ({"latency": lambda: 1}, "one argument, a random.Random"),
        ({"errors": 0.1}, "errors is 0.1; it must be a mapping of statuses to shares"),
        ({"errors": {"503": 0.1}}, "errors is {'503': 0.1}"),
        ({"errors": {503: 1.5}}, "errors[503] is 1.5"),
        ({"resets": True}, "resets is True"),
        ({"resets": 0.6, "garbage": 0.6}, "0.6"),
        ({"rate_limit": 0}, "rate_limit is 0"),
        ({"batch": "set"}, "'set'"),
        ({"handler": {"a": 1}}, "handler is {'a': 1}"),
        ({"retry_after": math.nan}, "retry_after is nan"),
        ({"slow_for": -1}, "slow_for is -1"),
        ({"retry_after_date": 1}, "retry_after_date is 1"),
        ({"limits": 5}, "limits is 5; it must be a list of Limit objects"),
        ({"limits": [5]}, "a limit is 5; it must be a Limit or a RateLimit"),
        ({"limits": [Limit(5, unit="tokens")]}, "a limit counts 'tokens', but nothing says how many"),
        ({"limits": [Limit(5)], "headers": "gemini"}, "headers is 'gemini'; it must be \"openai\" |"),
        ({"headers": "openai"}, "there are no limits to report"),
        ({"seed": object()}, "seed is <object object"),
        ({"limits": [Limit(5)], "weigh": 7}, "weigh is 7; it must be a function of a request"),
        ({"limits": [Limit(5)], "weigh": asyncio.sleep}, "not an `async def`"),
        ({"limits": [Limit(5)], "weigh": lambda: None}, "it must take one argument, the request"),
        ({"limits": [Limit(5)], "usage": "tokens"}, "usage is 'tokens'; it must be a mapping from units to paths"),
        ({"limits": [Limit(5)], "usage": {"tokens": ""}}, "usage is {'tokens': ''}"),
        ({"limits": [Limit(5)], "weigh": {"tokens": 5}}, "weigh is {'tokens': 5}"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FakeService(**options)
    assert named in str(caught.value)


async def test_durations_of_a_service_may_be_timedeltas() -> None:
    second = timedelta(seconds=1)
    waits: dict[str, Any] = {"latency": timedelta(milliseconds=1), "slow_for": second, "journey": second}
    async with (
        FakeService(errors={503: 1.0}, retry_after=2 * second, limits=[Limit(5)], **waits) as service,
        aiohttp.ClientSession() as session,
        session.get(service.url + "/rows/1") as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        short = timedelta(milliseconds=1)
        service.answer_next(FakeAnswer("planned", delay=short, slow=short))
        async with session.get(service.url) as answer:
            assert await answer.text() == "planned"


@pytest.mark.parametrize(
    "field",
    [
        {"delay": None},
        {"delay": -1},
        {"slow": float("nan")},
        {"status": "200"},
        {"status": 99},
        {"headers": None},
        {"headers": {"Retry-After": 5}},
        {"reset": 1},
        {"truncated": "no"},
    ],
    ids=str,
)
def test_a_wrong_field_of_an_answer_is_named(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{next(iter(field))} is "):
        FakeAnswer(**field)


def test_a_planned_answer_that_is_none_is_refused_where_it_is_planned() -> None:
    with pytest.raises(ConfigurationError, match=r"answers contains 503; each must be a FakeAnswer"):
        FakeService().answer_next(503)  # type: ignore[arg-type]


# -- limits


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
