"""`enrich`: the rows of a DataFrame, with columns looked up by key.

With ``strategy="distinct"`` the distinct keys of the whole DataFrame are enriched and joined back. Every key is looked
up once in a job, and rows never pass through Python: that is faster where rows are wide, or where keys repeat far
apart. The price: Spark reads the DataFrame twice, shuffles the keys, and returns rows in any order. Both readings must
give the same rows.

`enrich` of a DataFrame that `enrich` returned makes one stage of all its lookups (law C1). The DataFrame object itself
is the key: each operation of Spark returns another object, and so ends the chain, while `persist`, `cache` and
``transform`` return the same one. Neither Spark's plan is read, which Connect does not have, nor is an attribute set.
`lookups_of` shows a chain as a table: Spark's plan shows no more than the names of its lookups.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from asyncio_operator.checks import Duration
from asyncio_operator.engine.options import Mode
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.hints import named_options, refuse_unknown
from asyncio_operator.journal.options import Journal
from asyncio_operator.lookup.options import DefaultRetry
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.build_task import (
    OPTIONS,
    EnrichOptions,
    How,
    JoinHint,
    OnError,
    Strategy,
    enrich_task,
)
from asyncio_operator.spark.driver.columns import On, key_columns, plain_text, require_dataframe, session_zone
from asyncio_operator.spark.journal import Join, with_journal
from asyncio_operator.spark.metrics import EnrichmentMetrics, reported
from asyncio_operator.spark.worker.links import ChainTask, EnrichTask, stage_name
from asyncio_operator.spark.worker.versions import is_dataframe
from asyncio_operator.trace import Trace
from asyncio_operator.view.tables import Row, html_table, text_table


@named_options("enrich")
def enrich(
    df: DataFrame,
    enricher: Enricher,
    *,
    on: On,
    how: How = "left",
    as_of: Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    prefix: str = "",
    mode: Mode = "ordered",
    capacity: int | AdaptiveCapacity = 100,
    buffer: int | None = None,
    timeout: Duration | None = 30.0,
    attempt_timeout: Duration | None = None,
    retry: DefaultRetry = "default",
    cache: Cache | bool | None = None,
    batching: Batching | int | None = None,
    rate_limit: RateLimit | int | None = None,
    circuit_breaker: CircuitBreaker | bool | None = None,
    budget: Budget | None = None,
    hedge: Hedge | bool | None = None,
    on_error: OnError = "fail",
    status_column: str | None = None,
    event_time: str | None = None,
    watermark_delay: Duration | None = None,
    strategy: Strategy = "inline",
    join_hint: JoinHint | None = "broadcast",
    tasks_at_once: int | None = None,
    remember: Duration | None = 60.0,
    journal: Journal | str | None = None,
    metrics: EnrichmentMetrics | None = None,
    trace: Trace | None = None,
) -> DataFrame:
    """The rows of `df`, each with the columns that `enricher` has for its key.

    The input's columns pass through unchanged. A key that occurs several times in a batch is looked up once. A key that
    is being looked up for an earlier batch, or was answered within `remember` seconds, is not looked up again. A key
    with a null in any part is not looked up: it is a miss. If a key has several rows, the output has several rows for
    it. The enricher gets keys as canonical Python values: timestamps as datetimes in UTC, -0.0 as 0.0.

    If `enrich` returned `df`, and `df` is not persisted, both lookups are one Python stage, with one worker per task.

    Args:
        df: a DataFrame, batch or streaming.
        enricher: looks up the keys, such as `enrichers.PostgresEnricher`.
        on: the key: a column of `df`, a list of columns (matched to the enricher's key columns by name if the names are
            the same, else by position), or a mapping from columns of `df` to the enricher's key columns.
        how: "left" keeps rows without a match, with nulls; "inner" drops them; "required" fails the task with a
            `MissingKeyError` that names the key, whatever `on_error` says.
        as_of: (time, version): of the several rows of a key the one that held at the row's time. `time` is a column
            of `df`, `version` one of the enricher, from which time each of its rows holds: the row with the greatest
            version that is not after the time, and of equal versions the last. None is a miss, and so is a null time.
            Both columns have one type, or are dates and timestamps. Keys are looked up and kept without the time.
        columns: the enricher's columns to add; default: all.
        prefix: put before the name of every added column, but not of the status column.
        mode: "ordered": the rows of a partition stay in order; "unordered": rows leave when they are answered.
        capacity: maximum number of calls in flight per task, or an `AdaptiveCapacity`. Spark runs one task per core.
        buffer: maximum number of keys looked up and not yet emitted, per task; default 64 x `capacity`, at least
            20,000, and `capacity` for an enricher whose calls change something (`idempotent = False`). If it is less
            than `capacity`, it limits calls too.
        timeout: seconds (or a timedelta) from the start of a key's first call to its deadline, over all its attempts;
            None or 0: no deadline. The default, 30, is much longer than a healthy lookup takes.
        attempt_timeout: seconds that each call may take; None or 0: no limit.
        retry: when a failed lookup is repeated; None: never. By default as the enricher says (`default_retry`): with
            `HttpEnricher` errors that may pass are repeated, three attempts in all, and with others never.
        cache: which answers are kept in the Python worker, across tasks and micro-batches; None: none.
        batching: how calls with several keys are formed. Default: with as many keys as the enricher takes at once.
        rate_limit: the number of calls that may start in a period, in all tasks of this DataFrame together; None: any
            number. On Spark Connect, where tasks do not reach the driver, each gets a part of it, rounded down.
        circuit_breaker: refuses calls while too many fail, per task; None: never.
        budget: what all tasks may use together, of this DataFrame and of all others with an equal budget; None: no such
            limit. On Spark Connect it needs a coordinator of its own, or each task gets a part of it.
        hedge: when a slow call is made a second time, per task; None: never. For an enricher with `idempotent` only.
        on_error: "fail": a lookup that fails or times out fails the task; "null": its rows get nulls; "drop": its rows
            are dropped. `metrics` counts such rows, and the status column shows the error of each row that is kept.
        status_column: name of a column struct<status, source, attempts, latency_ms, error_type, error_message,
            http_status, retryable>.
        event_time: a column of timestamps, or of milliseconds since the epoch. In mode "unordered", rows then overtake
            each other only within `watermark_delay` of event time, so that no row becomes late for a downstream
            watermark with the same delay. Mode "ordered" keeps the order of all rows.
        watermark_delay: seconds or a timedelta. Default: the delay of the stream's own ``withWatermark`` on the column,
            else 0, with which only rows of equal times overtake each other.
        strategy: "inline": rows pass through Python, and a task looks a key up once in `remember` seconds, or less
            often with a cache; "distinct": Spark collects the distinct keys of the whole DataFrame, each is looked up
            once, and the answers are joined back, in no order. Spark then reads `df` twice and must get the same rows
            both times, and `metrics` counts keys, not rows. Not for streams.
        join_hint: with "distinct", how Spark joins: "broadcast", if the keys and their columns fit into the memory of
            the driver and of each executor; "merge" or "shuffle_hash" for more keys; None: Spark decides.
        tasks_at_once: on Spark Connect, the number of tasks that share `rate_limit` and `budget`. Default: as many as
            the cluster has slots. Required there if the number of executors changes. Elsewhere it changes nothing.
        remember: seconds (or a timedelta) for which a task reuses an answer; None or 0: not at all. At most the last
            250,000 keys, or 64 MB, are remembered. The default is short for tables that change by the hour, and long
            for keys that come in every batch. A `cache` is searched first, and its times limit this one.
        journal: keeps every answer in files, for all later tasks and jobs: see `Journal`. Known answers are joined
            with the rows, and a lookup that finds some begins a Python stage of its own. With "ordered" and a journal
            that is too large for a broadcast join, Spark sorts the rows.
        metrics: collects figures on the driver.
        trace: records every call of every task, up to its limit. It is cleared here, and complete when the job has
            ended. Use it for some thousand keys: it costs some microseconds per key. Lookups of one stage that get the
            same trace are all in it.

    Raises:
        ConfigurationError: an option, a column, a type or a name is wrong, or the enricher's source is not as declared.
        StateError: the journal is damaged, or of another format.
        JournalError: the journal's place does not answer.
        BudgetExceeded: a call without keys would already pass a spend limit of the budget.
    """
    given = locals()
    require_dataframe(df, enricher)
    spark = df.sparkSession
    options = EnrichOptions.among(given).limited(spark, enricher)
    zone = "UTC" if as_of is None else session_zone(spark)
    task, schema = enrich_task(df.schema, enricher, options, zone)
    if strategy == "distinct" and df.isStreaming:
        raise ConfigurationError(
            'strategy="distinct" reads the DataFrame twice, and a stream is read once; use "inline", with a cache'
        )
    join = None
    if options.journal is not None:
        task, join = with_journal(df, task, options.journal)
    task = reported(task, spark, enricher, budget, metrics, trace)
    if strategy == "distinct":
        return enrich_distinct(df, task, schema, join_hint, join)
    if join is None:
        return extended(df, task, trace, schema)
    # Rows that overtake each other within segments of event time keep their order beyond.
    keeps_order = task.options.ordered or task.layout.event_time is not None
    return extended(join(df, task.layout.keys, keeps_order=keeps_order), task, trace, schema, begins=True)


def enrich_with(enricher: Enricher, **options: Any) -> Callable[[DataFrame], DataFrame]:
    """`enrich` for ``df.transform(...)``: the same options, but the DataFrame is passed later.

    Raises:
        ConfigurationError: there is no such option. Wrong values are reported when the DataFrame is passed.
    """
    refuse_unknown("enrich", options, OPTIONS)
    if "on" not in options:
        raise ConfigurationError("on is not given: enrich_with(enricher, on='a column')")
    return lambda df: enrich(df, enricher, **options)


def enrich_distinct(
    df: DataFrame, task: EnrichTask, schema: StructType, join_hint: JoinHint | None, join: Join | None = None
) -> DataFrame:
    """`df` with the columns that the task, which is made for its rows, adds to its keys. `schema` is that of the
    output. `join` adds the known answers of a journal to the keys."""
    numbered = df.toDF(*(f"_{i}" for i in range(len(df.columns))))
    positions = task.layout.keys
    keys = key_columns(df, positions)
    added = schema.fields[len(df.columns) :]
    fields = [StructField(f"k{i}", keys.schema.fields[i].dataType) for i in range(len(positions))]
    fields += [StructField(f"a{i}", field.dataType) for i, field in enumerate(added)]
    asked = keys.distinct()
    if join is not None:
        asked = join(asked, tuple(range(len(positions))), keeps_order=False)
    # Its input has only key columns.
    layout = replace(task.layout, keys=tuple(range(len(positions))), event_time=None)
    found = asked.mapInArrow(ChainTask([replace(task, layout=layout)]), StructType(fields))
    if join_hint is not None:
        found = found.hint(join_hint)
    # Null keys must match too: they are misses, which may be dropped or have a status.
    same = [
        plain_text(numbered[f"_{position}"], df.schema.fields[position].dataType).eqNullSafe(found[f"k{i}"])
        for i, position in enumerate(positions)
    ]
    # With an inner join Spark cannot skip the lookup, even if its columns are not used.
    how = "inner" if task.layout.inner or task.layout.required or task.layout.drop_failed else "left"
    joined = numbered.join(found, reduce(and_, same), how)
    columns = [*(numbered[f"_{i}"] for i in range(len(df.columns))), *(found[f"a{i}"] for i in range(len(added)))]
    return joined.select(*columns).toDF(*schema.names)


class Link(NamedTuple):
    """A lookup, the user's trace of it, the columns of its key, and those that it adds."""

    task: EnrichTask
    trace: Trace | None
    key: tuple[str, ...]
    adds: tuple[str, ...]


