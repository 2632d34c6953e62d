"""The options of lookups: checked, and bundled in `LookupOptions`. They decide between the plain and managed way."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from asyncio_operator.checks import Duration, of_kind, positive_int
from asyncio_operator.checks import timeout as optional_duration
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import LOOKUP_GRACE_PERIOD

KINDS: dict[str, type] = {
    "retry": Retry,
    "cache": Cache,
    "batching": Batching,
    "rate_limit": RateLimit,
    "circuit_breaker": CircuitBreaker,
}


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """Options of a lookup, durations in seconds.

    Attributes:
        batching: how calls with several keys are formed; None: one key per call.
        fail: the first failure ends the run.
        timed: outcomes say where they came from and how long they took.
        remedy: what the user can do about a failure, for the end of a message.
        grace_period: how long the end of the run waits for calls that ignore their cancellation.
    """

    ordered: bool = True
    capacity: int | AdaptiveCapacity = 100
    buffer: int = 6400
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    batching: Batching | None = None
    rate_limit: RateLimit | None = None
    circuit_breaker: CircuitBreaker | None = None
    cache: Cache | None = None
    fail: bool = True
    timed: bool = False
    remedy: str = ""
    grace_period: float = LOOKUP_GRACE_PERIOD

    @property
    def managed(self) -> bool:
        """Whether an option needs the managed way."""
        options = (
            self.attempt_timeout,
            self.retry,
            self.batching,
            self.rate_limit,
            self.circuit_breaker,
            self.cache,
        )
        return isinstance(self.capacity, AdaptiveCapacity) or any(option is not None for option in options)


def checked(
    enricher: Enricher,
    *,
    capacity: object,
    timeout: Duration | None,
    attempt_timeout: Duration | None,
    **specifications: Any,
) -> LookupOptions:
    """Checks the options that `enrich` and `Lookup` share. The others keep their defaults.

    Raises:
        ConfigurationError: an option is wrong.
    """
    require_enricher(enricher)
    if not isinstance(capacity, AdaptiveCapacity):
        positive_int("capacity", capacity)
    for name, kind in KINDS.items():
        of_kind(name, specifications[name], kind)
    return LookupOptions(
        capacity=capacity,  # type: ignore[arg-type]
        timeout=optional_duration("timeout", timeout),
        attempt_timeout=optional_duration("attempt_timeout", attempt_timeout),
        **specifications | {"batching": batching_of(enricher, specifications["batching"])},
    )


def require_enricher(enricher: object) -> None:
    """Check that an object is an enricher and that its methods are asynchronous.

    Raises:
        ConfigurationError: it is not, or one of them is not.
    """
    if isinstance(enricher, type) and issubclass(enricher, Enricher):
        raise ConfigurationError(f"enricher is the class {enricher.__name__}; pass an object of it")
    if not isinstance(enricher, Enricher):
        remedy = '; put @enricher("column type, ...") before the function' if inspect.isfunction(enricher) else ""
        raise ConfigurationError(f"enricher is {describe(enricher)}; it must be an Enricher{remedy}")
    for name in ("open", "close", "lookup", "lookup_many"):
        method = getattr(enricher, name)
        if inspect.isroutine(method) and not inspect.iscoroutinefunction(method):
            raise ConfigurationError(
                f"{describe(enricher)}.{name} is an ordinary function; it must be `async def {name}`"
            )
    positive_int(f"{describe(enricher)}.max_batch", enricher.max_batch)


def batching_of(enricher: Enricher, batching: Batching | None) -> Batching | None:
    """How the calls of an enricher are formed: as `batching` says, with at most `enricher.max_batch` keys.

    Raises:
        ConfigurationError: `batching` is given and the enricher takes one key at a time.
    """
    most = enricher.max_batch
    if most == 1:
        if batching is not None:
            raise ConfigurationError(
                f"batching is {batching!r}, and {describe(enricher)} takes one key at a time; batches are for an "
                "enricher that has `lookup_many` and says with `max_batch` how many keys it takes at once"
            )
        return None
    if batching is None:
        return Batching(most)
    return Batching(min(most, batching.max_size), batching.linger)
