"""Budgets on the driver: they are checked here, and get the address at which their tasks ask.

A budget without a coordinator of its own is kept in the memory of the driver, where the workers reach it over the
driver's service. So is `rate_limit`, as a budget that no other job can name (law G13). On Spark Connect there is no
driver in this process: then each task gets a part of the limits. Together, running tasks never exceed these. If fewer
tasks run than expected, they use less.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from asyncio_operator.checks import of_kind, positive_int
from asyncio_operator.engine.options import IN_WORDS
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import BudgetExceeded, ConfigurationError, describe
from asyncio_operator.function import AsyncFunction
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.quota.coordinators.addresses import check_address, states
from asyncio_operator.quota.spec import Budget, definition, reaches, warn_once, warn_unweighed
from asyncio_operator.quota.usage import COUNTED, Weigh, Weights, checked_weights, overridden
from asyncio_operator.spark.driver.driver_service import driver_address
from asyncio_operator.spark.worker.driver_wire import DriverAddress, DriverCoordinator
from asyncio_operator.spark.worker.versions import context_of, described

LAST_WORD = 0.5  # Seconds in which a worker has said that it uses a budget no longer, after its last task.
MANY = 100_000  # The number of rows of a DataFrame that Spark splits into as many partitions as it has cores.


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What all tasks of a job may use together."""

    budget: Budget | None  # As the user gave it.
    rate: Budget | None  # `rate_limit` as a budget; its name is that of no other.
    # The tasks that share the limits where they do not reach the driver; None: as many as the cluster has slots.
    tasks_at_once: int | None

    @classmethod
    def of(
        cls, budget: Budget | None = None, rate_limit: RateLimit | None = None, tasks_at_once: int | None = None
    ) -> JobLimits:
        of_kind("budget", budget, Budget)
        of_kind("rate_limit", rate_limit, RateLimit, IN_WORDS["rate_limit"])
        if tasks_at_once is not None:
            positive_int("tasks_at_once", tasks_at_once)
            if budget is None and rate_limit is None:
                raise ConfigurationError(
                    f"tasks_at_once is {tasks_at_once}, but it has no effect without rate_limit or budget"
                )
        rate = None if rate_limit is None else Budget(f"rate limit {uuid4().hex}", rate_limit)
        return cls(budget, rate, tasks_at_once)

    def reaching(self, spark: SparkSession, called: Enricher | AsyncFunction[Any, Any]) -> Budget | None:
        """The limits as tasks get them; None: there are none. What is called weighs its calls."""
        at_once = cache(lambda: self.tasks_at_once or slots(spark))
        rate = None
        if self.rate is not None:
            address = driver_address(spark)
            rate = divided(self.rate, at_once(), rate=True) if address is None else with_reach(self.rate, address)
        if self.budget is None:
            return rate
        budget = reachable(spark, self.budget, at_once)
        base = Enricher.weigh if isinstance(called, Enricher) else AsyncFunction.weigh
        check_weights(budget, describe(called), overridden(called.weigh, base))
        return budget if rate is None else _with(budget, beside=rate)

    def planned(self, spark: SparkSession) -> Iterator[tuple[Budget, bool]]:
        """The limits for a plan, which starts no service: each, and whether it is the part of one task."""
        for budget in (self.budget, self.rate):
            if budget is not None:
                in_parts = budget.coordinator is None and context_of(spark) is None
                if in_parts:
                    budget = divided(budget, self.tasks_at_once or slots(spark), rate=budget is self.rate)
                yield budget, in_parts