class Chain(NamedTuple):
    """What a DataFrame is made of: the rows of `base`, with the columns of each link."""

    base: DataFrame
    links: tuple[Link, ...]


_chains: weakref.WeakKeyDictionary[DataFrame, Chain] = weakref.WeakKeyDictionary()
"""The chain of each DataFrame that `extended` returned and that is still in use."""


def extended(
    df: DataFrame, task: EnrichTask, trace: Trace | None, schema: StructType, *, begins: bool = False
) -> DataFrame:
    """The rows of `df` with the columns that the task adds, which was made for them, in the same stage as the lookups
    that made `df`. `trace` gets its reports, `schema` is that of the output. `begins`: the lookup begins a stage,
    because `df` is not what `enrich` returned."""
    earlier = None if begins else _chains.get(df)
    if earlier is not None:
        # `storageLevel` also sees an equal plan that was persisted through another object, as Spark's reading does. On
        # Connect it is a request, so other DataFrames are not asked.
        level = df.storageLevel
        if level.useMemory or level.useDisk or level.useOffHeap:
            earlier = None
    base, links = earlier or Chain(df, ())
    budget = task.options.budget
    for link in links:
        other = link.task.options.budget
        if other is not None and budget is not None and other.name == budget.name and other != budget:
            raise ConfigurationError(
                f"the budget {budget.name!r} is {budget!r} here, and {other!r} in an earlier lookup of this "
                "DataFrame; one name must have the same limits at a time"
            )
    # A trace belongs to the last enrichment that got it, and so do the lookups before it that have the same one.
    kept = [
        link._replace(task=replace(link.task, tracing=task.tracing))
        if trace is not None and link.trace is trace
        else link
        for link in links
    ]
    names = schema.names
    own = Link(task, trace, tuple(names[i] for i in task.layout.keys), tuple(names[len(df.columns) :]))
    chain = Chain(base, (*kept, own))
    columns, given = base.columns, base
    if len({name.lower() for name in columns}) < len(columns) or not all(
        re.fullmatch(r"\w+", name) for name in columns
    ):
        # Under these names `mapInArrow` could not find the columns.
        given = base.toDF(*(f"_{i}" for i in range(len(columns))))
    output = given.mapInArrow(ChainTask([link.task for link in chain.links]), schema)
    _chains[output] = chain
    return output


