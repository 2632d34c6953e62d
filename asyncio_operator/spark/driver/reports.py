"""What tasks report to the driver: the accumulator of this package, figures of running tasks, and traces.

PySpark keeps every accumulator for ever, with its value, and cannot lose one safely while jobs run. So there is one for
each SparkContext. Its value on the driver passes each report on to the collection that it names, while anything else
refers to that. On the way to a worker it becomes an empty list, to which the task adds its report. A task that Spark
runs again reports again. Reports of running tasks come over the driver's service, to the same collections.

Each task of a traced enrichment records a trace of its own; they arrive in the user's trace. Tasks use the time of day,
so traces of several machines are shifted against each other by the difference of their clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from asyncio_operator.checks import of_kind
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.driver.sessions import context_of
from asyncio_operator.spark.worker.reporting import Destination, Reports, TaskReport, Tracing
from asyncio_operator.trace import Trace


class _Extending(AccumulatorParam[Reports]):
    def zero(self, value: Reports) -> Reports:
        return []

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802
        value1.extend(value2)
        return value1


class Collections(WeakValueDictionary[str, Any]):
    """The collections of this process, by name, while anything else refers to them."""

    def register(self, collection: Any) -> str:
        """Add one. Returns its name."""
        name = uuid4().hex
        self[name] = collection
        return name

    def extend(self, reports: Iterable[tuple[str, Any]]) -> None:
        """Pass reports on, each to the collection of that name. Those of a dropped one are ignored."""
        for name, report in reports:
            collection = self.get(name)
            if collection is not None:
                collection.extend([report])


collections = Collections()

_lock = threading.Lock()
_current: tuple[SparkContext, Accumulator[Reports]] | None = None


def take(message: list[Any]) -> None:
    """Pass on reports of running tasks as JSON, each with the name of its ledger."""
    collections.extend((name, TaskReport.of_json(values)) for name, values in message)


def reported_to(collection: Any, spark: SparkSession, problem: str) -> Destination:
    """Where tasks add lists. On the driver, `collection` is extended by them, while anything refers to it."""
    global _current
    context = context_of(spark)
    if context is None:
        raise ConfigurationError(problem)
    with _lock:
        if _current is None or _current[0] is not context:
            _current = context, context.accumulator(collections, _Extending())
        return Destination(_current[1], collections.register(collection))


class _Included:
    """Adds the traces of tasks to the user's trace, until that is passed to another enrichment."""

    def __init__(self, trace: Trace) -> None:
        self._trace = ref(trace)
        self._run = trace.runs + 1  # It is cleared before it is included.

    def extend(self, traces: Iterable[Trace]) -> None:
        for one in traces:
            trace = self._trace()
            if trace is not None and trace.runs == self._run:
                trace.include(one)


_included: WeakKeyDictionary[Trace, _Included] = WeakKeyDictionary()


def trace_of_tasks(trace: Trace, spark: SparkSession) -> Tracing:
    """What tasks need to record for this trace. The trace is cleared."""
    of_kind("trace", trace, Trace)
    included = _Included(trace)
    destination = reported_to(
        included,
        spark,
        "trace needs a classic Spark session; Spark Connect has no accumulators: trace a `Lookup` or an operator "
        "instead, without Spark",
    )
    trace.clear()
    _included[trace] = included
    return Tracing(destination, trace.limit)
