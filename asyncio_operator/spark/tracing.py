"""A trace of an enrichment: every task records its own, and the driver takes them in as tasks end.

They come through an accumulator of the SparkContext, whose value is the user's trace on the driver, and an empty list
in a worker. Tasks tell their times by the time of day, so those of several machines are as far apart as their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.trace import Trace

Traces = Any
"""An `_Included` on the driver, a list of traces in a worker."""


class _Included:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def extend(self, traces: list[Trace]) -> None:
        for trace in traces:
            self.trace.include(trace)


class _Extending(AccumulatorParam[Traces]):
    def zero(self, value: Traces) -> Traces:
        return []

    def addInPlace(self, value1: Traces, value2: Traces) -> Traces:  # noqa: N802
        value1.extend(value2)
        return value1


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes the trace of a task, and reports it; it travels to the workers.

    Attributes:
        limit: events of a task that are kept at most.
    """

    accumulator: Accumulator[Traces]
    limit: int

    def report(self, trace: Trace) -> None:
        """The task has ended. To be called on its main thread."""
        self.accumulator.add([trace])


def tracing(trace: object, spark: SparkSession) -> Tracing:
    """What tasks record for a trace, which starts anew.

    Raises:
        ConfigurationError: it is no `Trace`, or the session has no accumulators.
    """
    if not isinstance(trace, Trace):
        raise ConfigurationError(f"trace is {describe(trace)}; it must be a Trace, or None")
    try:
        context = spark.sparkContext
    except Exception as error:
        raise ConfigurationError(
            "trace needs a classic Spark session. Spark Connect has no accumulators: trace a `Lookup` or an operator "
            "instead, without Spark"
        ) from error
    trace.clear()
    return Tracing(context.accumulator(_Included(trace), _Extending()), trace.limit)
