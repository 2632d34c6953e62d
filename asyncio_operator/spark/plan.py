"""`plan`: how many lookups an enrichment will make, and how long they take, before it makes any.

One Spark job reads the keys. The rest is arithmetic on the driver (both in `driver.forecast`). Options, columns and
types are checked as in `enrich`, with the same messages. The enricher is asked only for its schema. The figures are an
`EnrichmentPlan`, which is a table, a line, or a table in a notebook.
"""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from asyncio_operator.arrow.key_identity import canonical_key
from asyncio_operator.budget.permits import Permits
from asyncio_operator.budget.spec import Budget
from asyncio_operator.budget.usage import overridden, weighed
from asyncio_operator.checks import Duration, of_kind, positive_duration, positive_int
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.figures import EnrichmentStatistics
from asyncio_operator.lookup.memory import MOST_KEYS
from asyncio_operator.policies.adaptive_capacity import calls_at_most
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.rate_limit import NO_SCOPE
from asyncio_operator.spark.driver.budgets import JobLimits, cores
from asyncio_operator.spark.driver.build_task import OPTIONS, EnrichOptions, enrich_task, refuse_unknown
from asyncio_operator.spark.driver.columns import On, key_columns, require_dataframe
from asyncio_operator.spark.driver.forecast import (
    SCHEMA,
    SIZE,
    Caches,
    Pace,
    Survey,
    TaskFigures,
    Total,
    Whole,
    budget_seconds,
    mean_latency,
    weights_of,
    worked_off,
)
from asyncio_operator.spark.driver.journaled import without_known
from asyncio_operator.spark.driver.sessions import described
from asyncio_operator.spark.metrics import EnrichmentMetrics, checked_metrics
from asyncio_operator.spark.worker.link import EnrichTask
from asyncio_operator.trace import Trace
from asyncio_operator.view.tables import WIDTH, Row, amount, html_table, text_table

SAMPLE = 1_000_000
"""Default of `sample`: half a second of work for each task, and all rows of most partitions."""

WEIGHED = 100
"""The number of keys that are weighed, to estimate the weight of all."""


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
    refuse_unknown("plan", others, [*OPTIONS, "latency", "sample"], NO_SCOPE)
    options = replace(EnrichOptions.among({"on": on} | others), tasks_at_once=None)
    if isinstance(options.prefix, str):
        # The names of added columns do not matter here: with this prefix none is that of a column of `df`.
        options = replace(options, prefix="\0")
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
    budget = options.budget
    limits = JobLimits.of(budget, options.rate_limit)
    planned_limits = [*replace(limits, tasks_at_once=tasks_at_once).planned(df.sparkSession)]
    if budget is not None:
        options = replace(options, budget=planned_limits[0][0])
    task, _ = enrich_task(df.schema, enricher, options)
    positive_int("sample", sample)
    average = None if latency is None else _average(latency)
    planned = partial(_planned, task, options, average, tasks_at_once, sample, planned_limits)
    keys = key_columns(df, task.layout.keys)
    made = replace(planned(keys), budget=budget, max_calls=enricher.max_calls, calls_at_once=_at_once(task))
    unknown = None if options.journal is None else without_known(df, task, options.journal)
    distinct = options.strategy == "distinct"
    if distinct:
        made = _whole_input(planned(keys.distinct()), made, distinct=True)
    if unknown is None:
        size = enricher.table_size()
        if size is None or 2 * made.distinct_keys < size:
            return made
        # Half of the table's rows or more will be looked up: a join costs less.
        columns = [df.columns[place] for place in task.layout.keys]
        return replace(made, table_rows=size, join_program=enricher.join_program(columns))
    unknown = key_columns(unknown, task.layout.keys)
    rest = planned(unknown)
    known = made.rows - rest.rows
    if distinct:
        rest = _whole_input(planned(unknown.distinct()), rest, distinct=True)
    return replace(
        _whole_input(rest, made),
        null_keys=rest.null_keys,
        journal_rows=known,
        journal_calls=max(0, made.calls - rest.calls),
    )


def _whole_input(part: EnrichmentPlan, whole: EnrichmentPlan, *, distinct: bool = False) -> EnrichmentPlan:
    """The plan for a part of the input, with what only the whole input shows."""
    return replace(
        part,
        rows=whole.rows,
        null_keys=whole.null_keys,
        sampled_rows=whole.sampled_rows,
        budget=whole.budget,
        max_calls=whole.max_calls,
        calls_at_once=whole.calls_at_once,
        distinct=distinct or part.distinct,
    )


