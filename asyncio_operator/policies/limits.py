"""The limits of a run: rate limit, circuit breaker and capacity.

They are asked before a call, and get its end reported. This module does not read a clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

from asyncio_operator.errors import CircuitOpenError, members, said
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, Controller
from asyncio_operator.policies.circuit_breaker import Breaker, CircuitBreaker
from asyncio_operator.policies.rate_limit import RateLimit, RateWindow


class Call(Protocol):
    """What the policies see of a call: when it started, by the loop's time and by the circuit breaker's clock, and
    whether they know how it has ended."""

    started: float
    age: float
    judged: bool


def is_overload(error: BaseException) -> bool:
    """Whether an error of a call says that the source has too much to do."""
    return any(isinstance(one, TimeoutError) for one in members(error)) or bool(said(error, "overload", bool))


class Limits:
    """The state of the policies in one run. Each policy may be missing.

    Args:
        limiter: the window of `rate_limit`, which an earlier run may have used; None: a new one.
        breaker_clock: returns the seconds by which the circuit breaker measures the age of failures, and how long it
            has been open.
        circuit: called with the state of the circuit breaker, which may be the same as before, and the time.

    Attributes:
        calls: the number of running calls, including those past their limit.
    """

    def __init__(
        self,
        capacity: int | AdaptiveCapacity,
        rate_limit: RateLimit | None,
        circuit_breaker: CircuitBreaker | None,
        limiter: RateWindow | None,
        breaker_clock: Callable[[], float],
        circuit: Callable[[str, float], None],
    ) -> None:
        self.calls = 0
        self._breaker_clock = breaker_clock
        self._circuit = circuit
        self._limiter = RateWindow.of(rate_limit) if limiter is None and rate_limit is not None else limiter
        self._breaker = None if circuit_breaker is None else Breaker(circuit_breaker)
        self._controller = Controller(capacity) if isinstance(capacity, AdaptiveCapacity) else None

    @property
    def is_shut(self) -> bool:
        """Whether the circuit breaker refuses calls, or tries one."""
        return self._breaker is not None and self._breaker.state != "closed"

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start or is refused. Infinity: when one returns."""
        if self._controller is not None and self.calls >= self._controller.limit:
            return inf
        # A call that is refused is not made, so it needs no token: its error must not wait for one.
        if self._limiter is None or (self._breaker is not None and self._breaker.refuses(self._breaker_clock())):
            return now
        return self._limiter.next_start(now)

    def check_circuit(self) -> None:
        """Raise CircuitOpenError if the circuit breaker refuses a call now."""
        if self._breaker is None or not self._breaker.refuses(age := self._breaker_clock()):
            return
        opens = self._breaker.opens_again_at()
        when = "while another call tries it" if opens is None or opens <= age else f"for another {opens - age:.3f} s"
        raise CircuitOpenError(f"the circuit breaker refuses calls {when}: too many of the latest have failed")

    def start_unheard(self, now: float) -> None:
        """A call starts of whose end no limit wants to hear."""
        if self._limiter is not None:
            self._limiter.start(now)

    def start(self, call: Call, now: float) -> None:
        """A call starts."""
        self.calls += 1
        if self._limiter is not None:
            self._limiter.start(now)
        # By the clock of the breaker, which compares it with the time at which it opened.
        if self._breaker is not None:
            call.age = self._breaker_clock()
            self._breaker.allow(call.age)
            self._circuit(self._breaker.state, now)

    def judge(self, call: Call, now: float, error: BaseException | None) -> None:
        """The call has returned a result or an error, or has passed its limit: `TimeoutError`."""
        call.judged = True
        if self._breaker is not None:
            end = self._breaker.succeeded if error is None else self._breaker.failed
            end(self._breaker_clock(), call.age)
            self._circuit(self._breaker.state, now)
        if self._controller is None:
            return
        latency = now - call.started
        if error is None:
            self._controller.completed(now, latency, self.calls)
        else:
            self._controller.failed(now, latency, self.calls, is_overload(error))

    def abandoned(self, call: Call) -> None:
        """The call is cancelled because no element needs its result. It proves nothing."""
        call.judged = True
        if self._breaker is not None:
            self._breaker.abandoned(call.age)
