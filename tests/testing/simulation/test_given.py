"""Law Y1: a simulation refuses what it cannot honour, and honours the rest."""

from __future__ import annotations

from typing import Any

import pytest

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing import Simulation
from tests.testing.simulation.test_own_enrichers import ROWS, Names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"capcity": 1}, "'capcity' is not an option of Simulation; did you mean 'capacity'"),
        ({"task": 1}, "did you mean 'tasks'"),
        ({"on": "x"}, "a Simulation chooses on= itself"),
        ({"journal": "x"}, "a Simulation chooses journal= itself; leave it out, or give None"),
        ({"strategy": "distinct"}, "starts no Spark, and cannot honour strategy="),
        ({"kind": "int"}, '"long" | "string"'),
        ({"kind": "string", "rows": ROWS}, "kind='string', but the keys of rows= are of the kind 'long'"),
        ({"rows": {1.5: {"name": "x"}}}, "the keys of rows= must be int or str: 1.5 is float"),
        ({"rows": {"a": {"name": "x"}, 1: {"name": "y"}}}, "the keys of rows= must be all int or all str"),
        ({"rows": {1: "Ada"}}, "rows= has 'Ada' for key 1"),
        ({"rows": {1: {"name": "Ada"}, 2: {"name": 3}}}, "have no common type"),
    ],
)
def test_Y1_what_cannot_be_honoured_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Simulation(7, Names, **given)
    assert says in str(caught.value)


def test_Y1_a_key_may_have_several_rows() -> None:
    rows = {1: None, 2: [{"name": "Ada"}, {"name": "Grace"}], 3: {"name": "Edsger"}}
    for seed in range(15):
        Simulation(seed, Names, rows=rows).check()


def test_Y1_options_that_are_given_are_honoured() -> None:
    given: dict[str, Any] = {
        "mode": "unordered",
        "retry": 3,
        "kind": "string",
        "tasks": 2,
        "timeout": 1.0,
        "cache": True,
    }
    for seed in range(5):
        simulation = Simulation(seed, **given)
        simulation.check()
        assert (simulation.scenario.kind, len(simulation.scenario.tasks)) == ("string", 2)


def test_Y1_a_simulation_may_have_no_journal() -> None:
    drawn = [seed for seed in range(60) if any(one.journal for one in Simulation(seed).scenario.lookups)]
    assert len(drawn) >= 3
    for seed in drawn[:3]:
        simulation = Simulation(seed, journal=None)
        simulation.check()
        assert [one.journal for one in simulation.scenario.lookups] == [None] * len(simulation.scenario.lookups)
        assert simulation.scenario.compactions == ()