HEAD = ("key", "adds", "how", "mode", "in flight", "in a call")


@dataclass(frozen=True, slots=True)
class StageLookup:
    """A lookup of a stage.

    Attributes:
        enricher: its name, without secrets.
        key: the columns that it looks up.
        adds: the columns that it adds, with that of the status.
        how: "left", "inner" or "required".
        mode: "ordered" or "unordered".
        capacity: calls in flight at most, in a task.
        keys_in_a_call: at most.
    """

    enricher: str
    key: tuple[str, ...]
    adds: tuple[str, ...]
    how: str
    mode: str
    capacity: str
    keys_in_a_call: int


@dataclass(frozen=True, slots=True)
class StageLookups:
    """The lookups of the Python stage that makes a DataFrame, in their order. A table in a notebook and for `print`."""

    lookups: tuple[StageLookup, ...]

    def __str__(self) -> str:
        return text_table(HEAD, self._rows()) if self.lookups else "no lookups"

    def _repr_html_(self) -> str:
        return html_table(HEAD, self._rows()) if self.lookups else "<p>no lookups</p>"

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for number, one in enumerate(self.lookups, 1):
            columns = ", ".join(one.key), ", ".join(one.adds)
            rows.append(
                (f"{number}. {one.enricher}", [*columns, one.how, one.mode, one.capacity, str(one.keys_in_a_call)])
            )
        return rows


def lookups_of(df: DataFrame) -> StageLookups:
    """The lookups that made a DataFrame: those of `enrich`, with no other operation after them.

    After another operation, and with ``strategy="distinct"``, there are none. Nothing runs.

    Raises:
        ConfigurationError: it is not a DataFrame.
    """
    if not is_dataframe(df):
        raise ConfigurationError(f"df is of type {type(df).__name__}; it must be a Spark DataFrame")
    found, chain = [], _chains.get(df)
    for link in () if chain is None else chain.links:
        layout, options = link.task.layout, link.task.options
        found.append(
            StageLookup(
                stage_name(link.task),
                link.key,
                link.adds,
                "required" if layout.required else "inner" if layout.inner else "left",
                "ordered" if options.ordered else "unordered",
                str(options.capacity),
                1 if options.batching is None else options.batching.max_size,
            )
        )
    return StageLookups(tuple(found))
