"""Law Y1: the judge of a simulation accepts an error, or a lost row, only if the run shows its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest

from asyncio_operator import Budget, CircuitBreaker
from asyncio_operator.errors import (
    BudgetExceeded,
    CircuitOpenError,
    CoordinatorError,
    ElementTimeoutError,
    EnricherError,
    FunctionError,
    MissingKeyError,
    function_error,
)
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.judge import broken
from asyncio_operator_proof.simulation.scenario import Coordinator, Kill, Lookup, Scenario, Service, Task
from tests.proof.simulation import names

ROWS = {number: {"name": f"n{number}"} for number in range(6)}


def with_end(scenario: Scenario, error: BaseException | None, lost: Sequence[int] = ()) -> list[str]:
    """What is wrong with a run, in which a task is made to end with an error, or to lose rows."""
    outcome = Simulation.from_scenario(scenario).outcome()
    attempt = copy(outcome.attempts[0])
    if error is not None:
        attempt.outcome, attempt.error, attempt.output = "failed", error, []
    kept = ([n not in lost for n in range(batch.num_rows)] for batch in attempt.output)
    attempt.output = [
        batch.filter(pa.array(mask, pa.bool_())) for batch, mask in zip(attempt.output, kept, strict=True)
    ]
    return broken(scenario, replace(outcome, attempts=(attempt, *outcome.attempts[1:])))


def one_task(options: dict[str, Any], errors: float = 0.0, **fields: Any) -> Scenario:
    return Scenario(1, (Lookup(options, Service(errors=errors)),), (Task((1, 2, 3)),), **{"rows": ROWS, **fields})


def failed(cause: Exception) -> FunctionError:
    return function_error("the lookup failed", "", unit="key", element="1", attempts=1, cause=cause)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": 30.0}, failed(ElementTimeoutError("late"))),
        ({"circuit_breaker": CircuitBreaker(minimum_calls=3)}, failed(CircuitOpenError("open"))),
        ({"how": "required"}, MissingKeyError("no row", key="1")),
        ({}, MissingKeyError("no row", key="1")),
        ({"budget": True}, CoordinatorError("no answer")),
        ({}, failed(EnricherError("never raised"))),
        ({}, BudgetExceeded("too much", unit="calls", limit=1.0, spent=1.0)),
    ],
)
def test_Y1_an_end_of_a_run_without_a_fault_is_not_accepted(options: dict[str, Any], error: Exception) -> None:
    scenario = one_task(options, budget=Budget("shared", in_flight=1) if "budget" in options else None)
    assert with_end(scenario, None) == []
    assert with_end(scenario, error) != []


@pytest.mark.parametrize("key", ["1", "None"])
def test_Y1_X11_a_key_that_is_missing_ends_a_task_and_no_other_does(key: str) -> None:
    scenario = one_task({"how": "required"}, rows={2: ROWS[2], 3: ROWS[3]})
    [attempt] = Simulation.from_scenario(scenario).outcome().attempts
    assert isinstance(attempt.error, MissingKeyError)
    assert [with_end(scenario, MissingKeyError("", key=one)) == [] for one in ("1", "2", "None")] == [
        True,
        False,
        False,
    ]
    scenario = replace(scenario, tasks=(Task((2, None)),))
    assert [with_end(scenario, MissingKeyError("", key=one)) == [] for one in ("1", "2", "None")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "options", [{"timeout": 30.0}, {"attempt_timeout": 1.0}, {"circuit_breaker": CircuitBreaker()}]
)
def test_Y1_a_row_is_not_lost_by_an_error_that_cannot_have_been(options: dict[str, Any]) -> None:
    scenario = one_task({"on_error": "drop", "status_column": "status", **options})
    assert with_end(scenario, None) == []
    assert any("row 1 with key 2 was lost" in one for one in with_end(scenario, None, [1]))


@pytest.mark.parametrize(
    "service", [Service(lies=0.4), Service(hangs=0.4), Service(errors=0.4), Service(mean=0.04, latency="exponential")]
)
@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
def test_Y1_a_row_is_not_lost_by_what_was_the_fate_of_others(service: Service, limit: str) -> None:
    options = {"on_error": "drop", "status_column": "status", "timeout": None, limit: 0.05}
    left = 0
    for seed in range(5):
        scenario = Scenario(seed, (Lookup(options, service),), (Task(tuple(ROWS)),), rows=ROWS)
        [attempt] = Simulation.from_scenario(scenario).outcome().attempts
        assert with_end(scenario, None) == []
        left += sum(batch.num_rows for batch in attempt.output)
        if attempt.output:
            assert any("was lost" in one for one in with_end(scenario, None, [0]))
    assert 10 < left < 25


def test_Y1_X6_a_row_whose_lookup_failed_is_null_and_not_lost() -> None:
    options = {"on_error": "null", "how": "inner", "status_column": "status"}
    scenario = one_task(options, errors=1.0)
    assert with_end(scenario, None) == []
    assert any("row 1 with key 2 was lost" in one for one in with_end(scenario, None, [1]))


def test_Y1_X6_a_null_key_that_a_failed_lookup_has_left_is_lost() -> None:
    first = Lookup({"on_error": "null", "status_column": "status"}, Service(errors=0.5))
    second = Lookup({"how": "inner"}, from_before=True)
    for seed in range(10):
        assert Simulation.from_scenario(Scenario(seed, (first, second), (Task((1, 2, 3)),))).violations() == []


@pytest.mark.parametrize(("patience", "accepted"), [(0.05, True), (30.0, False)])
def test_Y1_G7_a_coordinator_whose_messages_take_as_long_as_the_patience_may_give_no_answer(
    patience: float, accepted: bool
) -> None:
    budget = Budget("shared", in_flight=1, patience=patience)
    scenario = one_task({"budget": True}, budget=budget, coordinator=Coordinator(0.02))
    assert Simulation.from_scenario(scenario).violations() == []
    assert (with_end(scenario, CoordinatorError("no answer")) == []) is accepted


class OwnBug(names.Names):
    """Raises an error like those of the service after a right answer."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        found = await super().lookup_many(keys)
        if 2 in keys:
            raise EnricherError("own bug")
        return found


