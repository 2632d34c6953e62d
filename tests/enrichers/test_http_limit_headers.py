"""What services say of their limits in headers and bodies: every style of the providers, and what cannot be right."""

from __future__ import annotations

import email.utils
import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers.http.error_bodies import lasting_refusal, parsed_error
from enrichers.http.limit_headers import FAMILIES, NOTHING, Hints, read_hints
from tests.enrichers.helpers import asked, asked_in_batches, failure

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
STAMP = NOW.timestamp()


def http_date(seconds: float) -> str:
    return email.utils.format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


def read(headers: dict[str, str], status: int = 200, body: object = None, **options: Any) -> Hints:
    return read_hints(status, {"Date": http_date(0), **headers}.items(), body, STAMP + 1e6, **options)


def rolling(limit: float, remaining: float, reset_after: float) -> dict[str, object]:
    return {"limit": limit, "remaining": remaining, "reset_after": reset_after, "refills": True}


def fixed(limit: float, remaining: float, reset_after: float, **more: float) -> dict[str, object]:
    return {"limit": limit, "remaining": remaining, "reset_after": reset_after, "refills": False, **more}


OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-limit-tokens": "160000",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6m0s",
}

ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2026-01-01T12:00:01Z",
    "anthropic-ratelimit-tokens-limit": "90000",
    "anthropic-ratelimit-tokens-remaining": "89000",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T12:00:02.5Z",
    "anthropic-ratelimit-input-tokens-limit": "80000",
    "anthropic-ratelimit-input-tokens-remaining": "0",
    "anthropic-ratelimit-input-tokens-reset": "2026-01-01T13:00:30+01:00",
    "anthropic-ratelimit-output-tokens-limit": "10000",
    "anthropic-ratelimit-output-tokens-remaining": "10000",
    "anthropic-ratelimit-output-tokens-reset": "2026-01-01T12:00:00Z",
}


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        (OPENAI, {"calls": rolling(5000, 4999, 0.012), "tokens": rolling(160000, 0, 360)}),
        ({name.title(): value for name, value in OPENAI.items()}, {"calls": rolling(5000, 4999, 0.012)}),
        (OPENAI | {"x-ratelimit-reset-tokens": "1h"}, {"tokens": rolling(160000, 0, 3600)}),
        (OPENAI | {"x-ratelimit-reset-tokens": "2m3.5s"}, {"tokens": rolling(160000, 0, 123.5)}),
        (
            {  # Azure: whole seconds, and -1 or 0 for a limit that it does not know.
                "x-ratelimit-limit-tokens": "240000",
                "x-ratelimit-remaining-tokens": "239000",
                "x-ratelimit-reset-tokens": "60",
                "x-ratelimit-limit-requests": "-1",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "-1",
            },
            {"tokens": rolling(240000, 239000, 60), "calls": None},
        ),
        (
            ANTHROPIC,
            {
                "calls": rolling(50, 49, 0.5),
                "tokens": rolling(90000, 89000, 2.5),
                "input_tokens": rolling(80000, 0, 29.5),
                "output_tokens": rolling(10000, 10000, 0),
            },
        ),
        (  # IETF draft, versions 9 and later
            {"RateLimit-Policy": '"default";q=100;w=60', "RateLimit": '"default";r=50;t=30'},
            {"calls": fixed(100, 50, 30, per=60)},
        ),
        (
            {
                "RateLimit-Policy": '"burst";q=100;w=60, "hour" ; q=1000 ; w=3600,"t,;\\"";q=9;w=1;qu="tokens"',
                "RateLimit": '"burst";r=50;t=30 , "hour";r=20;t=900, "t,;\\"";r=3;t=1',
            },
            {"calls": fixed(1000, 20, 900, per=3600), "tokens": fixed(9, 3, 1, per=1)},
        ),
        ({"RateLimit-Policy": '"default";q=100;w=60'}, {"calls": {"limit": 100, "per": 60}}),
        ({"RateLimit-Policy": '"a";q=10;qu="concurrent-requests"'}, {"calls": None}),
        ({"RateLimit-Policy": '"a";q=10;w=1;qu="content-bytes"'}, {"bytes": {"limit": 10, "per": 1}}),
        (  # versions 7 and 8
            {"RateLimit-Policy": "100;w=60", "RateLimit": "limit=100, remaining=50, reset=30"},
            {"calls": fixed(100, 50, 30, per=60)},
        ),
        (  # versions before 7
            {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "50", "RateLimit-Reset": "30"},
            {"calls": fixed(100, 50, 30)},
        ),
        (
            {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(STAMP) + 600)},
            {"calls": fixed(60, 0, 600)},
        ),
        (
            {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": f"{STAMP + 5.5:.0f}000"},
            {"calls": fixed(60, 1, 6)},
        ),
        (
            {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "17"},
            {"calls": fixed(60, 2, 17)},
        ),
        (
            {"x-rate-limit-limit": "15", "x-rate-limit-remaining": "14", "x-rate-limit-reset": str(int(STAMP) + 900)},
            {"calls": fixed(15, 14, 900)},
        ),
        ({"X-RateLimit-Limit": "60"}, {"calls": {"limit": 60}}),
        ({"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "5"}, {"calls": {"limit": 60}}),
        ({"X-RateLimit-Remaining": "5"}, {"calls": None}),
        ({"X-RateLimit-Reset": "5"}, {"calls": None}),
        ({}, {"calls": None, "tokens": None}),
    ],
)
def test_G5_every_style_of_headers_is_read(headers: dict[str, str], limits: dict[str, object]) -> None:
    hints = read(headers)
    assert {unit: hints.limits.get(unit) for unit in limits} == limits
    assert not hints.ignored
    assert hints.retry_after is None


WAITS = {
    "7": 7.0,
    "0": 0.0,
    " 1.5 ": 1.5,
    "86400": 86400.0,
    http_date(90): 90.0,
    http_date(0): 0.0,
    "Thu, 01 Jan 2026 12:01:00 -0000": 60.0,
    **dict.fromkeys(["-3", "-1", "", "soon", "nan", "inf", "1e999", "9" * 400, "٣", http_date(-86400)]),
    "Fri, 32 Foo 2026 99:99:99 GMT": None,
}


@pytest.mark.parametrize(("value", "seconds"), WAITS.items())
def test_G5_retry_after_is_seconds_or_a_date_by_the_clock_of_the_service(value: str, seconds: float | None) -> None:
    headers = {"Retry-After": value}
    hints = read(headers, 429)
    assert hints.retry_after == seconds
    assert bool(hints.ignored) == (seconds is None)
    assert read(headers, 200).retry_after is None, "an answer that is no error does not ask to return"


def test_G5_retry_after_in_milliseconds_comes_first() -> None:
    assert read({"retry-after-ms": "1250", "Retry-After": "2"}, 429).retry_after == 1.25
    hints = read({"retry-after-ms": "soon", "Retry-After": "2"}, 429)
    assert (hints.retry_after, len(hints.ignored)) == (2.0, 1)
    assert read({}, 429) == NOTHING


def test_a_date_is_read_by_our_clock_if_the_service_sends_none() -> None:
    assert read_hints(503, [("Retry-After", http_date(100))], None, STAMP).retry_after == 100


def test_G5_google_says_in_the_body_when_to_return() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.8s"}
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{"@type": "x"}, 5, info]}}
    assert read({}, 429, body).retry_after == 45.8
    assert read({}, 429, [body]).retry_after == 45.8
    assert read({"Retry-After": "3"}, 429, body).retry_after == 3.0
    assert read({}, 200, body) == NOTHING
    for wrong in ("45.8", "-3s", "soon", None, 45, "9" * 30 + "s"):
        assert read({}, 429, {"error": {"details": [{**info, "retryDelay": wrong}]}}).retry_after is None


