"""`read_journal` and `compact_journal`, and what the driver makes of `journal=`: the journal is opened or made, its
known answers are joined with the rows, and the task learns what it holds.

Spark reads, compacts and joins, in its own memory. `asyncio_operator.journal` has the format and the commit protocol.
What a journal holds are its description and the files that count. The driver of a classic session lists the place
itself. On Spark Connect the path is the server's, so one task of the server does it, and returns JSON.

The latest living answer of each key, and the join with it (law J5), are expressions of Spark. So a journal is in the
memory of neither the driver nor a worker, and what lives is decided when a job runs. On a stream there is no join: it
would read the whole journal in every micro-batch, and files that a compaction deletes would end the stream. There the
tasks read all files themselves, in bounded memory.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import ceil
from operator import and_
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DoubleType, FractionalType, IntegralType, LongType, StringType

from asyncio_operator.arrow.decimals import cast_exactly
from asyncio_operator.arrow.key_arrays import in_utc
from asyncio_operator.checks import Duration, duration, must_be, seconds
from asyncio_operator.errors import AsyncOperatorError, ConfigurationError, StateError, describe_error
from asyncio_operator.journal.answers import ORDER
from asyncio_operator.journal.compaction import TRIES, Compacted, Compactor, is_compact
from asyncio_operator.journal.files import Seen, is_whole, list_journal
from asyncio_operator.journal.format import ABOUT, ANSWERS, COMPACTED, MEGABYTE, Description, JournalError
from asyncio_operator.journal.identity import identity_of, open_journal, read_description, wanted_description
from asyncio_operator.journal.options import GS, HDFS, LOCAL, S3, Journal, Location
from asyncio_operator.journal.storage import Place, ask_place, in_parallel, open_place
from asyncio_operator.spark.driver.columns import key_types, plain_text, spark_schema
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator.spark.worker.task_journal import JournalTask
from asyncio_operator.spark.worker.versions import context_of, described

BUCKET = 64 * MEGABYTE
"""Bytes of rows that one task of a compaction has in memory. Ordering them takes about four times as much."""


def read_journal(spark: SparkSession, path: str | Path | Journal) -> DataFrame:
    """The latest living answer of each key in a journal.

    It reads the files that are there now. An answer with several rows has one row for each, and a miss has one row,
    with `_found` false.

    Args:
        spark: the session, classic or Spark Connect. On Connect the path is the server's.
        path: of the journal; or a `Journal`, whose `expire_after` and `keep_missing` then count too.

    Returns:
        The key columns, the columns of the enricher, and `_found`, `_time`, `_attempts`, `_latency_ms`, `_weights`,
        `_run`, `_expires`, `_row` and `_call`, in any order of rows.

    Raises:
        ConfigurationError: there is no journal at the path.
        StateError: the journal is damaged, or of another format.
        JournalError: its place does not answer.
    """
    journal = path if isinstance(path, Journal) else Journal(path)
    contents = contents_of(_session(spark), journal.location)
    expire_after = None if journal.expire_after is None else seconds(journal.expire_after)
    found = latest(contents.rows(spark), contents.description.keys.names, expire_after).drop("_j_ends")
    return found if journal.keep_missing else found.where("_found")


def compact_journal(spark: SparkSession, path: str | Path | Journal, *, grace: Duration = 3600.0) -> Compacted:
    """Merge the files of a journal into few, without the answers that no reader needs any more.

    Jobs may read and write the journal meanwhile. Replaced files stay readable for `grace`, so a plain
    ``spark.read.parquet`` of the directory gives answers twice until then; `read_journal` and `enrich` do not. The call
    after that deletes them.

    Args:
        spark: the session, classic or Spark Connect. On Connect the path is the server's.
        path: of the journal, or a `Journal`.
        grace: seconds (or a timedelta). It must be longer than a job takes from `enrich` to the end of its tasks; a
            stream needs no more than other jobs.

    Returns:
        The numbers of files that were read, written and deleted, and of rows that were read and written.

    Raises:
        ConfigurationError: there is no journal at the path, or `grace` is not a duration.
        StateError: the journal is damaged, or of another format.
        JournalError: its place does not answer.
    """
    wait = duration("grace", grace)
    location = (path if isinstance(path, Journal) else Journal(path)).location
    for attempt in range(TRIES):
        contents = contents_of(_session(spark), location)
        try:
            return _compacted(spark, contents, wait)
        except Exception as error:
            # Another compaction has deleted a file that this one reads.
            if attempt == TRIES - 1 or not any(word in str(error) for word in ("FILE_NOT_EXIST", "FileNotFound")):
                raise
    raise AssertionError


def _session(spark: object) -> SparkSession:
    if not (hasattr(spark, "range") and hasattr(spark, "sql")):
        raise must_be("spark", spark, "a SparkSession")
    return cast(SparkSession, spark)


def _compacted(spark: SparkSession, contents: Contents, grace: float) -> Compacted:
    location, description = contents.location, contents.description
    ask = partial(at_place, spark, location)
    begun = ask(partial(_begin, description.text, grace))
    inputs = begun["inputs"]
    if is_compact(inputs):
        return Compacted(len(inputs), 0, begun["deleted"], 0, 0)
    read = replace(contents, live=[*inputs]).rows(spark)
    keys = [F.col(quoted(name)) for name in description.keys.names]
    together = read.repartition(max(1, ceil(begun["memory"] / BUCKET)), *keys)
    work: Any = partial(_write, location, description.text)
    work.__name__ = "compact_journal"  # The label of the stage.
    with described(spark, "compact_journal"):
        written = together.mapInArrow(work, "name string, rows bigint, error string").collect()
    for part in written:
        if part["error"] is not None:
            raise JournalError(
                f"the journal {location} cannot be compacted ({part['error']}): its answers are as before; check the "
                "place, and compact it again"
            )
    names = [part["name"] for part in written]
    ended = ask(partial(_end, description.text, names, list(inputs), grace))
    rows = sum(rows for rows, _ in inputs.values()), sum(part["rows"] for part in written)
    return Compacted(len(inputs), len(names), begun["deleted"] + ended["deleted"], *rows)


def _compactor(place: Place, description: str) -> Compactor:
    return Compactor(place, Description.read(description.encode(), place.shown))


def _begin(description: str, grace: float, place: Place) -> dict[str, Any]:
    compactor = _compactor(place, description)
    deleted = compactor.delete_replaced(grace)
    inputs = compactor.inputs()
    return {"deleted": deleted, "inputs": inputs, "memory": compactor.memory(inputs)}


def _end(description: str, written: list[str], replaced: list[str], grace: float, place: Place) -> dict[str, Any]:
    compactor = _compactor(place, description)
    compactor.commit(written, replaced)
    # With no grace, what has just been replaced goes at once.
    return {"deleted": compactor.delete_replaced(grace) if not grace else 0}


def _write(location: Location, description: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition, in which keys are complete, to a file of the journal. It runs in the workers."""
    schema = Description.read(description.encode(), str(location)).schema
    tables = [
        pa.Table.from_arrays(
            [cast_exactly(in_utc(array), field.type) for array, field in zip(batch.columns, schema, strict=True)],
            schema=schema,
        )
        for batch in batches
        if batch.num_rows
    ]
    if tables:
        name, rows, error = None, 0, None
        try:
            name, rows = _compactor(open_place(location), description).write(pa.concat_tables(tables))
        except (OSError, pa.ArrowException) as problem:
            error = describe_error(problem).partition("\n")[0]
        if name is not None or error is not None:
            names, errors = pa.array([name], pa.string()), pa.array([error], pa.string())
            yield pa.RecordBatch.from_arrays([names, pa.array([rows]), errors], ["name", "rows", "error"])


