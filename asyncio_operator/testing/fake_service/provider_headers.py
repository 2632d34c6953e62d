"""How providers report their limits: the headers of every answer, and the answer to a request beyond them.

Each style is that of a provider, with its names of units, its formats of times, and its bodies. Amounts are rounded
down and waits up, as providers do. Sources: the API references of OpenAI, Azure OpenAI and Anthropic, and
draft-ietf-httpapi-ratelimit-headers-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from asyncio_operator.testing.fake_service.messages import FakeAnswer


class LimitState(NamedTuple):
    """What a limit allows at a moment.

    Attributes:
        unit: what is counted.
        allowed: units in a window.
        per: seconds of a window.
        remaining: units that are left.
        next_after: seconds until more units are left.
        full_after: seconds until all units are left.
    """

    unit: str
    allowed: float
    per: float
    remaining: float
    next_after: float
    full_after: float

    @property
    def name(self) -> str:
        """The unit as providers call it."""
        return "requests" if self.unit == "calls" else self.unit.replace("_", "-")


class Style(NamedTuple):
    """How a provider reports its limits.

    Attributes:
        headers: the headers for the limits as they are.
        refusal: the answer for a request beyond a limit that has to wait for so long, in seconds.
    """

    headers: Callable[[Sequence[LimitState]], dict[str, str]]
    refusal: Callable[[LimitState, float], FakeAnswer]


def go_duration(seconds: float) -> str:
    """A duration as OpenAI writes it: ``12ms``, ``1.5s``, ``6m0s``, ``1h0m3.25s``."""
    milliseconds = math.ceil(max(seconds, 0.0) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _tightest(states: Sequence[LimitState]) -> Mapping[str, LimitState]:
    """For each unit the limit of which the smallest part is left: these providers report one for each."""
    tightest: dict[str, LimitState] = {}
    for state in sorted(states, key=lambda state: state.remaining / state.allowed, reverse=True):
        tightest[state.name] = state
    return tightest


def _return(wait: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait))}


def _return_exactly(wait: float) -> dict[str, str]:
    return {"retry-after-ms": str(math.ceil(wait * 1000)), **_return(wait)}


def _openai_headers(states: Sequence[LimitState]) -> dict[str, str]:
    headers = {}
    for name, state in _tightest(states).items():
        headers[f"x-ratelimit-limit-{name}"] = f"{math.floor(state.allowed)}"
        headers[f"x-ratelimit-remaining-{name}"] = f"{math.floor(state.remaining)}"
        headers[f"x-ratelimit-reset-{name}"] = go_duration(state.full_after)
    return headers


def _openai_refusal(state: LimitState, wait: float) -> FakeAnswer:
    message = (
        f"Rate limit reached for a fake model on {state.name} per {state.per:g} s: Limit {state.allowed:g}, Used "
        f"{state.allowed - state.remaining:g}. Please try again in {go_duration(wait)}."
    )
    error = {"message": message, "type": state.name, "param": None, "code": "rate_limit_exceeded"}
    return FakeAnswer({"error": error}, 429, _return_exactly(wait))


def _azure_headers(states: Sequence[LimitState]) -> dict[str, str]:
    headers = {}
    tightest = _tightest(states)
    for name in dict.fromkeys(["requests", "tokens", *tightest]):
        state = tightest.get(name)
        # -1 is what Azure writes for a limit that it does not know.
        amounts = (-1, -1, -1) if state is None else (state.allowed, state.remaining, math.ceil(state.full_after))
        for what, amount in zip(("limit", "remaining", "reset"), amounts, strict=True):
            headers[f"x-ratelimit-{what}-{name}"] = f"{math.floor(amount)}"
    return headers


def _azure_refusal(state: LimitState, wait: float) -> FakeAnswer:
    message = (
        f"Requests to a fake deployment have exceeded the {state.name} rate limit of your current pricing tier. Please "
        f"retry after {math.ceil(wait)} seconds."
    )
    return FakeAnswer({"error": {"code": "429", "message": message}}, 429, _return_exactly(wait))


def _anthropic_headers(states: Sequence[LimitState]) -> dict[str, str]:
    headers = {}
    now = datetime.now(UTC)
    for name, state in _tightest(states).items():
        reset = (now + timedelta(seconds=state.full_after + 1)).replace(microsecond=0)
        headers[f"anthropic-ratelimit-{name}-limit"] = f"{math.floor(state.allowed)}"
        headers[f"anthropic-ratelimit-{name}-remaining"] = f"{math.floor(state.remaining)}"
        headers[f"anthropic-ratelimit-{name}-reset"] = reset.isoformat().replace("+00:00", "Z")
    return headers


def _anthropic_refusal(state: LimitState, wait: float) -> FakeAnswer:
    message = f"This request would exceed your rate limit of {state.allowed:g} {state.name} per {state.per:g} s."
    error = {"type": "rate_limit_error", "message": message}
    return FakeAnswer({"type": "error", "error": error}, 429, _return(wait))


def _ietf_headers(states: Sequence[LimitState]) -> dict[str, str]:
    policies, limits = [], []
    for state in states:
        unit = "" if state.unit == "calls" else f';qu="{state.name}"'
        policies.append(f"{_policy(state)};q={math.floor(state.allowed)};w={max(math.ceil(state.per), 1)}{unit}")
        limits.append(f"{_policy(state)};r={math.floor(state.remaining)};t={math.ceil(max(state.next_after, 0.0))}")
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}


def _policy(state: LimitState) -> str:
    return f'"{state.name}-{state.per:g}"'


def _ietf_refusal(state: LimitState, wait: float) -> FakeAnswer:
    problem = {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "violated-policies": [_policy(state).strip('"')],
    }
    return FakeAnswer(problem, 429, {"Content-Type": "application/problem+json", **_return(wait)})


STYLES = {
    "openai": Style(_openai_headers, _openai_refusal),
    "anthropic": Style(_anthropic_headers, _anthropic_refusal),
    "ietf": Style(_ietf_headers, _ietf_refusal),
    "azure": Style(_azure_headers, _azure_refusal),
}
