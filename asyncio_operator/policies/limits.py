"""The limits of a run: rate limit, circuit breaker and capacity.

They are asked before a call, and get its end reported. This module does not read a clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asyncio_operator.errors import CircuitOpenError, members, said
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, Controller
from asyncio_operator.policies.circuit_breaker import Breaker, CircuitBreaker
from asyncio_operator.policies.rate_limit import RateLimit, RateWindow


class Call(Protocol):
    """What the policies see of a call: when it started, by the loop's time and by the circuit breaker's clock."""

    started: float
    age: float


def is_overload(error: BaseException) -> bool:
    """Whether an error of a call says that the source has too much to do."""
    return any(isinstance(one, TimeoutError) for one in members(error)) or bool(said(error, "overload", bool))


class Limits:
    """The state of the policies in one run. Each policy may be missing.

    Args:
        limiter: the window of `rate_limit`, which an earlier run may have used; None: a new one.
        breaker_clock: returns the seconds by which the circuit breaker measures the age of failures, and how long it
            has been open. None: the time that is passed in.

    Attributes:
        calls: the number of running calls, including those past their limit.
    """

    def __init__(
        self,
        capacity: int | AdaptiveCapacity,
        rate_limit: RateLimit | None,
        circuit_breaker: CircuitBreaker | None,
        limiter: RateWindow | None = None,
        breaker_clock: Callable[[], float] | None = None,
    ) -> None:
        self.calls = 0
        self._breaker_clock = breaker_clock
        self._limiter = RateWindow.of(rate_limit) if limiter is None and rate_limit is not None else limiter
        self._breaker = None if circuit_breaker is None else Breaker(circuit_breaker)
        self._controller = Controller(capacity) if isinstance(capacity, AdaptiveCapacity) else None

    @property
    def capacity(self) -> int | None:
        """The maximum number of calls in flight now, or None if the capacity is not adaptive."""
        return None if self._controller is None else self._controller.limit

    @property
    def circuit(self) -> str | None:
        """The state of the circuit breaker, if there is one."""
        return None if self._breaker is None else self._breaker.state

    def has_room(self) -> bool:
        """Whether the adaptive capacity allows another call."""
        return self._controller is None or self.calls < self._controller.limit

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start or is refused. A refusal is not a start."""
        # A call that is refused is not made, so it needs no token: its error must not wait for one.
        if self._limiter is None or (self._breaker is not None and self._breaker.refuses(self._age(now))):
            return now
        return self._limiter.next_start(now)

    def refusal(self, now: float) -> CircuitOpenError | None:
        """The error if the circuit breaker refuses a call now, or None."""
        if self._breaker is None:
            return None
        age = self._age(now)
        if not self._breaker.refuses(age):
            return None
        opens = self._breaker.opens_again_at()
        when = "while another call tries it" if opens is None or opens <= age else f"for another {opens - age:.3f} s"
        return CircuitOpenError(f"the circuit breaker refuses calls {when}: too many of the latest have failed")

    def started(self, call: Call, now: float) -> None:
        """A call starts."""
        self.calls += 1
        if self._limiter is not None:
            self._limiter.start(now)
        # By the clock of the breaker, which compares it with the time at which it opened.
        if self._breaker is not None:
            call.age = self._age(now)
            self._breaker.allow(call.age)

    def succeeded(self, call: Call, now: float) -> None:
        """The call has returned a result."""
        if self._breaker is not None:
            self._breaker.succeeded(self._age(now), call.age)
        if self._controller is not None:
            self._controller.completed(now, now - call.started, self.calls)

    def failed(self, call: Call, now: float, error: BaseException | None) -> None:
        """The call has raised, or, if `error` is None, passed its limit."""
        if self._breaker is not None:
            self._breaker.failed(self._age(now), call.age)
        if self._controller is not None:
            overload = error is None or is_overload(error)
            self._controller.failed(now, now - call.started, self.calls, overload)

    def abandoned(self, call: Call) -> None:
        """The call is cancelled because no element needs its result."""
        if self._breaker is not None:
            self._breaker.abandoned(call.age)

    def returned(self) -> None:
        """A call is over. `succeeded`, `failed` or `abandoned` was called for it before."""
        self.calls -= 1

    def _age(self, now: float) -> float:
        return now if self._breaker_clock is None else self._breaker_clock()
