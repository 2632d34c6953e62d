"""`send`: a call for each row of a DataFrame, with a report of what became of the rows (laws W).

What names a row is its key, and its number among the rows with that key, in the order of the DataFrame. Rows with equal
keys make equal requests, so it does not matter which of them has which number. So the names are the same in every run,
however the rows are divided into partitions, and in whatever order they come. A number within a partition would change
with the partitions. Spark finds the numbers, with the rows of a key at one place, and a second shuffle brings the rows
back to their partitions, in their order. Both cost little beside a call for each row. A task that is repeated finds the
numbers in the files of the shuffle. The DataFrame, which may cost something to read, is read once.

A task makes a call for each row, and returns the rows that were not sent, and one more with the numbers of all. So the
numbers are those of the attempt that gave the rows, whatever Spark has killed or repeated. A row that is not sent never
fails the task, because Spark would repeat that, and send the rows before it again: the task ends early, and the driver
raises the error.

`RowCalls` is an enricher whose keys are rows: the key of a row for the enricher, and its number. So equal rows share no
call (law W1), and a journal has an entry for each. An answer that says no for good is an answer too: it is in the
journal, and is not asked for again.

The rows that were not sent stay on the executors, as a local checkpoint: without the plan that made them, so that
nothing that is done with them can send a row again. Where an executor is lost, Spark raises an error, and the next run
with the journal sends and reports the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from asyncio_operator.arrow.key_identity import storable
from asyncio_operator.checks import Duration, flag, one_of
from asyncio_operator.enricher import Enricher, Row, require_enricher
from asyncio_operator.errors import ConfigurationError, FunctionError, describe, function_error, text_of, verdict
from asyncio_operator.hints import named_options
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.journal.options import Journal
from asyncio_operator.lookup.options import DefaultRetry
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.driver.columns import On, key_positions, plain_text, require_dataframe, spark_schema
from asyncio_operator.spark.journal import Join, shuffle_partitions, with_journal
from asyncio_operator.spark.metrics import EnrichmentMetrics, reported
from asyncio_operator.spark.worker.links import EnrichTask, enriched, stage_name
from asyncio_operator.spark.worker.versions import context_of, described
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.telemetry.annotations import Attributes

OnError = Literal["fail", "keep"]

PREFIX = "_send_"  # Of the columns that only a task sees.

PARTITION_BITS = 33
"""`monotonically_increasing_id` has the number of the partition above these bits, and that of the row in them."""


ON_TWO_EXECUTORS: dict[str, Any] = (
    {"storageLevel": StorageLevel.MEMORY_AND_DISK_2}
    if "storageLevel" in inspect.signature(DataFrame.localCheckpoint).parameters
    else {}
)
"""How results are kept. Spark 4.0 brought the parameter."""


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of the rows. The four numbers add up to the rows.

    Attributes:
        sent: rows that the service has acknowledged, with any status of class 2xx.
        refused: rows that the service refused for good: 4xx but 408, 425 and 429, or an error with
            ``retryable=False``. With a journal they are not sent again, unless `resend_refused` says so.
        failed: rows without an answer or with another error, and rows with a null in their key. The next run sends
            them again.
        skipped: rows that the journal knows, as sent or refused. A task that was killed and repeated skips what it had
            done before.
        failures: the rows that were refused or failed, with the columns `status` ("refused" or "failed"),
            `http_status` and `message`; a ``_`` follows these names if the DataFrame has them. To read it sends
            nothing.
    """

    sent: int
    refused: int
    failed: int
    skipped: int
    failures: DataFrame = field(repr=False, compare=False)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.sent + self.refused + self.failed + self.skipped