@pytest.mark.parametrize(
    ("header", "value", "why"),
    [
        ("x-ratelimit-remaining-tokens", "-5", "negative"),
        ("x-ratelimit-limit-tokens", "0", "it is 0"),
        ("x-ratelimit-limit-tokens", "-160000", "negative"),
        ("x-ratelimit-remaining-tokens", "160001", "160001 of 160000 cannot remain"),
        ("x-ratelimit-remaining-tokens", "many", "neither a number"),
        ("x-ratelimit-remaining-tokens", "", "empty"),
        ("x-ratelimit-remaining-tokens", "1" * 20, "too large"),
        ("x-ratelimit-remaining-tokens", "٣", "not ASCII"),
        ("x-ratelimit-limit-tokens", "1" * 2000, "too long"),
        ("x-ratelimit-reset-tokens", "-6m0s", "neither a number nor a time"),
        ("x-ratelimit-reset-tokens", "6m0", "neither a number nor a time"),
        ("x-ratelimit-reset-tokens", "2025-12-31T12:00:00Z", "in the past"),
        ("x-ratelimit-reset-tokens", "2026-01-01T12:00:00", "neither a number nor a time"),
    ],
)
def test_G5_hints_that_cannot_be_right_are_left_out_with_a_reason(header: str, value: str, why: str) -> None:
    hints = read(OPENAI | {header: value})
    assert [(ignored.header, why in ignored.why) for ignored in hints.ignored] == [(header, True)]
    assert hints.limits == {"calls": rolling(5000, 4999, 0.012)}, "the other unit is not affected"


