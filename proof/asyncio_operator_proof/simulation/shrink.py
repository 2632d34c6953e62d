"""Makes a failing scenario small: fewer tasks, keys, lookups, faults and options, one step after the other, as long as
it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass, replace
from typing import Any, NamedTuple

from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.quota.spec import Budget
from asyncio_operator_proof.simulation.reasons import has_limit
from asyncio_operator_proof.simulation.scenario import (
    DEFAULTS,
    Compaction,
    Coordinator,
    Lookup,
    Scenario,
    Task,
    changed,
    not_at_default,
)
from asyncio_operator_proof.simulation.simulated_service import as_rows, schema_of

MOST_RUNS = 600
"""Scenarios that are tried."""

MOST_SECONDS = 60.0
"""Real time in which they are tried."""


class Shrunk(NamedTuple):
    """The smallest scenario that was found.

    Attributes:
        complete: whether all smaller ones were tried.
    """

    scenario: Scenario
    complete: bool


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], clock: Clock = monotonic) -> Shrunk:
    """Make a scenario small. Each step takes the first smaller one that fails.

    Args:
        fails: whether a scenario fails in the same way.
        clock: real time, in seconds.
    """
    ends, left = clock() + MOST_SECONDS, MOST_RUNS
    hangs, again = _may_hang(scenario), True
    while again:
        again = False
        for smaller in _smaller(scenario):
            if _may_hang(smaller) and not hangs:
                # It would fail with every enricher.
                continue
            if left == 0 or clock() > ends:
                return Shrunk(scenario, False)
            left -= 1
            if fails(smaller):
                scenario, again = smaller, True
                break
    return Shrunk(scenario, True)


def _may_hang(scenario: Scenario) -> bool:
    """Whether a call may hang that nothing ends."""
    return any(one.service.hangs and not has_limit(one.options) for one in scenario.lookups)


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    yield from _fewer(scenario, "tasks", 1)
    yield from _without_lookups(scenario)
    yield from _fewer(scenario, "kills", 0)
    yield from _fewer(scenario, "compactions", 0)
    for place, one in enumerate(scenario.compactions):
        yield from (_with(scenario, "compactions", place, smaller) for smaller in _at_defaults(one))
    yield from _at_defaults(scenario, ("clocks", "coordinator"))
    yield from _fewer_rows(scenario)
    if scenario.budget is not None:
        yield _without_budget(scenario)
        yield from (replace(scenario, budget=one) for one in _smaller_budget(scenario.budget))
    for place, task in enumerate(scenario.tasks):
        yield from (_with(scenario, "tasks", place, one) for one in _smaller_task(task))
    for place, lookup in enumerate(scenario.lookups):
        yield from (_with(scenario, "lookups", place, one) for one in _smaller_lookup(lookup))
    yield from (replace(scenario, coordinator=one) for one in _at_defaults(scenario.coordinator))
    if scenario.kind != "long" and scenario.rows is None:
        numbers = {key: place for place, key in enumerate(sorted({k for t in scenario.tasks for k in t.keys if k}))}
        tasks = (replace(task, keys=tuple(numbers.get(key) for key in task.keys)) for task in scenario.tasks)
        yield replace(scenario, kind="long", tasks=tuple(tasks))


def _with(scenario: Scenario, name: str, place: int, value: Any) -> Scenario:
    parts = [*getattr(scenario, name)]
    parts[place] = value
    changed: dict[str, Any] = {name: tuple(parts)}
    return replace(scenario, **changed)


def _fewer(whole: Any, name: str, least: int) -> Iterator[Any]:
    """The same with fewer parts: halves first, then all but one."""
    parts = getattr(whole, name)
    size = max(1, len(parts) // 2)
    while size >= 1:
        for start in range(0, len(parts), size):
            left = parts[:start] + parts[start + size :]
            if len(left) >= least:
                yield replace(whole, **{name: left})
        size //= 2


def _fewer_rows(scenario: Scenario) -> Iterator[Scenario]:
    """The same without rows for which no task asks. The user's enricher declares their columns, so these stay."""
    asked = {key for task in scenario.tasks for key in task.keys}
    rows = scenario.rows or {}
    left = {key: found for key, found in rows.items() if key in asked}
    if len(left) < len(rows) and _schema(left) == _schema(rows):
        yield replace(scenario, rows=left)


