"""A capacity that adjusts itself: how many calls at the same time a service can use well.

Calls are measured in rounds. The limit does not change within a round. At the end of a round its latency is compared
with the base, which is the latency of calls that did not have to queue (law R11):

    near the base         Rise, if the limit was reached and nearly no call failed: by a tenth, and twice as much after
                          each further good round, up to a doubling. The first rises are doublings.
    somewhat above it     Stay: the service is busy, and a short queue keeps it busy.
    twice the base        Halve, as a test. If calls had to queue, they are faster now. If the service has become slow,
                          they are as slow as before. So, if latency fell as the limit did, halve again. If it did not
                          fall, return to the old limit, and the latency is the new base. In between, Little's law
                          gives the level at which calls begin to queue: go a little above that.
    timeout or overload   Fall by a seventh at once. Only a call that started after the last such fall causes another.

The latency of a round is the square of the mean square root, which a few very slow calls change little. Sources: TCP
Vegas (Brakmo and Peterson, 1995) for the comparison with a base, TCP's slow start for the doubling, Netflix's
concurrency-limits for its use on calls. The test is needed because latency alone does not distinguish a queue from a
slow service. This module knows neither clocks nor calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncio_operator.checks import positive_int
from asyncio_operator.errors import ConfigurationError

BUFFER_FACTOR = 64
"""Default of `buffer` over `capacity`. In ordered mode a call that takes k times the mean holds back the results of k
calls per lane; with 64, one that is 64 times slower than the mean stops no lane."""

INITIAL = 20
"""Enough calls to compare latencies, few enough for any service. Doubled four times, 320 are reached in 200 calls."""

_SAMPLES = 20
"""The minimum number of calls in a round. With a larger limit it is half of the limit, and all of it for a test."""
_PRECISION = 0.12
"""A round's latency is certain if its standard error is below this part of it. Jitter makes a round longer."""
_PARTS = 16  # A round whose latency is uncertain is looked at again when this part of its calls has come in addition.
_ENOUGH = 1000  # After this number of calls the latency counts as certain, whatever its scatter.
_RESOLUTION = 1e-6  # Seconds; shorter latencies are not distinguished.
_NEAR = 1.25  # Up to this multiple of the base, a latency counts as the base.
_FAR = 2.0  # Above this multiple of the base, calls certainly queue, or the service has changed.
_STILL = 1.1  # A latency that is this much above the last round's is still growing, so a test would measure too early.
_PATIENCE = 4  # The maximum number of rounds for which a growing latency is waited for.
_HELPED = 1.2  # A fall has helped fully if latency fell by the same factor as the limit, up to this tolerance.
_HEADROOM = 1.35
"""The limit as a multiple of the level at which calls begin to queue, so that no worker of the service is idle."""
_TRUST = 3  # The number of tests that may end at a known base. The next test looks below it again.
_FIRST_STEP = 0.1
_FALL = 0.85
_FAILING = 0.1  # The limit rises only if at most this part of a round's calls failed without overload.


