"""How calls are made: the options that the operator and lookups share, checked and bundled once.

They also decide between the two ways of a run. The plain way makes one call for each element, in the order they come,
and costs a fraction of a microsecond. Any option that it cannot honour takes the managed way (`attempts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from asyncio_operator.checks import of_kind, positive_int
from asyncio_operator.checks import timeout as optional_duration
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import OPERATOR_GRACE_PERIOD

KINDS: dict[str, type] = {
    "retry": Retry,
    "batching": Batching,
    "rate_limit": RateLimit,
    "circuit_breaker": CircuitBreaker,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Options of calls, durations in seconds.

    Attributes:
        capacity: calls in flight at most.
        timeout: from the start of an element's first call to its deadline; None for none.
        attempt_timeout: for each call; None for no limit.
        batching: how calls with several values are formed; None: one value per call.
        grace_period: how long the end of a run waits for calls that ignore their cancellation.
    """

    capacity: int | AdaptiveCapacity = 100
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    batching: Batching | None = None
    rate_limit: RateLimit | None = None
    circuit_breaker: CircuitBreaker | None = None
    grace_period: float = OPERATOR_GRACE_PERIOD


CALL_OPTIONS = tuple(field.name for field in fields(CallOptions) if field.name != "grace_period")
"""The options that every face takes: the operator, `Lookup`, and those of Spark."""

PLAIN = ("capacity", "timeout")
"""Options that the plain way honours, if the capacity is a number."""


def needs_managed_way(options: CallOptions, *others: object) -> bool:
    """Whether an option needs the managed way; `others` are options that need it if they are not None."""
    managed = [getattr(options, name) for name in CALL_OPTIONS if name not in PLAIN]
    return isinstance(options.capacity, AdaptiveCapacity) or any(option is not None for option in (*managed, *others))


def calls_among(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of calls among the arguments of a function, by name. Other arguments are left out."""
    return {name: arguments[name] for name in CALL_OPTIONS}


def checked_calls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`calls_among` arguments that a user gave, checked, with durations in seconds.

    Raises:
        ConfigurationError: an option is wrong.
    """
    calls = calls_among(arguments)
    if not isinstance(calls["capacity"], AdaptiveCapacity):
        positive_int("capacity", calls["capacity"], ", or an AdaptiveCapacity")
    for name, kind in KINDS.items():
        of_kind(name, calls[name], kind)
    for name in ("timeout", "attempt_timeout"):
        calls[name] = optional_duration(name, calls[name])
    return calls
