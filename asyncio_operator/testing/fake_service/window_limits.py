"""The limits of a `FakeService`: which requests it refuses, what it says about them, and whether a window was exceeded.

A limit is enforced over every window of its length, wherever the window begins: the strictest reading that a provider
can have. A request counts with its weight from the moment at which it has arrived. A refused one uses up nothing, and
counts in `windows_exceeded`, where every start counts that a client has made.

Providers report their limits in styles, in the headers of every answer and in the answer to a request beyond them: with
names of units, formats of times and bodies of their own. Amounts are rounded down and waits up, as providers do.
Sources: the API references of OpenAI, Azure OpenAI and Anthropic, and draft-ietf-httpapi-ratelimit-headers-10.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from asyncio_operator.checks import must_be, one_of, plain_function, seconds
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.quota.spec import Limit, as_limit
from asyncio_operator.quota.usage import LARGEST_AMOUNT
from asyncio_operator.testing.fake_service.messages import FakeAnswer, FakeRequest

TICK = 1e-6
"""Seconds. Two requests whose distance is shorter than a window by less than this are taken to be in different ones:
sums of floats differ by about as much."""

Weigh = Callable[[FakeRequest], Mapping[str, float]] | Mapping[str, str]


class ServiceLimits:
    """The limits of one service. ConfigurationError if an argument is wrong."""

    def __init__(
        self,
        limits: Sequence[Limit | RateLimit] | None,
        headers: str | None,  # How answers report limits; None: only ``Retry-After``, with a refusal.
        # A function of a request that returns its weights by unit, or a mapping from units to dotted paths into its
        # JSON. "calls" is counted.
        weigh: Weigh | None,
        # A mapping from units to dotted paths into answers: the true weights of the requests that got them.
        usage: Mapping[str, str] | None,
        journey: float,  # Seconds by which the journeys of two requests may differ. Windows are shorter by this.
    ) -> None:
        if isinstance(limits, str) or not isinstance(limits, Sequence | None):
            raise must_be("limits", limits, "a list of Limit objects")
        self._windows = [_Window(as_limit("a limit", limit), journey) for limit in limits or ()]
        self._style = None if headers is None else one_of("headers", headers, STYLES)
        if headers is not None and not self._windows:
            raise ConfigurationError(f"headers is {headers!r}, but there are no limits to report; pass limits=")
        _check_paths("usage", usage)
        if isinstance(weigh, Mapping):
            _check_paths("weigh", weigh)
        elif weigh is not None:
            allowed = (
                "a function of a request that returns amounts by unit, or a mapping from units to paths into its JSON, "
                'such as {"tokens": "max_tokens"}'
            )
            plain_function("weigh", weigh, allowed, "the request")
        known = {"calls", *(usage or {}), *(weigh if isinstance(weigh, Mapping) else ())}
        for window in self._windows:
            if window.unit not in known and not callable(weigh):
                raise ConfigurationError(
                    f"a limit counts {window.unit!r}, but nothing says how many a request has: pass weigh= or usage="
                )
        self._weigh = weigh
        self._usage = usage or {}
        self._requests: list[FakeRequest] = []

    def restart(self) -> None:
        """Forget all requests: the service starts, and time begins at 0."""
        self._requests.clear()
        for window in self._windows:
            window.inside.clear()
            window.used = 0.0

    def arrived(self, request: FakeRequest) -> None:
        """A request has arrived: weigh it."""
        weights = {"calls": 1.0}
        if isinstance(self._weigh, Mapping):
            weights |= _amounts(self._weigh, request.body)
        elif self._weigh is not None:
            given: object = self._weigh(request)
            by_unit: Mapping[Any, Any] = given if isinstance(given, Mapping) else {None: None}
            if not all(isinstance(unit, str) and _is_amount(amount) for unit, amount in by_unit.items()):
                raise ConfigurationError(
                    f"weigh returned {describe(given)}; it must return amounts from 0 to {LARGEST_AMOUNT:g} by unit, "
                    'such as {"tokens": 1300}'
                )
            weights |= {unit: float(amount) for unit, amount in by_unit.items()}
        request.weights = weights
        self._requests.append(request)

    def refusal_after(self, request: FakeRequest) -> float | None:
        """The seconds until a request would be within all limits; None if it is now."""
        wait = max((window.wait(request) for window in self._windows), default=0.0)
        return wait if wait > 0 else None

    def admit(self, request: FakeRequest) -> None:
        """Count a request."""
        for window in self._windows:
            window.inside.append(request)
            window.used += window.units(request)

    def refusal(self, request: FakeRequest, wait: float) -> FakeAnswer | None:
        """The answer to a refused request; None if no style was chosen."""
        if self._style is None:
            return None
        worst = max(self._windows, key=lambda window: window.wait(request))
        return _refused(self._style, worst.state(request.time), wait)

    def settle(self, request: FakeRequest, answer: FakeAnswer) -> None:
        """Replace the weights of a request by those that its answer reports."""
        before, amounts = request.weights, _amounts(self._usage, answer.content()) if self._usage else {}
        request.weights = {**before, **amounts}
        for window in self._windows:
            # One of an earlier window counts no longer.
            if window.inside and request.time >= window.inside[0].time:
                window.used += window.units(request) - before.get(window.unit, 0.0)

    def reported(self, answer: FakeAnswer, now: float) -> FakeAnswer:
        """An answer with the headers that report the limits."""
        if self._style is None:
            return answer
        headers = _headers(self._style, [window.state(now) for window in self._windows]) | dict(answer.headers)
        return replace(answer, headers={name.lower(): said for name, said in headers.items()})

    def windows_exceeded(self) -> list[ExceededWindow]:
        """Every window, of all requests that have arrived, in which a limit was exceeded, by the time of its end."""
        requests = sorted(self._requests, key=lambda request: request.time)
        exceeded = [found for window in self._windows for found in window.exceeded(requests)]
        return sorted(exceeded, key=lambda found: (found.end, found.unit))


class ExceededWindow(NamedTuple):
    """A window in which more units started than a limit allows.

    Attributes:
        unit: of the limit.
        start, end: seconds since the service was started. The request at `end` was too much.
        used: the units of all requests after `start`, until `end`.
        allowed: the units that the limit allows.
    """

    unit: str
    start: float
    end: float
    used: float
    allowed: float


class LimitState(NamedTuple):
    """What a limit allows at a moment."""

    unit: str  # What is counted.
    allowed: float  # Units in a window.
    per: float  # Seconds of a window.
    remaining: float  # Units that are left.
    next_after: float  # Seconds until more units are left.
    full_after: float  # Seconds until all units are left.

    @property
    def name(self) -> str:
        """The unit as providers call it."""
        return "requests" if self.unit == "calls" else self.unit.replace("_", "-")

    @property
    def policy(self) -> str:
        """The name of the limit in the draft of the IETF."""
        return f"{self.name}-{self.per:g}"


class _Window:
    """A limit, and the requests of the last window that it has let through, with their units."""

    def __init__(self, limit: Limit, journey: float) -> None:
        self.unit = limit.unit
        self.per = seconds(limit.per)
        self.allowed = float(limit.rate + (limit.burst or 0))
        self._most = self.allowed * (1 + 1e-9)  # Sums of floats are rounded.
        self._length = max(self.per - journey - TICK, 0.0)
        self.inside: deque[FakeRequest] = deque()
        self.used = 0.0

    def wait(self, request: FakeRequest) -> float:
        """Seconds until the request is within the limit."""
        self._go_to(request.time)
        used = self.used + self.units(request)
        if used <= self._most:
            return 0.0
        for earlier in self.inside:
            used -= self.units(earlier)
            if used <= self._most:
                return earlier.time + self.per - request.time
        return self.per  # It is too heavy for any window.

    def state(self, now: float) -> LimitState:
        """What is left at a time, and when more comes back."""
        self._go_to(now)
        times = [self.inside[0].time, self.inside[-1].time] if self.inside else [now - self.per] * 2
        after = (time + self.per - now for time in times)
        return LimitState(self.unit, self.allowed, self.per, max(self.allowed - self.used, 0.0), *after)

    def exceeded(self, requests: Sequence[FakeRequest]) -> Iterator[ExceededWindow]:
        """The windows that end with one of the requests, which are in order of time, and hold too much."""
        first, used = 0, 0.0
        for request in requests:
            used += self.units(request)
            while requests[first].time <= request.time - self._length and requests[first] is not request:
                used -= self.units(requests[first])
                first += 1
            if used > self._most:
                yield ExceededWindow(self.unit, request.time - self.per, request.time, used, self.allowed)

    def units(self, request: FakeRequest) -> float:
        """The weight of a request in the unit of the limit."""
        return request.weights.get(self.unit, 0.0)

    def _go_to(self, now: float) -> None:
        """Forget the requests before the window that ends now."""
        while self.inside and self.inside[0].time <= now - self._length:
            self.used -= self.units(self.inside.popleft())
        if not self.inside:
            self.used = 0.0


def _check_paths(name: str, paths: object) -> None:
    """ConfigurationError, which names the argument, if this is no mapping from units to dotted paths, and not None."""
    if paths is None:
        return
    if not isinstance(paths, Mapping) or not all(
        isinstance(one, str) and one for pair in paths.items() for one in pair
    ):
        example = '{"tokens": "usage.total_tokens"}'
        raise must_be(name, paths, f"a mapping from units to paths into JSON, such as {example}")


def _is_amount(value: object) -> bool:
    """Whether it is a number that can be a weight."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST_AMOUNT


