"""When to stop calling a service that fails anyway.

    closed     Calls pass, and their outcomes are counted over a sliding window.
               There are enough calls, and too many of them failed: -> open.
    open       No call passes until `open_for` has passed.
    half open  One call passes, the probe. It succeeds: -> closed, with all counts at 0.
               It fails: -> open.

All transitions are in this module (law R10). The window is 30 slices, so it forgets in steps of a thirtieth of its
length: an outcome is counted for at least 29/30 and at most all of `window`.

Outcomes arrive late. A call that started before the breaker opened shows nothing about the service now, and must not be
mistaken for the probe. So each outcome comes with the start time of its call, and outcomes of older calls are ignored.
This module knows neither clocks nor calls.

The defaults: no healthy service fails half of its calls. Below 20 calls, half may be chance. 30 s is long enough for 20
calls to a slow service, and short enough to forget failures that are over. After 10 s a restarted service is back, and
a service that is down gets six calls a minute.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

from asyncio_operator.checks import Duration, lasting, number, positive_duration, positive_int, seconds

logger = logging.getLogger("asyncio_operator.circuit_breaker")

SLICES = 30

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Opens when too many calls fail. While open, it refuses all calls.

    Attributes:
        failure_ratio: the part of the calls that must have failed, more than 0 and at most 1.
        window: the time over which calls are counted, in seconds or as a timedelta; at least a millisecond.
        minimum_calls: with fewer calls in the window it never opens.
        open_for: how long no call passes, in seconds or as a timedelta.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    failure_ratio: float = 0.5
    window: Duration = 30.0
    minimum_calls: int = 20
    open_for: Duration = 10.0

    def __post_init__(self) -> None:
        number("failure_ratio", self.failure_ratio, "more than 0 and at most 1", lambda ratio: 0 < ratio <= 1)
        positive_int("minimum_calls", self.minimum_calls)
        object.__setattr__(self, "window", lasting("window", self.window))
        object.__setattr__(self, "open_for", positive_duration("open_for", self.open_for))


class Breaker:
    """The state of one breaker.

    A caller that got True from `allow` must call `succeeded`, `failed` or `abandoned` once, when its call has ended.
    `started` is the time at which that call started.
    """

    def __init__(self, spec: CircuitBreaker) -> None:
        self.state: State = "closed"  # It stays "open" until `allow` lets a probe through.
        self._ratio = spec.failure_ratio
        self._minimum_calls = spec.minimum_calls
        self._open_for = seconds(spec.open_for)
        self._window = _Window(seconds(spec.window) / SLICES)
        self._opened = -math.inf
        self.opens_again_at = -math.inf  # When a probe may pass, after the latest opening.
        self._probing = False

    def refuses(self, now: float) -> bool:
        """Whether a call must not start."""
        return self.state != "closed" and (self._probing or now < self.opens_again_at)

    def allow(self, now: float) -> bool:
        """Whether a call may start. If the breaker is not closed, this call is the probe."""
        if self.state == "closed":
            return True
        if self.refuses(now):
            return False
        # One call at a time: a service that is just back would fall again under the full load.
        self.state = "half_open"
        self._probing = True
        return True

    def succeeded(self, now: float, started: float) -> None:
        """A call returned a result."""
        if self.state == "closed":
            if started > self._opened:
                self._window.count(now, 0)
                if self._window.failures:
                    self._judge(now)
        elif self._is_probe(started):
            self.state = "closed"
            self._probing = False
            logger.info("the circuit breaker closes: a call has succeeded again")
            # The failures that opened it would open it again at the next one.
            self._window.clear()

    def failed(self, now: float, started: float) -> None:
        """A call raised, or exceeded its deadline."""
        if self.state == "closed":
            if started > self._opened:
                self._window.count(now, 1)
                self._judge(now)
        elif self._is_probe(started):
            self._open(now)

    def abandoned(self, started: float) -> None:
        """A call was cancelled because its result is not needed. It proves nothing; another call may be the probe."""
        if self._is_probe(started):
            self.state = "open"
            self._probing = False

    def _is_probe(self, started: float) -> bool:
        return self._probing and started > self._opened

    def _judge(self, now: float) -> None:
        """Open if too many of the calls in the window have failed."""
        calls, failures = self._window.calls, self._window.failures
        if calls >= self._minimum_calls and failures / calls >= self._ratio:
            logger.info(
                "the circuit breaker opens for %g s: %d of %d calls have failed", self._open_for, failures, calls
            )
            self._open(now)

    def _open(self, now: float) -> None:
        self.state = "open"
        self._opened, self.opens_again_at = now, now + self._open_for
        self._probing = False


class _Window:
    """All calls, and all failures, in the present slice and the 29 before it."""

    def __init__(self, slice_seconds: float) -> None:
        self._slice_seconds = slice_seconds
        self.clear()

    def clear(self) -> None:
        self.calls = self.failures = 0
        self._slices = [[0, 0] for _ in range(SLICES)]
        self._slice: int | None = None
        self._present = self._slices[0]
        self._present_ends = -math.inf

    def count(self, now: float, failures: int) -> None:
        """Count one call. A clock that goes back counts as standing still."""
        if now >= self._present_ends:
            target = math.floor(now / self._slice_seconds)
            # After a long pause all slices are old. To clear them one by one would take as long as the pause.
            if self._slice is None or target >= self._slice + SLICES:
                self.clear()
                self._slice = target
            while self._slice < target:
                self._slice += 1
                old_calls, old_failures = self._slices[self._slice % SLICES]
                self.calls -= old_calls
                self.failures -= old_failures
                self._slices[self._slice % SLICES] = [0, 0]
            self._present = self._slices[self._slice % SLICES]
            self._present_ends = (self._slice + 1) * self._slice_seconds
        present = self._present
        present[0] += 1
        present[1] += failures
        self.calls += 1
        self.failures += failures
