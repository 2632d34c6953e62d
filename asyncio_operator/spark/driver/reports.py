"""What tasks report to the driver when they end: the one kind of accumulator of this package.

On the driver, its value is a collection, which is extended by the report of each task that ends. On the way to a worker
it becomes an empty list, to which the task adds its report. A task that Spark runs again reports again.
"""

from __future__ import annotations

from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError

Reports = Any
"""A collection on the driver, a list in a worker. Both have ``extend``."""


class _Extending(AccumulatorParam[Reports]):
    def zero(self, value: Reports) -> Reports:
        return []

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802
        value1.extend(value2)
        return value1


def reported_to(collection: Reports, spark: SparkSession, problem: str) -> Accumulator[Reports]:
    """The accumulator to which tasks add lists. On the driver, `collection` is extended by them.

    Raises:
        ConfigurationError: the session has no accumulators. `problem` is the message, with the remedy.
    """
    try:
        context = spark.sparkContext
    except Exception as error:
        raise ConfigurationError(problem) from error
    return context.accumulator(collection, _Extending())
