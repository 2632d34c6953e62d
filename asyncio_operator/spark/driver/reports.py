"""What tasks report to the driver when they end: the one kind of accumulator of this package, and traces made of it.

On the driver, an accumulator's value is a collection, which is extended by the report of each task that ends. On the
way to a worker it becomes an empty list, to which the task adds its report. A task that Spark runs again reports again.

Each task of a traced enrichment records a trace of its own; they arrive in the user's trace. Tasks use the time of day,
so traces of several machines are shifted against each other by the difference of their clocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.driver.sessions import context_of
from asyncio_operator.spark.worker.reporting import Reports, Tracing
from asyncio_operator.trace import Trace


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
    context = context_of(spark)
    if context is None:
        raise ConfigurationError(problem)
    return context.accumulator(collection, _Extending())


class _Included:
    """Adds the traces of tasks to the user's trace, until that is passed to another enrichment."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._run = trace.runs

    def extend(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            if self._trace.runs == self._run:
                self._trace.include(trace)


def trace_of_tasks(trace: object, spark: SparkSession) -> Tracing:
    """What tasks need to record for this trace. The trace is cleared.

    Raises:
        ConfigurationError: it is not a `Trace`, or the session has no accumulators.
    """
    if not isinstance(trace, Trace):
        raise ConfigurationError(f"trace is {describe(trace)}; it must be a Trace, or None")
    trace.clear()
    accumulator = reported_to(
        _Included(trace),
        spark,
        "trace needs a classic Spark session; Spark Connect has no accumulators: trace a `Lookup` or an operator "
        "instead, without Spark",
    )
    return Tracing(accumulator, trace.limit)