class Wraps(names.Names):
    """Raises an error of its own for that of the service, and asks for one key more than it is asked for."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            return [(await self._client.ask([key, 0]))[0] for key in keys]
        except Exception as error:
            raise KeyError("no answer") from ValueError(error)


@pytest.mark.parametrize("errors", [0.0, 0.3])
@pytest.mark.parametrize("on_error", ["null", "fail"])
def test_Y1_an_error_of_the_service_does_not_excuse_another_of_its_type(errors: float, on_error: str) -> None:
    lookup = Lookup({"on_error": on_error, "status_column": "status"}, Service(errors=errors, error="unknown"))
    tasks = Task((1, 3, 4, 5, 2)), Task((2, 1))
    wrong = [
        seed
        for seed in range(20)
        if Simulation.from_scenario(Scenario(seed, (lookup,), tasks, rows=ROWS), OwnBug).violations()
    ]
    assert len(wrong) >= 10


class LogsIn(names.Names):
    """Asks once for the key 0, in a task that belongs to no call. Its error is that of all calls."""

    async def open(self) -> None:
        self._logged_in = asyncio.create_task(self._client.ask([0]))

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            await asyncio.shield(self._logged_in)
        except Exception as error:
            raise KeyError("no answer") from error
        return await super().lookup_many(keys)


@pytest.mark.parametrize("enricher", [Wraps, LogsIn])
def test_Y1_an_error_that_the_service_has_led_to_is_explained(enricher: type[names.Names]) -> None:
    for on_error in ("null", "fail"):
        lookup = Lookup({"on_error": on_error, "status_column": "status"}, Service(errors=0.5))
        for seed in range(10):
            scenario = Scenario(seed, (lookup,), (Task((1, 2, 3, 4, 5)),), rows=ROWS)
            assert Simulation.from_scenario(scenario, enricher).violations() == []


def spent(error: BudgetExceeded, *kills: Kill) -> list[str]:
    """What is wrong with such an end of a task that makes a call for two keys, and a call for one."""
    lookup = Lookup({"budget": True, "batching": 2, "capacity": 1}, Service(tokens=1.0), batches=20)
    budget = Budget("shared", spend={"tokens": 100.0})
    tasks = Task((1, 2, 3)), Task((4, 5), worker=1, starts=1.0)
    return with_end(Scenario(1, (lookup,), tasks, budget=budget, rows=ROWS, kills=kills), error)


def test_Y1_G6_a_budget_is_not_spent_while_the_heaviest_call_of_a_batch_fits() -> None:
    wrong = spent(BudgetExceeded("", unit="tokens", limit=100, spent=90))
    assert any("a call may still be made" in one for one in wrong)


@pytest.mark.parametrize("status", [True, False])
def test_Y1_G12_a_row_without_money_gets_nulls_and_no_other_does(status: bool) -> None:
    options = {"budget": True, "capacity": 1} | ({"status_column": "status"} if status else {})
    lookup = Lookup(options, Service(tokens=1.0))
    scenario = Scenario(1, (lookup,), (Task((1, 2, 3, 4)),), rows=ROWS)

    def wrong(most: float, judged: float, *kills: Kill, on_spent: Literal["fail", "null"] = "null") -> list[str]:
        budget = Budget("shared", spend={"tokens": most}, on_spent="null")
        outcome = Simulation.from_scenario(replace(scenario, budget=budget, kills=kills)).outcome()
        budget = Budget("shared", spend={"tokens": judged}, on_spent=on_spent)
        return [one for one in broken(replace(scenario, budget=budget), outcome) if one.startswith("X1")]

    assert wrong(2.0, 2.0) == wrong(4.0, 4.0) == []
    assert len(wrong(2.0, 2.0, on_spent="fail")) == 2
    if status:
        assert [one.partition(" is over a budget")[1] != "" for one in wrong(2.0, 9.0)] == [True, True]
        # What a killed worker held may have been spent.
        assert wrong(2.0, 9.0, Kill(0, 0.001)) == []


def test_Y1_G12_a_job_that_goes_on_without_money_does_not_end() -> None:
    lookup = Lookup({"budget": True}, Service(tokens=1.0))
    budget = Budget("shared", spend={"tokens": 2.0}, on_spent="null")
    scenario = Scenario(1, (lookup,), (Task((1, 2, 3)),), budget=budget, rows=ROWS)
    wrong = with_end(scenario, BudgetExceeded("", unit="tokens", limit=2, spent=2))
    assert any("goes on without money" in one for one in wrong)
