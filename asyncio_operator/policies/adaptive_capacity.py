"""A capacity that finds its own level: how many calls at once a service can make good use of.

Calls are looked at in rounds, in which the limit stands still. At a round's end its latency is compared with the base,
the latency of calls that did not have to queue (law R11):

    near the base         Rise, if the limit was reached and nearly no call failed: by a tenth, and twice as much after
                          each further good round, up to a doubling. At the beginning it is a doubling at once.
    somewhat above it     Stay: the service is busy, and a short queue keeps it so.
    twice the base        Fall to a half, as a test. Calls that had to queue get through sooner now; a service that has
                          become slow answers as slowly as before. So, if latency fell as the limit did, fall again;
                          if it did not fall, go back, and it is the new base. In between, Little's law gives the level
                          at which calls begin to queue: go a little above that.
    timeout or overload   Fall by a seventh at once. Only a call that started after the last such fall causes another.

The latency of a round is the square of the mean root, which a few very slow calls move little. Sources: TCP Vegas
(Brakmo and Peterson, 1995) for the comparison with a base, TCP's slow start for the doubling, Netflix's
concurrency-limits for the use on calls. The test is there because latency alone does not tell a queue from slowness.

It knows neither clocks nor calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.policies.options import positive_int

INITIAL = 20
"""Enough to tell latencies apart, few enough for any service. Doubled, it reaches 320 within 200 calls."""

_SAMPLES = 20
"""Calls in a round at least; beyond that it is half of the limit, or all of it for a test."""
_PRECISION = 0.12
"""The standard error of a round's latency, as a part of it, below which it is sure; jitter makes a round longer."""
_ENOUGH = 1000
"""Calls after which it is taken for sure, however much latencies scatter."""
_RESOLUTION = 1e-6
"""Seconds; latencies below are alike."""
_NEAR = 1.25
"""How far from the base a latency still counts as the base."""
_FAR = 2.0
"""How far above the base calls certainly queue, or the service has changed."""
_STILL = 1.1
_PATIENCE = 4
"""A latency that has grown by more than `_STILL` since the last round is waited for, as many rounds at most."""
_HELPED = 1.2
"""A fall has helped fully if latency is, but for this factor, as much lower as the limit."""
_HEADROOM = 1.35
"""Where the limit goes, as a multiple of the level at which calls begin to queue: no worker waits for a call."""
_TRUST = 3
"""Tests that may end at a base that is known already, without looking below; then it is looked at again."""
_FIRST_STEP = 0.1
_FALL = 0.85
_FAILING = 0.1
"""The part of a round's calls that may fail, without overload, if the limit is to rise."""


@dataclass(frozen=True, slots=True)
class AdaptiveCapacity:
    """A number of calls in flight that follows what the service can bear.

    Attributes:
        initial: the calls at once to begin with; its default yields to the bounds.
        minimum: never fewer.
        maximum: never more; its default is far above what one service bears, and cheap for one event loop to hold.

    Raises:
        ConfigurationError: a value is wrong.
    """

    initial: int = INITIAL
    minimum: int = 1
    maximum: int = 1000

    def __post_init__(self) -> None:
        positive_int("initial", self.initial)
        positive_int("minimum", self.minimum)
        positive_int("maximum", self.maximum)
        if self.maximum < self.minimum:
            raise ConfigurationError(f"maximum is {self.maximum}; it must not be less than minimum, {self.minimum}")
        if self.initial == INITIAL:
            object.__setattr__(self, "initial", min(max(INITIAL, self.minimum), self.maximum))
        if not self.minimum <= self.initial <= self.maximum:
            raise ConfigurationError(
                f"initial is {self.initial}; it must be an int from minimum, {self.minimum}, to maximum, {self.maximum}"
            )


@dataclass(frozen=True, slots=True)
class _Test:
    """What was before a fall that is a test: the limit, the calls in flight, and the latency, as its logarithm."""

    limit: int
    in_flight: int
    latency: float
    step: float


