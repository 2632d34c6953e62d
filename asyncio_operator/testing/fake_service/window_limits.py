"""The limits of a `FakeService`: which requests it refuses, what it says about them, and whether a window was exceeded.

A limit is enforced over every window of its length, wherever the window begins: the strictest reading that a provider
can have. A request counts with its weight from the moment at which it has arrived. A refused one uses up nothing, and
counts in `windows_exceeded`, where every start counts that a client has made.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from asyncio_operator.budget.spec import Limit, as_limit
from asyncio_operator.budget.usage import LARGEST_AMOUNT
from asyncio_operator.checks import number, one_of, seconds, takes
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.testing.fake_service.messages import FakeAnswer, FakeRequest
from asyncio_operator.testing.fake_service.provider_headers import STYLES, LimitState, Style

TICK = 1e-6
"""Seconds. Two requests whose distance is shorter than a window by less than this are taken to be in different ones:
sums of floats differ by about as much."""

Weigh = Callable[[FakeRequest], Mapping[str, float]] | Mapping[str, str]


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


class ServiceLimits:
    """The limits of one service.

    Args:
        limits: each a `Limit` or a `RateLimit`; None: none.
        headers: how answers report limits; None: only ``Retry-After``, with a refusal.
        weigh: a function of a request that returns its weights by unit, or a mapping from units to dotted paths into
            its JSON. "calls" is counted.
        usage: a mapping from units to dotted paths into answers: the true weights of the requests that got them.
        journey: seconds by which the journeys of two requests may differ. Windows are shorter by this.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        limits: Sequence[Limit | RateLimit] | None,
        headers: str | None,
        weigh: Weigh | None,
        usage: Mapping[str, str] | None,
        journey: float,
    ) -> None:
        self._windows = [_Window(as_limit("a limit", limit), journey) for limit in _listed(limits)]
        self._style: Style | None = None if headers is None else STYLES[one_of("headers", headers, tuple(STYLES))]
        if headers is not None and not self._windows:
            raise ConfigurationError(f"headers is {headers!r}, but there are no limits to report; pass limits=")
        number("journey", journey, "of at least 0", lambda journey: journey >= 0)
        _check_paths("usage", usage)
        if isinstance(weigh, Mapping):
            _check_paths("weigh", weigh)
        elif weigh is not None:
            if not callable(weigh):
                raise ConfigurationError(
                    f"weigh is {describe(weigh)}; it must be a function of a request that returns amounts by unit, or "
                    'a mapping from units to paths into its JSON, such as {"tokens": "max_tokens"}'
                )
            takes("weigh", weigh, "the request")
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
            window.clear()

    def arrived(self, request: FakeRequest) -> None:
        """A request has arrived: weigh it."""
        weights = {"calls": 1.0}
        if isinstance(self._weigh, Mapping):
            weights |= _amounts(self._weigh, request.body)
        elif self._weigh is not None:
            weights |= _checked(self._weigh(request))
        request.weights = weights
        self._requests.append(request)

    def refusal_after(self, request: FakeRequest) -> float | None:
        """The seconds until a request would be within all limits; None if it is now."""
        wait = max((window.wait(request) for window in self._windows), default=0.0)
        return wait if wait > 0 else None

    def admit(self, request: FakeRequest) -> None:
        """Count a request."""
        for window in self._windows:
            window.count(request)

    def refusal(self, request: FakeRequest, wait: float) -> FakeAnswer | None:
        """The answer to a refused request; None if no style was chosen."""
        if self._style is None:
            return None
        worst = max(self._windows, key=lambda window: window.wait(request))
        return self._style.refusal(worst.state(request.time), wait)

    def settle(self, request: FakeRequest, answer: FakeAnswer) -> None:
        """Replace the weights of a request by those that its answer reports."""
        if self._usage:
            request.weights = {**request.weights, **_amounts(self._usage, answer.content())}
            for window in self._windows:
                window.correct(request)

    def reported(self, answer: FakeAnswer, now: float) -> FakeAnswer:
        """An answer with the headers that report the limits."""
        if self._style is None:
            return answer
        headers = self._style.headers([window.state(now) for window in self._windows])
        return replace(answer, headers={**headers, **answer.headers})

    def windows_exceeded(self) -> list[ExceededWindow]:
        """Every window, of all requests that have arrived, in which a limit was exceeded, by the time of its end."""
        requests = sorted(self._requests, key=lambda request: request.time)
        exceeded = [found for window in self._windows for found in window.exceeded(requests)]
        return sorted(exceeded, key=lambda found: (found.end, found.unit))


