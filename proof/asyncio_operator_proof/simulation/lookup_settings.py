"""The options of lookups, as a history has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncio_operator.checks import seconds
from asyncio_operator.lookup.pipeline import in_slices
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, calls_at_most
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.retry import FixedBackoff, Retry
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator_proof.simulation.scenario import Lookup

BATCHES = 4
"""Batches of the input that a lookup reads whatever `buffer` is."""


def chunk(buffer: int, largest: int) -> int:
    """The rows beyond `buffer` that a lookup may have inside: it reads a batch if `BATCHES` are not inside, or if it
    has fewer rows than `buffer`.

    Args:
        largest: rows of the largest batch of its input.
    """
    return max(0, largest - 1, BATCHES * largest - buffer)


def setting(number: int, lookup: Lookup, made: EnrichTask, single: bool, own: bool) -> dict[str, Any]:
    """The event with the options of a lookup; `chunk` is known when it has read its input.

    Args:
        made: what the driver has made of the lookup.
        single: whether a key has at most one row.
        own: whether the enricher is the user's: what it does when it is cancelled is not known.
    """
    given, options = lookup.options, made.options
    event: dict[str, Any] = {
        "lookup": number,
        "name": f"lookup {number}",
        "mode": given.get("mode", "ordered"),
        "how": given.get("how", "left"),
        "on_error": given.get("on_error", "fail"),
        "capacity": calls_at_most(options.capacity),
        "adaptive": True if isinstance(options.capacity, AdaptiveCapacity) else None,
        "buffer": options.buffer,
        "timeout": options.timeout or None,
        "attempt_timeout": options.attempt_timeout or None,
        "remember": options.remember or None,
        "idempotent": made.enricher.idempotent,
        "max_attempts": 1 if options.retry is None else options.retry.max_attempts,
    }
    if options.retry is not None:
        event |= _backoff(options.retry)
    if options.batching is not None:
        event["batch"] = {"max_size": options.batching.max_size, "linger": seconds(options.batching.linger)}
    if options.cache is not None:
        event["cache"] = _cache(options.cache)
    if options.hedge is not None:
        hedge = options.hedge
        cap = None if hedge.cap is None else seconds(hedge.cap)
        after = hedge.after if isinstance(hedge.after, str) else seconds(hedge.after)
        event["hedge"] = {"after": after, "extra": hedge.extra, "floor": seconds(hedge.floor), "cap": cap}
    if options.circuit_breaker is not None:
        breaker = options.circuit_breaker
        event["circuit_breaker"] = {
            "failure_ratio": breaker.failure_ratio,
            "window": seconds(breaker.window),
            "minimum_calls": breaker.minimum_calls,
            "open_for": seconds(breaker.open_for),
        }
    event |= _limits(options.budget)
    if lookup.journal is not None:
        event["journal"] = {"name": f"journal {number}", **lookup.journal}
    if in_slices(options, made.enricher, traced=made.tracing is not None):
        event["asks_per_batch"] = True
    if single:
        event["single"] = True
    if not own:
        event["returns_within"] = lookup.service.ignores
    return {name: value for name, value in event.items() if value is not None}


def _backoff(retry: Retry) -> dict[str, Any]:
    backoff = retry.backoff
    if isinstance(backoff, FixedBackoff):
        return {"delay": seconds(backoff.delay)}
    return {
        "backoff": {
            "initial": seconds(backoff.initial),
            "multiplier": backoff.multiplier,
            "maximum": seconds(backoff.maximum),
            "jitter": backoff.jitter,
        }
    }


def _cache(cache: Cache) -> dict[str, Any]:
    names = ("expire_after_write", "expire_after_access", "missing_ttl", "refresh_after")
    times = {name: getattr(cache, name) for name in names}
    return {
        **{name: seconds(value) for name, value in times.items() if value is not None},
        "cache_missing": cache.cache_missing,
        "stale_if_error": cache.stale_if_error,
        "max_rows": cache.max_rows,
        "store": cache.store,
    }


def _limits(budget: Budget | None) -> Mapping[str, Any]:
    if budget is None:
        return {}
    limits = [
        {"unit": one.unit, "rate": one.rate, "per": seconds(one.per), "burst": one.burst or 0} for one in budget.limits
    ]
    event: dict[str, Any] = {"limits": limits, "budget": budget.name}
    if budget.in_flight is not None:
        event["in_flight"] = budget.in_flight
    if budget.spend is not None:
        event |= {"spend": dict(budget.spend), "on_spent": budget.on_spent}
    return event