def _at_once(task: EnrichTask) -> int:
    """How many calls of a task run at the same time."""
    capacity = calls_at_most(task.options.capacity)
    return capacity if task.enricher.max_calls is None else min(capacity, task.enricher.max_calls)


def _planned(
    task: EnrichTask,
    options: EnrichOptions,
    average: float | None,
    tasks_at_once: int | None,
    sample: int,
    limits: Sequence[tuple[Budget, bool]],
    keys: DataFrame,
) -> EnrichmentPlan:
    """The plan for rows of which none of the answers is known: `keys` has their key columns.

    Args:
        limits: see `JobLimits.planned`.
    """
    lookups = task.options
    # Without a latency no time is shown. Tasks must still be dealt out to workers, so calls are taken to last a second.
    pace = Pace(_at_once(task), average or 1.0)
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
    plain = worked_off(tasks, at_once, pace, whole.asked)
    cached = worked_off(tasks, at_once, pace, Caches(whole, cache_rows).asked)
    budgets = [(one, at_once if in_parts else 1) for one, in_parts in limits]
    per_key, never = _weighed(keys, task, keys_in_a_call, options.budget)
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
        never=never,
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


def _average(latency: object) -> float:
    """Average seconds of a call."""
    if isinstance(latency, EnrichmentMetrics):
        latency = latency.statistics()
    if not isinstance(latency, EnrichmentStatistics):
        return positive_duration("latency", latency)
    if not latency.calls:
        raise ConfigurationError(
            f"latency is {describe(latency, 40)}, which has no call yet; run the enrichment with these metrics on "
            "a part of the data first, or pass seconds"
        )
    return mean_latency(latency.latency)