def _schema(rows: Mapping[Any, Any]) -> Any:
    return schema_of([row for found in rows.values() for row in as_rows(found)])


def _at_defaults(value: Any, names: tuple[str, ...] = ()) -> Iterator[Any]:
    """The same with one field at its default."""
    for name, _, default in not_at_default(value):
        if (not names or name in names) and default is not MISSING:
            try:
                yield replace(value, **{name: default})
            except ValueError:
                # Two options contradict each other.
                continue


def _without_lookups(scenario: Scenario) -> Iterator[Scenario]:
    for place in range(len(scenario.lookups)):
        left = [*scenario.lookups[:place], *scenario.lookups[place + 1 :]]
        if left:
            # A key may have come from the lookup that is gone.
            left[0] = replace(left[0], from_before=False)
            yield replace(scenario, lookups=tuple(left), compactions=_compactions_without(scenario, place))


def _compactions_without(scenario: Scenario, place: int) -> tuple[Compaction, ...]:
    """Those of the other lookups, with the numbers that these then have."""
    others = (one for one in scenario.compactions if one.lookup != place)
    return tuple(replace(one, lookup=one.lookup - (one.lookup > place)) for one in others)


def _without_budget(scenario: Scenario) -> Scenario:
    lookups = (
        replace(one, options={name: value for name, value in one.options.items() if name != "budget"})
        for one in scenario.lookups
    )
    return replace(scenario, budget=None, coordinator=Coordinator(), lookups=tuple(lookups))


def _smaller_budget(budget: Budget) -> Iterator[Budget]:
    fewer = [{"limits": budget.limits[:place] + budget.limits[place + 1 :]} for place in range(len(budget.limits))]
    for fields in (*fewer, *({name: default} for name, default in DEFAULTS.items())):
        try:
            smaller = changed(budget, **fields)
        except ConfigurationError:
            # Nothing that limits is left.
            continue
        if smaller != budget:
            yield smaller


def _smaller_task(task: Task) -> Iterator[Task]:
    yield from _fewer(task, "keys", 0)
    yield from _fewer(task, "parts", 0)
    yield from _at_defaults(task, ("worker", "starts", "batch", "pause", "slow", "closed_after"))


def _smaller_lookup(lookup: Lookup) -> Iterator[Lookup]:
    if lookup.journal is not None:
        yield replace(lookup, journal=None)
        for name in lookup.journal:
            if name != "flush_every":
                yield replace(lookup, journal={key: value for key, value in lookup.journal.items() if key != name})
    for name in lookup.options:
        left = {key: value for key, value in lookup.options.items() if key != name}
        if name == "status_column" and lookup.options.get("on_error", "fail") != "fail":
            # Without it a failed row looks like a miss.
            continue
        # The defaults of the two are not "nothing".
        if name == "timeout" and lookup.options[name] is not None:
            left[name] = None
        yield replace(lookup, options=left)
    for name, value in lookup.options.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from (replace(lookup, options={**lookup.options, name: one}) for one in _at_defaults(value))
    yield from (replace(lookup, service=one) for one in _at_defaults(lookup.service))
    for begin, end in lookup.service.outages:
        if begin:
            yield replace(lookup, service=replace(lookup.service, outages=((0.0, end),)))
    if lookup.batches > 1:
        left = {key: value for key, value in lookup.options.items() if key != "batching"}
        yield replace(lookup, batches=1, options=left)
    yield from _at_defaults(lookup, ("from_before", "columns", "table", "pair"))
