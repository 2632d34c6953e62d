"""What tasks tell the driver when they end: the one kind of accumulator of this package.

On the driver its value is a collection, to which is added what each task that comes to its end has to report; on its
way to a worker it becomes an empty list, to which the task adds that. A task that Spark runs again reports again.
"""

from __future__ import annotations

from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError

Reports = Any
"""A collection on the driver, a list in a worker; both can be extended by a list."""


class _Extending(AccumulatorParam[Reports]):
    def zero(self, value: Reports) -> Reports:
        return []

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802
        value1.extend(value2)
        return value1


def reported_to(collection: Reports, spark: SparkSession, problem: str) -> Accumulator[Reports]:
    """What a task adds a list to, for `collection` to be extended by it on the driver.

    Raises:
        ConfigurationError: the session has no accumulators; the message is `problem`, with the remedy.
    """
    try:
        context = spark.sparkContext
    except Exception as error:
        raise ConfigurationError(problem) from error
    return context.accumulator(collection, _Extending())
