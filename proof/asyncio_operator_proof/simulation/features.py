"""What a scenario uses: names of options and faults, to count what was crossed with what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.scenario import Lookup, Scenario

OPTIONS = (
    *("unordered", "inner", "required", "drop", "fail", "adaptive", "buffer", "timeout", "attempt_timeout", "retry"),
    *("batches", "rate", "breaker", "hedge", "budget", "heap", "rocksdb", "refresh", "stale", "remember", "journal"),
    *("chain", "sorted", "columns", "spend", "over_budget", "pair", "table", "whole"),
)

FAULTS = (
    *("errors", "bad", "hangs", "lies", "throttle", "outage", "ignores", "several", "misses", "kill", "closed", "slow"),
    *("clocks", "far_coordinator", "coord_down", "workers", "quota", "hints", "nonsense", "half_null"),
    *("compacted", "compaction_dies"),
)

SHARES = ("errors", "bad", "hangs", "lies", "throttle", "ignores", "several", "quota", "nonsense")
"""Fields of a service."""


def features_of(scenario: Scenario, history: Iterable[Event] = ()) -> set[str]:
    """The names of `OPTIONS` and `FAULTS` that a scenario uses.

    Args:
        history: of its run; "whole" is found only there.
    """
    found = {name for lookup in scenario.lookups for name in _of_lookup(lookup)}
    tasks, coordinator = scenario.tasks, scenario.coordinator
    used = {
        "chain": len(scenario.lookups) > 1,
        "sorted": any(_ascend(task.keys) for task in tasks),
        "spend": scenario.budget and scenario.budget.spend,
        "over_budget": scenario.budget and scenario.budget.on_spent == "null",
        "kill": scenario.kills,
        "clocks": scenario.clocks,
        "closed": any(task.closed_after is not None for task in tasks),
        "slow": any(task.slow for task in tasks),
        "workers": len({task.worker for task in tasks}) > 1,
        "far_coordinator": scenario.budget and (coordinator.lost or coordinator.delay > 0.01),
        "coord_down": scenario.budget and coordinator.down,
        "half_null": scenario.pairs and any(None in task.parts for task in tasks),
        "whole": any(one.get("asks_per_batch") for one in history),
        "compacted": scenario.compactions,
        "compaction_dies": any(one.ends is not None for one in scenario.compactions),
    }
    return found | {name for name, is_used in used.items() if is_used}


def _ascend(keys: Sequence[Any]) -> bool:
    return len(keys) > 1 and None not in keys and all(one < other for one, other in pairwise(keys))


def _of_lookup(lookup: Lookup) -> set[str]:
    options, service = lookup.options, lookup.service
    cache = options.get("cache")
    used = {
        "unordered": options.get("mode") == "unordered",
        "inner": options.get("how") == "inner",
        "required": options.get("how") == "required",
        "drop": options.get("on_error") == "drop",
        "fail": options.get("on_error", "fail") == "fail",
        "adaptive": isinstance(options.get("capacity"), AdaptiveCapacity),
        "batches": lookup.batches > 1,
        "columns": lookup.columns,
        "pair": lookup.pair,
        "table": lookup.table,
        "rate": "rate_limit" in options,
        "breaker": "circuit_breaker" in options,
        "remember": options.get("remember", 60.0) is not None and cache is None,
        "journal": lookup.journal is not None,
        "timeout": options.get("timeout", 30.0) is not None,
        "heap": cache is not None and getattr(cache, "store", "heap") == "heap",
        "rocksdb": getattr(cache, "store", "") == "rocksdb",
        "refresh": getattr(cache, "refresh_after", None) is not None,
        "stale": getattr(cache, "stale_if_error", False),
        "outage": service.outages,
        "misses": service.missing,
        "hints": service.quota and service.tells and options.get("budget"),
        **{name: options.get(name) for name in ("buffer", "attempt_timeout", "retry", "hedge", "budget")},
        **{name: getattr(service, name) for name in SHARES},
    }
    return {name for name, is_used in used.items() if is_used}
