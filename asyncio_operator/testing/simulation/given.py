"""What a user gives to a `Simulation`, checked: names of options, and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.hints import did_you_mean
from asyncio_operator.spark.driver.build_task import OPTIONS
from asyncio_operator.testing.simulation.scenario import Scenario
from asyncio_operator.testing.simulation.simulated_service import SimulatedService, as_rows, schema_of

FIELDS = ("lookups", "tasks", "kind", "rows", "kills", "compactions", "clocks", "coordinator")

OF_SPARK = ("event_time", "watermark_delay", "strategy", "join_hint", "scope", "tasks_at_once", "metrics", "trace")
OF_THE_SIMULATION = ("on", "columns", "prefix", "journal")

MakeEnricher = Callable[[SimulatedService], Enricher]

KINDS = {int: "long", str: "string"}
"""The kind of keys, by their type."""


def require_known(given: Mapping[str, Any]) -> None:
    """Check the names of what is not drawn.

    Raises:
        ConfigurationError: there is no such option, or a simulation cannot honour it.
    """
    for name, value in given.items():
        has_no_journal = name == "journal" and value is None
        if name in FIELDS or has_no_journal or (name in OPTIONS and name not in (*OF_SPARK, *OF_THE_SIMULATION)):
            continue
        if name in OF_SPARK:
            raise ConfigurationError(f"a Simulation starts no Spark, and cannot honour {name}=; leave it out")
        if name in OF_THE_SIMULATION:
            none = ", or give None" if name == "journal" else ""
            raise ConfigurationError(f"a Simulation chooses {name}= itself; leave it out{none}")
        known = [one for one in (*FIELDS, *OPTIONS) if one not in (*OF_SPARK, *OF_THE_SIMULATION)]
        raise ConfigurationError(f"{name!r} is not an option of Simulation; {did_you_mean(name, known)}")


def kind_of(rows: Mapping[Any, Any], kind: str | None) -> str:
    """The kind of the keys of rows that a user gives.

    Args:
        kind: as the user says; None: that of the rows.

    Raises:
        ConfigurationError: the keys are of other types, or of several, or not of this kind; or a row is not a mapping.
    """
    types = {type(key) for key in rows}
    if not types <= {*KINDS}:
        wrong = next(key for key in rows if type(key) not in KINDS)
        raise ConfigurationError(f"the keys of rows= must be int or str: {describe(wrong)} is {type(wrong).__name__}")
    if len(types) > 1:
        raise ConfigurationError(f"the keys of rows= must be all int or all str: {describe([*rows])}")
    for key, found in rows.items():
        listed = found if isinstance(found, list | tuple) else [] if found is None else [found]
        if not all(isinstance(row, Mapping) for row in listed):
            raise ConfigurationError(
                f"rows= has {describe(found)} for key {describe(key)}; it must be a mapping, a list of mappings or None"
            )
    try:
        schema_of([row for found in rows.values() for row in as_rows(found)])
    except (pa.ArrowException, TypeError) as error:
        raise ConfigurationError(f"the values of a column of rows= have no common type: {error}") from error
    given = next((KINDS[one] for one in types), kind or "long")
    if kind not in (None, given):
        raise ConfigurationError(f"kind={kind!r}, but the keys of rows= are of the kind {given!r}")
    return given


def fitted(scenario: Scenario, make: MakeEnricher, given: Mapping[str, Any]) -> Scenario:
    """The scenario without drawn options that the user's enricher cannot have.

    Args:
        make: makes the enricher.
        given: what is not drawn.
    """
    if isinstance(given.get("lookups"), tuple):
        return scenario
    lookups = []
    for number, lookup in enumerate(scenario.lookups):
        service = SimulatedService(lookup, scenario.seed, number, scenario.kind, scenario.rows, lambda: 0.0)
        enricher = make(service)
        impossible = {"batching": enricher.max_batch == 1, "hedge": not enricher.idempotent}
        options = {name: one for name, one in lookup.options.items() if name in given or not impossible.get(name)}
        lookups.append(replace(lookup, options=options))
    return replace(scenario, lookups=tuple(lookups))
