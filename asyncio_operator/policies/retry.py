"""Which attempts are repeated, and when.

An attempt is retried if its error is one of `on` and does not say ``retryable = False``, or if `if_result` returns true
for its result (law R5). The wait before the next attempt depends only on the number of attempts of that element (R7):
elements share nothing, and a `Retry` has no state. No attempt is planned after the deadline (R3).

The default back-off starts at 0.1 s and doubles up to 10 s. It outlasts a restarted connection in a few attempts, and
calls a service that is down six times a minute. Three attempts survive a lost connection and one more unlucky call. A
call that failed three times rarely succeeds the fourth time, and a service under load would have to carry it. The
jitter is full: uniform between 0 and the computed wait, so that calls that failed together do not return together.
Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog.

This module knows neither clocks nor a source of randomness: `now` and `random` are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from asyncio_operator.checks import (
    Duration,
    duration,
    flag,
    must_be,
    number,
    plain_function,
    plain_result,
    positive_int,
    seconds,
)
from asyncio_operator.errors import (
    ConfigurationError,
    ElementTimeoutError,
    ResultError,
    members,
    said,
    wait_of,
)

Random = Callable[[], float]
"""Each call returns a new random number, uniform in [0, 1)."""

Kinds = type[BaseException] | tuple[type[BaseException], ...]

RETRYABLE: Literal["retryable"] = "retryable"
"""For `Retry(on=...)`: only errors that say that another attempt may help."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Waits that grow by a factor.

    Attributes:
        initial: the wait after the first attempt, in seconds or as a timedelta.
        multiplier: each wait is the previous one times this factor; at least 1.
        maximum: the longest wait.
        jitter: wait for a random time, uniform between 0 and the computed wait, instead of exactly that.

    Raises:
        ConfigurationError: a value has the wrong type or range.
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
        initial, maximum = seconds(self.initial), seconds(self.maximum)
        try:
            computed = min(maximum, initial * self.multiplier ** (attempts - 1))
        except OverflowError:
            # A power of floats that is too large raises, and does not become infinity.
            computed = maximum if initial and self.multiplier > 1 else initial
        return random() * computed if self.jitter else computed


@dataclass(frozen=True, slots=True)
class FixedBackoff:
    """The same wait after every attempt: `delay`, in seconds or as a timedelta.

    Raises:
        ConfigurationError: `delay` is not a duration.
    """

    delay: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", duration("delay", self.delay))

    def wait(self, attempts: int, random: Random) -> float:
        """Seconds to wait after any number of attempts."""
        return seconds(self.delay)


