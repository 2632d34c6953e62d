"""`HttpEnricher` under a budget: what it reports, and a service that enforces its limits (laws G3, G4, G5 and G11)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from asyncio_operator import Budget, Limit, Retry
from asyncio_operator.enricher import Hint
from asyncio_operator.lookup import Lookup
from asyncio_operator.quota.usage import running
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import asked, asked_in_batches, failure
from tests.operator.helpers import virtual

NUMBERS = itertools.count()
"""Budgets of one name share what they have used, so each test has a name of its own."""

LIMITS = [Limit(20, 10.0), Limit(1000, 10.0, "tokens")]


def budget(*limits: Limit) -> Budget:
    return Budget(f"http {next(NUMBERS)}", *limits)


def size(request: FakeRequest) -> dict[str, float]:
    return {"tokens": len(request.json()["text"])}


def chat(request: FakeRequest) -> Any:
    return {"content": "ok", "usage": {"total": len(request.json()["text"])}}


@asynccontextmanager
async def lookups(
    service: FakeService, shared: Budget, count: int = 1, retry: Any = "default", **options: Any
) -> AsyncIterator[list[Lookup]]:
    """Lookups with clients of their own, which share a budget."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Lookup(
                    HttpEnricher(
                        service.url + "/chat",
                        key="text",
                        method="POST",
                        json_body={"text": "{text}"},
                        schema="content string",
                        **options,
                    ),
                    budget=shared,
                    retry=retry,
                )
            )
            for _ in range(count)
        ]


async def all_of(lookups: Sequence[Lookup], texts: Sequence[str]) -> None:
    await asyncio.gather(*(lookups[i % len(lookups)].get(text) for i, text in enumerate(texts)))


@pytest.mark.parametrize("headers", ["openai", "ietf"])
@virtual
async def test_G4_G5_with_the_limits_of_the_service_no_request_is_refused(headers: str) -> None:
    texts = [f"{i:03}" + "x" * (i * 37 % 90) for i in range(100)]
    loop = asyncio.get_running_loop()
    async with FakeService(handler=chat, limits=LIMITS, headers=headers, weigh=size, latency=0.3) as service:
        options = {"weigh": lambda keys: {"tokens": sum(map(len, keys))}, "usage": {"tokens": "usage.total"}}
        started = loop.time()
        async with lookups(service, budget(*LIMITS), 2, **options) as both:
            await all_of(both, texts)
        taken = loop.time() - started
    assert [request.status for request in service.requests] == [200] * 100
    assert service.windows_exceeded() == []
    least = max(100 / 20, sum(map(len, texts)) / 1000) - 1
    assert taken <= 10 * least * 1.1 + 1


HUNDRED: dict[str, Any] = {"weigh": lambda keys: {"tokens": 100.0}, "usage": {"tokens": "usage.total"}}


@pytest.mark.parametrize(
    ("headers", "limit", "latency", "calls"),
    [
        *((headers, Limit(1000, 10.0, "tokens"), 0.3, 50) for headers in ("openai", "ietf")),
        *((headers, Limit(20, 1.0), 0.05, 70) for headers in ("openai", "azure", "anthropic", "ietf")),
    ],
)
@virtual
async def test_G3_a_source_that_reports_the_users_own_limit_costs_nothing(
    headers: str, limit: Limit, latency: float, calls: int
) -> None:
    """As many calls as three windows hold by what they really weigh, which is less than the estimates. In windows of a
    second some providers round their reset to the whole window."""
    taken = []
    for hints in (False, True):
        service = FakeService(
            handler=lambda _: {"content": "ok", "usage": {"total": 60}},
            limits=[limit],
            headers=headers,
            latency=latency,
            **HUNDRED,
        )
        async with service, lookups(service, budget(limit), hints=hints, **HUNDRED) as one:
            started = asyncio.get_running_loop().time()
            await all_of(one, [f"{i:02}" for i in range(calls)])
            taken.append(asyncio.get_running_loop().time() - started)
        assert [request.status for request in service.requests] == [200] * calls
    assert taken[1] == pytest.approx(taken[0], abs=0.1)


@virtual
async def test_G4_what_answers_weighed_takes_the_place_of_estimates() -> None:
    shared = budget(Limit(10_000, 60.0, "tokens"))
    async with FakeService(handler=chat) as service:
        options: dict[str, Any] = {"weigh": lambda keys: {"tokens": 1000.0}, "usage": {"tokens": "usage.total"}}
        async with lookups(service, shared, **options) as one:
            await all_of(one, ["a", "bb", "cccc"])
            assert shared.statistics().units["tokens"].used <= 3000
            await asyncio.sleep(1.0)
            assert shared.statistics().units["tokens"].used == 7