# -- joined with rows

_generations: Counter[str] = Counter()
"""How often journals were found empty, by place. Workers note which answers of their caches a journal has. One that was
deleted and made again has none of them."""


Join = Callable[..., DataFrame]
"""`with_known` for one journal: of a DataFrame, the positions of its key columns, and `keeps_order`."""


def with_journal(
    df: DataFrame, task: EnrichTask, journal: Journal, where: str | None = None
) -> tuple[EnrichTask, Join | None]:
    """The task with its journal, and what joins its input, `df`, with the known answers (then its plan may be another);
    None if there is nothing to join. `where`: see `with_known`; answers that come later are all known. Raises as
    `contents_of` does."""
    spark = df.sparkSession
    contents = contents_of(spark, journal.location, _wanted(df, task, journal))
    joins = bool(contents.live) and not df.isStreaming
    place = str(journal.location)
    _generations[place] += not contents.seen
    of_task = JournalTask(
        journal,
        contents.description,
        Seen.of(contents.seen if joins else ()),
        joins,
        spark.conf.get("spark.app.id", None) or "spark",
        _generations[place],
    )
    join = partial(with_known, contents=contents, journal=journal, columns=task.layout.found.names, where=where)
    return replace(task, journal=of_task), join if joins else None


def without_known(df: DataFrame, task: EnrichTask, journal: Journal) -> DataFrame | None:
    """The rows whose answers a journal does not have, for a plan; None: it has none. No journal is made.

    Raises: as `with_journal`.
    """
    contents = contents_of(df.sparkSession, journal.location, _wanted(df, task, journal), make=False)
    if not contents.live:
        return None
    joined = with_known(df, task.layout.keys, contents=contents, journal=journal, columns=(), keeps_order=False)
    return joined.where("known IS NULL").drop("known")