def reachable(spark: SparkSession, budget: Budget, tasks_at_once: Callable[[], int]) -> Budget:
    """The budget as its tasks get it. `tasks_at_once` is asked how many share it, where they cannot reach the
    driver."""
    of_kind("budget", budget, Budget)
    if budget.coordinator is not None:
        check_address(budget)
        return budget
    if budget.reach is not None:
        return budget
    address = driver_address(spark)
    if address is None:
        return divided(budget, tasks_at_once())
    # Law G1. Tasks that have just ended say so a moment later.
    question, waited = {"kind": "check", "worker": "", "budget": definition(budget)}, 0.0
    while (in_use := states.ask(budget.name, question)["error"]) is not None:
        if waited >= LAST_WORD:
            raise ConfigurationError(f"the budget {budget.name!r}: {in_use}")
        threading.Event().wait(LAST_WORD / 10)
        waited += LAST_WORD / 10
    reaching = with_reach(budget, address)
    reaches[budget.name] = reaching.reach
    return reaching


def with_reach(budget: Budget, address: DriverAddress) -> Budget:
    """The budget with the address at which its tasks ask."""
    return _with(budget, reach=partial(DriverCoordinator, address))


def _with(budget: Budget, **fields: object) -> Budget:
    """The budget with fields that a user does not give."""
    made = copy.copy(budget)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def divided(budget: Budget, tasks: int, rate: bool = False) -> Budget:
    """The part of each task, rounded down: no task knows of the others (law G9). `rate`: it is a `rate_limit`."""
    shown, given = ("rate_limit", "RateLimit(...)") if rate else (f"the budget {budget.name!r}", "...")
    remedy = f'name a coordinator, as in budget=Budget("name", {given}, coordinator="redis://host")'
    if budget.spend:
        raise ConfigurationError(
            f"{shown} has a spend limit, and on Spark Connect no task reaches the driver: {remedy}"
        )

    def part(total: int, what: str) -> int:
        if total < tasks:
            raise ConfigurationError(
                f"{what} is {total} on Spark Connect, but {tasks} tasks run at once: that is less than one for each. "
                f"Raise it, run fewer tasks (df.coalesce, and tasks_at_once= to match), or {remedy}"
            )
        return total // tasks

    limits = []
    for limit in budget.limits:
        each, burst = limit.rate / tasks, None if limit.burst is None else limit.burst / tasks
        if limit.unit in COUNTED:
            each = part(int(limit.rate), f"the rate of {limit.unit} of {shown}")
            burst = None if burst is None else int(burst)
        limits.append(replace(limit, rate=each, burst=burst))
    in_flight = None if budget.in_flight is None else part(budget.in_flight, f"in_flight of {shown}")
    warn_once(
        f"tasks on Spark Connect do not reach the driver: each of {tasks} tasks at once gets a part of {shown}; "
        f"{remedy}, and a task that needs more gets what others leave"
    )
    return Budget(budget.name, *limits, in_flight=in_flight, patience=budget.patience)


def cores(spark: SparkSession) -> int:
    """The number of cores: Spark makes this many tasks for a DataFrame without partitions of its own.

    Spark Connect offers no other way to find it.
    """
    with described(spark, "enrich: number of cores"):
        return spark.range(MANY).selectExpr("spark_partition_id() AS id").distinct().count()


def slots(spark: SparkSession) -> int:
    """The number of tasks that the cluster can run at the same time, in its present size."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ConfigurationError(
            "tasks on Spark Connect do not reach the driver, so each gets a part of rate_limit or budget, and with "
            "spark.dynamicAllocation.enabled the number of tasks changes: pass tasks_at_once=, the number of tasks "
            'that run at once, or name a coordinator, as in budget=Budget("name", ..., coordinator="redis://host")'
        )
    found = context_of(spark)
    if found is None:
        return cores(spark)
    context = found._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def check_weights(budget: Budget, called: str, weigh: Weigh | None) -> None:
    """Check what a lookup weighs against its budget (law G6). `called` names the enricher; a `weigh` of None weighs in
    no unit."""
    least: Weights = {}
    if weigh is not None:
        # Many functions need a key. What fails for keys too, tasks report.
        with contextlib.suppress(Exception):
            least = weigh([])
    weights = {"calls": 1.0, **checked_weights(f"{called}.weigh([])", least)}
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