@dataclass(frozen=True, slots=True)
class AdaptiveCapacity:
    """A number of calls in flight that adjusts to what the service can take.

    Attributes:
        initial: calls in flight at the start. The default is moved into the bounds.
        minimum: the limit never falls below this.
        maximum: the limit never rises above this. The default is far above what one service takes, and still cheap for
            one event loop.

    Raises:
        ConfigurationError: a value has the wrong type or range.
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
        if self.initial == INITIAL:  # The user chose only bounds: they win over the default.
            object.__setattr__(self, "initial", min(max(INITIAL, self.minimum), self.maximum))
        if not self.minimum <= self.initial <= self.maximum:
            raise ConfigurationError(
                f"initial is {self.initial}; it must be an int from minimum, {self.minimum}, to maximum, {self.maximum}"
            )


@dataclass(frozen=True, slots=True)
class _Test:
    """The state before a fall that is a test: limit, calls in flight, latency in seconds, and step of the next rise."""

    limit: int
    in_flight: int
    latency: float
    step: float


class Controller:
    """The current limit, and what it is decided from. It is called once for every call that ends, and costs O(1).

    In both methods `latency` is the seconds from the start to the end of the call, and `in_flight` is the number of
    calls that were running when it ended, this call included.
    """

    def __init__(self, spec: AdaptiveCapacity) -> None:
        self.limit = spec.initial  # The maximum number of calls in flight now, from `minimum` to `maximum`.
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
        """A call returned a result."""
        if self._settle > 0:  # It started under the previous limit.
            self._settle -= 1
            return
        self._successes += 1
        if latency < _RESOLUTION:
            latency = _RESOLUTION
        self._sum += latency
        self._roots += math.sqrt(latency)
        self._count(in_flight)

    def failed(self, now: float, latency: float, in_flight: int, overload: bool) -> None:
        """A call raised. `overload` says that it timed out, or that the service reported too much load."""
        if overload:
            # Calls that started before the last fall show the load of before: one overload must not cause many falls.
            if now - latency > self._fell_at:
                self.limit = max(self._minimum, min(self.limit - 1, int(self.limit * _FALL)))
                self._fell_at, self._step, self._test = now, _FIRST_STEP, None
                self._begin(settle=0)
        elif self._settle > 0:
            self._settle -= 1
        else:
            self._count(in_flight)

    def _begin(self, settle: int) -> None:
        """Begin a round after the next `settle` calls, which still started under the previous limit."""
        self._settle = settle
        self._calls = 0
        self._successes = 0
        self._sum = 0.0
        self._roots = 0.0
        self._peak = 0
        self._enough = max(_SAMPLES, self.limit // (2 if self._test is None else 1))

    def _count(self, in_flight: int) -> None:
        """Count a call that started under the present limit. With enough of them the round ends."""
        self._calls += 1
        if in_flight > self._peak:
            self._peak = in_flight
        if self._calls < self._enough:
            return
        if self._successes == 0:
            self._begin(settle=0)
            return
        # The mean root, squared: one call that hangs moves it far less than it moves the mean.
        root = self._roots / self._successes
        latency = root * root
        spread = max(0.0, self._sum / self._successes - latency)
        # The standard error is below _PRECISION: by the delta method the variance of the squared mean root is about
        # 4 * latency * spread / successes.
        sure = 4 * spread <= _PRECISION**2 * latency * self._successes or self._calls >= _ENOUGH
        # If it is not, some more calls have to end before it can be.
        self._enough = self._calls + max(1, self._calls // _PARTS)
        if self._test is None:
            self._compare(latency, sure)
        elif sure:
            self._judge(self._test, latency)

    def _compare(self, latency: float, sure: bool) -> None:
        """End an ordinary round once its latency is certain. A rise in the doubling phase need not wait for that."""
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
            # Much faster than the base: the service has changed, so the base of before means nothing. Small changes are
            # taken over slowly, because a base that follows a growing queue would hide it.
            if sure and ratio < 1 / _NEAR:
                self._base = latency
                self._trust = 0
            else:
                self._base += 0.1 * (latency - self._base)
            # A limit that was not reached says nothing about what the service can take.
            if self._peak >= self.limit and self._successes >= (1 - _FAILING) * self._calls:
                self.limit = min(self._maximum, max(self.limit + 1, round(self.limit * (1 + self._step))))
                self._step = min(1.0, 2 * self._step)
        else:
            self._step = _FIRST_STEP
        self._begin(settle=0)

    def _try_lower(self, latency: float, limit: int, step: float) -> None:
        """Halve the limit, as a test. `limit` and `step` are restored if the test shows a slow service."""
        self._waited = 0
        # What was really in flight: a limit that was not reached, halved, would change nothing.
        before = max(1, min(self.limit, self._peak))
        self._test = _Test(limit, before, latency, step)
        self._step = _FIRST_STEP
        self.limit = max(self._minimum, before // 2)
        self._begin(settle=before)

    def _judge(self, test: _Test, latency: float) -> None:
        """End the round of a test."""
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


def calls_at_first(capacity: int | AdaptiveCapacity) -> int:
    """The maximum number of calls in flight when a run starts."""
    return capacity.initial if isinstance(capacity, AdaptiveCapacity) else capacity


def calls_at_most(capacity: int | AdaptiveCapacity) -> int:
    """The maximum number of calls in flight at any time of a run."""
    return capacity.maximum if isinstance(capacity, AdaptiveCapacity) else capacity