def _wanted(df: DataFrame, task: EnrichTask, journal: Journal) -> Description:
    keys = key_types(df.schema, task.enricher, task.layout.keys)
    return wanted_description(journal.identity or identity_of(task.enricher), keys, task.answers)


BROADCAST = 10 << 20  # Spark's default of the largest table that is sent to all executors, in bytes.

IN_MEMORY = 8
"""Times that a file's bytes are in the memory of Spark, about. Two million answers of 5 bytes in a file, sent to all
executors, ended a driver with a gigabyte."""

PARTITIONS = 200  # Spark's default of the partitions of a shuffle, where the setting is not a number, as "auto" is.

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def latest(rows: DataFrame, keys: Sequence[str], expire_after: float | None) -> DataFrame:
    """The rows of the latest living answer of each key, with a column `_j_ends`: when it expires, in
    microseconds since the epoch; null: never.

    Args:
        rows: the rows of a journal's files, in any order, equal ones too.
        keys: the names of the key columns.
        expire_after: shortens the life of answers, in seconds.
    """
    ends = F.unix_micros(F.col("_expires"))
    if expire_after is not None:
        # `least` passes over nulls.
        ends = F.least(ends, F.unix_micros(F.col("_time")) + F.lit(round(expire_after * 1_000_000)))
    rows = rows.withColumn("_j_ends", ends)
    living = rows.where(F.col("_j_ends").isNull() | (F.col("_j_ends") > F.unix_micros(F.current_timestamp())))
    *answer, row = (F.col(name) for name in ORDER)
    order = Window.partitionBy(*map(quoted, keys)).orderBy(*(name.desc() for name in answer), row)
    of_latest = F.struct(*(F.first(name).over(order).alias(name) for name in ("_run", "_call")))
    ranked = living.select("*", of_latest.alias("_j_of"), F.lag("_row").over(order).alias("_j_before"))
    # Equal rows of the latest answer are neighbours.
    is_new = F.col("_j_before").isNull() | (F.col("_j_before") < row)
    return ranked.where((F.col("_j_of") == F.struct("_run", "_call")) & is_new).drop("_j_of", "_j_before")


def with_known(
    df: DataFrame,
    positions: Sequence[int],  # Of the key columns in `df`.
    *,
    contents: Contents,
    journal: Journal,
    columns: Sequence[str],  # Of the answers.
    keeps_order: bool,  # The rows stay in the order of all rows of `df`.
    # The condition under which an answer is known, of its first row as `row`, with columns `a0`, `a1`, ...
    where: str | None = None,
) -> DataFrame:
    """The rows of `df`, and at the end a column with the known answer of each row's key.

    It is null if no answer is known, else struct<ends: bigint, rows: array<struct>>: when it expires (see `latest`),
    and its rows; a miss has none. Columns get other names, positions stay.
    """
    spark, numbered = df.sparkSession, df.toDF(*(f"_{i}" for i in range(len(df.columns))))
    kinds = [_widest(df.schema.fields[position].dataType) for position in positions]
    known = _known(contents.rows(spark), contents, kinds, journal, columns, where)
    is_small = IN_MEMORY * contents.nbytes <= most_broadcast(spark)
    sorts = keeps_order and not is_small
    if sorts:
        # It numbers the rows of a partition in their order, and later partitions higher.
        numbered = numbered.withColumn("_order", F.monotonically_increasing_id())
    same = [
        plain_text(numbered[f"_{position}"], df.schema.fields[position].dataType).cast(kind) == known[f"k{i}"]
        for i, (position, kind) in enumerate(zip(positions, kinds, strict=True))
    ]
    # Without a hint Spark would judge by the bytes of the files.
    joined = numbered.join(known.hint("broadcast" if is_small else "merge"), reduce(and_, same), "left")
    if sorts:
        # Not `sort`: Spark could join its partitions to fewer ones, each of which may wait for many calls.
        joined = joined.repartitionByRange(shuffle_partitions(spark), "_order").sortWithinPartitions("_order")
    return joined.select(*(f"_{i}" for i in range(len(df.columns))), "known")


