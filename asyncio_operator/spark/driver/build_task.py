"""What the driver makes of an enrichment's options: the task that Spark sends to the workers, and the columns it adds.

All of this runs on the driver, before any job. Every wrong option, column, type and name is found here, with the same
words for every face of the library, and so is an object that cannot be sent to the workers. This module knows the
schema of the input, and not what kind of input it is. The enricher is asked for its schema once, and its copies know
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampNTZType, TimestampType

from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.checks import Duration, duration, must_be, of_kind, one_of, positive_int
from asyncio_operator.engine.options import CALL_OPTIONS, SHORT, GivenCalls, Mode, meant
from asyncio_operator.enricher import Enricher, optional_parts, require_enricher
from asyncio_operator.errors import ConfigurationError, describe, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.hints import did_you_mean
from asyncio_operator.journal.options import Journal
from asyncio_operator.lookup.cache_directories import cache_owner
from asyncio_operator.lookup.options import LookupOptions, checked
from asyncio_operator.policies.adaptive_capacity import BUFFER_FACTOR, calls_at_most
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import TASK_GRACE_PERIOD
from asyncio_operator.spark.driver.budgets import JobLimits
from asyncio_operator.spark.driver.columns import (
    On,
    check_passes_through,
    compared,
    key_positions,
    key_types,
    names_of,
    position_of,
    spark_field,
)
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator.spark.worker.rows import STATUS, Layout
from asyncio_operator.spark.worker.versions import arrow_type
from asyncio_operator.telemetry.propagation import inject

TWO_BATCHES = 20_000
"""The rows of two Arrow batches in Spark's default size. With a smaller buffer every batch would leave in pieces, which
costs more than the keys. The pipeline holds this many rows in any case."""

How = Literal["left", "inner", "required"]
OnError = Literal["fail", "null", "drop"]
Strategy = Literal["inline", "distinct"]
JoinHint = Literal["broadcast", "merge", "shuffle_hash"]
JOIN_HINTS = get_args(JoinHint)

REMEDY = '; on_error="null" or "drop" lets the job go on without'  # The end of the message of a failed lookup.


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichOptions(GivenCalls):
    """The options of `enrich`, as the user gave them, short forms replaced by what they mean. Those that need neither
    the input nor the enricher are checked when the bundle is made: ConfigurationError if one is wrong, or does not go
    with another one."""

    on: On
    how: How = "left"
    as_of: Sequence[str] | None = None
    columns: str | Sequence[str] | None = None
    prefix: str = ""
    mode: Mode = "ordered"
    buffer: int | None = None
    timeout: Duration | None = 30.0
    retry: Retry | Literal["default"] | None = "default"
    cache: Cache | None = None
    on_error: OnError = "fail"
    status_column: str | None = None
    event_time: str | None = None
    watermark_delay: Duration | None = None
    strategy: Strategy = "inline"
    join_hint: JoinHint | None = "broadcast"
    tasks_at_once: int | None = None
    remember: Duration | None = 60.0
    journal: Journal | None = None

    def __post_init__(self) -> None:
        for name in SHORT:
            object.__setattr__(self, name, meant(name, getattr(self, name)))
        if isinstance(self.journal, str | PathLike):
            object.__setattr__(self, "journal", Journal(fspath(self.journal)))
        of_kind("journal", self.journal, Journal, "a path")
        for name, allowed in (("strategy", Strategy), ("how", How), ("mode", Mode), ("on_error", OnError)):
            one_of(name, getattr(self, name), get_args(allowed))
        joins = self.strategy == "distinct"
        if self.join_hint is not None:
            one_of("join_hint", self.join_hint, JOIN_HINTS)
            if self.join_hint != JOIN_HINTS[0] and not joins:
                raise ConfigurationError(f'join_hint is {self.join_hint!r}, but only strategy="distinct" joins')
        for name, why in (
            ("event_time", "keeps no order of rows"),
            ("as_of", "sends only keys to Python, without the times of their rows"),
        ):
            if joins and getattr(self, name) is not None:
                given = describe(getattr(self, name))
                raise ConfigurationError(f'{name} is {given}, but strategy="distinct" {why}; use "inline"')
        for name, wanted in (("prefix", "text"), ("status_column", "a name or None")):
            text, optional = getattr(self, name), name != "prefix"
            good = isinstance(text, str) and (text or not optional) and text.encode(errors="ignore").decode() == text
            if not good and not (optional and text is None):
                raise must_be(name, text, wanted)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> EnrichOptions:
        """The options among the arguments of a face, by name. Other arguments are left out."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls) if field.name in arguments})

    def limited(self, spark: SparkSession, enricher: Enricher) -> EnrichOptions:
        """The options of a task that keeps the limits of its job."""
        limits = JobLimits.of(self.budget, self.rate_limit, self.tasks_at_once)
        return replace(self, budget=limits.reaching(spark, enricher), rate_limit=None, tasks_at_once=None)


