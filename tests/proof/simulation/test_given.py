"""Law Y1: a simulation refuses what it cannot honour, and honours the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import Cache, FixedBackoff, Retry
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Compaction, Lookup, Task
from tests.proof.simulation.test_own_enrichers import ROWS, Names


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
        ({"rows": {1: {"name": 2**64}}}, "cannot hold"),
        ({"rows": {1: {"name": chr(0xD800)}}}, "cannot hold"),
        ({"rows": {2**64: {"name": "x"}}}, "no column can hold"),
        ({"rows": {chr(0xD800): {"name": "x"}}}, "no column can hold"),
        ({"rows": {1: {"Key": "x"}}}, "rows= has the column 'Key', which cannot be one"),
        ({"rows": {1: {2: "x"}}}, "rows= has the column 2"),
        ({"rows": [1]}, "rows is [1]; it must be a mapping"),
        ({"rows": ROWS, "lookups": 2}, "a Simulation with rows= has one lookup"),
        ({"lookups": 2}, "a Simulation of it has one lookup"),
        ({"lookups": (Lookup(), Lookup())}, "a Simulation of it has one lookup"),
        ({"lookups": -1}, "lookups is -1; it must be a number of at least 1, or a tuple of Lookup"),
        ({"lookups": 0}, "lookups is 0"),
        ({"lookups": True}, "lookups is True"),
        ({"lookups": ()}, "lookups is ()"),
        ({"lookups": [1]}, "lookups is [1]"),
        ({"tasks": -1}, "tasks is -1; it must be a number of at least 1, or a tuple of Task"),
        ({"tasks": 0}, "tasks is 0"),
        ({"tasks": ()}, "tasks is ()"),
        ({"tasks": 1.5}, "tasks is 1.5"),
        ({"tasks": (1,)}, "tasks is (1,)"),
        ({"tasks": (Task(("a",)),), "kind": "long"}, "tasks= has the key 'a', but kind is 'long'"),
        ({"kills": 3}, "kills is 3; it must be a tuple of Kill"),
        ({"compactions": 7}, "compactions is 7; it must be a tuple of Compaction"),
        ({"compactions": (Compaction(9, 0.1),)}, "names a lookup that does not exist"),
        ({"clocks": 5}, "clocks is 5; it must be a tuple"),
        ({"coordinator": 5}, "coordinator is 5; it must be a Coordinator"),
    ],
)
def test_Y1_what_cannot_be_honoured_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Simulation(7, Names, **given)
    assert says in str(caught.value)


class WritesItsSchema(Names):
    """Its schema is a text."""

    def schema(self) -> Any:
        return "name string"


@pytest.mark.parametrize("seed", ["7", 1.5, None, True])
def test_Y1_a_seed_is_an_int(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="it must be an int"):
        Simulation(seed)


def test_Y1_what_makes_no_enricher_is_refused() -> None:
    wrong: Any
    for wrong in (Names(None), 7):
        with pytest.raises(ConfigurationError, match="it must be a function of a service that returns a new Enricher"):
            Simulation(1, wrong)
        with pytest.raises(ConfigurationError, match="it must be a function of a service that returns a new Enricher"):
            Simulation.from_scenario(Simulation(1).scenario, wrong)
    with pytest.raises(ConfigurationError, match=r"schema\(\) of .* returned 'name string'; use as_schema"):
        Simulation(1, WritesItsSchema)
    wrong = lambda service: 7  # noqa: E731
    with pytest.raises(ConfigurationError, match="returned 7; it must return an Enricher"):
        Simulation(1, wrong)
    with pytest.raises(ConfigurationError, match="returned 7; it must return an Enricher"):
        Simulation.from_scenario(Simulation(1).scenario, wrong).run()


def test_Y1_lookups_with_the_same_columns_are_one_unless_several_are_given() -> None:
    seeds = [seed for seed in range(30) if len(Simulation(seed).scenario.lookups) > 1][:3]
    assert [len(Simulation(seed, Names).scenario.lookups) for seed in seeds] == [1, 1, 1]


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


def test_Y1_times_may_be_timedeltas() -> None:
    short = timedelta(seconds=0.1)
    given: dict[str, Any] = {"timeout": timedelta(seconds=3), "attempt_timeout": short, "remember": short}
    given["cache"] = Cache(expire_after_write=short, refresh_after=timedelta(seconds=0.05))
    given["retry"] = Retry(2, FixedBackoff(timedelta(seconds=0.01)))
    for seed in range(15):
        Simulation(seed, **given).check()
