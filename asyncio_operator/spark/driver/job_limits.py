"""Limits for a whole job, divided by the number of tasks that run at the same time: for tasks that do not reach the
driver, as on Spark Connect. Elsewhere they are a budget (`job_budget`).

Tasks do not know each other, so each gets a share, rounded down. Together, running tasks never exceed the limit. If
fewer tasks run than expected, they use less than the limit. Tasks that follow one another in a Python worker share the
window of their rate limit (`worker.shared`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from pyspark.sql import SparkSession

from asyncio_operator.checks import one_of, positive_int
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.spark.driver.sessions import context_of, described

Scope = Literal["task", "job"]

MANY = 100_000
"""The number of rows of a DataFrame that Spark splits into as many partitions as it has cores."""

GIVE_IT = 'pass tasks_at_once=, the number of tasks that run at once, or use limits per task, with scope="task"'


def cores(spark: SparkSession) -> int:
    """The number of cores: Spark makes this many tasks for a DataFrame without partitions of its own.

    Spark Connect offers no other way to find it.
    """
    with described(spark, "enrich: number of cores"):
        return spark.range(MANY).selectExpr("spark_partition_id() AS id").distinct().count()


def slots(spark: SparkSession) -> int:
    """The number of tasks that the cluster can run at the same time, in its present size.

    Raises:
        ConfigurationError: the number changes with the load.
    """
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ConfigurationError(f'scope="job" with spark.dynamicAllocation.enabled: {GIVE_IT}')
    found = context_of(spark)
    if found is None:
        return cores(spark)
    context = found._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def shared_out(options: LookupOptions, scope: Scope, tasks_at_once: int | None) -> LookupOptions:
    """The options of one task. `capacity` and `rate_limit` are those of the job if the scope is "job".

    Raises:
        ConfigurationError: the scope is wrong, or a limit is less than one for each task.
    """
    if tasks_at_once is not None:
        positive_int("tasks_at_once", tasks_at_once)
    if one_of("scope", scope, get_args(Scope)) == "task":
        if tasks_at_once is not None:
            raise ConfigurationError(f'tasks_at_once is {tasks_at_once}, but it has no effect without scope="job"')
        return options
    if tasks_at_once is None:
        raise ConfigurationError(
            f'scope="job" needs the number of tasks that run at once, which is not known here: {GIVE_IT}'
        )
    capacity, limit = options.capacity, options.rate_limit
    if isinstance(capacity, AdaptiveCapacity):
        most = _share("capacity.maximum", capacity.maximum, tasks_at_once)
        least, first = capacity.minimum // tasks_at_once or 1, capacity.initial // tasks_at_once or 1
        capacity = replace(capacity, minimum=least, initial=max(least, first), maximum=most)
    else:
        capacity = _share("capacity", capacity, tasks_at_once)
    if limit is not None:
        burst = None if limit.burst is None else limit.burst // tasks_at_once
        limit = replace(limit, rate=_share("rate_limit.rate", limit.rate, tasks_at_once), burst=burst)
    return replace(options, capacity=capacity, rate_limit=limit)


def part(total: int, tasks: int, what: str, remedy: str) -> int:
    """The part of one task, rounded down.

    Args:
        what: what is divided, in words, as "capacity is 3 for the job".
        remedy: what else to do if it is too little.

    Raises:
        ConfigurationError: it is less than one.
    """
    if total < tasks:
        raise ConfigurationError(
            f"{what}, but {tasks} tasks run at once: that is less than one for each. Raise it, run fewer tasks "
            f"(df.coalesce, and tasks_at_once= to match), or {remedy}"
        )
    return total // tasks


def _share(name: str, total: int, tasks: int) -> int:
    return part(total, tasks, f"{name} is {total} for the job", 'use limits per task, scope="task"')
