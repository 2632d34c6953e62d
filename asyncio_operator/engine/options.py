"""How calls are made: the options that the operator and lookups share, named, checked and bundled once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from asyncio_operator.checks import Duration, duration, flag, of_kind, positive_int
from asyncio_operator.checks import timeout as optional_duration
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import OPERATOR_GRACE_PERIOD
from asyncio_operator.quota.spec import Budget
from asyncio_operator.quota.usage import Weigh

Mode = Literal["ordered", "unordered"]
"""The order in which results leave: that of the input, or that in which they come."""

OperatorMode = Literal[Mode, "key_ordered"]  # Without Spark, the calls of one key may also run one after the other.

KINDS: dict[str, type] = {
    "retry": Retry,
    "batching": Batching,
    "rate_limit": RateLimit,
    "circuit_breaker": CircuitBreaker,
    "hedge": Hedge,
    "budget": Budget,
}

SHORT: dict[str, tuple[type, Callable[[Any], object], str]] = {
    "retry": (int, Retry, "a number of attempts"),
    "batching": (int, Batching, "a number of keys"),
    "rate_limit": (int, RateLimit, "a number of calls in a second"),
    "cache": (bool, lambda given: Cache() if given else None, "True"),
    "hedge": (bool, lambda given: Hedge() if given else None, "True"),
    "circuit_breaker": (bool, lambda given: CircuitBreaker() if given else None, "True"),
}
"""Options that may be given in short, as values of a type: what is made of them, and in words for messages."""

IN_WORDS = {name: words for name, (_, _, words) in SHORT.items()}


def meant(name: str, value: Any) -> Any:
    """The value of an option that may have been given in short: ``retry=3`` is ``Retry(3)``, ``cache=True`` is
    ``Cache()``. Other values are returned as they are.

    Raises:
        ConfigurationError: the number is out of range.
    """
    short, make, _ = SHORT.get(name, (None, None, ""))
    # Not isinstance: a bool is an int, and ``retry=True`` says nothing.
    return make(value) if make is not None and type(value) is short else value


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCalls:
    """The options that every face takes, as a user gave them, with short forms replaced by what they mean."""

    capacity: int | AdaptiveCapacity = 100  # Calls in flight at most.
    timeout: Duration | None = None  # From the start of an element's first call to its deadline; None for none.
    attempt_timeout: Duration | None = None  # For each call; None for no limit.
    retry: Retry | Literal["default"] | None = None  # "default", for lookups only: as the enricher says.
    batching: Batching | None = None  # How calls with several values are formed; None: one value per call.
    rate_limit: RateLimit | None = None
    circuit_breaker: CircuitBreaker | None = None
    hedge: Hedge | None = None
    budget: Budget | None = None  # What the calls of all runs with this budget may use together.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions(GivenCalls):
    """Options of calls, checked when the bundle is made, with durations in seconds.

    Raises:
        ConfigurationError: an option is wrong.
    """

    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    # How long the end of a run waits for calls that ignore their cancellation.
    grace_period: float = OPERATOR_GRACE_PERIOD

    def __post_init__(self) -> None:
        if not isinstance(self.capacity, AdaptiveCapacity):
            positive_int("capacity", self.capacity, ", or an AdaptiveCapacity")
        for name, kind in KINDS.items():
            of_kind(name, getattr(self, name), kind, IN_WORDS.get(name))
        for name in ("timeout", "attempt_timeout"):
            object.__setattr__(self, name, optional_duration(name, getattr(self, name)))
        object.__setattr__(self, "grace_period", duration("grace_period", self.grace_period))

    @property
    def judges(self) -> bool:
        """Whether a result may not be the last one of its element."""
        return self.retry is not None and self.retry.if_result is not None

    @property
    def limited(self) -> bool:
        """Whether something is asked before each call starts, beside the capacity."""
        limits = (self.rate_limit, self.circuit_breaker, self.hedge, self.budget)
        return isinstance(self.capacity, AdaptiveCapacity) or any(limit is not None for limit in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What a run calls."""

    invoke: Callable[[Any], Awaitable[Any]]  # Called with a value, or with a list of values if calls have several.
    name: str  # For messages.
    method: str = "invoke_batch"  # The name of the method that takes several values, for messages.
    # Estimates what a call weighs in the units of a budget; None: nothing beside itself and its values.
    weigh: Weigh | None = None
    noted: bool = False  # Calls keep the HTTP status that they say (`annotate`).


def check_hedge(hedge: Hedge | None, called: Any) -> None:
    """Check that slow calls of a function or an enricher may be made twice, if they have to be.

    Raises:
        ConfigurationError: what is called has ``idempotent = False``.
    """
    if hedge is not None and not flag(f"{describe(called)}.idempotent", called.idempotent):
        raise ConfigurationError(
            f"hedge is {hedge!r}, and {describe(called)} has idempotent = False; hedge makes slow calls twice: "
            "remove hedge, or set idempotent = True if two calls have the effect of one"
        )


CALL_OPTIONS = tuple(field.name for field in fields(GivenCalls))
"""The names of the options that every face takes: the operator, `Lookup`, and those of Spark."""


def options_among(arguments: Mapping[str, Any], bundle: type[GivenCalls] = GivenCalls) -> dict[str, Any]:
    """The options of a bundle among the arguments of a function, by name. Other arguments are left out, and short forms
    become what they mean."""
    return {one.name: meant(one.name, arguments[one.name]) for one in fields(bundle) if one.name in arguments}
