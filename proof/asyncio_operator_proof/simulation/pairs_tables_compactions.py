"""Draws keys of two columns, tables in memory and compactions, each from a source of its own: the rest of a scenario is
that of its seed without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator_proof.simulation.scenario import Compaction, Lookup, Task


def with_pairs(
    seed: int, lookups: Sequence[Lookup], tasks: Sequence[Task]
) -> tuple[tuple[Lookup, ...], tuple[Task, ...]]:
    """Some lookups with keys of two columns, and tasks with the second one, which may be null."""
    source = random.Random(f"pairs {seed}")
    if source.random() >= 0.25:
        return tuple(lookups), tuple(tasks)
    # A lookup of the rest of the chain may have the first column alone.
    pairs = tuple(replace(one, pair=place == 0 or source.random() < 0.5) for place, one in enumerate(lookups))
    nulls = source.choice((0.0, 0.2, 0.5))
    of_rows = []
    for task in tasks:
        drawn = source.choices(("a", "b", "c"), k=source.choice((1, 3, 7)))
        parts = tuple(None if source.random() < nulls else part for part in drawn)
        of_rows.append(replace(task, parts=parts))
    return pairs, tuple(of_rows)


def with_tables(seed: int, lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
    """Some lookups in tables in memory. Most have few options, and so are asked for whole batches."""
    source = random.Random(f"tables {seed}")
    kept = "mode", "how", "capacity", "buffer", "batching"
    found = []
    for lookup in lookups:
        if source.random() >= 0.12:
            found.append(lookup)
            continue
        table = replace(lookup, table=True, columns=True)
        if source.random() < 0.75:
            options = {name: value for name, value in lookup.options.items() if name in kept}
            if isinstance(options["capacity"], AdaptiveCapacity):
                options["capacity"] = 3
            options |= {"timeout": None, "on_error": "fail", "remember": None}
            waits = source.random() < 0.5
            service = replace(lookup.service, mean=lookup.service.mean if waits else 0.0, quota=0, throttle=0)
            table = replace(table, options=options, service=service, journal=None)
        found.append(table)
    return tuple(found)


def compactions_of(seed: int, lookups: Sequence[Lookup]) -> tuple[Compaction, ...]:
    """Compactions of the journals that there are."""
    source = random.Random(f"compactions {seed}")
    found: list[Compaction] = []
    for number, lookup in enumerate(lookups):
        if lookup.journal is None:
            continue
        for _ in range(source.choice((0, 1, 2, 5))):
            at = round(source.uniform(0.0, source.choice((0.5, 3.0))), 3)
            takes, grace = source.choice((0.0, 0.01, 0.2)), source.choice((0.0, 0.1, 1.0, 3600.0))
            ends = source.choice((1, 2)) if source.random() < 0.15 else None
            found.append(Compaction(number, at, takes, grace, ends))
    return tuple(found)
