"""How calls are made: the options that the operator and lookups share, checked and bundled once.

They also decide between the two ways of a run. The plain way makes one call for each element, in the order they come,
and costs a fraction of a microsecond. Any option that it cannot honour takes the managed way (`attempts`).
"""

from __future__ import annotations

from dataclasses import dataclass
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


def needs_managed_way(options: CallOptions, *others: object) -> bool:
    """Whether an option needs the managed way; `others` are options that need it if they are not None."""
    managed = (
        options.attempt_timeout,
        options.retry,
        options.batching,
        options.rate_limit,
        options.circuit_breaker,
        *others,
    )
    return isinstance(options.capacity, AdaptiveCapacity) or any(option is not None for option in managed)


def checked_calls(
    *, capacity: object, timeout: object, attempt_timeout: object, **specifications: object
) -> dict[str, Any]:
    """The fields of `CallOptions`, from what a user gave.

    Args:
        specifications: the options in `KINDS`.

    Raises:
        ConfigurationError: an option is wrong.
    """
    if not isinstance(capacity, AdaptiveCapacity):
        positive_int("capacity", capacity, ", or an AdaptiveCapacity")
    for name, value in specifications.items():
        of_kind(name, value, KINDS[name])
    durations = {
        "timeout": optional_duration("timeout", timeout),
        "attempt_timeout": optional_duration("attempt_timeout", attempt_timeout),
    }
    return {"capacity": capacity, **durations, **specifications}