@named_options("send")
def send(
    df: DataFrame,
    enricher: Enricher,
    *,
    on: On,
    journal: Journal | str | None = None,
    capacity: int | AdaptiveCapacity = 100,
    timeout: Duration | None = 30.0,
    retry: DefaultRetry = "default",
    rate_limit: RateLimit | int | None = None,
    circuit_breaker: CircuitBreaker | bool | None = None,
    budget: Budget | None = None,
    distinct: bool = False,
    on_error: OnError = "fail",
    resend_refused: bool = False,
    metrics: EnrichmentMetrics | None = None,
) -> SendReport:
    """Make a call for each row of `df`, in the order of each partition, and wait until all are made.

    It is an action: it runs once, when it is called. What a call returns is not read. With `HttpEnricher` each request
    but GET has the header ``Idempotency-Key``, or that of its `idempotency_header`. Equal rows have different keys. A
    row has the same key in all attempts and runs.

    Args:
        df: a batch DataFrame.
        enricher: makes the calls, such as `enrichers.HttpEnricher` with ``method="POST"``.
        on: the columns that a call gets, as for `enrich`.
        journal: remembers what was sent or refused, so that no later task, job or application sends it again: see
            `Journal`. After a kill only rows in flight, and those answered in the last `flush_every`, are sent twice.
        capacity: maximum number of calls in flight per task. No more are made ahead of the rows that have ended.
        timeout, retry, rate_limit, circuit_breaker, budget: as for `enrich`; a row has its own deadline and retries.
        distinct: equal keys make one call, that of their first row, and the report counts calls. By default each row
            has a call of its own.
        on_error: "fail": a task ends with the first row that fails or is refused, and then `send` raises its error;
            "keep": all rows are sent, and the report has those that failed or were refused.
        resend_refused: rows that the journal knows as refused are sent again.
        metrics: collects figures on the driver.

    Returns:
        The number of rows by outcome, and the rows that were not sent.

    Raises:
        ConfigurationError: `df` is a stream, or an option, a column or a type is wrong.
        StateError: the journal is damaged, or of another format.
        JournalError: the journal's place does not answer.
        BudgetExceeded: a call without keys would already pass a spend limit of the budget.
        FunctionError: with ``on_error="fail"``: it names the key of the row and the cause.
    """
    require_dataframe(df, enricher)
    require_enricher(enricher)
    fail = one_of("on_error", on_error, get_args(OnError)) == "fail"
    flag("distinct", distinct), flag("resend_refused", resend_refused)
    if df.isStreaming:
        raise ConfigurationError(
            "df is a stream, and send is an action: call it for each micro-batch, as in df.writeStream.foreachBatch("
            "lambda batch, _: send(batch, ...)). With a journal, a micro-batch that Spark repeats is not sent again"
        )
    spark = df.sparkSession
    fixed = {"prefix": PREFIX, "status_column": f"{PREFIX}status", "remember": None, "on_error": "null"}
    # The column of numbers has a name that is no other column's.
    number = _free(OCCURRENCE, df.columns)
    parts = [*(df.columns[place] for place in key_positions(df.schema, enricher, on)), number]
    known = enricher.key_schema()
    keys = parts if known is None else dict(zip(parts, [*known.names, OCCURRENCE], strict=True))
    options = EnrichOptions.among(locals() | fixed | {"on": keys})
    options = options.limited(spark, enricher)
    numbered = StructType([*df.schema.fields, StructField(number, LongType(), nullable=False)])
    task, _ = enrich_task(numbered, RowCalls(enricher), options)
    task, join = replace(task, layout=replace(task.layout, refusals=True)), None
    if options.journal is not None:
        named = df.select("*", F.lit(0).cast("long").alias(number))
        # The first column of an answer says whether it is a refusal.
        task, join = with_journal(named, task, options.journal, where="NOT row.a0" if resend_refused else None)
    task = reported(task, spark, enricher, budget, metrics)
    rows = _numbered(df, task.layout.keys, distinct, join)
    own = [StructField(f"_{i}", one.dataType) for i, one in enumerate(df.schema.fields)]
    results = StructType([*own, *spark_schema(ADDED).fields])
    with described(spark, f"send: {describe(enricher)}"):
        report = _sent(rows.mapInArrow(SendTask(task, fail), results), df.columns)
        if fail and report.refused + report.failed:
            raise _error(enricher, report.failures, task.layout.keys[:-1])
    return report


def _free(name: str, taken: list[str]) -> str:
    while name.lower() in {one.lower() for one in taken}:
        name += "_"
    return name


