"""`plan`: how many lookups an enrichment will make, and how long they take, before it makes any.

One Spark job reads the keys. The rest is arithmetic on the driver (both in `driver.forecast`). Options, columns and
types are checked as in `enrich`, with the same messages. The enricher is asked only for its schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from asyncio_operator.arrow.column_memory import MOST_KEYS
from asyncio_operator.arrow.key_identity import canonical_key
from asyncio_operator.checks import Duration, of_kind, positive_duration, positive_int
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.figures import EnrichmentStatistics
from asyncio_operator.hints import refuse_unknown
from asyncio_operator.policies.adaptive_capacity import calls_at_most
from asyncio_operator.policies.cache import Cache
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import Budget
from asyncio_operator.quota.usage import overridden, weighed
from asyncio_operator.spark.driver.budgets import JobLimits, cores
from asyncio_operator.spark.driver.build_task import OPTIONS, EnrichOptions, enrich_task
from asyncio_operator.spark.driver.columns import On, key_columns, require_dataframe
from asyncio_operator.spark.driver.forecast import (
    SCHEMA,
    Caches,
    EnrichmentPlan,
    Survey,
    TaskFigures,
    Total,
    Whole,
    budget_seconds,
    mean_latency,
    weights_of,
    worked_off,
)
from asyncio_operator.spark.journal import without_known
from asyncio_operator.spark.metrics import EnrichmentMetrics, checked_metrics
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator.spark.worker.versions import described
from asyncio_operator.trace import Trace

SAMPLE = 1_000_000  # Default of `sample`: half a second of work for each task, and all rows of most partitions.
WEIGHED = 100  # The number of keys that are weighed, to estimate the weight of all.


def plan(
    df: DataFrame,
    enricher: Enricher,
    *,
    on: On,
    latency: Duration | EnrichmentMetrics | EnrichmentStatistics | None = None,
    tasks_at_once: int | None = None,
    sample: int = SAMPLE,
    **others: Any,
) -> EnrichmentPlan:
    """How many lookups `enrich` would make with these options, and how long they take. Nothing is looked up.

    It reads the key columns of `df` once. It does not account for errors, retries and hedged calls, for the time of
    Spark itself, for answers that a cache holds at the start, or for answers that a cache or a task drops by time.

    Args:
        df, enricher, on: as for `enrich`.
        latency: average seconds (or a timedelta) of a call; or the metrics of an enrichment with the same enricher,
            from whose percentiles the average is computed.
        tasks_at_once: how many tasks run at the same time; by default the number of cores that Spark reports.
        sample: rows of each partition to read; default 1,000,000. If a partition has more, the rest is assumed to be
            like those, and another job counts the rows.
        others: all other options of `enrich`. The calls at once are those of `capacity` (the `maximum` of an
            `AdaptiveCapacity`) or of the enricher's `max_calls`, if that is lower. With a `journal` the plan is for
            the rows whose answers it does not have, and reads `df` a second time; it makes no journal.

    Raises:
        ConfigurationError: an option, a column or a type is wrong, `df` is a streaming DataFrame, or the enricher's
            source is not as declared.
    """
    refuse_unknown("plan", others, [*OPTIONS, "latency", "sample"])
    # The names of added columns do not matter here: with this prefix none is that of a column of `df`.
    options = replace(EnrichOptions.among({"on": on} | others), tasks_at_once=None, prefix="\0")
    require_dataframe(df, enricher)
    checked_metrics(others.get("metrics"))
    of_kind("trace", others.get("trace"), Trace)
    if df.isStreaming:
        raise ConfigurationError(
            "df is a streaming DataFrame, whose rows cannot be counted in advance; plan a batch of the same data, as "
            "from spark.read"
        )
    if tasks_at_once is not None:
        positive_int("tasks_at_once", tasks_at_once)
    of_job = replace(JobLimits.of(options.budget, options.rate_limit), tasks_at_once=tasks_at_once)
    limits = [*of_job.planned(df.sparkSession)]
    task, _ = enrich_task(df.schema, enricher, options)
    positive_int("sample", sample)
    average = None
    if isinstance(latency, EnrichmentMetrics):
        latency = latency.statistics()
    if isinstance(latency, EnrichmentStatistics):
        if not latency.calls:
            raise ConfigurationError(
                f"latency is {describe(latency, 40)}, which has no call yet; run the enrichment with these metrics on "
                "a part of the data first, or pass seconds"
            )
        average = mean_latency(latency.latency)
    elif latency is not None:
        average = positive_duration("latency", latency)
    planned = partial(_planned, task, options, average, tasks_at_once, sample, limits)

    def of_rows(rows: DataFrame) -> EnrichmentPlan:
        keys = key_columns(rows, task.layout.keys)
        made = planned(keys)
        if options.strategy != "distinct":
            return made
        once = planned(keys.distinct())
        return replace(once, rows=made.rows, null_keys=made.null_keys, sampled_rows=made.sampled_rows)

    made = of_rows(df)
    unknown = None if options.journal is None else without_known(df, task, options.journal)
    if unknown is None:
        size = enricher.table_size()
        if size is None or 2 * made.distinct_keys < size:
            return made
        # Half of the table's rows or more will be looked up: a join costs less.
        columns = [df.columns[place] for place in task.layout.keys]
        return replace(made, table_rows=size, join_program=enricher.join_program(columns))
    rest = of_rows(unknown)
    known, saved = made.rows - rest.rows, max(0, made.calls - rest.calls)
    return replace(rest, rows=made.rows, sampled_rows=made.sampled_rows, journal_rows=known, journal_calls=saved)


def _planned(
    task: EnrichTask,
    options: EnrichOptions,
    average: float | None,
    tasks_at_once: int | None,
    sample: int,
    limits: Sequence[tuple[Budget, bool]],
    keys: DataFrame,
) -> EnrichmentPlan:
    """The plan for rows of which none of the answers is known: `keys` has their key columns. For `limits` see
    `JobLimits.planned`."""
    lookups, calls_at_once = task.options, calls_at_most(task.options.capacity)
    if task.enricher.max_calls is not None:
        calls_at_once = min(calls_at_once, task.enricher.max_calls)
    # Without a latency no time is shown. Tasks must still be dealt out to workers, so calls are taken to last a second.
    pace = calls_at_once, average or 1.0
    keys_in_a_call = 1 if lookups.batching is None else lookups.batching.max_size
    remembered = MOST_KEYS if lookups.remember else 0
    # Without a cache, the plan shows what one of the default size would save.
    cache_rows = (options.cache or Cache()).max_rows
    # Within a task its memory is behind the cache (law L13).
    survey = Survey(sample, keys_in_a_call, max(cache_rows, remembered), remembered)
    present = " AND ".join(f"{part} IS NOT NULL" for part in keys.columns)
    hashed = keys.selectExpr(f"CASE WHEN {present} THEN xxhash64({', '.join(keys.columns)}) END AS key")
    with described(keys.sparkSession, "plan: sample of keys"):
        tasks = [TaskFigures(**row.asDict()) for row in hashed.mapInArrow(survey, SCHEMA).collect()]
    tasks.sort(key=lambda one: one.partition)
    with described(keys.sparkSession, "plan: number of rows"):
        whole = Whole(tasks, keys.count() if any(one.cut for one in tasks) else None, remembered)
    at_once = max(1, min(len(tasks), tasks_at_once or cores(keys.sparkSession)))
    # Twice: with a cache tasks take less time, so other workers get them, and a worker's cache knows its own tasks.
    plain = worked_off(tasks, at_once, *pace, whole.asked)
    cached = worked_off(tasks, at_once, *pace, Caches(whole, cache_rows).asked)
    budgets = [(one, at_once if in_parts else 1) for one, in_parts in limits]
    # A call weighs against the part of a budget that a task gets.
    per_key, never = _weighed(keys, task, keys_in_a_call, None if options.budget is None else limits[0][0])
    weights, cached_weights = (weights_of(one.calls, one.lookups, per_key) for one in (plain, cached))
    return EnrichmentPlan(
        rows=whole.rows,
        null_keys=round(sum(one.nulls * whole.factor(one) for one in tasks)),
        # Estimates may contradict each other: there cannot be more distinct keys than lookups.
        distinct_keys=round(min(whole.distinct(tasks), plain.lookups)),
        lookups=round(plain.lookups),
        calls=round(plain.calls),
        cached_lookups=round(cached.lookups),
        cached_calls=round(cached.calls),
        tasks=len(tasks),
        tasks_at_once=at_once,
        sampled_rows=sum(one.rows for one in tasks),
        max_attempts=1 if lookups.retry is None else lookups.retry.max_attempts,
        latency=average,
        seconds=None if never else _seconds(plain, budgets, weights, average),
        cached_seconds=None if never else _seconds(cached, budgets, cached_weights, average),
        weights={} if options.budget is None else weights,
        cached_weights={} if options.budget is None else cached_weights,
        budget=options.budget,
        never=never,
        max_calls=task.enricher.max_calls,
        calls_at_once=calls_at_once,
        distinct=options.strategy == "distinct",
    )


def _weighed(
    of_rows: DataFrame, task: EnrichTask, keys_in_a_call: int, budget: Budget | None
) -> tuple[dict[str, float], str | None]:
    """What a key weighs on average, in the units of the enricher, and why a call for some key can never start.

    Both are found from some of the keys of rows.
    """
    weigh = overridden(task.enricher.weigh, Enricher.weigh)
    if budget is None or weigh is None:
        return {}, None
    with described(of_rows.sparkSession, "plan: keys to weigh"):
        rows = of_rows.dropna().distinct().limit(max(WEIGHED, keys_in_a_call)).collect()
    keys = [canonical_key(row[0] if len(row) == 1 else tuple(row)) for row in rows]
    total: Counter[str] = Counter()
    name = describe(task.enricher)
    for start in range(0, len(keys), keys_in_a_call):
        total.update(weighed(name, weigh, keys[start : start + keys_in_a_call]))
    permits = Permits(budget, "plan")
    # A call for several keys that is too heavy is made for fewer.
    misfits = (permits.misfit(weighed(name, weigh, [key])) for key in keys)
    never = next((str(misfit) for misfit in misfits if misfit is not None), None)
    return {unit: amount / len(keys) for unit, amount in total.items()}, never


def _seconds(
    total: Total, budgets: Sequence[tuple[Budget, int]], weights: Mapping[str, float], latency: float | None
) -> float | None:
    """The duration. `budgets` has each budget with the number of parts into which the work under it is divided."""
    if latency is None:
        return None
    seconds = total.seconds
    for budget, parts in budgets:
        of_each = {unit: amount / parts for unit, amount in weights.items()}
        seconds = max(seconds, budget_seconds(budget, of_each, latency))
    return seconds
