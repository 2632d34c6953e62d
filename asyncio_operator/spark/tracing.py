"""A trace of an enrichment: every task records its own, and the driver takes them in as tasks end.

They come as `reports` do, into the user's own trace. Tasks tell their times by the time of day, so those of several
machines are as far apart as their clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.reports import Reports, reported_to
from asyncio_operator.trace import Trace


class _Included:
    """The trace of the latest enrichment that it was given to: an earlier one has no say any more."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._run = trace.runs

    def extend(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            if self._trace.runs == self._run:
                self._trace.include(trace)


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes the trace of a task, and reports it; it travels to the workers.

    Attributes:
        limit: events of a task that are kept at most.
    """

    accumulator: Accumulator[Reports]
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
    trace.clear()
    accumulator = reported_to(
        _Included(trace),
        spark,
        "trace needs a classic Spark session. Spark Connect has no accumulators: trace a `Lookup` or an operator "
        "instead, without Spark",
    )
    return Tracing(accumulator, trace.limit)
