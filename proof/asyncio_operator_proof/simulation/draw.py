"""Draws a scenario from a seed: which options, which service, which faults. Each feature is left out more often than
not, so that most scenarios cross a few of them, and every pair of them is crossed in some."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncio_operator.checks import one_of
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import ExponentialBackoff, FixedBackoff, Retry
from asyncio_operator.quota.spec import Budget, Limit
from asyncio_operator_proof.simulation.given import kind_of, require_keys, require_known, require_right
from asyncio_operator_proof.simulation.pairs_tables_compactions import compactions_of, with_pairs, with_tables
from asyncio_operator_proof.simulation.reasons import has_limit
from asyncio_operator_proof.simulation.scenario import Coordinator, Kill, Lookup, Scenario, Service, Task

KINDS = ("long", "string")
ERRORS = ("retryable", "lasting", "unknown", "lost", "overload", "asked")
LIES = ("short", "long", "misspelt", "typed")


def drawn(seed: int, fixed: Mapping[str, Any] | None = None, own: bool = False) -> Scenario:
    """The scenario of a seed.

    Args:
        own: whether the enrichers are the user's, which may know keys of one column only.
        fixed: options of `enrich`, which all lookups then have; or fields of `Scenario`.
    """
    given = dict(fixed or {})
    require_known(given)
    require_right(seed, given)
    source = random.Random(f"scenario {seed}")
    wanted = given.pop("kind", None)
    kind = source.choice(KINDS) if wanted is None else one_of("kind", wanted, KINDS)
    rows: Mapping[Any, Any] | None = given.pop("rows", None)
    count = source.choice((1, 1, 1, 2, 2, 3))
    if rows is not None:
        kind, count = kind_of(rows, wanted), 1
    budget = _budget(source)
    lookups = given.pop("lookups", None)
    are_drawn = not isinstance(lookups, tuple) and not isinstance(given.get("tasks"), tuple)
    if not isinstance(lookups, tuple):
        lookups = _lookups(source, seed, lookups or count, budget is not None)
    if rows is not None:
        lookups = tuple(replace(one, from_before=False) for one in lookups)
    if "journal" in given:
        lookups = tuple(replace(one, journal=given["journal"]) for one in lookups)
        del given["journal"]
    tasks = given.pop("tasks", None)
    if not isinstance(tasks, tuple):
        tasks = _tasks(source, tasks or source.choice((1, 1, 2, 2, 3, 4)), kind, rows)
        orders = random.Random(f"order {seed}")
        tasks = tuple(_sorted(task) if orders.random() < 0.2 else task for task in tasks)
    require_keys(tasks, kind)
    if rows is None and not own and are_drawn:
        lookups, tasks = with_pairs(seed, with_tables(seed, lookups), tasks)
    workers = 1 + max(task.worker for task in tasks)
    kills = tuple(
        Kill(source.randrange(workers), round(source.uniform(0.01, 1.5), 3), source.choice((0.05, 0.2, 1.0)))
        for _ in range(source.choice((0, 0, 0, 1, 1, 2)))
    )
    clocks = tuple((round(source.uniform(-0.5, 0.5), 3), source.choice((0.0, 1e-4, -1e-4))) for _ in range(workers))
    scenario: dict[str, Any] = {
        "budget": budget,
        "coordinator": _coordinator(source) if budget else Coordinator(),
        "kills": kills,
        "clocks": clocks if source.random() < 0.3 else (),
        "compactions": compactions_of(seed, lookups),
    }
    scenario |= {name: given.pop(name) for name in tuple(scenario) if name in given and name != "budget"}
    if isinstance(given.get("budget"), Budget):
        scenario["budget"] = given["budget"]
        given["budget"] = True
    lookups = tuple(replace(one, options={**one.options, **given}) for one in lookups)
    if any(one.lookup not in range(len(lookups)) for one in scenario["compactions"]):
        raise ConfigurationError(f"compactions= names a lookup that does not exist: there are {len(lookups)}")
    return Scenario(seed, tuple(map(_ending, lookups)), tasks, kind, rows=rows, **scenario)


def _ending(lookup: Lookup) -> Lookup:
    """The lookup, without calls that hang if nothing would end them."""
    return (
        lookup
        if has_limit(lookup.options) or not lookup.service.hangs
        else replace(lookup, service=replace(lookup.service, hangs=0.0))
    )


def _lookups(source: random.Random, seed: int, count: int, budget: bool) -> tuple[Lookup, ...]:
    lookups = [_lookup(source, number, count, budget) for number in range(count)]
    answers, quotas = random.Random(f"columns {seed}"), random.Random(f"quota {seed}")
    lookups = [replace(one, columns=answers.random() < 0.2) for one in lookups]
    # The source of a budget is one.
    source_of_budget = next((one for one in lookups if "budget" in one.options), None)
    return tuple(
        _with_quota(quotas, one) if one is source_of_budget or "budget" not in one.options else one for one in lookups
    )


def _lookup(source: random.Random, number: int, count: int, budget: bool) -> Lookup:
    maybe = source.random
    service = _service(source, last=number == count - 1)
    options: dict[str, Any] = {}
    if maybe() < 0.5:
        options["mode"] = "unordered"
    options["capacity"] = source.choice((1, 2, 3, 5, 10, 100))
    if maybe() < 0.1:
        options["capacity"] = AdaptiveCapacity(initial=source.choice((1, 4)), maximum=source.choice((4, 20)))
    if maybe() < 0.4:
        options["buffer"] = source.choice((1, 3, 10, 50))
    options["timeout"] = source.choice((None, 0.05, 0.5, 3.0, 30.0, 30.0))
    if maybe() < 0.3:
        options["attempt_timeout"] = source.choice((0.02, 0.1, 1.0))
    if maybe() < 0.6:
        options["retry"] = _retry(source)
    options["on_error"] = source.choice(("null", "null", "null", "drop", "fail"))
    if maybe() < 0.2:
        options["how"] = source.choice(("inner", "inner", "required"))
    batches = source.choice((1, 1, 1, 3, 20))
    if batches > 1 and maybe() < 0.7:
        options["batching"] = Batching(source.choice((2, 3, 10)), source.choice((0.0, 0.002, 0.05)))
    _limits(source, options, budget)
    if maybe() < 0.35:
        options["cache"] = _cache(source)
    if maybe() < 0.5:
        options["remember"] = source.choice((None, 0.1, 1.0))
    journal = None
    if maybe() < 0.2:
        journal = {"flush_every": source.choice((0.05, 0.2, 1.0))}
        if maybe() < 0.3:
            journal["expire_after"] = source.choice((0.5, 2.0))
        if maybe() < 0.3:
            journal["keep_missing"] = False
    if maybe() < 0.85 or options["on_error"] != "fail":
        options["status_column"] = f"status{number}"
    return Lookup(options, service, batches, journal, from_before=number > 0 and maybe() < 0.6)


def _retry(source: random.Random) -> Retry:
    backoff: Any = FixedBackoff(source.choice((0.0, 0.01, 0.2)))
    if source.random() < 0.5:
        backoff = ExponentialBackoff(source.choice((0.01, 0.1)), maximum=1.0, jitter=source.random() < 0.5)
    return Retry(source.choice((2, 3, 5)), backoff)


def _with_quota(source: random.Random, lookup: Lookup) -> Lookup:
    """The lookup, perhaps with a service that has a quota: rather where tasks share what it says."""
    if source.random() >= (0.4 if "budget" in lookup.options else 0.03):
        return lookup
    fields: dict[str, Any] = {
        "quota": source.choice((3, 10, 50)),
        "per": source.choice((1.0, 3.0)),
        "lenient": source.random() < 0.4,
        "refills": source.random() < 0.4,
        "tells": source.choice((0.0, 0.1, 0.5, 1.0)),
    }
    if source.random() < 0.2:
        fields |= {"nonsense": 0.1, "tells": min(fields["tells"], 0.9)}
    return replace(lookup, service=replace(lookup.service, **fields))


def _limits(source: random.Random, options: dict[str, Any], budget: bool) -> None:
    maybe = source.random
    if budget and maybe() < 0.7:
        options["budget"] = True
    elif maybe() < 0.15:
        options["rate_limit"] = RateLimit(source.choice((5, 20, 100)), source.choice((0.1, 1.0)), source.choice((0, 5)))
    if maybe() < 0.1:
        options["circuit_breaker"] = CircuitBreaker(0.5, 5.0, source.choice((3, 10)), source.choice((0.1, 1.0)))
    if maybe() < 0.2:
        options["hedge"] = source.choice((Hedge(0.02, 0.5), Hedge("p50", 0.3, 0.005), Hedge("p90", 0.2, 0.001, 0.05)))


def _cache(source: random.Random) -> Cache:
    options: dict[str, Any] = {"max_rows": source.choice((1, 3, 20, 10_000))}
    write = source.choice((None, 0.1, 1.0, 5.0))
    access = source.choice((None, None, 0.1, 1.0))
    if source.random() < 0.3:
        options["cache_missing"] = False
    elif source.random() < 0.3:
        options["missing_ttl"] = source.choice((0.05, 0.5))
    if source.random() < 0.3:
        options["refresh_after"] = source.choice((0.02, 0.06, 0.09))
    if source.random() < 0.3:
        options["stale_if_error"] = True
    if source.random() < 0.12:
        options |= {"store": "rocksdb", "directory": "/"}
    return Cache(expire_after_write=write, expire_after_access=access, **options)


def _service(source: random.Random, last: bool) -> Service:
    maybe = source.random
    fields: dict[str, Any] = {
        "latency": source.choice(("fixed", "uniform", "exponential", "tail")),
        "mean": source.choice((0.0, 0.001, 0.01, 0.05, 0.2)),
        "missing": source.choice((0.0, 0.1, 0.3)),
    }
    if last:
        fields["several"] = source.choice((0.0, 0.0, 0.2))
    if maybe() < 0.45:
        fields |= {"errors": source.choice((0.05, 0.3, 0.6)), "error": source.choice(ERRORS)}
    if maybe() < 0.12:
        fields["bad"] = 0.1
    if maybe() < 0.08:
        fields["hangs"] = source.choice((0.02, 0.1))
    if maybe() < 0.12:
        fields |= {"lies": source.choice((0.1, 0.3)), "lie": source.choice(LIES)}
    if maybe() < 0.1:
        fields["throttle"] = source.choice((5, 20))
    if maybe() < 0.1:
        at = round(source.uniform(0.0, 1.0), 3)
        fields["outages"] = ((at, round(at + source.choice((0.1, 0.5, 2.0)), 3)),)
    if maybe() < 0.1:
        fields["ignores"] = source.choice((0.02, 0.2))
    if maybe() < 0.2:
        fields["opens"] = source.choice((0.01, 0.3))
    if maybe() < 0.3:
        fields |= {"tokens": float(source.choice((1, 10))), "settles": maybe() < 0.5}
    return Service(**fields)


def _budget(source: random.Random) -> Budget | None:
    if source.random() >= 0.2:
        return None
    limits = [Limit(source.choice((10, 50, 200)), source.choice((0.5, 1.0)), "calls", source.choice((None, 5)))]
    if source.random() < 0.3:
        limits.append(Limit(source.choice((100.0, 500.0)), 1.0, "tokens"))
    if source.random() < 0.2:
        limits.append(Limit(source.choice((20, 100)), 1.0, "keys"))
    in_flight, patience = source.choice((None, None, 2, 5)), source.choice((2.0, 30.0))
    fields: dict[str, Any] = {}
    if source.random() < 0.25:
        amounts = ({"tokens": 60.0}, {"tokens": 400.0}, {"calls": 20.0}, {"keys": 25.0, "tokens": 1e6})
        fields = {"spend": source.choice(amounts), "on_spent": source.choice(("fail", "null"))}
    return Budget("shared", *limits, in_flight=in_flight, patience=patience, **fields)


def _coordinator(source: random.Random) -> Coordinator:
    down: tuple[tuple[float, float], ...] = ()
    if source.random() < 0.25:
        at = round(source.uniform(0.0, 1.0), 3)
        down = ((at, round(at + source.choice((0.2, 1.5, 6.0)), 3)),)
    lost = 0.05 if source.random() < 0.2 else 0.0
    return Coordinator(source.choice((0.0002, 0.002, 0.02)), lost, down, source.choice((0.0, 3.0)))


def _sorted(task: Task) -> Task:
    """The task, with every key once and in order, as in a table that is sorted by its key."""
    return replace(task, keys=tuple(sorted({key for key in task.keys if key is not None})))


def _tasks(source: random.Random, count: int, kind: str, rows: Mapping[Any, Any] | None) -> tuple[Task, ...]:
    workers = source.choice((1, count))
    most = source.choice((3, 10, 40))
    pool: list[Any] = [f"k{number}" if kind == "string" else number for number in range(most)]
    if rows is not None:
        # With two keys that the service does not have.
        pool = [*rows, *pool[:2]]
    skew = source.choice((0.0, 1.0, 2.0))
    weights = [1 / (1 + number) ** skew for number in range(len(pool))]
    nulls = source.choice((0.0, 0.0, 0.1))
    tasks = []
    for number in range(count):
        size = source.choice((0, 1, 5, 20, 20, 60, 60))
        keys = source.choices(pool, weights, k=size)
        keys = [None if source.random() < nulls else key for key in keys]
        task: dict[str, Any] = {"worker": number % workers, "batch": source.choice((1, 5, 20, 100))}
        if source.random() < 0.5:
            task["starts"] = round(source.choice((0.01, 0.3, 2.0)) * number, 3)
        if source.random() < 0.3:
            task["pause"] = source.choice((0.001, 0.02, 0.1))
        if source.random() < 0.2:
            task["slow"] = source.choice((0.001, 0.05))
        if size and source.random() < 0.08:
            task["closed_after"] = source.randrange(size)
        tasks.append(Task(tuple(keys), **task))
    return tuple(tasks)
