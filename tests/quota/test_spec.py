"""Budgets as specifications: checked, compared by value, fit to travel, and without secrets in texts."""

from __future__ import annotations

import dataclasses
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from pyspark import cloudpickle

from asyncio_operator import Budget, BudgetExceeded, ConfigurationError, Limit, RateLimit, StateError
from asyncio_operator.quota.coordinators.addresses import states
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import definition, reaches
from tests.quota.helpers import Coordinator, ask, call, exchange

TOKENS = Limit(200_000.5, 60.0, "tokens", burst=10.0)


async def later() -> str:
    return "redis://host"


WRONG: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (Limit, (0,), {}, r"rate is 0; it must be an int of at least 1 if unit is \"calls\""),
    (Limit, (1.5,), {}, r"rate is 1\.5; it must be an int"),
    (Limit, (0.0, 60.0, "tokens"), {}, r"rate is 0\.0; it must be a number more than 0"),
    (Limit, (math.inf, 60.0, "tokens"), {}, "rate is inf;"),
    (Limit, (1, 0), {}, "per is 0;"),
    (Limit, (1, 1e-6), {}, r"per is 1e-06; it must be at least 0\.001 seconds"),
    (Limit, (1,), {"unit": ""}, "unit is '';"),
    (Limit, (1,), {"unit": "in_flight"}, "unit is 'in_flight';"),
    (Limit, (1,), {"unit": "two words"}, "unit is 'two words';"),
    (Limit, (1,), {"burst": -1}, "burst is -1;"),
    (Limit, (1,), {"burst": 0.5}, r"burst is 0\.5; it must be a whole number"),
    (Budget, ("",), {"in_flight": 1}, "name is '';"),
    (Budget, (5,), {"in_flight": 1}, "name is 5;"),
    (Budget, (" a",), {"in_flight": 1}, "name is ' a';"),
    (Budget, ("a\nb",), {"in_flight": 1}, r"name is 'a\\nb';"),
    (Budget, ("b",), {}, "the budget 'b' has no limit; it must have at least one Limit"),
    (Budget, ("b", 5), {}, r"limits\[0\] is 5; it must be a Limit or a RateLimit"),
    (Budget, ("b", Limit(1), RateLimit(2, 60.0)), {}, "the budget 'b' has two limits of calls per 60 s"),
    (Budget, ("b",), {"in_flight": 0}, "in_flight is 0;"),
    (Budget, ("b",), {"spend": {"usd": 1}, "on_spent": "skip"}, "on_spent is 'skip'; it must be"),
    (Budget, ("b",), {"spend": 25.0}, r"spend is 25\.0; it must be a mapping"),
    (Budget, ("b",), {"spend": {}}, "spend is {};"),
    (Budget, ("b",), {"spend": {"usd": 0}}, r"spend\['usd'\] is 0;"),
    (Budget, ("b",), {"spend": {1: 2.0}}, "a unit of spend is 1;"),
    (Budget, ("b",), {"spend": {"retry_after": 2.0}}, "a unit of spend is 'retry_after';"),
    (Budget, ("b", Limit(1)), {"patience": 0}, "patience is 0;"),
    (Budget, ("b", Limit(1)), {"coordinator": 5}, "coordinator is of type int;"),
    (Budget, ("b", Limit(1)), {"coordinator": later}, "coordinator is later, an `async def`;"),
    (Budget, ("b", Limit(1)), {"coordinator": lambda name: name}, "coordinator is .*; it must take"),
]