class _Window:
    """A limit, and the requests of the last window that it has let through, with their units."""

    def __init__(self, limit: Limit, journey: float) -> None:
        self.unit = limit.unit
        self.per = seconds(limit.per)
        self.allowed = float(limit.rate + (limit.burst or 0))
        self._most = self.allowed * (1 + 1e-9)  # Sums of floats are rounded.
        self._length = max(self.per - journey - TICK, 0.0)
        self._inside: OrderedDict[int, tuple[float, float]] = OrderedDict()
        self._used = 0.0

    def count(self, request: FakeRequest) -> None:
        """Count a request, with its weight."""
        units = self.units(request)
        self._inside[id(request)] = request.time, units
        self._used += units

    def correct(self, request: FakeRequest) -> None:
        """The weight of a counted request has changed. One of an earlier window counts no longer."""
        if id(request) in self._inside:
            time, before = self._inside[id(request)]
            self._inside[id(request)] = time, self.units(request)
            self._used += self.units(request) - before

    def clear(self) -> None:
        """Forget all requests."""
        self._inside.clear()
        self._used = 0.0

    def wait(self, request: FakeRequest) -> float:
        """Seconds until the request is within the limit."""
        self._go_to(request.time)
        used = self._used + self.units(request)
        if used <= self._most:
            return 0.0
        for time, units in self._inside.values():
            used -= units
            if used <= self._most:
                return time + self.per - request.time
        return self.per  # It is too heavy for any window.

    def state(self, now: float) -> LimitState:
        """What is left at a time, and when more comes back."""
        self._go_to(now)
        times = [next(iter(self._inside.values()))[0], next(reversed(self._inside.values()))[0]] if self._inside else []
        next_after, full_after = (time + self.per - now for time in times or [now - self.per] * 2)
        return LimitState(
            self.unit, self.allowed, self.per, max(self.allowed - self._used, 0.0), next_after, full_after
        )

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
        while self._inside and next(iter(self._inside.values()))[0] <= now - self._length:
            _, (_, units) = self._inside.popitem(last=False)
            self._used -= units
        if not self._inside:
            self._used = 0.0


def _check_paths(name: str, paths: object) -> None:
    """Check a mapping from units to dotted paths, or None.

    Raises:
        ConfigurationError: it is something else; `name` is the argument.
    """
    if paths is None:
        return
    if not isinstance(paths, Mapping) or not all(
        isinstance(one, str) and one for pair in paths.items() for one in pair
    ):
        raise ConfigurationError(
            f"{name} is {describe(paths)}; it must be a mapping from units to paths into JSON, such as "
            '{"tokens": "usage.total_tokens"}'
        )


def _listed(limits: object) -> Sequence[object]:
    if limits is None:
        return ()
    if isinstance(limits, str) or not isinstance(limits, Sequence):
        raise ConfigurationError(f"limits is {describe(limits)}; it must be a list of Limit objects")
    return limits


def _checked(weights: object) -> dict[str, float]:
    """The weights that a function returned."""
    if isinstance(weights, Mapping) and all(isinstance(one, str) and _is_amount(weights[one]) for one in weights):
        return {unit: float(amount) for unit, amount in weights.items()}
    raise ConfigurationError(
        f"weigh returned {describe(weights)}; it must return amounts from 0 to {LARGEST_AMOUNT:g} by unit, such as "
        '{"tokens": 1300}'
    )


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