def test_G5_how_long_a_wait_is_believed_is_for_the_budget_to_decide() -> None:
    day = {"RateLimit-Policy": '"day";q=1000;w=86400', "RateLimit": '"day";r=3;t=40000'}
    assert read(day).limits == {"calls": fixed(1000, 3, 40000, per=86400)}
    both = {
        "RateLimit-Policy": '"day";q=1000;w=86400,"minute";q=100;w=60',
        "RateLimit": '"day";r=3;t=40000,"minute";r=50;t=30',
    }
    assert read(both).limits == {"calls": fixed(100, 50, 30, per=60)}, "most budgets believe no wait of 40,000 s"


def test_G5_copies_of_a_header_count_once_and_contradictions_not_at_all() -> None:
    headers = [("Date", http_date(0)), *OPENAI.items(), ("X-RateLimit-Remaining-Tokens", " 0 ")]
    assert read_hints(200, headers, None, STAMP).limits["tokens"] == rolling(160000, 0, 360)
    hints = read_hints(200, [*headers, ("x-ratelimit-remaining-tokens", "7")], None, STAMP)
    assert "tokens" not in hints.limits
    assert [ignored.header for ignored in hints.ignored] == ["x-ratelimit-remaining-tokens"]


NAMES = ["date", "retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy"]
NAMES += [name for _, names, _ in FAMILIES for name in names]
VALUES = st.one_of(
    st.text(max_size=30),
    st.from_regex(re.compile(r"-?[0-9]{0,25}(\.[0-9]{0,25})?(d|h|m|s|ms)?"), fullmatch=True),
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.datetimes().map(email.utils.format_datetime),
    st.from_regex(re.compile(r'("[a-z\\",]{0,4}"?(;[qwrt]u?=-?[0-9a-z]{0,3}){0,3},?){0,3}'), fullmatch=True),
    st.sampled_from(["limit=1, remaining=x", "-1", "0", "inf", "1e5", '"', ";;;", "=,=", "\udcff"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.sampled_from(["3.5s", "google.rpc.RetryInfo"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "details", "@type", "retryDelay", "code", "message", "violations"]),
            inner,
        )
    ),
)


@example(200, [("ratelimit", ";")], None, 0.0)
@example(200, [("ratelimit-policy", ",;,"), ("ratelimit", "=;=")], None, 0.0)
@given(
    st.sampled_from([200, 403, 429, 503]),
    st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=9),
    JSON,
    st.floats(0, 1e11),
)
def test_G5_no_input_raises_and_every_hint_can_be_right(
    status: int, headers: list[tuple[str, str]], body: object, now: float
) -> None:
    hints = read_hints(status, headers, body, now)
    for hint in hints.limits.values():
        assert hint.get("limit", 1) > 0
        assert hint.get("per", 1) > 0
        assert 0 <= hint.get("remaining", 0) <= hint.get("limit", math.inf)
        assert 0 <= hint.get("reset_after", 0) < math.inf
    assert hints.retry_after is None or 0 <= hints.retry_after < math.inf
    lasting_refusal(status, repr(body).encode("utf-8", "replace"), body)


@given(st.binary(max_size=99) | st.just(b"[" * 100_000) | st.just(b'{"a":' + b"9" * 5000 + b"}"))
def test_no_body_of_an_error_raises(body: bytes) -> None:
    lasting_refusal(429, body, parsed_error(body))


# -- refusals that another attempt does not help


def gemini(*quotas: str) -> dict[str, Any]:
    violations = [{"quotaMetric": "generativelanguage.googleapis.com/requests", "quotaId": quota} for quota in quotas]
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.8s"},
    ]
    message = "You exceeded your current quota, please check your plan and billing details."
    return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}}


def openai(message: str, code: str, kind: str = "requests") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


BILLING = "You exceeded your current quota, please check your plan and billing details."
PER_MINUTE = (
    "Rate limit reached for gpt-4 in organization org-1 on tokens per min (TPM): Limit 10000, Used 9990. Please try "
    "again in 6ms. You can increase your rate limit by adding a payment method at https://platform.openai.com/account/billing."
)
PER_DAY = "Rate limit reached for gpt-4 on requests per day (RPD): Limit 200, Used 200. Please try again in 7m12s."