@pytest.mark.parametrize(("kind", "values", "named", "message"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(
    kind: Any, values: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}") as caught:
        kind(*values, **named)
    assert "must" in str(caught.value)


@pytest.mark.parametrize("address", ["hunter2", "mysql://u:hunter2@host", "redis:hunter2", "redis://"])
def test_G10_a_wrong_address_is_not_shown(address: str) -> None:
    with pytest.raises(ConfigurationError, match="coordinator is another text") as caught:
        Budget("b", Limit(1), coordinator=address)
    assert "hunter2" not in str(caught.value)


def test_a_budget_is_a_value_that_travels() -> None:
    def make(**changed: Any) -> Budget:
        values = {"in_flight": 5, "spend": {"usd": 25.0}, "coordinator": "redis://host", "patience": 3.0, **changed}
        return Budget("b", Limit(10), TOKENS, **values)

    budget = make()
    assert budget == make()
    assert hash(budget) == hash(make())
    for dumps, loads in ((pickle.dumps, pickle.loads), (cloudpickle.dumps, cloudpickle.loads)):
        assert loads(dumps(budget)) == budget
    for name, other in {
        "in_flight": 6,
        "spend": {"usd": 26.0},
        "coordinator": None,
        "patience": 4.0,
        "on_spent": "null",
    }.items():
        assert make(**{name: other}) != budget
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.name = "c"  # type: ignore[misc]


def test_a_rate_limit_is_a_limit_of_calls() -> None:
    limit, other = RateLimit(10, 60.0, 5), Limit(10, 60.0, "calls", 5)
    assert limit == other == limit
    assert len({limit, other}) == 1
    for unequal in (Limit(10, 60.0, "keys", 5), Limit(10, 60.0), Limit(10, 61.0, "calls", 5), 10):
        assert limit != unequal != other


def test_the_order_of_limits_does_not_matter() -> None:
    assert Budget("b", Limit(10), TOKENS) == Budget("b", TOKENS, Limit(10))
    assert Budget("b", RateLimit(10, timedelta(minutes=1), 5)) == Budget("b", Limit(10, 60.0, "calls", 5))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://:hunter2@host:6379/0?password=hunter2", "'redis://host:6379/0'"),
        ("postgresql://user:hunter2@host/db", "'postgresql://host/db'"),
        ("postgresql://user:hunt@er2@host/db", "'postgresql://***'"),
        ("redis://u:hunter2@[::1/0", "'redis://***'"),
        ("redis://u:hun/ter2@host/0", "'redis://***'"),
        ("redis://u:hunter2?x@host/0", "'redis://***'"),
        ("postgresql://u:hunter2#x@host/0", "'postgresql://***'"),
        ("redis://u:hunter2", "'redis://***'"),
        ("postgresql://u:hunter2@one:5432,[::1]:5433/db", "'postgresql://one:5432,[::1]:5433/db'"),
        (lambda: "redis://:hunter2@host", "lambda"),
    ],
)
def test_G10_no_secret_of_an_address_is_in_the_text_of_a_budget(address: Any, shown: str) -> None:
    text = repr(Budget("b", Limit(1), coordinator=address))
    assert shown in text
    assert "hunter2" not in text
    assert "er2" not in text


def test_a_budget_at_the_driver_takes_what_workers_need_to_reach_it() -> None:
    budget = Budget("travels", Limit(1))
    assert pickle.loads(pickle.dumps(budget)).reach is None
    reaches["travels"] = "host", 7, b"token"
    try:
        arrived = pickle.loads(pickle.dumps(budget))
    finally:
        del reaches["travels"]
    assert arrived.reach == ("host", 7, b"token")
    assert arrived == budget
    assert pickle.loads(pickle.dumps(arrived)).reach == arrived.reach
    assert "token" not in repr(arrived)


def test_G10_statistics_say_what_is_allowed_used_reserved_and_refused() -> None:
    budget = Budget("counted", Limit(10, 1.0), Limit(100, 60.0), in_flight=7, spend={"usd": 2.0})
    with pytest.raises(StateError, match="no coordinator of this process has the budget 'counted'"):
        budget.statistics()
    states.ask("counted", {"kind": "check", "worker": "", "budget": definition(budget)})
    found = budget.statistics()
    assert {unit: figures.allowed for unit, figures in found.units.items()} == {"calls": 10, "in_flight": 7, "usd": 2.0}
    assert {figures.used for figures in found.units.values()} == {0}
    assert (found.workers, found.paused_for) == (0, 0.0)
    assert pickle.loads(pickle.dumps(found)) == found


def test_G10_figures_have_no_rounding_errors() -> None:
    coordinator, spec = Coordinator(), Budget("b", Limit(1000.0, 60.0, "tokens"))
    permits = Permits(spec, "w")
    ask(coordinator, permits, 0.0, {"tokens": 1.0})
    for tokens in (0.1, 0.2, 0.0):
        permits.next_start({"tokens": tokens}, 0.1)
        call(permits, 0.1, {"tokens": tokens}, {"tokens": tokens})
    permits.rest()
    exchange(coordinator, permits, 0.2)
    figures = coordinator.statistics(spec, 0.3)["units"]["tokens"]
    assert (figures["used"], figures["reserved"]) == (0.3, 0.0)


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(BudgetExceeded("too much", unit="usd", limit=2.0, spent=1.5)))
    assert (str(error), error.unit, error.limit, error.spent) == ("too much", "usd", 2.0, 1.5)
    assert definition(Budget("b", TOKENS))["limits"] == [["tokens", 200_000.5, 60.0, 10.0]]
