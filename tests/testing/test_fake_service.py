"""`FakeService`: what it answers, the faults it has on request, and what it remembers."""

from __future__ import annotations

import asyncio
import email.utils
import gc
import json
import math
import random
import urllib.request
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp.web_protocol import RequestHandler

from asyncio_operator import ConfigurationError
from asyncio_operator.errors import StateError
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from tests.operator.helpers import virtual

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
    if as_date:
        seconds = (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        assert 0 < seconds <= 8.1
    else:
        assert value == "7"


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


def test_it_serves_synchronous_tests_from_a_thread_and_comes_back_at_its_place() -> None:
    service = FakeService(ROWS)
    with pytest.raises(StateError, match="the service is not running; enter it with"):
        service.url  # noqa: B018
    url = ""
    for _ in range(2):
        with service:
            url = service.url
            with urllib.request.urlopen(f"{url}/rows/JFK") as response:
                assert json.load(response) == {"city": "New York"}
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"{url}/rows/JFK")
    assert service.url == url
    assert len(service.requests) == 2


def test_it_starts_and_stops_without_a_block() -> None:
    service = FakeService(ROWS)
    service.stop()  # Nothing runs.
    for answered in (1, 2):
        assert service.start() is service
        with urllib.request.urlopen(service.url + "/rows/JFK") as response:
            assert json.load(response) == ROWS["JFK"]
        service.stop()
        service.stop()
        assert len(service.requests) == answered
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(service.url + "/rows/JFK")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rows": [{"city": "New York"}]}, r"rows is \[{'city': 'New York'}\]; it must be a mapping of keys to rows"),
        ({"rows": "JFK"}, "rows is 'JFK'"),
        ({"rows": lambda request: None}, "rows is <function"),
        ({"latency": -1}, "latency is -1"),
        ({"latency": "1"}, "latency is '1'"),
        ({"latency": lambda: 1}, "latency is .* one argument, a random.Random"),
        ({"errors": 0.1}, "errors is 0.1; it must be a mapping of statuses to shares"),
        ({"errors": [503]}, r"errors is \[503\]"),
        ({"errors": {"503": 0.1}}, "errors is {'503': 0.1}"),
        ({"errors": {503: 1.5}}, r"errors\[503\] is 1.5"),
        ({"errors": {503: "often"}}, r"errors\[503\] is 'often'"),
        ({"resets": True}, "resets is True"),
        ({"resets": 0.6, "garbage": 0.6}, "0.6"),
        ({"rate_limit": 0}, "rate_limit is 0"),
        ({"batch": "set"}, "'set'"),
        ({"handler": {"a": 1}}, "handler is {'a': 1}"),
        ({"retry_after": math.nan}, "retry_after is nan"),
        ({"retry_after": "1"}, "retry_after is '1'"),
        ({"slow_for": -1}, "slow_for is -1"),
        ({"retry_after_date": 1}, "retry_after_date is 1"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        FakeService(**options)


def test_a_planned_answer_that_is_none_is_refused_where_it_is_planned() -> None:
    with pytest.raises(ConfigurationError, match=r"answers contains 503; each must be a FakeAnswer"):
        FakeService().answer_next(503)  # type: ignore[arg-type]
