"""What `HttpEnricher` reports to a budget: the limits in headers, the estimate and the true weight of its requests."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from asyncio_operator.budget.usage import running
from asyncio_operator.enricher import Hint
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import asked, asked_in_batches, failure

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


async def test_G5_hints_can_be_switched_off_and_the_error_still_says_when_to_return(call: Call) -> None:
    async with FakeService() as service, asked(service, hints=False) as enricher:
        service.answer_next(FakeAnswer({"a": 1}, headers=TOKENS), FakeAnswer({}, 429, {"Retry-After": "7"}))
        await enricher.lookup("x")
        assert (await failure(enricher, "x")).retry_after == 7
    assert call.hints == []


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


async def test_G4_a_batch_settles_once_for_all_of_its_keys(call: Call) -> None:
    options = {"usage": {"tokens": "usage.total", "usd": "usage.cost"}, "batch_extract": "rows"}
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


async def test_decimals_of_an_answer_are_amounts(call: Call) -> None:
    async with FakeService() as service, asked(service, schema="a decimal(9,2)", usage={"usd": "a"}) as enricher:
        service.answer_next(FakeAnswer(b'{"a": 1.25}'))
        assert await enricher.lookup("x") == {"a": Decimal("1.25")}
    assert call.settled == [{"usd": 1.25}]


def weigh(keys: Any) -> dict[str, float]:
    return {"tokens": 100.0 + sum(map(len, keys))}


def made(**options: Any) -> HttpEnricher:
    return HttpEnricher("http://localhost/{key}", schema="a int", **options)


def test_G4_an_estimate_is_that_of_the_users_function() -> None:
    assert made().weigh(["x"]) == {}
    assert made(weigh=weigh).weigh(["ab", "c"]) == {"tokens": 103.0}
    assert made(weigh=weigh).weigh([]) == {"tokens": 100.0}


def test_they_belong_to_the_specification() -> None:
    """A worker shares clients between equal specifications, and a client reads the answers: so they must be equal."""
    one = made(weigh=weigh, usage={"tokens": "usage.total"}, hints=False)
    assert pickle.loads(pickle.dumps(one)) == one == made(weigh=weigh, usage={"tokens": "usage.total"}, hints=False)
    assert fingerprint(pickle.loads(pickle.dumps(one))) == fingerprint(one)
    others = [made(), made(weigh=weigh), made(usage={"tokens": "usage.total"}), made(hints=False)]
    assert all(other != one for other in others)
    assert len({fingerprint(other) for other in others}) == len(others)
    assert made() == made(hints=True, usage={})
    assert repr(one) == repr(made())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hints": "yes"}, "hints is 'yes'"),
        ({"hints": 60}, "hints is 60; it must be True or False"),
        ({"usage": "usage.total"}, "usage is 'usage.total'; it must be a mapping"),
        ({"usage": {"calls": "n"}}, "usage has the unit 'calls', which is counted"),
        ({"usage": {7: "n"}}, "usage has the unit 7, which is not text"),
        ({"usage": {"tokens": "a..b"}}, r"usage\['tokens'\] is 'a..b'; it must be a dotted path"),
        ({"usage": {"tokens": None}}, r"usage\['tokens'\] is None"),
        ({"weigh": {"tokens": 3}}, "weigh is {'tokens': 3}; it must be an ordinary function"),
        ({"weigh": lambda: None}, "weigh is .* it must take one argument, the list of keys"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        made(**options)