LONGEST_WAIT = 3600.0
"""Seconds. Where no deadline bounds it, no source may make an element wait for longer (laws R7 and G5)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When an element gets another attempt.

    Attributes:
        max_attempts: the maximum number of calls for one element, the first one included.
        backoff: the wait between an attempt and the next. If the error has `retry_after` (a number of seconds, a
            timedelta, or the text of a number), that replaces the wait. Any other value of it, such as a date, is
            ignored. An element without a deadline that would wait for more than an hour (`LONGEST_WAIT`) ends at once.
        on: an exception class or a tuple of classes. A cancellation that does not come from the operator counts as an
            `Exception`. "retryable": only errors that say ``retryable = True``, and attempts that passed
            `attempt_timeout`. A function that gets the error and returns true if it is to be retried; it must be an
            ordinary function, and is not asked about errors that say ``retryable = False``, nor about invalid results.
        if_result: an ordinary function that gets a result and returns true if the result is to be retried.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    max_attempts: int = 3
    backoff: ExponentialBackoff | FixedBackoff = ExponentialBackoff()
    on: Kinds | Literal["retryable"] | Callable[[BaseException], object] = (Exception,)
    if_result: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        positive_int("max_attempts", self.max_attempts)
        if not isinstance(self.backoff, ExponentialBackoff | FixedBackoff):
            raise must_be("backoff", self.backoff, "an ExponentialBackoff or a FixedBackoff")
        if _is_predicate(self.on):
            plain_function("on", self.on, "a function of the error that returns true to retry", "the error")
        elif not isinstance(self.on, str) or self.on != RETRYABLE:
            object.__setattr__(self, "on", _kinds(self.on))
        if self.if_result is not None:
            allowed = "a function of the result that returns true if the result is to be retried"
            plain_function("if_result", self.if_result, allowed, "the result")

    def retries(self, error: BaseException) -> bool:
        """Whether an attempt that ended in this error is repeated, as long as attempts and time are left.

        One member of a group that may not be repeated ends it (law X14), unless `on` names groups.
        """
        if isinstance(error, BaseExceptionGroup) and said(error, "retryable") is not False:
            kinds = () if self.on == RETRYABLE or _is_predicate(self.on) else _kinds(self.on)
            if not any(issubclass(kind, BaseExceptionGroup) and isinstance(error, kind) for kind in kinds):
                return all(self.retries(one) for one in members(error))
        if said(error, "retryable") is False:
            return False
        if self.on == RETRYABLE:
            return said(error, "retryable") is True or isinstance(error, ElementTimeoutError)
        if _is_predicate(self.on):
            asked = isinstance(error, Exception) or _is_cancellation(type(error))
            return asked and bool(plain_result("on", self.on(error)))  # type: ignore[operator]
        # A cancellation that the operator did not cause is an error of the call, but for Python it is no `Exception`.
        kinds = _kinds(self.on)
        if isinstance(error, Exception):
            return isinstance(error, kinds)
        return _is_cancellation(type(error)) and (isinstance(error, kinds) or Exception in kinds)

    def refusal(self, error: BaseException, attempts: int, again: bool) -> str:
        """For a message: why no attempt follows one that ended in this error; empty if the attempts were used up.
        `again` is what `retries` has said. It is not asked anew: a function of the user may count its calls."""
        if attempts >= self.max_attempts:
            return ""
        if again:
            if (asked := asked_wait(error) or 0.0) > LONGEST_WAIT:
                return (
                    f"not retried: the source asks to wait {asked:g} s, and without a longer timeout this is too long"
                )
            return "there was no time left for another attempt"
        if said(error, "retryable") is False:
            if isinstance(error, ResultError):
                return "not retried: the answer is invalid"
            return "not retried: the error says that it would fail again"
        if self.on == RETRYABLE:
            return "not retried: the error does not say that another attempt may help"
        if _is_predicate(self.on):
            return "not retried: the function Retry(on=...) says no"
        return f"not retried: Retry(on=...) does not include {type(error).__name__}"

    def unsatisfied(self, result: Any) -> bool:
        """Whether `if_result` wants a result retried. An error of `if_result` is passed on."""
        return self.if_result is not None and bool(plain_result("if_result", self.if_result(result)))

    def next_start(
        self, attempts: int, error: BaseException | None, now: float, deadline: float | None, random: Random
    ) -> float | None:
        """When the next attempt starts, or None if there is none.

        Args:
            attempts: how many calls were made for the element.
            error: the error of the last call; None if `if_result` wants its result retried.
            now: when that call ended, in seconds.
            deadline: when the element must have ended, in seconds, or None.
        """
        if attempts >= self.max_attempts:
            return None
        # Law R7: the source knows better than a formula when it will answer again.
        asked = None if error is None else asked_wait(error)
        start = now + (self.backoff.wait(attempts, random) if asked is None else asked)
        if deadline is None:
            return None if asked is not None and asked > LONGEST_WAIT else start
        return None if start > deadline else start


def _kinds(on: object) -> tuple[type[BaseException], ...]:
    kinds = on if isinstance(on, tuple) else (on,)
    for kind in kinds:
        if not (isinstance(kind, type) and (issubclass(kind, Exception) or _is_cancellation(kind))):
            allowed = 'an exception class or a tuple of them, each a subclass of Exception, or "retryable"'
            raise must_be("on", on, f"{allowed}, or a function of the error")
    return kinds


def _is_predicate(on: object) -> bool:
    """Whether `on` is a function of the error; classes can be called too."""
    return callable(on) and not isinstance(on, type)


def _is_cancellation(kind: type) -> bool:
    """Whether this is asyncio's CancelledError. It is found by name, because this module does not know asyncio."""
    return issubclass(kind, BaseException) and any(base.__name__ == "CancelledError" for base in kind.__mro__)


def asked_wait(error: BaseException) -> float | None:
    """The seconds that an error asks to wait before the next call, by its `retry_after`; None if it asks nothing."""
    asked: float | None = said(error, "retry_after", wait_of)
    return asked


def refusal_wait(error: BaseException) -> float | None:
    """The seconds for which a source refuses calls, 0 if it names no time; None for an error that is no refusal."""
    asked = asked_wait(error)
    return 0.0 if asked is None and said(error, "overload", bool) else asked