def _numbered(df: DataFrame, keys: tuple[int, ...], distinct: bool, join: Join | None) -> DataFrame:
    """The rows, each with its number among those with the same key, and its known answer if there is a journal. `keys`
    are the positions of the key columns, and of the number."""
    *own, number = keys
    names, place = [f"_{i}" for i in range(number)], f"_{number + 1}"
    # Above, it is the number of the partition.
    placed = df.toDF(*names).withColumn(place, F.monotonically_increasing_id())
    parts = [plain_text(F.col(f"_{i}"), df.schema.fields[i].dataType) for i in own]
    earlier = F.row_number().over(Window.partitionBy(*parts).orderBy(place)) - 1
    rows = placed.select(*names, earlier.cast("long").alias(f"_{number}"), place)
    if distinct:
        rows = rows.where(F.col(f"_{number}") == 0)
    if join is not None:
        rows = join(rows, keys, keeps_order=False)
    partition = F.shiftright(place, PARTITION_BITS)
    back = rows.repartitionByRange(shuffle_partitions(df.sparkSession), partition).sortWithinPartitions(place)
    return back.drop(place)


def _sent(output: DataFrame, names: list[str]) -> SendReport:
    """Run the tasks, once."""
    context = context_of(output.sparkSession)
    # To compute a lost part again would send its rows again. So two executors have each part, where there are two.
    is_alone = context is not None and context._jsc.sc().isLocal()
    done = output.localCheckpoint(**({} if is_alone else ON_TWO_EXECUTORS))
    numbers = done.agg(*(F.coalesce(F.sum(outcome), F.lit(0)).alias(outcome) for outcome in OUTCOMES)).first()
    assert numbers is not None
    added = [_free(name, names) for name in ("status", "http_status", "message")]
    failures = done.where("status IS NOT NULL").drop(*OUTCOMES).toDF(*names, *added)
    return SendReport(**numbers.asDict(), failures=failures)


def _error(enricher: Enricher, failures: DataFrame, keys: tuple[int, ...]) -> FunctionError:
    """The error for a row that was not sent. `keys` are the positions of the columns of its key."""
    row = failures.first()
    assert row is not None
    key = tuple(row[place] for place in keys)
    shown, message = describe(key if len(key) > 1 else key[0]), row[-1]
    if message.startswith(f"{type(enricher).__qualname__}("):
        # Its own name and the key are in front already.
        message = message.partition(f"key {shown}: ")[2] or message
    says = f': {message}; on_error="keep" sends the other rows too, and reports such rows'
    return function_error(f"{describe(enricher)} failed", says, unit="key", element=shown, cause=None)


OCCURRENCE = "_occurrence"  # The last part of a key: the number of a row among those with the same key, from 0.

ANSWER = pa.schema([("refused", pa.bool_()), ("http_status", pa.int32()), ("message", pa.string())])
"""What a call has brought, if the service has decided."""

LATER = (408, 425, 429)
"""The statuses of class 4xx that ask for another attempt later. They speak of the moment, and not of the row."""

SENT, REFUSED, FAILED, SKIPPED = OUTCOMES = ("sent", "refused", "failed", "skipped")

ADDED = pa.schema([("status", pa.string()), *list(ANSWER)[1:], *((outcome, pa.int64()) for outcome in OUTCOMES)])
"""What follows the columns of the input. A row that was not sent has the first three, and the row of numbers the
others."""

NO_KEY = "a part of its key is null, or a value that Python cannot hold"


