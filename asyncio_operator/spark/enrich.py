"""`enrich`: the rows of a DataFrame, with columns looked up by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.options import Duration
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.spark.distinct import enrich_distinct
from asyncio_operator.spark.key_columns import On
from asyncio_operator.spark.metrics import EnrichmentMetrics
from asyncio_operator.spark.scope import tasks_of_job
from asyncio_operator.spark.specify import enrich_task
from asyncio_operator.spark.tracing import tracing
from asyncio_operator.spark.unknown_options import refuse_unknown
from asyncio_operator.trace import Trace


def enrich(
    df: DataFrame,
    enricher: Enricher,
    *,
    on: On,
    how: str = "left",
    columns: Sequence[str] | None = None,
    prefix: str = "",
    mode: str = "ordered",
    capacity: int | AdaptiveCapacity = 100,
    buffer: int | None = None,
    timeout: Duration | None = 30.0,
    attempt_timeout: Duration | None = None,
    retry: Retry | None = None,
    cache: Cache | None = None,
    batching: Batching | None = None,
    rate_limit: RateLimit | None = None,
    circuit_breaker: CircuitBreaker | None = None,
    on_error: str = "fail",
    status_column: str | None = None,
    event_time: str | None = None,
    watermark_delay: Duration | None = None,
    strategy: str = "inline",
    join_hint: str | None = "broadcast",
    scope: str = "task",
    tasks_at_once: int | None = None,
    metrics: EnrichmentMetrics | None = None,
    trace: Trace | None = None,
) -> DataFrame:
    """The rows of `df`, each with the columns that `enricher` has for its key.

    The input's columns pass through untouched. A key that occurs several times in a batch is looked up once, and one
    that is being looked up for an earlier batch is not looked up again. A null in any part of a key is never looked up,
    and is a miss. Several rows of a key give several rows. The enricher gets keys
    as Python values in one spelling: timestamps as datetimes in UTC, -0.0 as 0.0.

    Args:
        enricher: what looks keys up, such as `enrichers.PostgresEnricher`.
        on: the key: a column of `df`, a list of columns (matched to the enricher's key columns by name if the names are
            the same, else by position), or a mapping from columns of `df` to the enricher's key columns.
        how: "left" keeps rows without a match, with nulls; "inner" drops them; "required" fails the task with a
            `MissingKeyError` that names the key, whatever `on_error` says.
        columns: which of the enricher's columns to add; default: all.
        prefix: put before the name of every added column, but not of the status column.
        mode: "ordered", the rows of a partition stay in order; "unordered", they come as answers come.
        capacity: calls in flight at most, per task, or an `AdaptiveCapacity`; as many tasks run at once as there are
            cores.
        buffer: keys looked up and not yet handed on, per task; default 64 x `capacity`, and at least 20,000. Below
            `capacity`, it bounds calls too.
        timeout: seconds (or a timedelta) from the start of a key's first call to its deadline, over all its attempts;
            None or 0 for none. The default, 30, is far beyond a healthy lookup, and ends a hanging one before an
            operator looks for it.
        attempt_timeout: seconds that each call may take; None or 0 for no limit.
        retry: when a failed lookup is made again; None for never.
        cache: which answers are kept in the Python worker, across tasks and micro-batches; None for none.
        batching: how calls with several keys are formed; default: with as many as the enricher takes at once.
        rate_limit: calls that may start in a time, per task; None for any number.
        circuit_breaker: refuses calls while too many fail, per task; None for never.
        on_error: "fail": a lookup that fails or times out fails the task; "null": its rows get nulls; "drop": its rows
            are dropped. Both are counted in `metrics`, and told row by row in the status column.
        status_column: name of a column struct<status, source, attempts, latency_ms, error_type, error_message>.
        event_time: a column of timestamps, or of milliseconds since the epoch. In mode "unordered" rows then overtake
            each other only within `watermark_delay` of event time, so that none becomes late for who computes
            watermarks from the output with that delay; "ordered" keeps all of them in their order anyway.
        watermark_delay: seconds or a timedelta; default: that of the stream's own ``withWatermark`` on the column, else
            0, with which only rows of equal times overtake each other.
        strategy: "inline": rows pass through Python, keys are looked up once per batch of rows, or less with a cache;
            "distinct": Spark collects the distinct keys of the whole DataFrame, each is looked up once, and the answers
            are joined back, in no order. It reads `df` twice, which has to give the same rows both times, and `metrics`
            count keys in place of rows. Not on streams.
        join_hint: for "distinct", how Spark is to join: "broadcast", for which the keys and their columns have to fit
            into the memory of the driver and of each executor; "merge" or "shuffle_hash" for more keys; None leaves it
            to Spark.
        scope: "task": `capacity` and `rate_limit` are per task; "job": they are for all tasks together, and each gets
            its share, rounded down. Tasks that follow one another in a Python worker share the window of a rate limit.
        tasks_at_once: for "job", how many tasks run at once; default: as many as the cluster has places for. To be
            given where executors come and go.
        metrics: collects what happened, on the driver.
        trace: records every call of every task, as far as its limit goes; it starts anew here, and is complete when the
            job has ended. For looking at some thousand keys: it costs some microseconds for each.

    Raises:
        ConfigurationError: an option, a column, a type or a name is wrong, or the enricher's source is not as it says.
    """
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"df is of type {type(df).__name__}; it must be a Spark DataFrame")
    task, schema = enrich_task(
        df.schema,
        enricher,
        on=on,
        how=how,
        columns=columns,
        prefix=prefix,
        mode=mode,
        capacity=capacity,
        buffer=buffer,
        timeout=timeout,
        attempt_timeout=attempt_timeout,
        retry=retry,
        cache=cache,
        batching=batching,
        rate_limit=rate_limit,
        circuit_breaker=circuit_breaker,
        on_error=on_error,
        status_column=status_column,
        event_time=event_time,
        watermark_delay=watermark_delay,
        strategy=strategy,
        join_hint=join_hint,
        scope=scope,
        tasks_at_once=tasks_of_job(df.sparkSession, scope, tasks_at_once),
        metrics=metrics,
        trace=None if trace is None else tracing(trace, df.sparkSession),
    )
    if strategy == "distinct":
        return enrich_distinct(df, task, schema, join_hint)
    return _addressable(df).mapInArrow(task, schema)


DEFAULTS: dict[str, Any] = {"on": None, **(enrich.__kwdefaults__ or {})}
"""The options of `enrich`, and what they are if nobody says otherwise; `on` has to be said."""


def enrich_with(enricher: Enricher, **options: Any) -> Callable[[DataFrame], DataFrame]:
    """`enrich` for ``df.transform(...)``: the same options, the DataFrame comes later.

    Raises:
        ConfigurationError: there is no such option; whether its value is right is told when the DataFrame comes.
    """
    refuse_unknown("enrich", options, DEFAULTS)
    if "on" not in options:
        raise ConfigurationError("on is not given: enrich_with(enricher, on='a column')")
    return lambda df: enrich(df, enricher, **options)


def _addressable(df: DataFrame) -> DataFrame:
    """The DataFrame under names that `mapInArrow` can look up, which it does for each; positions and data stay."""
    names = df.columns
    if len({name.lower() for name in names}) == len(names) and all(re.fullmatch(r"\w+", name) for name in names):
        return df
    return df.toDF(*(f"_{i}" for i in range(len(names))))
