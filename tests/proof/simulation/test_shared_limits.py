"""Laws G5 and G6 in simulations: what a source says of its limits, and what may be spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from asyncio_operator import Budget, Limit
from asyncio_operator.enricher import hint, settle
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.scenario import Coordinator, Lookup, Scenario, Service, Task
from tests.proof.simulation.names import Names


def three_tasks(seed: int, budget: Budget, service: Service, keys: int = 14) -> Simulation:
    """Three tasks on three workers that share a budget."""
    options = {"budget": True, "capacity": 3, "timeout": None, "on_error": "null", "status_column": "status"}
    tasks = tuple(Task(tuple(range(keys)), worker, 0.3 * worker) for worker in range(3))
    scenario = Scenario(seed, (Lookup(options, service),), tasks, budget=budget, coordinator=Coordinator(0.002))
    return Simulation.from_scenario(scenario)


def of_kind(simulation: Simulation, kind: str) -> list[Event]:
    return [event for event in simulation.run() if event["event"] == kind]


@pytest.mark.parametrize(
    ("spend", "settles"), [({"calls": 20.0}, False), ({"tokens": 50.0}, False), ({"tokens": 50.0}, True)]
)
def test_G6_all_tasks_of_a_budget_fail_when_all_is_spent_that_calls_really_used(
    spend: dict[str, float], settles: bool
) -> None:
    for seed in range(2):
        budget = Budget("shared", Limit(50, 1.0), spend=spend)
        service = Service(mean=0.02, tokens=2.5, errors=0.0 if settles else 0.2, settles=settles)
        simulation = three_tasks(seed, budget, service)
        simulation.check()
        assert "BudgetExceeded" in [event.get("error") for event in of_kind(simulation, "task_ended")]
        assert settles or len(of_kind(simulation, "call_started")) == 20


@pytest.mark.parametrize("refills", [False, True])
@pytest.mark.parametrize("lenient", [False, True])
def test_G5_all_tasks_keep_what_the_source_says_of_its_quota(refills: bool, lenient: bool) -> None:
    quota: dict[str, Any] = {
        "quota": 10,
        "per": 3.0,
        "refills": refills,
        "lenient": lenient,
        "tells": 0.2,
        "nonsense": 0.02,
    }
    for seed in range(2):
        simulation = three_tasks(seed, Budget("shared", Limit(10, 1.0)), Service(mean=0.05, **quota))
        simulation.check()
        assert of_kind(simulation, "said")


class Weighs(Names):
    """Settles for less than its estimate, in two parts, and says what is left."""

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": 3.0 * len(keys)}

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        found = await super().lookup_many(keys)
        settle({"tokens": 1.5 * len(keys)})
        settle({"tokens": 0.5 * len(keys)})
        hint({"tokens": {"limit": 1000, "remaining": 900, "reset_after": 1.0}}, retry_after=0.0)
        return found


@pytest.mark.parametrize(
    "budget", [Budget("b", spend={"tokens": 12.0}), Budget("b", Limit(9, 1.0, "tokens"))], ids=["spend", "limit"]
)
def test_G6_what_an_enricher_of_ones_own_weighs_and_settles_is_judged(budget: Budget) -> None:
    rows = {number: {"name": f"n{number}"} for number in range(10)}
    options: dict[str, Any] = {"on_error": "null", "retry": None, "hedge": None, "how": "left", "budget": budget}
    for seed in range(10):
        simulation = Simulation(seed, Weighs, rows=rows, **options)
        assert [one for one in simulation.violations() if one.startswith(("G2", "G6"))] == []
        good = [event for event in of_kind(simulation, "call_ended") if event["outcome"] == "result"]
        for event in good:
            started = next(one for one in of_kind(simulation, "call_started") if one["call"] == event["call"])
            assert event["settled"] == {"tokens": 2.0 * len(started["keys"])}
        said = of_kind(simulation, "said")
        assert len(said) == 2 * len(good)
        assert {event.get("remaining") for event in said} <= {None, 900}
