"""Budgets on the driver: they are checked here, and get the address at which their tasks ask.

A budget without a coordinator of its own is kept in the memory of the driver, where the workers reach it over the
driver's service. On Spark Connect there is no driver in this process: then each task gets a part of the limits.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from asyncio_operator.budget.registry import Running, coordinators
from asyncio_operator.budget.spec import Budget, Limit, definition, warn_unweighed
from asyncio_operator.budget.usage import Weigh, Weights, checked_weights, overridden
from asyncio_operator.checks import of_kind
from asyncio_operator.coordinators.addresses import check_address, states
from asyncio_operator.errors import BudgetExceeded, ConfigurationError, describe
from asyncio_operator.function import AsyncFunction
from asyncio_operator.spark.driver.driver_service import driver_address
from asyncio_operator.spark.driver.job_limits import part, slots
from asyncio_operator.spark.worker.driver_client import DriverCoordinator
from asyncio_operator.spark.worker.driver_wire import DriverAddress

logger = logging.getLogger("asyncio_operator.budget")

_said: set[str] = set()
"""What was logged, and is not logged again."""


LAST_WORD = 0.5
"""Seconds in which a worker has said that it uses a budget no longer, after its last task."""


def reachable(spark: SparkSession, budget: Budget, tasks_at_once: Callable[[], int]) -> Budget:
    """The budget as its tasks get it.

    Args:
        tasks_at_once: the number of tasks that share it where they cannot reach the driver.

    Raises:
        ConfigurationError: its address cannot be read, or it cannot be divided, or the driver cannot listen, or tasks
            use a budget of this name that has other limits.
    """
    of_kind("budget", budget, Budget)
    if budget.coordinator is not None:
        check_address(budget)
        return budget
    address = driver_address(spark)
    if address is None:
        return divided(budget, tasks_at_once())
    _refuse_other_limits(budget)
    reaching = with_reach(budget, address)
    coordinators.register(budget.name, Running(partial(states.ask, budget.name), reaching.reach))
    return reaching


def _refuse_other_limits(budget: Budget) -> None:
    """Raise if tasks use a budget of this name that has other limits (law G1)."""
    question = {"kind": "check", "worker": "", "budget": definition(budget)}
    # Tasks that have just ended say so a moment later.
    waited = 0.0
    while (in_use := states.ask(budget.name, question)["error"]) is not None:
        if waited >= LAST_WORD:
            raise ConfigurationError(f"the budget {budget.name!r}: {in_use}")
        threading.Event().wait(LAST_WORD / 10)
        waited += LAST_WORD / 10


def with_reach(budget: Budget, address: DriverAddress) -> Budget:
    """The budget with the address at which its tasks ask."""
    reaching = copy.copy(budget)
    object.__setattr__(reaching, "reach", partial(DriverCoordinator, address))
    return reaching


def divided(budget: Budget, tasks: int) -> Budget:
    """The part of each task, rounded down: no task knows of the others (law G9).

    Raises:
        ConfigurationError: a part is less than one, or something is to be spent, which cannot be divided.
    """
    remedy = 'name a coordinator, as in Budget(..., coordinator="redis://host")'
    if budget.spend:
        raise ConfigurationError(
            f"the budget {budget.name!r} has a spend limit, and on Spark Connect no task reaches the driver: {remedy}"
        )
    limits = [_part(budget.name, limit, tasks, remedy) for limit in budget.limits]
    in_flight = budget.in_flight
    if in_flight is not None:
        in_flight = _whole(budget.name, "in_flight", in_flight, tasks, remedy)
    text = (
        f"tasks on Spark Connect do not reach the driver: each of {tasks} tasks at once gets a part of the budget "
        f"{budget.name!r}; {remedy}, and a task that needs more gets what others leave"
    )
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
    return Budget(budget.name, *limits, in_flight=in_flight, patience=budget.patience)


def _part(name: str, limit: Limit, tasks: int, remedy: str) -> Limit:
    if limit.unit not in ("calls", "keys"):
        burst = None if limit.burst is None else limit.burst / tasks
        return replace(limit, rate=limit.rate / tasks, burst=burst)
    burst = None if limit.burst is None else limit.burst // tasks
    return replace(limit, rate=_whole(name, f"the rate of {limit.unit}", int(limit.rate), tasks, remedy), burst=burst)


def _whole(name: str, what: str, total: int, tasks: int, remedy: str) -> int:
    return part(total, tasks, f"{what} of the budget {name!r} is {total} on Spark Connect", remedy)


def for_function(budget: Budget, function: AsyncFunction[Any, Any], spark: SparkSession) -> Budget:
    """The budget as tasks get it that call a function.

    Raises:
        ConfigurationError: see `reachable`.
        BudgetExceeded: see `check_weights`.
    """
    reaching = reachable(spark, budget, lambda: slots(spark))
    check_weights(budget, describe(function), overridden(function.weigh, AsyncFunction.weigh))
    return reaching


def _least(called: str, weigh: Weigh | None) -> Weights:
    """What a call without keys weighs."""
    if weigh is None:
        return {}
    try:
        weights = weigh([])
    except Exception:
        # Many functions need a key. What fails for keys too, tasks report.
        return {}
    return checked_weights(f"{called}.weigh([])", weights)


def check_weights(budget: Budget, called: str, weigh: Weigh | None) -> None:
    """Check what a lookup weighs against its budget.

    Args:
        called: names the enricher.
        weigh: how it weighs a call; None: it weighs in no unit.

    Raises:
        BudgetExceeded: a call without keys would already pass a spend limit (law G6).
        ConfigurationError: it returns no weights.
    """
    weights = {"calls": 1.0, **_least(called, weigh)}
    for unit, limit in (budget.spend or {}).items():
        if budget.on_spent == "fail" and weights.get(unit, 0.0) > limit:
            raise BudgetExceeded(
                f"{called}: a call without keys weighs {weights[unit]:g} {unit}, and the budget {budget.name!r} allows "
                f"{limit:g} in total",
                unit=unit,
                limit=limit,
                spent=0.0,
            )
    warn_unweighed(budget, called, weigh)
