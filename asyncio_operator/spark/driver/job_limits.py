"""How many tasks run at once, and the part of a limit that each gets: for tasks that do not reach the driver.

Tasks do not know each other, so each gets a part, rounded down. Together, running tasks never exceed the limit. If
fewer tasks run than expected, they use less than the limit.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.driver.sessions import context_of, described

MANY = 100_000
"""The number of rows of a DataFrame that Spark splits into as many partitions as it has cores."""


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


def part(total: int, tasks: int, what: str, remedy: str) -> int:
    """The part of one task, rounded down.

    Args:
        what: what is divided, in words.
        remedy: what else to do if it is too little.

    Raises:
        ConfigurationError: it is less than one.
    """
    if total < tasks:
        raise ConfigurationError(
            f"{what} is {total} on Spark Connect, but {tasks} tasks run at once: that is less than one for each. Raise "
            f"it, run fewer tasks (df.coalesce, and tasks_at_once= to match), or {remedy}"
        )
    return total // tasks
