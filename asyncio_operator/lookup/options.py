"""The options of lookups: checked, and bundled in `LookupOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from asyncio_operator.checks import of_kind
from asyncio_operator.engine.options import IN_WORDS, CallOptions, check_hedge, meant, options_among
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.lazy import member
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import LOOKUP_GRACE_PERIOD

if TYPE_CHECKING:
    from asyncio_operator.enricher import Enricher

DefaultRetry = Retry | int | None | Literal["default"]
"""When lookups are repeated: as given (a number of attempts is enough), never (None), or as the enricher says
("default")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions(CallOptions):
    """Options of lookups, checked as those of calls are."""

    ordered: bool = True
    buffer: int = 6400
    cache: Cache | None = None
    # True: the first failure ends the run. False: only a failure that no key can cause ends it, because the process
    # lacks something. None: no failure ends it.
    fail: bool | None = True
    timed: bool = False  # Outcomes say where they came from and how long they took.
    remember: float = 0.0  # Seconds for which a task reuses an answer.
    journaled: bool = False  # Every new answer is kept in a journal.
    remedy: str = ""  # What the user can do about a failure, for the end of a message.
    grace_period: float = LOOKUP_GRACE_PERIOD

    def __post_init__(self) -> None:
        CallOptions.__post_init__(self)
        of_kind("cache", self.cache, Cache, IN_WORDS["cache"])


def checked(enricher: Enricher, arguments: Mapping[str, Any]) -> LookupOptions:
    """Checks the options that `enrich` and `Lookup` share. The others keep their defaults.

    Args:
        arguments: those options by name; others are left out.

    Raises:
        ConfigurationError: an option is wrong.
    """
    calls = options_among(arguments)
    if isinstance(retry := calls["retry"], str) and retry == "default":
        calls["retry"] = meant("retry", enricher.default_retry)
        of_kind(f"{describe(enricher)}.default_retry", calls["retry"], Retry)
    elif retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(
            f'retry is {describe(retry)}; it must be a Retry, a number of attempts, None or "default"'
        )
    options = LookupOptions(**calls, cache=meant("cache", arguments["cache"]))
    check_hedge(options.hedge, enricher)
    if options.cache is not None and options.cache.is_shared and isinstance(options.cache.store, str):
        # Without a connection. A function gives the address where it is needed.
        member("asyncio_operator.services.redis_values", "STORE").check_source(options.cache.store)
    return replace(options, batching=batching_of(enricher, options.batching))


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
                "enricher that has `lookup_many` or `lookup_columns`, and says with `max_batch` how many keys it takes "
                "at once"
            )
        return None
    if batching is None:
        return Batching(most)
    return Batching(min(most, batching.max_size), batching.linger)