def shuffle_partitions(spark: SparkSession) -> int:
    """The partitions of a shuffle, as the user has set them."""
    partitions = spark.conf.get("spark.sql.shuffle.partitions", None) or ""
    return int(partitions) if partitions.isdigit() else PARTITIONS


def _known(
    rows: DataFrame,
    contents: Contents,
    kinds: Sequence[DataType],
    journal: Journal,
    columns: Sequence[str],
    where: str | None,
) -> DataFrame:
    """One row for each key that has a living answer: its parts `k0`, `k1`, ... in these types, and `known`."""
    stored = [field.dataType for field in spark_schema(contents.description.keys).fields]
    names = [quoted(name) for name in contents.description.keys.names]
    own = [F.col(name) for name in names]
    parts = [f"k{i}" for i in range(len(kinds))]
    cast = [
        key if kind == theirs else F.expr(f"try_cast({name} AS {kind.simpleString()})")
        for key, name, kind, theirs in zip(own, names, kinds, stored, strict=True)
    ]
    for key, other in zip(own, cast, strict=True):
        # A key that the DataFrame's type does not have, such as 1.5 for integers, is the key of no row.
        if other is not key:
            rows = rows.where(key == other)
    answer = [F.col(quoted(name)).alias(f"a{i}") for i, name in enumerate(columns)]
    about = ["_found", "_time", "_run", "_expires", "_row", "_call"]
    named = [key.alias(part) for key, part in zip(cast, parts, strict=True)]
    expire_after = None if journal.expire_after is None else seconds(journal.expire_after)
    found = latest(rows.select(*named, F.struct("_row", "_found", *answer).alias("row"), *about), parts, expire_after)
    if not journal.keep_missing:
        found = found.where("_found")
    if where is not None:
        found = found.where(where)
    in_order = F.array_sort(F.collect_list("row"), lambda one, other: one["_row"] - other["_row"])
    answers = F.filter(in_order, lambda row: row["_found"])
    return found.groupBy(*parts).agg(F.struct(F.max("_j_ends").alias("ends"), answers.alias("rows")).alias("known"))


def _widest(kind: DataType) -> DataType:
    """The type in which a key column of a DataFrame is compared: that in which a journal stores such keys."""
    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, StringType):
        return StringType()
    return DoubleType() if isinstance(kind, FractionalType) and kind.typeName() in ("float", "double") else kind


def most_broadcast(spark: SparkSession) -> int:
    """The bytes up to which Spark sends a table to all executors, as the user has set it; -1: never."""
    text = (spark.conf.get("spark.sql.autoBroadcastJoinThreshold", None) or "").strip().lower()
    if re.fullmatch(r"-\d+[a-z]*", text):
        return -1
    size = re.fullmatch(r"(\d+)([kmgtp]?)b?", text)
    return BROADCAST if size is None else int(size[1]) << _UNITS[size[2]]


logger = logging.getLogger("asyncio_operator.journal")

ERRORS: dict[str, type[AsyncOperatorError]] = {
    kind.__name__: kind for kind in (ConfigurationError, StateError, JournalError)
}


MOST_NAMED = 32
"""Files that are named to Spark one by one. For more, it would start a job that looks for each of them; for the whole
directory it makes one listing."""

DATA_FILES = f"{{{ANSWERS},{COMPACTED}}}-{'[0-9]' * 13}-{'[0-9a-f]' * 16}-{'[0-9]' * 6}.parquet"
"""`format.DATA_NAME` as Hadoop writes patterns. Rows of other files would be answers of keys."""


NEEDED = {
    LOCAL: "the path must be one that Spark's driver and executors see too",
    S3: "Spark needs its own client, as with spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION (that of the "
    "hadoop-client-api among Spark's jars), and its credentials in fs.s3a",
    GS: "Spark needs its own client, the Cloud Storage connector for Hadoop",
    HDFS: "Spark needs the configuration of that Hadoop, as with HADOOP_CONF_DIR",
}


AT_ONCE = 16  # Threads that look at files: an object store takes some 20 ms for each file.