class Controller:
    """The limit, and what it is decided from. Told of every call that ends, it costs O(1) for each.

    Attributes:
        limit: calls in flight at most, now; from `minimum` to `maximum`.

    In both methods `latency` is in seconds, from the start to the end of the call, and `in_flight` is the number of
    calls that were running when it ended, itself included.
    """

    def __init__(self, spec: AdaptiveCapacity) -> None:
        self.limit = spec.initial
        self._minimum = spec.minimum
        self._maximum = spec.maximum
        self._base: float | None = None
        self._trust = 0
        self._last = math.inf
        self._waited = 0
        self._step = 1.0
        self._fell_at = -math.inf
        self._test: _Test | None = None
        self._begin(settle=self.limit)

    def completed(self, now: float, latency: float, in_flight: int) -> None:
        """A call gave a result."""
        self._ended(in_flight)
        if self._settle < 0:
            self._successes += 1
            latency = max(latency, _RESOLUTION)
            self._sum += latency
            self._roots += math.sqrt(latency)
        self._end_of_round()

    def failed(self, now: float, latency: float, in_flight: int, overload: bool) -> None:
        """A call raised; `overload`: it timed out, or the service said that it has too much to do."""
        if overload:
            if now - latency > self._fell_at:
                self._fall(now)
            return
        self._ended(in_flight)
        self._end_of_round()

    def _begin(self, settle: int) -> None:
        """Begin a round, after `settle` calls that still show the limit of before."""
        self._settle = settle
        self._calls = 0
        self._successes = 0
        self._sum = 0.0
        self._roots = 0.0
        self._peak = 0

    def _ended(self, in_flight: int) -> None:
        self._settle -= 1
        if self._settle < 0:
            self._calls += 1
            self._peak = max(self._peak, in_flight)

    def _end_of_round(self) -> None:
        if self._calls < max(_SAMPLES, self.limit // (2 if self._test is None else 1)):
            return
        if self._successes == 0:
            self._begin(settle=0)
            return
        root = self._roots / self._successes
        latency = root * root
        spread = max(0.0, self._sum / self._successes - latency)
        sure = 4 * spread <= _PRECISION**2 * latency * self._successes or self._calls >= _ENOUGH
        if self._test is None:
            self._compare(latency, sure)
        elif sure:
            self._judge(self._test, latency)

    def _compare(self, latency: float, sure: bool) -> None:
        """The end of an ordinary round, if what is seen is sure; a rise at the beginning need not be."""
        if self._base is None:
            self._base = latency
        ratio = latency / self._base
        if not sure and (ratio >= _NEAR or self._step < 1):
            return
        growing = latency > _STILL * self._last
        self._last = latency
        if ratio > _FAR and (not growing or self._waited >= _PATIENCE):
            self._try_lower(latency, self.limit, self._step)
            return
        self._waited = self._waited + 1 if ratio > _FAR else 0
        if ratio < _NEAR:
            if sure and ratio < 1 / _NEAR:
                self._base = latency
                self._trust = 0
            else:
                self._base += 0.1 * (latency - self._base)
            if self._peak >= self.limit and self._successes >= (1 - _FAILING) * self._calls:
                self._rise()
        else:
            self._step = _FIRST_STEP
        self._begin(settle=0)

    def _rise(self) -> None:
        self.limit = min(self._maximum, max(self.limit + 1, round(self.limit * (1 + self._step))))
        self._step = min(1.0, 2 * self._step)

    def _try_lower(self, latency: float, limit: int, step: float) -> None:
        """Fall to a half; `limit` and `step` are what to go back to."""
        self._waited = 0
        before = max(1, min(self.limit, self._peak))
        self._test = _Test(limit, before, latency, step)
        self._step = _FIRST_STEP
        self.limit = max(self._minimum, before // 2)
        self._begin(settle=before)

    def _judge(self, test: _Test, latency: float) -> None:
        """The end of the round after a fall that was a test."""
        self._test = None
        ratio = latency / test.latency
        known = self._trust > 0 and self._base is not None and latency < _NEAR * self._base
        if ratio < _HELPED * self.limit / test.in_flight and self.limit > self._minimum and not known:
            self._try_lower(latency, test.limit, _FIRST_STEP)
            return
        self._base = latency
        self._trust = self._trust - 1 if known else _TRUST
        if ratio > 1 / _NEAR:
            self._step = test.step
        self.limit = max(self.limit, min(test.limit, round(_HEADROOM * min(1.0, ratio) * test.in_flight)))
        self._begin(settle=self.limit)

    def _fall(self, now: float) -> None:
        self.limit = max(self._minimum, min(self.limit - 1, int(self.limit * _FALL)))
        self._fell_at = now
        self._step = _FIRST_STEP
        self._test = None
        self._begin(settle=0)


def calls_at_first(capacity: int | AdaptiveCapacity) -> int:
    """Calls in flight at most, when a run starts."""
    return capacity.initial if isinstance(capacity, AdaptiveCapacity) else capacity


def calls_at_most(capacity: int | AdaptiveCapacity) -> int:
    """Calls in flight at most, ever."""
    return capacity.maximum if isinstance(capacity, AdaptiveCapacity) else capacity