LASTING = [
    (429, openai(BILLING, "insufficient_quota", "insufficient_quota"), "no credit left"),
    (429, openai("Billing hard limit has been reached", "billing_hard_limit_reached"), "spending limit"),
    (429, openai("Your account is not active", "billing_not_active"), "not active"),
    (429, openai(PER_DAY, "rate_limit_exceeded"), "quota of the day"),
    (429, gemini("GenerateRequestsPerDayPerProjectPerModel-FreeTier"), "quota of the day"),
    (429, gemini("PerMinute-FreeTier", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"), "quota of the day"),
    (403, {"type": "error", "error": {"type": "billing_error", "message": "..."}}, "billing"),
    (403, {"error": {"code": 403, "errors": [{"reason": "dailyLimitExceeded"}]}}, "quota of the day"),
    (403, {"error": {"details": [{"reason": "BILLING_DISABLED"}]}}, "not active"),
    (403, {"statusCode": 403, "message": "Out of call volume quota. It is replenished in 1.03:20:00."}, "used up"),
    (429, {"error": {"code": "429", "message": "Out of call volume quota for F0 pricing tier."}}, "used up"),
    (429, "daily request limit reached", "quota of the day"),
]

PASSING = [
    (429, openai(PER_MINUTE, "rate_limit_exceeded", "tokens")),
    (429, gemini("GenerateContentInputTokensPerModelPerMinute-FreeTier")),
    (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "This would exceed your rate limit"}}),
    (
        429,
        {
            "error": {
                "code": "429",
                "message": "Requests have exceeded token rate limit of your current S0 pricing tier. Please retry "
                "after 6 seconds. Please go here: https://aka.ms/oai/quotaincrease to increase the default rate limit.",
            }
        },
    ),
    (429, "slow down"),
    (429, b"\xff"),
    (503, openai(BILLING, "insufficient_quota")),
    (200, openai(BILLING, "insufficient_quota")),
]


def body_of(answer: object) -> bytes:
    return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@pytest.mark.parametrize(("status", "answer", "why"), LASTING)
def test_billing_and_quotas_of_a_day_are_recognised(status: int, answer: object, why: str) -> None:
    body = body_of(answer)
    assert why in (lasting_refusal(status, body, parsed_error(body)) or "")


@pytest.mark.parametrize(("status", "answer"), PASSING)
def test_limits_per_minute_are_not_taken_for_them(status: int, answer: object) -> None:
    body = body_of(answer)
    assert lasting_refusal(status, body, parsed_error(body)) is None


async def test_they_are_not_retryable_and_the_message_says_why() -> None:
    """Nor is a batch split for them."""
    async with FakeService() as service, asked_in_batches(service) as enricher:
        service.answer_next(*[FakeAnswer(LASTING[0][1], 429, {"Retry-After": "1"})] * 2)
        errors = [await failure(enricher, *keys) for keys in (["x", "y"], ["x"])]
    for error in errors:
        assert (error.retryable, error.retry_after, error.overload, error.any_key) == (False, None, False, True)
    assert "key 'x': not retried, because the account has no credit left (status 429): " in str(errors[1])
    assert BILLING[:30] in str(errors[1])


GITHUB = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "17"}


@pytest.mark.parametrize(
    ("status", "headers", "retryable", "wait"),
    [
        (403, {}, False, None),
        (403, GITHUB, True, 17),
        (403, GITHUB | {"X-RateLimit-Remaining": "1"}, False, None),
        (403, {"Retry-After": "60"}, True, 60),
        (429, GITHUB, True, 17),
        (429, GITHUB | {"Retry-After": "3"}, True, 3),
        (429, {"RateLimit-Policy": '"a";q=5;w=9', "RateLimit": '"a";r=0;t=4'}, True, 4),
        (
            429,
            {
                "x-ratelimit-limit-tokens": "9",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            True,
            None,
        ),
        (401, GITHUB, False, None),
    ],
)
async def test_an_empty_window_says_when_to_return_and_a_403_that_does_is_a_limit(
    status: int, headers: dict[str, str], retryable: bool, wait: float | None
) -> None:
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(FakeAnswer({"message": "no"}, status, headers))
        error = await failure(enricher, "x")
    assert (error.retryable, error.overload, error.retry_after) == (retryable, retryable, wait)
    assert f"{status}" in str(error)
    assert error.any_key is (not retryable)
