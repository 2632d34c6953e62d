"""Limits for a whole job, divided by the tasks that run at once.

Tasks know nothing of each other, so each gets its share, rounded down: together those that run at once never exceed
what was given, and where fewer run than could, they use less of it. Tasks that follow one another in a Python worker
share the window of their rate limit (`limiters`).
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.options import one_of, positive_int

MANY = 100_000
"""Rows of a DataFrame that Spark makes of as many partitions as it has cores."""

GIVE_IT = 'say with tasks_at_once= how many tasks will run at once, or give limits per task, with scope="task"'


def cores(spark: SparkSession) -> int:
    """How many tasks Spark takes to be best for a DataFrame without partitions of its own: as many as it has cores.

    Spark Connect knows no other way to ask.
    """
    return spark.range(MANY).selectExpr("spark_partition_id() AS id").distinct().count()


def slots(spark: SparkSession) -> int:
    """How many tasks can run at once, as the cluster is now.

    Raises:
        ConfigurationError: that changes with the load.
    """
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ConfigurationError(f'scope="job" with spark.dynamicAllocation.enabled: {GIVE_IT}')
    try:
        context = spark.sparkContext._jsc.sc()
    except Exception:
        return cores(spark)
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def tasks_of_job(spark: SparkSession, scope: object, tasks_at_once: int | None) -> int | None:
    """How many tasks share what is given for a job: as many as was said, else as many as can run at once.

    Raises:
        ConfigurationError: it was not said, and changes with the load.
    """
    return slots(spark) if scope == "job" and tasks_at_once is None else tasks_at_once


def shared_out(options: LookupOptions, scope: str, tasks_at_once: int | None) -> LookupOptions:
    """The options of one task, where `capacity` and `rate_limit` may be those of a job.

    Raises:
        ConfigurationError: the scope is wrong, or there is less than one for each task.
    """
    if tasks_at_once is not None:
        positive_int("tasks_at_once", tasks_at_once)
    if one_of("scope", scope, ("task", "job")) == "task":
        if tasks_at_once is not None:
            raise ConfigurationError(f'tasks_at_once is {tasks_at_once} without scope="job": it would divide nothing')
        return options
    if tasks_at_once is None:
        raise ConfigurationError(f'scope="job" cannot know its tasks here: {GIVE_IT}')
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


def _share(name: str, total: int, tasks: int) -> int:
    if total < tasks:
        raise ConfigurationError(
            f"{name} is {total} for the job, of which {tasks} tasks run at once: that is less than one for each. Give "
            'more, run fewer tasks (df.coalesce, and tasks_at_once= to say so), or give limits per task, scope="task"'
        )
    return total // tasks