_FIELDS = [field.name for field in fields(EnrichOptions)]

OPTIONS = (*(name for name in _FIELDS if name not in CALL_OPTIONS), *CALL_OPTIONS, "metrics", "trace")
"""The options of `enrich`. The last two are of the session."""


def enrich_task(
    schema: StructType, enricher: Enricher, options: EnrichOptions, zone: str = "UTC"
) -> tuple[EnrichTask, StructType]:
    """The task for an input with that schema, which does not report, and the schema of its output. `zone` is the time
    zone of the session, for `as_of`."""
    require_enricher(enricher)
    if options.strategy != "distinct":
        # With "distinct" only keys travel, and their types are checked as keys.
        check_passes_through(schema)
    lookups = _lookup_options(enricher, options)
    offered = enricher.schema()
    if not isinstance(offered, pa.Schema):
        raise ConfigurationError(
            f"{describe(enricher)}.schema() returned {describe(offered)}; it must return a pyarrow.Schema"
        )
    found = _found(enricher, offered, options.columns)
    keys = key_positions(schema, enricher, options.on)
    event_time, delay = _segments(schema, options.event_time, options.watermark_delay)
    if lookups.ordered:
        # Only unordered rows can overtake others, so ordered mode needs no segments.
        event_time, delay = None, 0
    added = _added_fields(schema, found, options.prefix, options.status_column)
    optional = optional_parts(enricher)
    if optional and options.journal:
        raise ConfigurationError(
            f"{describe(enricher)} has optional parts of its key, and a journal holds keys without nulls: leave out "
            "journal=, or replace the nulls by a value of their own, as in df.fillna('', ['note'])"
        )
    as_of, hidden = None, False
    if options.as_of is not None:
        time, name = names_of(options.as_of)
        [version] = _found(enricher, offered, name, "as_of")
        hidden = name not in found.names
        found = found.append(version) if hidden else found
        as_of = compared(schema, time, spark_field(name, version), describe(enricher), found.names.index(name), zone)
    layout = Layout(
        keys,
        found,
        inner=options.how == "inner",
        required=options.how == "required",
        drop_failed=options.on_error == "drop",
        status=lookups.timed,
        event_time=event_time,
        delay=delay,
        declared=tuple(offered.names),
        optional=optional,
        as_of=as_of,
        hidden=hidden,
    )
    require_portable(describe(enricher), enricher)
    identity = fingerprint(enricher, cloudpickle.list_registry_pickle_by_value())  # type: ignore[no-untyped-call]
    owner = cache_owner(identity, offered)
    answers = _in_spark(offered)
    tables = None
    if enricher.lookup_columns is not None:
        tables = AnswerTables(key_types(schema, enricher, keys), offered, answers, layout.optional)
    task = EnrichTask(enricher, identity, layout, lookups, answers, owner, tables=tables, propagated=inject())
    return task, StructType([*schema.fields, *added])


def _lookup_options(enricher: Enricher, options: EnrichOptions) -> LookupOptions:
    lookups = checked(enricher, {field.name: getattr(options, field.name) for field in fields(options)})
    remember = 0.0 if options.remember is None else duration("remember", options.remember)
    if options.strategy == "distinct" or enricher.in_memory:
        # With "distinct" no key comes twice, unless Spark repeats a task. One in memory may have reloaded its rows.
        remember = 0.0
    buffer = options.buffer
    if buffer is None:
        most = calls_at_most(lookups.capacity)
        # Law X15: calls that change something are not made ahead of the rows that Spark takes.
        buffer = max(BUFFER_FACTOR * most, TWO_BATCHES) if enricher.idempotent else most
    return replace(
        lookups,
        ordered=options.mode == "ordered",
        buffer=positive_int("buffer", buffer),
        fail=options.on_error == "fail",
        timed=options.status_column is not None,
        remedy=REMEDY,
        grace_period=TASK_GRACE_PERIOD,
        remember=remember,
        journaled=options.journal is not None,
    )