AS_WRITTEN = {
    # Spark takes a path for a pattern, and a directory may have a [ in its name.
    "__globPaths__": "false",
    # The session may be set to take old dates for those of Spark 2.
    "datetimeRebaseMode": "CORRECTED",
    # A compaction would replace a file that Spark has passed over, and its answers would be lost.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    # A byte that was changed is then an error, and not another answer.
    "parquet.page.verify-checksum.enabled": "true",
}
"""Options of Spark's reader, whatever the session says."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A journal at one moment."""

    location: Location
    description: Description
    live: Sequence[str]  # The names of the files that must be read, older ones first.
    nbytes: int  # Their size.
    seen: Sequence[str]  # The names of all whole files: `live` has their answers.
    is_whole: bool = True  # Whether all files are whole.

    def rows(self, spark: SparkSession) -> DataFrame:
        """All rows of its live files, and perhaps of replaced and of later ones: equal rows of one answer are one."""
        description = self.description
        schema = spark_schema(description.keys, description.answers, ABOUT)
        if not self.live:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).options(**AS_WRITTEN)
        try:
            if len(self.live) > MOST_NAMED and self.is_whole:
                rows = reader.option("pathGlobFilter", DATA_FILES).parquet(self.location.for_spark)
                # With a directory such as "day=1" in it, Spark takes it for a table of partitions, and reads only them.
                if rows.columns == schema.names:
                    return rows
            return reader.parquet(*(f"{self.location.for_spark}/{name}" for name in self.live))
        except Exception as error:
            raise JournalError(
                f"Spark cannot read the journal {self.location}, which the workers can write "
                f"({describe_error(error).partition(chr(10))[0]}); {NEEDED.get(self.location.kind, NEEDED[LOCAL])}"
            ) from error


def quoted(name: str) -> str:
    """The name of a column, as an expression of Spark."""
    return "`" + name.replace("`", "``") + "`"


def contents_of(
    spark: SparkSession, location: Location, wanted: Description | None = None, *, make: bool = True
) -> Contents:
    """What a journal holds. It is checked against `wanted`; None: there must be one. `make` makes it with that
    description if there is none. ConfigurationError if there is none, or it holds something else; StateError if a file
    of it is damaged or of another format; JournalError if the place does not answer."""
    found = at_place(spark, location, partial(_contents, location, None if wanted is None else wanted.text, make))
    return Contents(location, Description.read(found.pop("description").encode(), str(location)), **found)


def _contents(location: Location, wanted: str | None, make: bool, place: Place) -> dict[str, Any]:
    """The fields of `Contents`."""
    if wanted is None:
        description = read_description(place)
        if description is None:
            raise ConfigurationError(f"there is no journal at {location}: check the path")
    else:
        description = open_journal(place, Description.read(wanted.encode(), str(location)), make=make)
    listing = list_journal(place)
    whole = in_parallel(partial(is_whole, place, description=description), listing.files, AT_ONCE)
    broken = {entry.name for entry, is_one in zip(listing.files, whole, strict=True) if not is_one}
    for name in broken:
        logger.warning("the journal's file %s/%s is not complete and is ignored", location, name)
    live = [entry for entry in listing.live if entry.name not in broken]
    return {
        "description": description.text,
        "live": [entry.name for entry in live],
        "nbytes": sum(entry.size for entry in live),
        "is_whole": not broken,
        "seen": [entry.name for entry in listing.files if entry.name not in broken],
    }


Ask = Callable[[Place], dict[str, Any]]  # Reads a place, or writes to it, and returns what JSON can hold.


def at_place(spark: SparkSession, location: Location, ask: Ask) -> dict[str, Any]:
    """The result of a function that is called where the location is: here, or on the server of Spark Connect. Errors of
    the system, and a place that hangs, are a JournalError; other errors are raised as they are."""
    if context_of(spark) is not None:
        return _asked(location, ask)
    task = spark.range(0, 1, 1, 1).mapInArrow(partial(_in_task, location, ask), "found string")
    [row] = task.collect()
    found: dict[str, Any] = json.loads(row["found"])
    if "error" in found:
        raise ERRORS[found["error"]](found["message"])
    return found


def _asked(location: Location, ask: Ask) -> dict[str, Any]:
    try:
        return ask_place(open_place(location), ask)
    except (OSError, pa.ArrowException) as error:
        first = describe_error(error).partition("\n")[0]
        raise JournalError(
            f"the journal {location} cannot be read or made ({first}): check that the place exists, and that this user "
            "may write there"
        ) from error


def _in_task(location: Location, ask: Ask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Calls the function in a task, which a worker of the server runs."""
    for _ in batches:
        """The function takes nothing from them."""
    try:
        found = _asked(location, ask)
    except tuple(ERRORS.values()) as error:
        kind = next(name for name, one in ERRORS.items() if isinstance(error, one))
        found = {"error": kind, "message": str(error)}
    yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})
