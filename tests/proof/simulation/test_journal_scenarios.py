"""Jobs with a journal that is killed, or that comes after another: what may be asked for again (J1, J2)."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Kill, Lookup, Scenario, Service, Task


def asked(scenario: Scenario) -> Counter[int]:
    """How often each key was asked for, in a run that keeps the laws."""
    simulation = Simulation.from_scenario(scenario)
    assert simulation.violations() == []
    return Counter(key for event in simulation.run() if event["event"] == "call_started" for key in event["keys"])


@pytest.mark.parametrize("flush_every", [0.2, 1.0, 4.0])
def test_J2_a_kill_costs_what_came_less_than_flush_every_before_it(flush_every: float) -> None:
    options = {"capacity": 1, "remember": 0.0}
    lookup = Lookup(options, Service(mean=0.05), journal={"flush_every": flush_every})
    # A call every 0.05 s, and a kill after 10 s.
    scenario = Scenario(1, (lookup,), (Task(tuple(range(400)), batch=400),), kills=(Kill(0, 10.0),))
    again = sum(times - 1 for times in asked(scenario).values())
    assert 0 < again <= flush_every / 0.05 + 3


@pytest.mark.parametrize("keep_missing", [True, False])
def test_J1_a_miss_is_an_answer_unless_misses_are_not_kept(keep_missing: bool) -> None:
    journal = {"flush_every": 0.5} if keep_missing else {"flush_every": 0.5, "keep_missing": False}
    lookup = Lookup({"remember": 0.0}, Service(missing=1.0), journal=journal)
    scenario = Scenario(1, (lookup,), (Task(tuple(range(20))), Task(tuple(range(20)), starts=20.0)))
    assert set(asked(scenario).values()) == {1 if keep_missing else 2}


def test_L12_a_key_of_a_batch_that_is_read_in_the_turn_of_its_answer_is_not_asked_for_again() -> None:
    lookup = Lookup(options={"capacity": 2}, journal={"flush_every": 0.2}, pair=True)
    keys = (21, 3, 0, 0, 0, 5, 0, 8, 2, 23, 4, 32, 12, 0, 10, 1, 3, 10, 7, 10, 21)
    Simulation.from_scenario(Scenario(9540819, (lookup,), (Task(keys, batch=5, parts=("c",)),))).check()