def _amounts(paths: Mapping[str, str], body: bytes) -> dict[str, float]:
    """The amounts at dotted paths in a JSON text. What is not there, or can be no amount, is left out."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    found = {}
    for unit, path in paths.items():
        value: Any = parsed
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if _is_amount(value):
            found[unit] = float(value)
    return found


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


STYLES = ("openai", "anthropic", "ietf", "azure")


def _headers(style: str, states: Sequence[LimitState]) -> dict[str, str]:
    """The headers with which a provider reports its limits as they are."""
    headers: dict[str, str] = {}
    if style == "ietf":
        policies, limits = [], []
        for state in states:
            unit = "" if state.unit == "calls" else f';qu="{state.name}"'
            policies.append(f'"{state.policy}";q={math.floor(state.allowed)};w={max(math.ceil(state.per), 1)}{unit}')
            limits.append(f'"{state.policy}";r={math.floor(state.remaining)};t={math.ceil(max(state.next_after, 0.0))}')
        return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}
    # The others report one limit for each unit: that of which the smallest part is left.
    in_order = sorted(states, key=lambda state: state.remaining / state.allowed, reverse=True)
    tightest = {state.name: state for state in in_order}
    form = "anthropic-ratelimit-{1}-{0}" if style == "anthropic" else "x-ratelimit-{0}-{1}"
    if style == "azure":
        # What Azure writes for a limit that it does not know.
        headers = {form.format(what, name): "-1" for name in ("requests", "tokens") for what in AMOUNTS}
    for name, state in tightest.items():
        if style == "openai":
            reset = go_duration(state.full_after)
        elif style == "azure":
            reset = str(math.ceil(state.full_after))
        else:
            end = datetime.now(UTC) + timedelta(seconds=state.full_after + 1)
            reset = end.replace(microsecond=0).isoformat().replace("+00:00", "Z")
        amounts = f"{math.floor(state.allowed)}", f"{math.floor(state.remaining)}", reset
        headers |= {form.format(what, name): amount for what, amount in zip(AMOUNTS, amounts, strict=True)}
    return headers


AMOUNTS = ("limit", "remaining", "reset")


def _refused(style: str, state: LimitState, wait: float) -> FakeAnswer:
    """The answer of a provider to a request beyond a limit that has to wait for so long, in seconds."""
    after, allowed = math.ceil(wait), f"{state.allowed:g}"
    headers, error, body = {"retry-after": str(after)}, dict[str, Any](), dict[str, Any]()
    if style in ("openai", "azure"):
        headers["retry-after-ms"] = str(math.ceil(wait * 1000))
    if style == "openai":
        used, again = f"{state.allowed - state.remaining:g}", go_duration(wait)
        error = {"type": state.name, "param": None, "code": "rate_limit_exceeded"}
        error["message"] = (
            f"Rate limit reached for a fake model on {state.name} per {state.per:g} s: Limit {allowed}, Used {used}. "
            f"Please try again in {again}."
        )
    elif style == "azure":
        error["code"] = "429"
        error["message"] = (
            f"Requests to a fake deployment have exceeded the {state.name} rate limit of your current pricing tier. "
            f"Please retry after {after} seconds."
        )
    elif style == "anthropic":
        body["type"], error["type"] = "error", "rate_limit_error"
        error["message"] = f"This request would exceed your rate limit of {allowed} {state.name} per {state.per:g} s."
    else:
        headers["Content-Type"] = "application/problem+json"
        body["type"] = "https://iana.org/assignments/http-problem-types#quota-exceeded"
        body["title"] = "Request cannot be satisfied as assigned quota has been exceeded"
        body["violated-policies"] = [state.policy]
    return FakeAnswer(body | {"error": error} if error else body, 429, headers)
