"""Law Y1: the program that a failed simulation prints runs alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from asyncio_operator import Budget, EnricherError, Limit, Retry
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Lookup, Scenario, Task
from tests.proof.simulation.names import Names


class Unreachable(Exception):  # noqa: N818
    """An error of the user."""


class Inside:
    """Has a class of the user in it."""

    class Enricher(Names):
        """A class in a class."""


class Colour(str, Enum):  # noqa: UP042
    """Texts of the user."""

    RED = "red"


class Number(int):
    """A number of the user."""

    def __repr__(self) -> str:
        return "<a number>"


def is_none(value: Any) -> bool:
    return value is None


def run(program: str) -> dict[str, Any]:
    """What a program defines."""
    names: dict[str, Any] = {}
    exec(program, names)
    return names


def scenario_of(rows: Mapping[Any, Any] | None = None, **options: Any) -> Scenario:
    return Scenario(1, (Lookup(options),), (Task((1,)),), rows=rows)


@pytest.mark.parametrize(
    "value",
    [
        Decimal("1.50"),
        dt.date(2020, 1, 1),
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.timedelta(1),
        [{"a": [dt.time(1)]}, {"b": Decimal(2)}],
        b"x",
        bytearray(b"x"),
        Number(7),
        Colour.RED,
        float("inf"),
        'it\'s \n "text"',
    ],
    ids=repr,
)
def test_Y1_a_program_has_the_rows(value: Any) -> None:
    scenario = scenario_of({1: {"name": value}})
    assert run(Simulation.from_scenario(scenario).program())["scenario"] == scenario


@pytest.mark.parametrize(
    "options",
    [
        {"retry": Retry(on=(ConnectionError, Unreachable, EnricherError))},
        {"retry": Retry(if_result=is_none)},
        {"timeout": dt.timedelta(seconds=3)},
    ],
    ids=["errors", "function", "duration"],
)
def test_Y1_a_program_imports_what_its_options_name(options: dict[str, Any]) -> None:
    scenario = scenario_of(**options)
    assert run(Simulation.from_scenario(scenario).program())["scenario"] == scenario


def test_Y1_a_program_does_not_show_the_address_of_a_coordinator() -> None:
    budget = Budget("shared", Limit(10, 1.0), coordinator="redis://:secret@host")
    scenario = Scenario(1, (Lookup({"budget": True}),), (Task((1,)),), budget=budget)
    program = Simulation.from_scenario(scenario).program()
    assert "secret" not in program
    assert run(program)["scenario"].budget == Budget("shared", Limit(10, 1.0))


@pytest.mark.parametrize("enricher", [Names, Inside.Enricher])
def test_Y1_a_program_imports_the_enricher(enricher: Callable[[Any], Any]) -> None:
    scenario = scenario_of({1: {"name": "Ada"}})
    assert run(Simulation.from_scenario(scenario, enricher).program())["enricher"] is enricher


def test_Y1_an_enricher_that_cannot_be_imported_is_a_comment() -> None:
    scenario = scenario_of({1: {"name": "Ada"}})

    class Here(Names):
        """Is in a function."""

    for enricher in (Here, lambda client: Names([client]), partial(Names)):
        program = Simulation.from_scenario(scenario, enricher).program()
        assert "# enricher = the function or class that makes your enricher: " in program
        with pytest.raises(NameError, match="enricher"):
            run(program)
