"""What a user gives to a `Simulation`, checked: names of options, parts of the scenario, rows, and the enricher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from asyncio_operator.enricher import Enricher, as_schema
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.hints import did_you_mean
from asyncio_operator.journal.identity import wanted_description
from asyncio_operator.spark.driver.build_task import OPTIONS
from asyncio_operator_proof.simulation.canonical import row_of
from asyncio_operator_proof.simulation.scenario import Compaction, Coordinator, Kill, Lookup, Scenario, Task
from asyncio_operator_proof.simulation.simulated_service import KEY, PART, ROW, SimulatedService, as_rows, schema_of

FIELDS = ("lookups", "tasks", "kind", "rows", "kills", "compactions", "clocks", "coordinator")

OF_SPARK = ("event_time", "watermark_delay", "strategy", "join_hint", "tasks_at_once", "metrics", "trace")
OF_THE_SIMULATION = ("on", "columns", "prefix", "journal")

MakeEnricher = Callable[[SimulatedService], Enricher]

KINDS = {int: "long", str: "string"}
"""The kind of keys, by their type."""

PARTS: dict[str, type] = {"lookups": Lookup, "tasks": Task, "kills": Kill, "compactions": Compaction}
"""What is given in a tuple."""

COUNTED = ("lookups", "tasks")
"""Those that may be a number, of at least 1."""


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


def require_right(seed: object, given: Mapping[str, Any]) -> None:
    """Check the seed, and the values of `FIELDS`.

    Raises:
        ConfigurationError: a value is wrong.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigurationError(f"seed is {describe(seed)}; it must be an int")
    for name, kind in PARTS.items():
        value = given.get(name)
        counts = name in COUNTED
        if name not in given or (counts and type(value) is int and value > 0):
            continue
        are_parts = isinstance(value, tuple) and all(isinstance(one, kind) for one in value)
        if not are_parts or (counts and not value):
            number = "a number of at least 1, or " if counts else ""
            some = "with at least one" if counts else "which may be empty"
            raise ConfigurationError(
                f"{name} is {describe(value)}; it must be {number}a tuple of {kind.__name__}, {some}"
            )
    if "coordinator" in given and not isinstance(given["coordinator"], Coordinator):
        raise ConfigurationError(f"coordinator is {describe(given['coordinator'])}; it must be a Coordinator")
    if not _are_clocks(given.get("clocks", ())):
        raise ConfigurationError(
            f"clocks is {describe(given['clocks'])}; it must be a tuple, for each worker with two numbers: the seconds "
            "by which its clock is ahead, and by how much it is too fast"
        )
    rows, lookups = given.get("rows"), given.get("lookups", 1)
    if rows is not None and not isinstance(rows, Mapping):
        raise ConfigurationError(f"rows is {describe(rows)}; it must be a mapping of keys to rows")
    if rows is not None and (lookups if isinstance(lookups, int) else len(lookups)) > 1:
        raise ConfigurationError("a Simulation with rows= has one lookup: leave lookups= out")


def _are_clocks(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, tuple) and len(one) == 2 and all(type(part) in (int, float) for part in one) for one in value
    )


def require_keys(tasks: tuple[Task, ...], kind: str) -> None:
    """Check that the keys of tasks are of a kind.

    Raises:
        ConfigurationError: one is not.
    """
    for key in (key for task in tasks for key in task.keys):
        if key is not None and KINDS.get(type(key)) != kind:
            raise ConfigurationError(
                f"tasks= has the key {describe(key)}, but kind is {kind!r}; give the kind= of keys"
            )


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
        _require_fits(key)
        listed = found if isinstance(found, list | tuple) else [] if found is None else [found]
        if not all(isinstance(row, Mapping) for row in listed):
            raise ConfigurationError(
                f"rows= has {describe(found)} for key {describe(key)}; it must be a mapping, a list of mappings or None"
            )
    _require_columns([row for found in rows.values() for row in as_rows(found)])
    given = next((KINDS[one] for one in types), kind or "long")
    if kind not in (None, given):
        raise ConfigurationError(f"kind={kind!r}, but the keys of rows= are of the kind {given!r}")
    return given


def _require_fits(key: Any) -> None:
    """Check that a column of keys can hold a key."""
    try:
        pa.array([key], pa.int64() if type(key) is int else pa.string())
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ConfigurationError(f"rows= has the key {describe(key)}, which no column can hold: {error}") from error


def _require_columns(rows: list[dict[str, Any]]) -> None:
    """Check that the rows have columns, and that these can hold all their values."""
    for name in {name for row in rows for name in row}:
        if not isinstance(name, str) or name.lower() in (ROW, KEY, PART):
            own = ": the rows of a Simulation have a column of this name" if isinstance(name, str) else ""
            raise ConfigurationError(f"rows= has the column {describe(name)}, which cannot be one{own}")
    try:
        schema = schema_of(rows)
        for row in rows:
            row_of(row, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"the values of a column of rows= have no common type, or it cannot hold them: {error}"
        ) from error


def require_maker(make: object) -> None:
    """Check what makes the enrichers.

    Raises:
        ConfigurationError: it is no function or class.
    """
    if isinstance(make, Enricher) or not callable(make):
        raise ConfigurationError(
            f"enricher is {describe(make)}; it must be a function of a service that returns a new Enricher, such as "
            "`lambda service: MyEnricher(service)`"
        )


def enricher_of(make: MakeEnricher, service: SimulatedService) -> Enricher:
    """The enricher that the user's function makes.

    Raises:
        ConfigurationError: it is none.
    """
    enricher = make(service)
    if not isinstance(enricher, Enricher):
        raise ConfigurationError(f"the function enricher= returned {describe(enricher)}; it must return an Enricher")
    return enricher


def fitted(scenario: Scenario, make: MakeEnricher, given: Mapping[str, Any]) -> Scenario:
    """The scenario without drawn options that the user's enricher cannot have.

    Args:
        make: makes the enricher.
        given: what is not drawn.
    """
    are_given = isinstance(given.get("lookups"), tuple)
    lookups: list[Lookup] = []
    taken: set[str] = set()
    for number, lookup in enumerate(scenario.lookups):
        service = SimulatedService(lookup, scenario.seed, number, scenario.kind, scenario.rows, lambda: 0.0)
        enricher = enricher_of(make, service)
        columns = enricher.schema()
        if not isinstance(columns, pa.Schema):
            raise ConfigurationError(f"schema() of {describe(enricher)} returned {describe(columns)}; use as_schema")
        if not taken.isdisjoint(columns.names):
            if "lookups" in given:
                raise ConfigurationError(
                    f"lookups= has several lookups, but this enricher has the same columns in each, {columns.names}: a "
                    "Simulation of it has one lookup; leave lookups= out"
                )
            break
        taken.update(columns.names)
        if are_given:
            lookups.append(lookup)
            continue
        impossible = {"batching": enricher.max_batch == 1, "hedge": not enricher.idempotent}
        options = {name: one for name, one in lookup.options.items() if name in given or not impossible.get(name)}
        journal = lookup.journal if _can_be_stored(columns, scenario.kind) else None
        lookups.append(replace(lookup, options=options, journal=journal))
    kept = tuple(one for one in scenario.compactions if one.lookup < len(lookups) and lookups[one.lookup].journal)
    return replace(scenario, lookups=tuple(lookups), compactions=kept)


def _can_be_stored(columns: pa.Schema, kind: str) -> bool:
    """Whether a journal can have these columns."""
    try:
        wanted_description("", as_schema(f"{KEY} {kind}"), columns)
    except ConfigurationError:
        return False
    return True
