"""A trace of an enrichment: each task records its own, and the driver adds them up as tasks end.

They arrive as `reports`, in the user's own trace. Tasks use the time of day. So traces of several machines are shifted
against each other by the difference of their clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.driver.reports import Reports, reported_to
from asyncio_operator.trace import Trace


class _Included:
    """Adds the traces of tasks to the user's trace, until that is passed to another enrichment."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._run = trace.runs

    def extend(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            if self._trace.runs == self._run:
                self._trace.include(trace)


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes the trace of a task, and reports it. It is sent to the workers.

    Attributes:
        limit: the maximum number of events of a task.
    """

    accumulator: Accumulator[Reports]
    limit: int

    def report(self, trace: Trace) -> None:
        """Report the trace of a task that has ended. Call it on the task's main thread."""
        self.accumulator.add([trace])


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
