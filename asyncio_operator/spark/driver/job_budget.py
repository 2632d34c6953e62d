"""What the driver does about the limits of a job before its task is made: `budget`, and `scope="job"`.

With `scope="job"` the limits are a budget without a name, for the tasks of one DataFrame. On Spark Connect, whose tasks
do not reach the driver, they are divided by the tasks at once (`job_limits`).
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from pyspark.sql import SparkSession

from asyncio_operator.budget.spec import Budget
from asyncio_operator.budget.usage import overridden
from asyncio_operator.checks import of_kind, positive_int
from asyncio_operator.engine.options import IN_WORDS
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, calls_at_most
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.spark.driver.budgets import (
    check_weights,
    divided,
    reachable,
    with_reach,
)
from asyncio_operator.spark.driver.build_task import EnrichOptions
from asyncio_operator.spark.driver.driver_service import driver_address
from asyncio_operator.spark.driver.job_limits import slots
from asyncio_operator.spark.driver.sessions import context_of
from asyncio_operator.spark.worker.driver_wire import DriverAddress


def check_budget(enricher: Enricher, budget: Budget | None) -> None:
    """Check what an enricher weighs against its budget.

    Raises:
        BudgetExceeded: a call without keys would already pass a spend limit.
    """
    if budget is not None:
        check_weights(budget, describe(enricher), overridden(enricher.weigh, Enricher.weigh))


Place = DriverAddress | int | None
"""Where the limits of a job are kept: by the driver, or divided by the tasks at once; None: there are none."""


def on_driver(spark: SparkSession, options: EnrichOptions) -> EnrichOptions:
    """The options as `enrich_task` takes them, with limits that the tasks of this session can keep together.

    Raises:
        ConfigurationError: an option is wrong, or the driver cannot listen.
    """
    options = with_job_limits(options, place_of_job(spark, options.scope, options.tasks_at_once))
    return options if options.scope == "job" else with_budget(spark, options)


def with_budget(spark: SparkSession, options: EnrichOptions) -> EnrichOptions:
    """The options with a budget that tasks reach."""
    budget, tasks_at_once = options.budget, options.tasks_at_once
    if budget is None or getattr(budget, "reach", None) is not None:
        return options
    if tasks_at_once is not None:
        positive_int("tasks_at_once", tasks_at_once)
    budget = reachable(spark, budget, lambda: tasks_at_once or slots(spark))
    return replace(options, budget=budget, tasks_at_once=None)


def place_of_job(spark: SparkSession, scope: object, tasks_at_once: int | None) -> Place:
    """Where the limits of a job are kept.

    Raises:
        ConfigurationError: they must be divided, no number is given, and the number of slots changes with the load; or
            the driver cannot listen.
    """
    if scope != "job":
        return None
    address = driver_address(spark)
    if address is not None:
        return address
    return slots(spark) if tasks_at_once is None else tasks_at_once


def planned_limits(spark: SparkSession, options: EnrichOptions, tasks_at_once: int | None) -> EnrichOptions:
    """The options with limits as `on_driver` makes them, for a plan: no service is started."""
    if options.scope == "job":
        return with_job_limits(options, _NOWHERE if context_of(spark) is not None else tasks_at_once or slots(spark))
    if options.budget is None:
        return options
    of_kind("budget", options.budget, Budget)
    if options.budget.coordinator is not None or context_of(spark) is not None:
        return options
    return replace(options, budget=divided(options.budget, tasks_at_once or slots(spark)))


_NOWHERE = DriverAddress("", 0, b"")


def with_job_limits(options: EnrichOptions, place: Place) -> EnrichOptions:
    """The options with the limits of a job where its tasks find them.

    Raises:
        ConfigurationError: a limit is wrong, or there is a budget beside them.
    """
    if options.scope != "job":
        return options
    if options.budget is not None:
        raise ConfigurationError(
            'budget is given with scope="job", which makes a budget of its own; put all limits into one Budget, with '
            'Limit(...) and in_flight=, and leave scope="task"'
        )
    if not isinstance(place, DriverAddress):
        return options if place is None else replace(options, tasks_at_once=place)
    if options.tasks_at_once is not None:
        positive_int("tasks_at_once", options.tasks_at_once)
    capacity, limit = options.capacity, options.rate_limit
    if not isinstance(capacity, AdaptiveCapacity):
        positive_int("capacity", capacity)
    of_kind("rate_limit", limit, RateLimit, IN_WORDS["rate_limit"])
    budget = Budget(f"job {uuid4().hex}", *([] if limit is None else [limit]), in_flight=calls_at_most(capacity))
    return replace(options, scope="task", tasks_at_once=None, rate_limit=None, budget=with_reach(budget, place))
