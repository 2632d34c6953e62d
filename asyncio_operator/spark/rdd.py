"""`map_partitions`: an `AsyncWaitOperator` over each partition of an RDD.

The function and the options are sent to the workers. Each task makes an operator there, so it has a run, figures and an
opened function of its own. `worker.task_frame` is the frame of a task. Elements cross threads one by one, but a thread
is woken only once for some dozens of them.

Law: a task ends when the reader of its results ends, also while it waits for a slow call. The reader is Spark, which
may stop reading without a word, or another task of the same Python stage, whose feeder was stopped. So the main thread
checks every `WATCH_INTERVAL` seconds. This module does not know enrichers.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.serializers import AutoBatchedSerializer
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.checks import duration, plain_function, takes
from asyncio_operator.engine.options import meant
from asyncio_operator.errors import ConfigurationError, describe, function_name
from asyncio_operator.function import as_async_function
from asyncio_operator.hints import refuse_unknown
from asyncio_operator.loop.channels import AHEAD, PULSE, FromLoop, ToLoop
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.loop.runner import pump
from asyncio_operator.operator.wait_operator import AsyncWaitOperator
from asyncio_operator.policies.adaptive_capacity import calls_at_most
from asyncio_operator.policies.shutdown import TASK_END, TASK_GRACE_PERIOD, WATCH_INTERVAL, longest_end
from asyncio_operator.spark.driver.budgets import JobLimits
from asyncio_operator.spark.driver.build_task import IN_ENRICH, require_portable
from asyncio_operator.spark.worker.task_frame import one_by_one, outputs_of, spark_frame, spark_watch
from asyncio_operator.telemetry.propagation import Propagated, inject

if TYPE_CHECKING:
    from pyspark import RDD

    from asyncio_operator.operator.options import OperatorTimers

CAPACITY = inspect.signature(AsyncWaitOperator).parameters["capacity"].default

OPTIONS = [name for name in [*inspect.signature(AsyncWaitOperator).parameters][1:] if name != "trace"]
"""The options of the operator, without its function, and without `trace`, which does not return from a worker."""

ELSEWHERE = IN_ENRICH | {"metrics": "EnrichmentMetrics are those of enrich"}
"""Options of `enrich` that are missing here, and what replaces them."""


def map_partitions(rdd: RDD[Any], function: Any, **options: Any) -> RDD[Any]:
    """The results of an asynchronous function for the elements of each partition.

    Each task has its own operator: `capacity` and circuit breakers are per task. `rate_limit` is for all tasks of the
    RDD together, as a `budget` is. The function is opened and closed with the task. Elements and results may be
    `Record` and `Watermark`.

    Args:
        rdd: an RDD of any elements.
        function: an ``async def`` function of one element, an `AsyncFunction`, a `BatchAsyncFunction`, or a
            `BlockingFunction`. It is sent to the workers and opened there.
        options: those of `AsyncWaitOperator`, except `trace`. `timers` is a function without arguments, which makes
            the timers of a task in its worker. `grace_period` is 1 second by default, because a task must end within 5.

    Raises:
        ConfigurationError: `rdd` is not an RDD, an option is wrong, or the function or an option cannot be pickled.
    """
    if isinstance(rdd, DataFrame):
        raise ConfigurationError(
            "rdd is a DataFrame; use enrich(df, enricher, on=...), which needs no RDD, or on a classic session "
            "map_partitions(df.rdd, ...); Spark Connect has no RDDs"
        )
    if not hasattr(rdd, "mapPartitions"):
        raise ConfigurationError(
            f"rdd is of type {type(rdd).__name__}; it must be an RDD, as sc.parallelize(...) gives"
        )
    if isinstance(function, AsyncWaitOperator):
        raise ConfigurationError(
            f"function is {describe(function)}; pass the operator's function and its options to map_partitions instead"
        )
    if options.get("trace") is not None:
        raise ConfigurationError(
            "trace is given, but what is recorded in a worker does not return to the driver; trace a part of the data "
            "on the driver, as in AsyncWaitOperator(function, trace=trace)(rdd.take(1000))"
        )
    refuse_unknown("map_partitions", options.keys() - {"trace"}, OPTIONS, ELSEWHERE)
    if options.get("timers") is not None:
        allowed = "a function without arguments that makes the timers of a task, as in timers=lambda: make_service()"
        plain_function("timers", options["timers"], allowed)
        takes("timers", options["timers"])
    PartitionTask(function, options).operator()  # Checks the options on the driver.
    if options.get("budget") is not None or options.get("rate_limit") is not None:
        limits = JobLimits.of(options.get("budget"), meant("rate_limit", options.get("rate_limit")))
        reaching = limits.reaching(SparkSession.builder.getOrCreate(), as_async_function(function))
        options |= {"budget": reaching, "rate_limit": None}
    task = PartitionTask(function, options, propagated=inject())
    require_portable(describe(function), task)
    return rdd.mapPartitions(task)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A function for `mapPartitions`. It is sent to the workers."""

    function: Any
    options: dict[str, Any]  # Options of the operator.
    watch: float = WATCH_INTERVAL  # Seconds between two checks that the results are still read.
    propagated: Propagated | None = None  # The driver's trace context, and the function that sets up OpenTelemetry.

    def operator(self, timers: OperatorTimers | None = None) -> AsyncWaitOperator:
        """A new operator, over a copy of the function: two tasks of a Python stage may share one function object."""
        options = {"grace_period": TASK_GRACE_PERIOD} | self.options | {"timers": timers}
        if options.get("buffer") is None and not as_async_function(self.function).idempotent:
            options["buffer"] = calls_at_most(options.get("capacity", CAPACITY))
        return AsyncWaitOperator(copy.copy(self.function), **options)

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        """The results for the elements of a partition."""
        idempotent = as_async_function(self.function).idempotent
        frame = None if idempotent else spark_frame("serializer")
        if frame is not None and type(frame["serializer"]) is AutoBatchedSerializer:
            # Law X15: it writes thousands of small results together, and would take them all for `show(2)`. Any batch
            # is larger than this, so the first size of a batch, which is one result, stays.
            frame["serializer"].bestSize = 0
        return portable_errors(self._results(elements, idempotent))

    def _results(self, elements: Iterable[Any], idempotent: bool) -> Iterator[Any]:
        make_timers = self.options.get("timers")
        operator = self.operator(None if make_timers is None else make_timers())

        async def work(source: ToLoop, sink: FromLoop) -> None:
            if idempotent:
                await pump(operator.process(source), sink)
            else:
                await one_by_one(operator.outputs_on_demand(source), sink)

        grace = duration("grace_period", self.options.get("grace_period", TASK_GRACE_PERIOD))
        results = outputs_of(
            elements,
            work,
            name=function_name(self.function),
            patience=max(TASK_END, longest_end(grace)),
            read_ahead=AHEAD,
            watch=self.watch,
            check_taker=_look(),
            propagated=self.propagated,
            singly=not idempotent,
        )
        with contextlib.closing(results):
            for result in results:
                if result is not PULSE:
                    yield result


def _look() -> Callable[[], None] | None:
    """What a task calls from time to time: it raises if its results are no longer read. None if that cannot be found.

    Only after a write can a task see that Spark has closed the connection (see `spark_watch`). So an empty batch is
    written, which changes nothing where batches may have any size. Where Spark writes in another way (`saveAsTextFile`,
    shuffles), it reads the results of a partition to their end, unless the job fails.
    """
    watch, frame = spark_watch(), spark_frame("serializer")
    if watch is None or frame is None:
        return watch
    serializer, output = frame["serializer"], frame["outfile"]
    if type(serializer) is not AutoBatchedSerializer:
        return watch

    def look() -> None:
        serializer.serializer._write_with_length([], output)
        watch()

    return look
