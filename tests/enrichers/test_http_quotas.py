"""Refusals that another attempt does not mend: billing, and quotas of a day. The bodies are those of the providers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers.http.error_bodies import lasting_refusal, parsed_error
from tests.enrichers.helpers import asked, asked_in_batches, failure


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
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(FakeAnswer(LASTING[0][1], 429, {"Retry-After": "1"}))
        error = await failure(enricher, "x")
    assert (error.retryable, error.retry_after, error.overload, error.any_key) == (False, None, False, True)
    assert "key 'x': not retried, because the account has no credit left (status 429): " in str(error)
    assert BILLING[:30] in str(error)


async def test_a_batch_is_not_split_for_them() -> None:
    async with FakeService() as service, asked_in_batches(service) as enricher:
        service.answer_next(FakeAnswer(LASTING[3][1], 429))
        error = await failure(enricher, "x", "y")
    assert (error.retryable, error.any_key) == (False, True)


async def test_the_delay_of_google_reaches_the_error() -> None:
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(FakeAnswer(PASSING[1][1], 429))
        error = await failure(enricher, "x")
    assert (error.retryable, error.retry_after, error.overload) == (True, 45.8, True)


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
