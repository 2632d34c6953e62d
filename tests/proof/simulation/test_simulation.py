"""Law Y1: a simulation is real code on virtual time, and one seed has one history."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Retry
from asyncio_operator.enricher import as_schema
from asyncio_operator.testing import Simulation, SimulationFailed
from asyncio_operator_proof.simulation.features import FAULTS, OPTIONS, features_of
from asyncio_operator_proof.simulation.scenario import Kill, Lookup, Scenario, Service, Task
from tests.proof.simulation.names import Names

HASH = """
import hashlib
from asyncio_operator.testing import Simulation
whole = hashlib.sha256()
for seed in range(30, 34):
    whole.update(Simulation(seed).run().to_bytes())
print(whole.hexdigest())
"""

ROWS = {1: {"name": "Ada"}, 2: {"name": "Grace"}, 3: {"name": "Edsger"}}


def digest(seeds: range) -> str:
    whole = hashlib.sha256()
    for seed in seeds:
        whole.update(Simulation(seed).run().to_bytes())
    return whole.hexdigest()


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in (0, 20)])
def test_Y1_simulations_obey_the_laws_and_give_the_rows_of_a_join(seeds: range) -> None:
    for seed in seeds:
        Simulation(seed).check()


def test_Y1_the_same_seed_has_the_same_history_in_every_process() -> None:
    here = digest(range(30, 34))
    assert digest(range(30, 34)) == here
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_Y1_every_feature_is_drawn() -> None:
    used = {feature for seed in range(300) for feature in features_of(Simulation(seed).scenario)}
    assert used == {*OPTIONS, *FAULTS} - {"whole"}


class Reversed(Names):
    """Its answers are in the wrong order."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        return (await super().lookup_many(keys))[::-1]


def test_Y1_an_enricher_of_ones_own_is_simulated_with_options_that_are_given() -> None:
    for seed in range(8):
        simulation = Simulation(seed, Names, rows=ROWS, mode="unordered", capacity=2)
        simulation.check()
        assert [one["capacity"] for one in simulation.run().settings] == [2]


class InColumns(Names):
    """Answers in columns; `wrong` gives each row to another key."""

    def __init__(self, client: Any, wrong: bool = False) -> None:
        super().__init__(client)
        self.wrong = wrong
        self.asked: list[list[Any]] = []

    def key_schema(self) -> Any:
        return as_schema("number long")

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        asked = keys.to_pylist()
        self.asked.append(asked)
        answers = await self._client.ask(asked)
        numbers = asked[::-1] if self.wrong else asked
        found = [(number, row["name"]) for number, row in zip(numbers, answers, strict=True) if row is not None]
        return pa.table([pa.array(column) for column in zip(*found, strict=True)] or [[], []], self._schema())

    def _schema(self) -> pa.Schema:
        return pa.schema([*self.key_schema(), *self.schema()])


def test_Y1_A1_an_enricher_of_ones_own_that_answers_in_columns_is_asked_for_columns() -> None:
    made: list[InColumns] = []

    def make(client: Any) -> InColumns:
        made.append(InColumns(client))
        return made[-1]

    for seed in range(8):
        Simulation(seed, make, rows=ROWS, on_error="null").check()
    assert any(one.asked for one in made)
    wrong = [Simulation(seed, lambda client: InColumns(client, wrong=True), rows=ROWS) for seed in range(20)]
    assert any(one.violations() for one in wrong)


@pytest.mark.parametrize("lie", ["short", "long", "misspelt", "typed"])
@pytest.mark.parametrize("batches", [1, 3])
def test_Y1_A2_a_wrong_table_fails_all_keys_of_its_call_and_is_not_asked_for_again(lie: str, batches: int) -> None:
    options = {"on_error": "null", "status_column": "status", "retry": Retry(3)}
    lookup = Lookup(options, Service(lies=1.0, lie=lie), batches, columns=True)
    simulation = Simulation.from_scenario(Scenario(1, (lookup,), (Task((1, 2, 3, 4, 5, 6)),)))
    simulation.check()
    history = [*simulation.run()]
    asked = [key for event in history if event["event"] == "call_started" for key in event["keys"]]
    assert sorted(asked) == [1, 2, 3, 4, 5, 6]
    assert {event["error"] for event in history if event["event"] == "row_out"} == {"ResultError"}
    answers = [one for event in history if event["event"] == "call_ended" for one in event["answers"]]
    assert all("invalid" in one for one in answers)


def test_Y1_what_fails_is_made_small_and_printed_as_a_program_that_fails_alone() -> None:
    failing = next(one for seed in range(20) if (one := Simulation(seed, Reversed, rows=ROWS)).violations())
    with pytest.raises(SimulationFailed, match="A short program that fails alone") as caught:
        failing.check()
    program = str(caught.value).partition("\n\n")[2]
    names: dict[str, Any] = {"enricher": Reversed}
    with pytest.raises(SimulationFailed):
        exec(program, names)
    scenario: Scenario = names["scenario"]
    assert sum(len(task.keys) for task in scenario.tasks) == 2
    assert (len(scenario.lookups), scenario.kills) == (1, ())


def test_Y1_a_killed_worker_is_followed_by_another_that_finishes_its_tasks() -> None:
    lookup = Lookup({"capacity": 1, "status_column": "status"}, Service(mean=0.1))
    history = Simulation.from_scenario(Scenario(1, (lookup,), (Task((1, 2, 3)),), kills=(Kill(0, 0.15),))).run()
    ends = [(event["task"], event["outcome"]) for event in history if event["event"] == "task_ended"]
    assert ends == [("0.0", "killed"), ("0.1", "finished")]


def test_Y1_a_clock_that_is_too_fast_widens_long_times_and_not_short_ones() -> None:
    scenario = Scenario(1, (Lookup(),), (Task((1, 2, 3)),), clocks=((0.2, 0.0), (0.5, -1e-4)))
    [begin, *_] = Simulation.from_scenario(scenario).run()
    assert (begin["drift"], begin["clocks"]) == (1e-4, 0.5)
    assert begin["slack"] <= 1e-6


@pytest.mark.parametrize("last_fails", [False, True])
def test_C4_O6_no_call_of_another_lookup_starts_while_a_failed_one_waits_for_its_calls(last_fails: bool) -> None:
    quick = Lookup({"capacity": 1}, Service(mean=0.01))
    fails = Lookup({"capacity": 3}, Service(latency="uniform", mean=0.03, bad=0.2, ignores=0.3))
    for seed in range(6):
        lookups = (quick, fails) if last_fails else (fails, quick)
        simulation = Simulation.from_scenario(Scenario(seed, lookups, (Task(tuple(range(30)), batch=1),)))
        assert simulation.violations() == []
        assert simulation.outcome().attempts[0].outcome == "failed"
