"""What the body of an error says that its status does not: when to return, and whether returning helps at all.

A 429 may mean "slower", and then another attempt helps; or "pay first", or "not today", and then none does. Codes
decide where there are some. The text is searched only for expressions that say it plainly: services write of billing
in messages about limits per minute too ("add a payment method to increase your limit").

Sources: the error codes of OpenAI, Anthropic, Azure and the Google APIs; google.rpc.RetryInfo and QuotaFailure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from enrichers.http.header_values import LARGEST_NUMBER, duration_of

STATUSES = (402, 403, 429)
"""The statuses of an error that may speak of billing or of a quota."""

SEARCHED = 4_000
"""Characters of a message that are searched."""

CODES = {
    "insufficient_quota": "the account has no credit left",
    "billing_error": "the account has a problem with billing",
    "billing_hard_limit_reached": "the account has reached its spending limit",
    "billing_not_active": "billing of the account is not active",
    "billing_disabled": "billing of the account is not active",
    "billingnotenabled": "billing of the account is not active",
    "dailylimitexceeded": "the quota of the day is used up",
    "dailylimitexceededunreg": "the quota of the day is used up",
    "quotaexceeded": "the quota of the account is used up",
}
"""Codes of errors, in lower case, after which no attempt helps."""

WORDS = tuple(
    (re.compile(words, re.IGNORECASE), meaning)
    for words, meaning in (
        (r"credit balance is too low|insufficient[ _](?:balance|funds|credits?|quota)\b", CODES["insufficient_quota"]),
        (r"billing_hard_limit|reached your specified api usage limits", CODES["billing_hard_limit_reached"]),
        (r"\bper[ _-]?day\b|\bdaily (?:\w+ ){0,2}(?:quota|limit)|\((?:RPD|TPD)\)", CODES["dailylimitexceeded"]),
        (r"out of call volume quota", CODES["quotaexceeded"]),
    )
)
"""Expressions of messages, with what they mean. The last is that of Azure's API Management."""

QUOTA_NAMES = ("quotaId", "quota_limit", "quotaMetric")
"""Where Google names the quota that was exceeded, such as GenerateRequestsPerDayPerProjectPerModel-FreeTier."""


def parsed_error(body: bytes) -> object:
    """The JSON of an error; None if it is none."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def lasting_refusal(status: int, body: bytes, parsed: object) -> str | None:
    """Why no further attempt helps, if the error speaks of billing or of a quota that lasts a day or longer."""
    if status not in STATUSES:
        return None
    error = error_of(parsed)
    details = list(error_details(parsed))
    for detail in (error, *details, *_mappings(error.get("errors"))):
        for name in ("code", "type", "reason"):
            if (code := detail.get(name)) and isinstance(code, str) and code.lower() in CODES:
                return CODES[code.lower()]
    quotas = [violation for detail in details for violation in _mappings(detail.get("violations"))]
    quotas += _mappings([detail.get("metadata") for detail in details])
    names = [quota[name] for quota in quotas for name in QUOTA_NAMES if isinstance(quota.get(name), str)]
    if any("perday" in re.sub("[ _-]", "", name).lower() for name in names):
        return CODES["dailylimitexceeded"]
    message = error.get("message")
    # Google lists the quotas that were exceeded; its text speaks of plan and billing whatever they are.
    text = "" if names else message if isinstance(message, str) else body[:SEARCHED].decode("utf-8", "replace")
    return next((meaning for words, meaning in WORDS if words.search(text[:SEARCHED])), None)


def retry_info(parsed: object) -> float | None:
    """The seconds of the ``retryDelay`` of a ``google.rpc.RetryInfo``."""
    for detail in error_details(parsed):
        delay, kind = detail.get("retryDelay"), detail.get("@type")
        if isinstance(delay, str) and isinstance(kind, str) and kind.endswith("google.rpc.RetryInfo"):
            seconds = duration_of(delay)
            if seconds is not None and seconds <= LARGEST_NUMBER:
                return seconds
    return None


def error_of(parsed: object) -> Mapping[str, Any]:
    """The ``error`` of an answer in JSON; empty if it has none. Google's streams put it into a list."""
    first = parsed[0] if isinstance(parsed, list) and parsed else parsed
    error = first.get("error") if isinstance(first, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def error_details(parsed: object) -> Iterator[Mapping[str, Any]]:
    """The ``details`` of an error of Google."""
    return _mappings(error_of(parsed).get("details"))


def _mappings(values: object) -> Iterator[Mapping[str, Any]]:
    return (value for value in (values if isinstance(values, list) else ()) if isinstance(value, Mapping))