def _found(
    enricher: Enricher, schema: pa.Schema, columns: str | Sequence[str] | None, argument: str = "columns"
) -> pa.Schema:
    """The fields that a found row adds, with the enricher's names and the types that Spark takes."""
    names = schema.names if columns is None else [columns] if isinstance(columns, str) else columns
    if not isinstance(names, Sequence):
        raise must_be("columns", columns, "a list of the enricher's columns")
    for name in names:
        if name not in schema.names:
            raise ConfigurationError(
                f"{argument} names {name!r}, which is not a column of {describe(enricher)}; "
                f"{did_you_mean(str(name), schema.names)}"
            )
        if schema.names.count(name) > 1 or names.count(name) > 1:
            raise ConfigurationError(f"the column {name!r} of {describe(enricher)} occurs more than once")
    fields = [spark_field(name, schema.field(name)) for name in names]
    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in fields])


def _in_spark(offered: pa.Schema) -> pa.Schema:
    """All fields of the enricher, nullable, in the types that Spark takes. A type that Spark does not have stays as it
    is: `columns` cannot name such a field."""
    fields = []
    for field in offered:
        with contextlib.suppress(ConfigurationError):
            field = field.with_type(arrow_type(spark_field(field.name, field).dataType))
        # Added columns are nullable for Spark, also those that the enricher declares not to be.
        fields.append(field.with_nullable(True))
    return pa.schema(fields)


def _segments(schema: StructType, event_time: str | None, delay: Duration | None) -> tuple[int | None, int]:
    """The position of the event time column, and the delay in its unit."""
    if event_time is None:
        if delay is not None:
            raise ConfigurationError(
                f"watermark_delay is {describe(delay)} without event_time; pass its column as event_time="
            )
        return None, 0
    position = position_of(schema, event_time, "event_time")
    field = schema.fields[position]
    if isinstance(field.dataType, LongType):
        per_second = 1_000
    elif isinstance(field.dataType, TimestampType | TimestampNTZType):
        per_second = 1_000_000
    else:
        raise ConfigurationError(
            f"event_time names {field.name!r}, which is {field.dataType.simpleString()}; it must be a timestamp, or a "
            "bigint in milliseconds since the epoch"
        )
    if delay is None:
        # Spark's `withWatermark` writes its delay into the metadata of the column.
        return position, per_second * int(field.metadata.get("spark.watermarkDelayMs", 0)) // 1000
    return position, round(per_second * duration("watermark_delay", delay))


def _added_fields(schema: StructType, found: pa.Schema, prefix: str, status: str | None) -> list[StructField]:
    """The Spark fields of the added columns, with names that no other column has."""
    added = [spark_field(prefix + field.name, field) for field in found]
    taken = {name.lower(): f"column {name!r} of the DataFrame" for name in schema.names}
    for field in added:
        if field.name.lower() in taken:
            raise ConfigurationError(
                f"the enricher's column {field.name!r} collides with {taken[field.name.lower()]}; "
                "give a prefix=, leave it out with columns=, or rename yours"
            )
        taken[field.name.lower()] = f"column {field.name!r} of the enricher"
    if status is not None:
        if status.lower() in taken:
            raise ConfigurationError(
                f"status_column {status!r} collides with {taken[status.lower()]}; it is never prefixed: "
                "choose another name"
            )
        added.append(spark_field(status, pa.field(status, STATUS)))
    return added


IN_ENRICH = {
    "as_of": "enrich finds the version of a row's time",
    "cache": "enrich keeps answers",
    "journal": "enrich keeps answers in files: enrich(df, enricher, on=..., journal=Journal(...))",
    "status_column": "enrich reports the outcome of each row",
}
"""Options that only `enrich` has."""


def refuse_journal(face: str, journal: object) -> None:
    """Check that no journal is given to a function without one."""
    if journal is not None:
        raise ConfigurationError(
            f"journal is {describe(journal)}, which {face} does not take: known answers are joined with a DataFrame. "
            "Use enrich(df, enricher, on=..., journal=...), and createOrReplaceTempView on its result for SQL"
        )


def require_portable(what: str, travels: object) -> None:
    """Check that an object can be pickled. The message calls it `what`."""
    try:
        cloudpickle.dumps(travels)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be pickled, so it cannot be sent to the workers: {describe_error(error).rstrip('.')}. "
            "Make clients, locks and sessions in its open(), and let its functions capture only plain values"
        ) from None
