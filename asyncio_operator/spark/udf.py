"""`async_udf`: an ``async def`` as a column function.

    @async_udf("temperature double, wind double")
    async def weather(station, hour): ...

    df.withColumn("weather", weather("origin", "time_hour"))

It uses PySpark's iterator of Arrow batches (`arrow_udf`), which may read ahead of its outputs. Everything that can be
wrong is checked here, on the driver, and only a call needs a session. `udf_task` contains what runs in the workers.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import DataType
from pyspark.sql.utils import is_remote

from asyncio_operator.arrow.schema import as_schema
from asyncio_operator.checks import Duration, flag, gives_coroutines, must_be, one_of
from asyncio_operator.engine.options import options_among
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.function import as_async_function
from asyncio_operator.hints import failed_import, refuse_unknown
from asyncio_operator.operator.wait_operator import AsyncWaitOperator
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, calls_at_most
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import TASK_GRACE_PERIOD
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.budgets import JobLimits
from asyncio_operator.spark.driver.build_task import IN_ENRICH, require_portable
from asyncio_operator.spark.driver.columns import spark_field
from asyncio_operator.spark.worker.udf_task import OfColumns, UdfTask, check_columns
from asyncio_operator.spark.worker.versions import arrow_type, arrow_udf, too_old
from asyncio_operator.telemetry.propagation import inject

ELSEWHERE = IN_ENRICH | {
    "mode": "a column's rows stay in their order",
    "flatten": "a row has one result: let the type be an array, and explode it",
}
"""Options of other functions of this package, and what replaces them here."""

AS_SPARK = ("func", "returnType", "evalType", "deterministic", "asNondeterministic", "_unwrapped")
"""The attributes that Spark, above all `spark.udf.register`, reads from its own functions."""


def async_udf(
    schema_or_type: str | DataType | pa.DataType | pa.Schema,
    *,
    capacity: int | AdaptiveCapacity = 100,
    buffer: int | None = None,
    timeout: Duration | None = 30.0,
    attempt_timeout: Duration | None = None,
    retry: Retry | int | None = None,
    batching: Batching | int | None = None,
    rate_limit: RateLimit | int | None = None,
    circuit_breaker: CircuitBreaker | None = None,
    budget: Budget | None = None,
    tasks_at_once: int | None = None,
    hedge: Hedge | None = None,
    on_error: Literal["fail", "null"] = "fail",
    deterministic: bool = False,
    **unknown: Any,
) -> Callable[[Any], ColumnFunction]:
    """Makes a column function from an ``async def``: its arguments are columns, and its results are a column.

    The function is called once for each row, with Python values: a null is None, a timestamp is a datetime in UTC, and
    a struct is a dictionary. A result of None is null. A result of several columns is a mapping; absent columns are
    null. An `AsyncFunction`, `BatchAsyncFunction` or `BlockingFunction` works too. It is opened and closed once in each
    task, and it gets one value, which is a tuple if there are several columns.

    Args:
        schema_or_type: type of the results: Spark DDL such as ``"double"`` or ``"temperature double, wind double"``, a
            Spark type, or a pyarrow type or schema.
        capacity: the maximum number of calls in flight per task, or an `AdaptiveCapacity`.
        buffer: the maximum number of rows per task that are called for and not yet returned; default 64 x `capacity`.
        batching: how batches are formed for a `BatchAsyncFunction`.
        retry: when a failed call is repeated; None for never.
        timeout, attempt_timeout, rate_limit, circuit_breaker, budget, tasks_at_once: see `enrich`.
        hedge: see `enrich`. Not for a function with ``idempotent = False``.
        on_error: "fail": a call that fails or times out, or a result that does not fit, fails the task with
            `FunctionError`. "null": it gives null.
        deterministic: whether Spark may leave out, repeat and merge calls, as for its own functions. Then a filter on
            the column calls the function twice for each row. By default Spark may not.

    Raises:
        ConfigurationError: an option, the type or the function is wrong, or PySpark is older than 4.1.
    """
    calls = options_among(locals())
    limits = JobLimits.of(budget, calls["rate_limit"], tasks_at_once)
    refuse_unknown("async_udf", unknown, [*inspect.signature(async_udf).parameters][1:-1], ELSEWHERE)
    if arrow_udf is None:
        raise too_old("async_udf", "enrich works with 3.5 too")
    spark_type = _spark_type(schema_or_type)
    fail = one_of("on_error", on_error, ("fail", "null")) == "fail"
    flag("deterministic", deterministic)

    def decorate(function: Any) -> ColumnFunction:
        if inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"function is {describe(function)}, an asynchronous generator; {ELSEWHERE['flatten']}"
            )
        spread = function if gives_coroutines(function) else None
        called = OfColumns(function) if spread is not None else function
        idempotent = as_async_function(called).idempotent
        # Law X15: calls that change something are not made ahead of the rows that Spark takes.
        inside = calls_at_most(calls["capacity"]) if buffer is None and not idempotent else buffer

        def operator(budget: Budget | None) -> AsyncWaitOperator:
            return AsyncWaitOperator(
                called,
                **calls | {"budget": budget, "rate_limit": None},
                buffer=inside,
                on_error="fail" if fail else _null,
                grace_period=TASK_GRACE_PERIOD,
            )

        named = function
        while isinstance(named, partial):
            named = named.func
        # Not its `repr`, because that of a partial shows what it was given.
        name = str(getattr(named, "__name__", type(named).__name__))
        task = UdfTask(name, operator(budget), spread, arrow_type(spark_type), fail, idempotent=idempotent)
        if limits.budget is limits.rate is None:
            return ColumnFunction(function, task, spark_type, deterministic)

        def limited() -> UdfTask:
            reaching = limits.reaching(SparkSession.active(), as_async_function(called))
            return replace(task, operator=operator(reaching))

        return ColumnFunction(function, task, spark_type, deterministic, limited)

    return decorate


def _null(_value: Any, error: BaseException) -> None:
    """The result of a failed call. A module that the worker lacks is an error of no single row: it ends the task."""
    if failed_import(error) is not None:
        raise error


def _spark_type(schema_or_type: Any) -> DataType:
    """The type of the column, all of it nullable."""
    if inspect.isroutine(schema_or_type):
        raise ConfigurationError(
            f"schema_or_type is {describe(schema_or_type)}; the type comes first: write @async_udf('double')"
        )
    kind: Any = schema_or_type
    if isinstance(schema_or_type, str):
        one = re.match(r"\s*\w+\s*([<(]|$)", schema_or_type)
        fields: Any = as_schema(f"value {schema_or_type}") if one else ()
        kind = fields.field(0).type if len(fields) == 1 else pa.struct(list(as_schema(schema_or_type)))
    elif isinstance(schema_or_type, pa.Schema):
        kind = pa.struct(list(as_schema(schema_or_type)))
    elif isinstance(schema_or_type, DataType):
        with contextlib.suppress(Exception):
            kind = arrow_type(schema_or_type)
    if isinstance(kind, pa.DataType) and kind != pa.struct([]):
        with contextlib.suppress(ConfigurationError):
            return spark_field("", pa.field("", kind)).dataType
    types = "a Spark DataType, a pyarrow.Schema or a pyarrow.DataType that Spark can exchange in Arrow"
    raise must_be("schema_or_type", schema_or_type, f"Spark DDL, 'double' or 'name string, age int', or {types}")


class ColumnFunction:
    """A column function: called with columns, or their names, it returns a column.

    It has the attributes of Spark's own functions, so ``spark.udf.register(name, function)`` makes it known in SQL.
    """

    def __init__(
        self,
        function: Any,
        task: UdfTask,
        spark_type: DataType,
        deterministic: bool,
        limited: Callable[[], UdfTask] | None = None,
    ) -> None:
        self.__name__, self.__doc__ = task.name, function.__doc__
        self._function = function
        self._task = task
        self._type = spark_type
        self.deterministic = deterministic
        # The task with limits that its workers keep together: how depends on the session.
        self._limited = limited
        self._made: dict[bool, Any] = {}

    def __call__(self, *columns: Column | str) -> Column:
        """The column of the results.

        Raises:
            ConfigurationError: the number of columns is wrong, or the function cannot be sent to the workers.
        """
        check_columns(self._task.name, self._task.spread, len(columns))
        result: Column = self._in_spark()(*columns)
        return result

    def _in_spark(self) -> Any:
        """Spark's function, made for classic Spark or for Spark Connect. Only a running session decides which."""
        remote = is_remote()
        if remote not in self._made:
            task = self._task if self._limited is None else self._limited()
            propagated = inject()
            task = replace(task, propagated=propagated)

            def run(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
                return task(batches)

            run.__name__, run.__doc__ = task.name, self.__doc__
            require_portable(task.name, run)
            made = arrow_udf(run, self._type)
            made = made if self.deterministic else made.asNondeterministic()
            if self._limited is not None or propagated is not None:
                return made  # The next session may have another driver, and the next query another trace.
            self._made[remote] = made
        return self._made[remote]

    def __getattr__(self, name: str) -> Any:
        if name not in AS_SPARK:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._in_spark(), name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": {}}

    def __repr__(self) -> str:
        return f"async_udf({self._type.simpleString()!r})({self._task.name})"