@pytest.mark.parametrize(
    "answer",
    [
        FakeAnswer({}, 429, {"Retry-After": "9"}),
        FakeAnswer({}, 503, {"retry-after-ms": "9000"}),
        FakeAnswer({"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "9s"}]}}, 429),
        FakeAnswer({"content": "ok"}, 200, {"RateLimit-Policy": '"a";q=20;w=9', "RateLimit": '"a";r=0;t=9'}),
        FakeAnswer(
            {"content": "ok"},
            200,
            {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"},
        ),
    ],
    ids=["Retry-After", "retry-after-ms", "RetryInfo", "RateLimit", "x-ratelimit"],
)
@virtual
async def test_G5_what_one_lookup_hears_stops_the_others_within_half_a_second(answer: FakeAnswer) -> None:
    async with FakeService(handler=chat) as service, lookups(service, budget(Limit(1000, 1.0)), 2) as both:

        async def asks(lookup: Lookup, name: str) -> None:
            for i in range(200):
                await lookup.get(f"{name} {i}")
                await asyncio.sleep(0.05)

        async def hears() -> float:
            await asyncio.sleep(1.0)
            service.answer_next(answer)
            return asyncio.get_running_loop().time() - start

        start = asyncio.get_running_loop().time()
        _, _, told = await asyncio.gather(asks(both[0], "a"), asks(both[1], "b"), hears())
    times = [request.time for request in service.requests if told + 0.6 < request.time]
    assert told + 8.5 <= min(times) <= told + 10.5


@virtual
async def test_G5_without_hints_nothing_stops() -> None:
    async with FakeService(handler=chat) as service, lookups(service, budget(Limit(9, 1.0)), hints=False) as one:
        service.answer_next(FakeAnswer({}, 429, {"Retry-After": "9"}))
        began = asyncio.get_running_loop().time()
        first = asyncio.ensure_future(one[0].get("a"))
        await asyncio.sleep(0.2)
        await one[0].get("b")
        assert asyncio.get_running_loop().time() - began < 2
        await first  # The error still says when to return.
        assert asyncio.get_running_loop().time() - began == pytest.approx(9, abs=0.5)


@pytest.mark.parametrize("headers", ["openai", "ietf"])
@virtual
async def test_G5_a_limit_that_was_not_known_is_learnt_from_the_service(headers: str) -> None:
    """The budget is ten times too large. Few requests leave before the first answers, and few are refused."""
    options: dict[str, Any] = {"limits": [Limit(20, 60.0)], "headers": headers, "latency": 0.3}
    shared = budget(Limit(200, 60.0))
    async with (
        FakeService(handler=chat, **options) as service,
        lookups(service, shared, retry=Retry(10, on="retryable")) as one,
    ):
        await all_of(one, [str(i) for i in range(100)])
    refused = [request.time for request in service.requests if request.status == 429]
    assert len([time for time in refused if time < 1.0]) <= 5
    assert len([time for time in refused if time > 1.0]) <= 10
    assert max(request.time for request in service.requests) < 4 * 60 + 10


@pytest.mark.parametrize("headers", ["ietf", "openai", "anthropic", "azure"])
@virtual
async def test_G5_a_lower_limit_of_the_source_is_kept_from_then_on(headers: str) -> None:
    """The budget allows five times as much. What the source says with every answer bounds the next windows."""
    options: dict[str, Any] = {"limits": [Limit(60, 1.0)], "headers": headers, "latency": 0.1}
    shared = budget(Limit(300, 1.0))
    async with (
        FakeService(handler=chat, **options) as service,
        lookups(service, shared, 4, retry=Retry(50, on="retryable")) as four,
    ):
        began = asyncio.get_running_loop().time()
        await all_of(four, [str(i) for i in range(600)])
    last = max(request.time for request in service.requests)
    late = [request for request in service.requests if request.time - began > 1.5]
    refused = sum(request.status == 429 for request in late)
    assert refused <= 0.05 * len(late)
    assert (len(late) - refused) / (last - began - 1.5) >= 0.8 * 60


BILLED = {"content": "ok", "usage": {"usd": 0.02}}

ENDS: dict[str, tuple[FakeAnswer, float]] = {
    "an answer": (FakeAnswer(BILLED), 0.02),
    "an answer that does not say what it used": (FakeAnswer({"content": "ok"}), 0.1),
    "an answer without content": (FakeAnswer(None, 204), 0.1),
    "an answer that cannot be read": (FakeAnswer("<html>", headers={"Content-Type": "text/html"}), 0.1),
    "a missing row": (FakeAnswer({"error": "no such row"}, 404), 0.0),
    "a missing row with its usage": (FakeAnswer({"usage": {"usd": 0.03}}, 404), 0.03),
    "a lost connection": (FakeAnswer(reset=True), 0.1),
    "an answer that breaks off": (FakeAnswer(BILLED, truncated=True), 0.1),
    **{
        f"status {n}": (FakeAnswer({"error": "no"}, n), 0.0) for n in (400, 401, 403, 409, 422, 429, 500, 502, 503, 529)
    },
    **{f"status {n} with its usage": (FakeAnswer({"usage": {"usd": 0.05}}, n), 0.05) for n in (400, 429, 500, 503)},
}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("end", ENDS)
@virtual
async def test_G11_what_a_request_has_used_follows_from_its_answer(end: str, batch: bool) -> None:
    answer, cost = ENDS[end]
    spec = Budget(f"http {next(NUMBERS)}", Limit(1000, 60.0, "usd"), spend={"usd": 5.0})
    async with FakeService(handler=lambda _: answer) as service:
        options: dict[str, Any] = {}
        if batch:
            options = {"batch_url": service.url + "/both", "batch_json_body": {"keys": "{keys}"}, "max_batch": 2}
        enricher = HttpEnricher(
            service.url + "/{key}",
            schema="content string",
            weigh=lambda keys: {"usd": 0.1 * max(1, len(keys))},
            usage={"usd": "usage.usd"},
            **options,
        )
        async with Lookup(enricher, budget=spec, retry=None) as lookup:
            await asyncio.gather(*(lookup.get(f"k{n}") for n in range(2)), return_exceptions=True)
        calls = len(service.requests)
    figures = spec.statistics().units["usd"]
    assert figures.reserved == 0
    if not batch:
        assert figures.used == pytest.approx(2 * cost)
    elif cost < 0.1:
        # A failed batch is asked for again key by key.
        assert figures.used == pytest.approx(calls * cost)


@pytest.mark.parametrize("key", ["", ".", ".."])
@virtual
async def test_G11_a_key_that_is_not_sent_costs_nothing(key: Any) -> None:
    spec = Budget(f"http {next(NUMBERS)}", spend={"usd": 5.0})
    async with FakeService() as service:
        enricher = HttpEnricher(
            service.url + "/rows/{key}", schema="x int", empty_key="miss", weigh=lambda keys: {"usd": 0.1}
        )
        async with Lookup(enricher, budget=spec, retry=None) as lookup:
            await asyncio.gather(lookup.get(key), return_exceptions=True)
        assert service.requests == []
    assert spec.statistics().units["usd"].used == 0


@virtual
async def test_G11_a_request_that_the_deadline_cuts_keeps_its_estimate() -> None:
    spec = Budget(f"http {next(NUMBERS)}", spend={"usd": 5.0})
    async with FakeService({"a": {"x": 1}}, latency=60.0) as service:
        enricher = HttpEnricher(service.url + "/rows/{key}", schema="x int", weigh=lambda keys: {"usd": 0.1})
        async with Lookup(enricher, budget=spec, retry=None, timeout=1.0) as lookup:
            with pytest.raises(TimeoutError):
                await lookup.get("a")
    assert spec.statistics().units["usd"].used == 0.1


# -- what is reported


TOKENS = {"x-ratelimit-limit-tokens": "1000", "x-ratelimit-remaining-tokens": "10", "x-ratelimit-reset-tokens": "6m0s"}
TOKENS_HINT = Hint(limit=1000, remaining=10, reset_after=360, refills=True)


class Call:
    """A running call under a budget: what was reported to it."""

    def __init__(self) -> None:
        self.settled: list[Mapping[str, float]] = []
        self.hints: list[tuple[Mapping[str, Hint], float | None]] = []
        self.billed: list[bool] = []

    def bill(self, whether: bool) -> None:
        self.billed.append(whether)

    def settle(self, weights: Mapping[str, float]) -> None:
        self.settled.append(weights)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        self.hints.append((limits, retry_after))


@pytest.fixture
def call() -> Iterator[Call]:
    call = Call()
    token = running.set(call)
    yield call
    running.reset(token)


async def test_G5_hints_of_every_answer_are_passed_on(call: Call) -> None:
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(
            FakeAnswer({"a": 1}, headers=TOKENS),
            FakeAnswer({"a": 1}),
            FakeAnswer({}, 404, TOKENS),
            FakeAnswer({}, 429, {**TOKENS, "Retry-After": "7", "retry-after-ms": "6500"}),
            FakeAnswer({"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "4.5s"}]}}, 503),
        )
        assert await enricher.lookup("x") == await enricher.lookup("x") == {"a": 1}
        assert await enricher.lookup("x") is None
        assert (await failure(enricher, "x")).retry_after == 6.5
        assert (await failure(enricher, "x")).retry_after == 4.5
    limits = {"tokens": TOKENS_HINT}
    assert call.hints == [(limits, None), (limits, None), (limits, 6.5), ({}, 4.5)]
    assert call.settled == []


async def test_G5_a_hint_that_cannot_be_right_is_logged_once(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeService() as service, asked(service) as enricher:
        for _ in range(3):
            service.answer_next(FakeAnswer({"a": 1}, headers=TOKENS | {"x-ratelimit-limit-tokens": "-7"}))
            service.answer_next(FakeAnswer({}, 503, {"Retry-After": "soon"}))
            await enricher.lookup("x")
            await failure(enricher, "x")
    assert call.hints == []
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.partition(": ")[2] for message in messages] == [
        "the header x-ratelimit-limit-tokens is ignored: it is negative. This is logged once",
        "the header retry-after is ignored: it is neither a number nor a time. This is logged once",
    ]
    assert all(message.startswith(f"HttpEnricher({service.url}/rows/{{key}})") for message in messages)


def total(answer: Any) -> Any:
    return answer["usage"]["prompt"] + answer["usage"]["completion"]


@pytest.mark.parametrize("usage", [{"tokens": "usage.total"}, {"tokens": total}], ids=["path", "function"])
async def test_G4_what_an_answer_weighed_is_settled(call: Call, usage: Any) -> None:
    said = {"usage": {"prompt": 30, "completion": 12.5, "total": 42.5}}
    async with (
        FakeService() as service,
        asked(service, usage=usage, extract="row", missing_statuses=(404,)) as enricher,
    ):
        service.answer_next(
            FakeAnswer({"row": {"a": 1}, **said}),
            FakeAnswer({"error": "too long", **said}, 400),
            FakeAnswer({"error": "none", **said}, 404),
            FakeAnswer({"error": "no usage"}, 429),
            FakeAnswer("down", 503),
        )
        assert await enricher.lookup("x") == {"a": 1}
        await failure(enricher, "x")
        assert await enricher.lookup("x") is None
        await failure(enricher, "x")
        await failure(enricher, "x")
    assert call.settled == [{"tokens": 42.5}] * 3


async def test_G4_a_batch_settles_once_for_all_of_its_keys_also_decimals(call: Call) -> None:
    options = {"usage": {"tokens": "usage.total", "usd": "usage.cost"}, "batch_extract": "rows"}
    options |= {"schema": "a decimal(9,2)"}
    async with FakeService() as service, asked_in_batches(service, **options) as enricher:
        service.answer_next(FakeAnswer({"rows": [{"a": 1}, {"a": 2}], "usage": {"total": 10, "cost": 0.25}}))
        assert await enricher.lookup_many(["x", "y"]) == [{"a": 1}, {"a": 2}]
    assert call.settled == [{"tokens": 10.0, "usd": 0.25}]


@pytest.mark.parametrize("value", [-1, "7", None, True, [], float("nan"), 1e999, 10**400, 1e16])
async def test_G4_usage_that_cannot_be_read_keeps_the_estimate_and_is_logged_once(
    call: Call, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    usage = {"tokens": lambda answer: value, "usd": "usage.cost", "bytes": "size"}
    async with FakeService() as service, asked(service, usage=usage) as enricher:
        for _ in range(2):
            service.answer_next(FakeAnswer({"a": 1, "size": 3}))
            assert await enricher.lookup("x") == {"a": 1}
    assert call.settled == [{"bytes": 3.0}] * 2
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "usage['tokens'] is ignored, and the estimate counts: it is " in messages[0]
    assert "usage['usd'] is ignored, and the estimate counts: the path 'usage.cost' leads nowhere" in messages[1]


async def test_G4_without_a_budget_nothing_is_said_of_an_estimate(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeService() as service, asked(service, usage={"usd": "usage.cost"}) as enricher:
        service.answer_next(FakeAnswer({"a": 1}))
        assert await enricher.lookup("x") == {"a": 1}
    assert caplog.text == ""