class SendTask:
    """A function for `mapInArrow`. It is sent to the workers."""

    def __init__(self, task: EnrichTask, stops: bool) -> None:
        self._task = task  # Its last columns are those of `RowCalls`, and the status column.
        self._stops = stops  # The task ends after the first row that is not sent.
        self.__name__ = f"send: {stage_name(task)}"  # The label of the stage, which Spark shows in its plans.

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that were not sent, and the numbers."""
        return portable_errors(self._results(batches))

    def _results(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers: Counter[str] = Counter()
        # The number of a row follows the columns of the input.
        own, schema = self._task.layout.keys[-1], None
        with contextlib.closing(enriched((self._task,), batches, takes_all=True)) as enriched_rows:
            for batch in enriched_rows:
                schema = pa.schema([*(batch.schema.field(i).with_nullable(True) for i in range(own)), *ADDED])
                *_, refused, _, _, status = batch.columns
                known = pc.equal(pc.struct_field(status, "source"), "journal")
                answered = pc.if_else(known, SKIPPED, pc.if_else(pc.fill_null(refused, False), REFUSED, SENT))
                found = pc.equal(pc.struct_field(status, "status"), "found")
                outcomes = pc.if_else(found, answered, FAILED)
                numbers.update(outcomes.to_pylist())
                left = pc.or_(pc.equal(outcomes, REFUSED), pc.equal(outcomes, FAILED))
                rows = batch.filter(left)
                # An empty one too: only a write shows that Spark has ended the task.
                status, http, message = rows.columns[-1], rows.columns[-3], rows.columns[-2]
                columns = [
                    *rows.columns[:own],
                    outcomes.filter(left),
                    pc.coalesce(http, pc.struct_field(status, "http_status")),
                    pc.coalesce(message, pc.struct_field(status, "error_message"), NO_KEY),
                    *[pa.nulls(rows.num_rows, pa.int64())] * len(OUTCOMES),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
                if self._stops and rows.num_rows:
                    break
        if schema is not None:
            columns = [pa.nulls(1, field.type) for field in list(schema)[: -len(OUTCOMES)]]
            columns += [pa.array([numbers[outcome]]) for outcome in OUTCOMES]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class RowCalls(Enricher):
    """Makes the calls of `send`. A row that was sent, or refused for good, has an answer (`ANSWER`)."""

    idempotent = False

    def __init__(self, enricher: Enricher) -> None:
        self._enricher = enricher
        self.default_retry = enricher.default_retry
        self.max_calls = enricher.max_calls
        self.optional_keys = enricher.optional_keys

    def schema(self) -> pa.Schema:
        # As every caller does: an enricher may learn its columns there.
        self._enricher.schema()
        return ANSWER

    def key_schema(self) -> pa.Schema | None:
        known = self._enricher.key_schema()
        if known is None:
            return None
        # Without metadata: the warning that they ask for was given for the enricher's own key.
        parts = [pa.field(part.name, part.type) for part in known]
        return pa.schema([*parts, pa.field(OCCURRENCE, pa.int64())])

    def check_keys(self, keys: pa.Schema) -> None:
        self._enricher.check_keys(keys.remove(len(keys) - 1))

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return self._enricher.weigh([_own(key) for key in keys])

    def call_attributes(self) -> Attributes:
        return self._enricher.call_attributes()

    def journal_identity(self) -> str:
        return f"send: {identity_of(self._enricher)}"

    async def open(self) -> None:
        await self._enricher.open()

    async def close(self) -> None:
        await self._enricher.close()

    async def lookup(self, key: Any) -> Row:
        """Send a row. An error means that it was not sent, and may be sent later."""
        try:
            await self._enricher.send(_own(key), row_id(key))
        except Exception as error:
            if not is_refusal(error):
                raise
            code = verdict(error)["code"]
            return {"refused": True, "http_status": code if type(code) is int else None, "message": text_of(error)}
        return {"refused": False}

    def __repr__(self) -> str:
        return describe(self._enricher)


def _own(key: tuple[Any, ...]) -> Any:
    """The key of the enricher."""
    return key[0] if len(key) == 2 else key[:-1]


def row_id(key: tuple[Any, ...]) -> str:
    """The name of a row: equal in every process, attempt and run, and different for all other keys."""
    return str(uuid.UUID(bytes=hashlib.sha256(serialize_key(storable(key))).digest()[:16], version=5))


def is_refusal(error: Exception) -> bool:
    """Whether the service says no for good. Another attempt would have the same answer."""
    said = verdict(error)
    code = said["code"]
    if type(code) is int and code >= 400:
        return code < 500 and code not in LATER and said["retryable"] is not True
    return said["retryable"] is False
