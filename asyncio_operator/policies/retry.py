"""Which attempts are made again, and when.

An attempt is retried if its error is one of `on` and has not ``retryable = False``, or if `if_result` is true of its
result (law R5). The wait before the next attempt is computed from the number of attempts of that element alone (R7):
nothing is shared between elements, and a `Retry` has no state. No attempt is planned past the deadline (R3).

The default back-off, 0.1 s doubled up to 10 s, outlasts a restarted connection with a few attempts and asks a service
that is down six times a minute. Three attempts get over a lost connection and one unlucky call more; what fails three
times in a row is seldom saved by a fourth, which a service under load would have to bear. The jitter is full: uniform
between nothing and the computed wait, because calls that failed together shall not come back together. Source: Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog.

It knows neither clocks nor a source of chance: `now` and `random` are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asyncio_operator.errors import ConfigurationError, ResultError, describe, said
from asyncio_operator.policies.options import (
    LARGEST,
    Duration,
    duration,
    flag,
    number,
    plain_function,
    plain_result,
    positive_int,
    seconds,
)

Random = Callable[[], float]
"""A number that is uniform in [0, 1), at each call a new one."""

Kinds = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Waits that grow by a factor.

    Attributes:
        initial: the wait after the first attempt, in seconds or as a timedelta.
        multiplier: what each further wait is multiplied by; at least 1.
        maximum: no wait is longer.
        jitter: wait for a time that is uniform between 0 and the computed one, instead of exactly that.

    Raises:
        ConfigurationError: a value is wrong.
    """

    initial: Duration = 0.1
    multiplier: float = 2.0
    maximum: Duration = 10.0
    jitter: bool = True

    def __post_init__(self) -> None:
        initial, maximum = duration("initial", self.initial), duration("maximum", self.maximum)
        if maximum < initial:
            raise ConfigurationError(f"maximum is {maximum} s; it must not be less than initial, which is {initial} s")
        multiplier = number("multiplier", self.multiplier, "of at least 1, finite", lambda m: m >= 1)
        flag("jitter", self.jitter)
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "multiplier", multiplier)
        object.__setattr__(self, "maximum", maximum)

    def wait(self, attempts: int, random: Random) -> float:
        """Seconds to wait after `attempts` attempts."""
        computed = self._computed(attempts)
        return random() * computed if self.jitter else computed

    def _computed(self, attempts: int) -> float:
        initial, maximum = seconds(self.initial), seconds(self.maximum)
        try:
            return min(maximum, initial * self.multiplier ** (attempts - 1))
        except OverflowError:
            return maximum if initial and self.multiplier > 1 else initial


@dataclass(frozen=True, slots=True)
class FixedBackoff:
    """The same wait after every attempt: `delay`, in seconds or as a timedelta.

    Raises:
        ConfigurationError: `delay` is no duration.
    """

    delay: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", duration("delay", self.delay))

    def wait(self, attempts: int, random: Random) -> float:
        """Seconds to wait after any number of attempts."""
        return seconds(self.delay)


@dataclass(frozen=True, slots=True)
class Retry:
    """When an element gets another attempt.

    Attributes:
        max_attempts: calls made for an element at most, the first one too.
        backoff: the wait between an attempt and the next. An error that has seconds in `retry_after`, as a
            number, a timedelta, or the text of a number, replaces it by that; anything else there, such as a date, is
            ignored.
        on: an exception class or a tuple of them. An attempt that was cancelled by somebody else than the operator
            counts as one of `Exception`.
        if_result: called with a result, says whether it will not do; an ordinary function.

    Raises:
        ConfigurationError: a value is wrong.
    """

    max_attempts: int = 3
    backoff: ExponentialBackoff | FixedBackoff = ExponentialBackoff()
    on: Kinds = (Exception,)
    if_result: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        positive_int("max_attempts", self.max_attempts)
        if not isinstance(self.backoff, ExponentialBackoff | FixedBackoff):
            raise ConfigurationError(
                f"backoff is {describe(self.backoff)}; it must be an ExponentialBackoff or a FixedBackoff"
            )
        object.__setattr__(self, "on", _kinds(self.on))
        if self.if_result is not None:
            allowed = "a function of the result that says whether it will not do"
            plain_function("if_result", self.if_result, allowed, "the result")

    def retries(self, error: BaseException) -> bool:
        """Whether an attempt that ended in this error is made again, as long as attempts and time are left."""
        if isinstance(error, ResultError) or said(error, "retryable") is False:
            return False
        kinds = _kinds(self.on)
        if isinstance(error, Exception):
            return isinstance(error, kinds)
        return _is_cancellation(type(error)) and (isinstance(error, kinds) or Exception in kinds)

    def refusal(self, error: BaseException, attempts: int) -> str:
        """Why no other attempt follows one that ended in this error, for a message; empty where attempts ran out."""
        if attempts >= self.max_attempts:
            return ""
        if self.retries(error):
            return "there was no time left for another attempt"
        if isinstance(error, ResultError):
            return "an answer that will not do is not asked for again"
        if said(error, "retryable") is False:
            return "not tried again, for the error says that it would fail again"
        return f"not tried again, for Retry(on=...) does not name {type(error).__name__}"

    def unsatisfied(self, result: Any) -> bool:
        """Whether a result will not do. What `if_result` raises passes through."""
        return self.if_result is not None and bool(plain_result("if_result", self.if_result(result)))

    def next_start(
        self, attempts: int, error: BaseException | None, now: float, deadline: float | None, random: Random
    ) -> float | None:
        """When the next attempt starts, or None if there is none.

        Args:
            attempts: calls that have been made for the element.
            error: what the last one ended in; None for a result that will not do.
            now: when it ended, in seconds.
            deadline: when the element must have ended, or None.
        """
        if attempts >= self.max_attempts:
            return None
        asked = None if error is None else said(error, "retry_after", _wait_of)
        start = now + (self.backoff.wait(attempts, random) if asked is None else asked)
        return None if deadline is not None and start > deadline else start


def _kinds(on: Kinds) -> tuple[type[BaseException], ...]:
    kinds = on if isinstance(on, tuple) else (on,)
    for kind in kinds:
        if not (isinstance(kind, type) and (issubclass(kind, Exception) or _is_cancellation(kind))):
            raise ConfigurationError(
                f"on is {describe(on)}; it must be an exception class or a tuple of them, each a subclass of Exception"
            )
    return kinds


def _is_cancellation(kind: type) -> bool:
    """Whether this is asyncio's CancelledError, told by its name because asyncio is not known here."""
    return issubclass(kind, BaseException) and any(base.__name__ == "CancelledError" for base in kind.__mro__)


def _wait_of(retry_after: Any) -> float | None:
    """The seconds that an error asks to wait, or None if they make no sense."""
    if isinstance(retry_after, timedelta):
        retry_after = retry_after.total_seconds()
    elif isinstance(retry_after, str):
        retry_after = float(retry_after)
    if isinstance(retry_after, bool) or not isinstance(retry_after, int | float):
        return None
    return float(retry_after) if 0 <= retry_after <= LARGEST else None
