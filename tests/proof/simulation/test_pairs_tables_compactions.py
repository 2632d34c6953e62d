"""Law Y1: keys of two columns, tables in memory and compactions of journals, in simulations."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Batching
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.features import features_of
from asyncio_operator_proof.simulation.scenario import Compaction, Lookup, Scenario, Service, Task
from asyncio_operator_proof.simulation.shrink import shrunk
from enrichers import TableEnricher


def test_Y1_L1_a_key_with_a_null_part_is_not_asked_for() -> None:
    for columns in (False, True):
        lookup = Lookup({"capacity": 2}, Service(), batches=3, columns=columns, pair=True)
        task = Task((1, 2, None, 1, 2, 1), parts=("a", None, "b"))
        simulation = Simulation.from_scenario(Scenario(1, (lookup,), (task,)))
        simulation.check()
        history = [*simulation.run()]
        asked = Counter(tuple(key) for one in history if one["event"] == "call_started" for key in one["keys"])
        assert asked == {(1, "a"): 1, (1, "b"): 1}
        assert [one["key"] for one in history if one["event"] == "row_in"][:2] == [[1, "a"], [2, None]]


def test_Y1_L1_a_later_lookup_of_a_chain_has_a_key_of_a_found_column_and_the_part() -> None:
    lookups = Lookup({}, Service()), Lookup({}, Service(), from_before=True, pair=True)
    simulation = Simulation.from_scenario(Scenario(1, lookups, (Task((1, 2, 3), parts=("a", "b", None)),)))
    simulation.check()
    started = [one for one in simulation.run() if one["event"] == "call_started" and one["lookup"] == 1]
    assert [key[1] for one in started for key in one["keys"]] == ["a", "b"]


def compacted(*compactions: Compaction) -> Simulation:
    """Two tasks write a journal; a third one, for the same keys, begins when they are compacted."""
    lookup = Lookup({"capacity": 2, "status_column": "status"}, Service(mean=0.05), journal={"flush_every": 0.1})
    keys = tuple(range(12))
    tasks = Task(keys[:6]), Task(keys[6:], starts=1.0), Task(keys, starts=3.0, batch=2, pause=0.02)
    return Simulation.from_scenario(Scenario(1, (lookup,), tasks, compactions=compactions))


def test_Y1_J7_answers_are_found_again_while_and_after_their_journal_is_compacted() -> None:
    for at in (1.2, 2.0, 2.995, 3.0):
        for grace in (0.0, 3600.0):
            simulation = compacted(Compaction(0, at, 0.01, grace))
            simulation.check()
            history = [*simulation.run()]
            assert [one["what"] for one in history if one["event"] == "fault"] == [
                "compaction_begins",
                "compaction_ends",
            ]
            assert sum(one["event"] == "call_started" for one in history) == 12
            assert {one["source"] for one in history if one["event"] == "row_out" and one["task"] == "2.0"} == {
                "journal"
            }


def test_Y1_J7_a_compaction_that_dies_and_two_at_once_lose_nothing() -> None:
    for compactions in (
        [Compaction(0, 2.0, 0.01, 0.0, ends=1)],
        [Compaction(0, 2.0, 0.01, 0.0, ends=2), Compaction(0, 2.5, grace=0.0)],
        [Compaction(0, 2.0, 0.2, 0.0), Compaction(0, 2.1, 0.2, 0.0), Compaction(0, 2.3, 0.2, 0.0)],
    ):
        simulation = compacted(*compactions)
        simulation.check()
        assert sum(one["event"] == "call_started" for one in simulation.run()) == 12


def test_Y1_a_scenario_with_both_is_made_small_and_keeps_what_its_lookups_are() -> None:
    lookups = Lookup({}, pair=True), Lookup({}, journal={"flush_every": 0.1}, pair=True)
    tasks = (Task((1, 2, 3), parts=("a", None)),)
    scenario = Scenario(1, lookups, tasks, compactions=(Compaction(0, 1.0), Compaction(1, 2.0)))
    small = shrunk(scenario, lambda one: bool(one.compactions) and one.lookups[-1].journal is not None).scenario
    assert len(small.lookups) == 1
    assert [one.lookup for one in small.compactions] == [0]
    assert not small.pairs


def in_memory(service: Service, **options: Any) -> Simulation:
    """A table in memory that is asked for whole batches."""
    bare = {"timeout": None, "on_error": "fail", "remember": None, **options}
    lookup = Lookup(bare, service, batches=20, columns=True, table=True)
    return Simulation.from_scenario(Scenario(1, (lookup,), (Task((1, 2, 1, None, 3, 4, 5) * 3, batch=7),)))


def test_Y1_A6_a_table_in_memory_is_asked_for_whole_batches_and_again() -> None:
    simulation = in_memory(Service(mean=0.0, several=0.3))
    simulation.check()
    asked = [one["keys"] for one in simulation.run() if one["event"] == "call_started"]
    assert asked == [[1, 2, 3, 4, 5]] * 3


@pytest.mark.parametrize("batching", [1, 2, 3])
def test_B1_a_table_in_memory_is_asked_for_at_most_max_size_keys(batching: int) -> None:
    simulation = in_memory(Service(mean=0.0), batching=Batching(batching))
    simulation.check()
    asked = [one["keys"] for one in simulation.run() if one["event"] == "call_started"]
    assert max(map(len, asked)) <= batching


@pytest.mark.parametrize("lie", ["short", "long", "misspelt", "typed"])
def test_Y1_A2_a_wrong_answer_of_a_table_in_memory_ends_the_task(lie: str) -> None:
    simulation = in_memory(Service(mean=0.0, lies=1.0, lie=lie))
    simulation.check()
    assert [one["outcome"] for one in simulation.run() if one["event"] == "task_ended"] == ["failed"]


def per_batch(simulation: Simulation) -> bool:
    """Whether a lookup asks for whole batches, as the history says."""
    return "whole" in features_of(simulation.scenario, simulation.run())


ROWS = {key: {"name": f"n{key}"} for key in range(8)}


class WaitingTable(TableEnricher):
    """A table in memory that awaits before it answers."""

    async def lookup_columns(self, keys: Any) -> Any:
        await asyncio.sleep(0.05)
        return await super().lookup_columns(keys)

    async def lookup_rows(self, keys: Any) -> Any:
        await asyncio.sleep(0.05)
        return await super().lookup_rows(keys)


class ColumnsOnly(TableEnricher):
    """A table in memory, of which tasks use `lookup_columns` alone."""

    async def lookup_columns(self, keys: Any) -> Any:
        await asyncio.sleep(0.05)
        return await super().lookup_columns(keys)


@pytest.mark.parametrize("kind", [WaitingTable, ColumnsOnly])
def test_Y1_A6_a_table_of_the_user_may_be_asked_for_a_key_by_two_batches_at_once(kind: type[TableEnricher]) -> None:
    table = pa.table({"key": [*ROWS], "name": [row["name"] for row in ROWS.values()]})
    bare = Lookup({"timeout": None, "on_error": "fail", "remember": None, "mode": "unordered", "capacity": 4})
    for seed in (2, 4, 6):
        simulation = Simulation(seed, lambda _: kind(lambda: table, key="key"), rows=ROWS, lookups=(bare,))
        assert simulation.violations() == []
        assert per_batch(simulation)
