"""Law Y1: a failing simulation is made small, and fails in the same way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from asyncio_operator import Budget, Limit
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Compaction, Kill, Lookup, Scenario, Service, Task
from asyncio_operator_proof.simulation.shrink import MOST_SECONDS, shrunk
from tests.proof.simulation.test_own_enrichers import Names

ROWS = {number: {"name": f"n{number}"} for number in range(40)}


class Reads(Names):
    """Takes the column that it declares."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        return [row and {"name": row["name"]} for row in await super().lookup_many(keys)]


class LosesTheLast(Reads):
    """Loses the last answer of a batch."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        found = await super().lookup_many(keys)
        return [*found[:-1], None] if len(found) > 1 else found


def test_Y1_what_is_made_small_blames_the_fault_alone() -> None:
    failing = (one for seed in range(20) if (one := Simulation(seed, LosesTheLast, rows=ROWS)).violations())
    for simulation in [next(failing) for _ in range(3)]:
        small = simulation.shrunk()
        assert any("is missing" in one for one in small.violations())
        assert Simulation.from_scenario(small.scenario, Reads).violations() == []
        assert small.scenario.rows is not None
        asked = {key for task in small.scenario.tasks for key in task.keys}
        assert set(small.scenario.rows) <= asked


def test_Y1_a_single_fault_goes_if_it_does_not_matter() -> None:
    scenario = Scenario(
        4,
        (Lookup(journal={"flush_every": 0.1}),),
        (Task((5,)),),
        kills=(Kill(0, 0.8),),
        compactions=(Compaction(0, 0.1),),
    )
    small = shrunk(scenario, lambda _: True).scenario
    assert (small.kills, small.compactions, len(small.tasks)) == ((), (), 1)


def test_Y1_rows_keep_their_columns_when_keys_go() -> None:
    rows = {1: {"name": "Ada"}, 2: {"name": "Grace", "year": 1906}, 3: {"name": "Edsger"}}
    seen = []

    def fails(scenario: Scenario) -> bool:
        seen.append(scenario.rows)
        return True

    shrunk(Scenario(4, (Lookup(),), (Task((1,)),), rows=rows), fails)
    assert all(one == rows for one in seen)
    shrunk(Scenario(4, (Lookup(),), (Task((2,)),), rows=rows), fails)
    assert {2: rows[2]} in seen


@pytest.mark.parametrize("given", [{"in_flight": 30}, {"spend": {"calls": 30.0}}, {"patience": 2.0}, {}])
def test_Y1_the_budget_of_a_program_is_the_one_that_failed(given: dict[str, Any]) -> None:
    budget = Budget("shared", Limit(10, 1.0), Limit(5.0, 1.0, "tokens"), **given)
    scenario = Scenario(1, (Lookup({"budget": True}),), (Task((1,)),), budget=budget)
    names: dict[str, Any] = {}
    exec(Simulation.from_scenario(scenario).program(), names)
    assert names["scenario"] == scenario


@pytest.mark.parametrize("limit", [{"timeout": 0.5}, {"timeout": None, "attempt_timeout": 0.5}, {}])
def test_Y1_no_call_is_made_to_hang_for_ever(limit: dict[str, Any]) -> None:
    scenario = Scenario(1, (Lookup(limit, Service(hangs=0.1, errors=0.3)),), (Task((1, 2, 3)),))
    small = shrunk(scenario, lambda one: bool(one.lookups[0].service.hangs)).scenario
    assert small.lookups[0].service == Service(hangs=0.1)
    options = small.lookups[0].options
    assert options.get("timeout", 30.0) or options.get("attempt_timeout")


def test_Y1_a_scenario_is_made_small_for_a_limited_time() -> None:
    scenario = Scenario(1, (Lookup(),), (Task(tuple(range(100))),))
    times = itertools.count(0.0, MOST_SECONDS / 4)
    seen: list[Scenario] = []

    def never(one: Scenario) -> bool:
        seen.append(one)
        return False

    small, complete = shrunk(scenario, never, lambda: next(times))
    assert (small, complete, len(seen)) == (scenario, False, 4)
    assert shrunk(scenario, lambda one: len(one.tasks[0].keys) > 2).complete


def test_Y1_a_failure_that_does_not_come_again_is_reported() -> None:
    left = 1

    class LosesOnce(Reads):
        async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
            nonlocal left
            found = await super().lookup_many(keys)
            if found[0] and left:
                left -= 1
                return [None] * len(found)
            return found

    with pytest.raises(AssertionError, match="is missing") as caught:
        Simulation(3, LosesOnce, rows=ROWS).check()
    assert "It did not come again in a second run" in str(caught.value)