COLUMNS = ("without a cache", "with a cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentPlan:
    """What `enrich` would do with a DataFrame.

    Attributes:
        rows: number of input rows. It is always counted exactly.
        null_keys: input rows whose key has a null, which are not looked up. Exact if all rows were read.
        distinct_keys: number of different keys. Exact up to 4,095 if all rows were read.
        lookups: the maximum number of keys looked up without a cache: the distinct keys of each batch of rows, added
            up. Exact if all rows were read.
        calls: the number of calls for them.
        cached_lookups, cached_calls: the same with the given cache, or with a `Cache()`. If the cache is too small for
            the keys of a task, each task counts as if its cache were empty at the start.
        tasks: partitions of the input.
        tasks_at_once: how many tasks run at the same time.
        sampled_rows: input rows that were read. It equals `rows` if nothing was extrapolated.
        max_attempts: how often a key that fails is looked up. The other figures count one attempt.
        latency: seconds of a call, as given; None if not given.
        seconds, cached_seconds: duration of the calls, without and with the cache; None without a latency. It is longer
            if other jobs use the budget at the same time. None too if some call can never start.
        weights, cached_weights: with a budget, what the calls weigh by unit: calls, keys, and the units of the
            enricher, estimated from some keys.
        budget: as given.
        never: why the budget lets a call for some key never start; None if no key that was weighed is so heavy.
        journal_rows: input rows whose answer the journal has. They count in `rows` and in no figure of keys and calls.
        journal_calls: the number of calls that the journal saves, without a cache.
        max_calls: how many calls the enricher runs at the same time in a task; None if it sets no limit.
        calls_at_once: how many calls run at the same time in a task: `max_calls` or `capacity`, the lower one.
        table_rows: about how many rows the enricher's table has, if half of them or more will be looked up; else None.
        join_program: the program that joins the whole table instead, if the enricher has one.
        distinct: whether each key is looked up once in the whole job, as with strategy="distinct".
    """

    rows: int
    null_keys: int
    distinct_keys: int
    lookups: int
    calls: int
    cached_lookups: int
    cached_calls: int
    tasks: int
    tasks_at_once: int
    sampled_rows: int
    max_attempts: int = 1
    latency: float | None = None
    seconds: float | None = None
    cached_seconds: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    cached_weights: Mapping[str, float] = field(default_factory=dict)
    budget: Budget | None = None
    never: str | None = None
    journal_rows: int = 0
    journal_calls: int = 0
    max_calls: int | None = None
    calls_at_once: int = 0
    distinct: bool = False
    table_rows: int | None = None
    join_program: str | None = None

    def show(self) -> None:
        """Print the figures as a table of at most 100 columns."""
        print(textwrap.fill(self._input(), WIDTH))
        print(text_table(COLUMNS, _rows_of_plan(self)))
        for line in self._remarks():
            print(textwrap.fill(line, WIDTH))
        if self.join_program is not None:
            print(self.join_program)

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(line)}</p>" for line in self._remarks())
        program = "" if self.join_program is None else f"<pre>{html.escape(self.join_program)}</pre>"
        return html_table(COLUMNS, _rows_of_plan(self), self._input()) + remarks + program

    def _remarks(self) -> list[str]:
        remarks = [] if self.latency is None else [f"A call takes {self.latency * 1000:.2f} ms."]
        if self.distinct:
            remarks.append('With strategy="distinct" each key is looked up once in the job.')
        if self.max_attempts > 1:
            remarks.append(f"A key that fails is looked up again (up to {self.max_attempts} attempts per key).")
        return remarks + [f"{fact[:1].upper()}{fact[1:]}." for fact in self._facts()]

    def __str__(self) -> str:
        pace = "" if self.latency is None else f", at {self.latency * 1000:.2f} ms a call"
        retried = f" (up to {self.max_attempts} attempts per key)" if self.max_attempts > 1 else ""
        weights = "".join(
            f", {plain} {unit} without a cache and {cached} with one" for unit, (plain, cached) in self._units()
        )
        return (
            f"{self._input()}; without a cache "
            f"{_count(self.lookups, 'key')} in {_count(self.calls, 'call')}{_duration(self.seconds)}, with a cache "
            f"{_count(self.cached_lookups, 'key')} in {_count(self.cached_calls, 'call')}"
            f"{_duration(self.cached_seconds)}{pace}{retried}{weights}{''.join(f'; {fact}' for fact in self._facts())}"
        )

    def _facts(self) -> list[str]:
        """What else a user should know, in words."""
        facts = []
        if self.max_calls is not None:
            why = f" (the enricher's max_calls is {self.max_calls:,})" if self.calls_at_once == self.max_calls else ""
            facts.append(f"at most {_count(self.calls_at_once, 'call')} at once in a task{why}")
        for unit, limit in ({} if self.budget is None else self.budget.spend or {}).items():
            estimated = self.weights.get(unit, 0.0)
            if estimated > limit:
                cents = unit == "usd" and round(estimated, 2) > limit
                shown = amount(round(estimated, 2) if cents else estimated)
                facts.append(f"estimated {shown} {unit} exceeds the limit of {amount(limit)} {unit}")
        if self.never is not None:
            facts.append(self.never)
        if self.table_rows is not None:
            distinct, rows = _count(self.distinct_keys, "distinct key"), _count(self.table_rows, "row")
            facts.append(f"A join costs less: {distinct} will be looked up in a table of about {rows}")
        return facts

    def _units(self) -> list[Row]:
        """What the calls weigh in the units of the enricher, without and with the cache."""
        both = self.weights, self.cached_weights
        units = [unit for unit in self.weights if unit not in ("calls", "keys")]
        return [(unit, [amount(weights[unit]) for weights in both]) for unit in units]

    def _input(self) -> str:
        part = "" if self.sampled_rows == self.rows else f" (looked at {self.sampled_rows:,})"
        saved = _count(self.journal_calls, "call")
        known = (
            f", {self.journal_rows:,} with an answer in the journal, which saves {saved}" if self.journal_rows else ""
        )
        distinct = _count(self.distinct_keys, "distinct key")
        about = "" if self.sampled_rows == self.rows and self.distinct_keys < SIZE else "about "
        return (
            f"{_count(self.rows, 'row')}{part} in {_count(self.tasks, 'task')}, {self.tasks_at_once:,} at once: "
            f"{self.null_keys:,} without a key{known}, {about}{distinct}"
        )


def _rows_of_plan(plan: EnrichmentPlan) -> list[Row]:
    """The figures without and with a cache."""
    rows: list[Row] = [
        ("keys", [f"{plan.lookups:,}", f"{plan.cached_lookups:,}"]),
        ("calls", [f"{plan.calls:,}", f"{plan.cached_calls:,}"]),
    ]
    if plan.seconds is not None and plan.cached_seconds is not None:
        rows.append(("seconds", [f"{plan.seconds:,.2f}", f"{plan.cached_seconds:,.2f}"]))
    return rows + plan._units()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _duration(taken: float | None) -> str:
    return "" if taken is None else f", {taken:,.2f} s"
