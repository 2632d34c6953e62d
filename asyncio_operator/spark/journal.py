"""`read_journal` and `compact_journal`: the answers of a journal as a DataFrame, and few files instead of many.

Spark does both, in its own memory. `asyncio_operator.journal` has the format and the commit protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator.arrow.decimals import cast_exactly
from asyncio_operator.arrow.key_arrays import in_utc
from asyncio_operator.checks import Duration, duration, must_be, seconds
from asyncio_operator.errors import describe_error
from asyncio_operator.journal.compaction import TRIES, Compacted, Compactor, is_compact
from asyncio_operator.journal.format import MEGABYTE, Description, JournalError
from asyncio_operator.journal.options import Journal, Location
from asyncio_operator.journal.storage import Place, open_place
from asyncio_operator.spark.driver.journaled import Contents, at_place, contents_of, latest, quoted
from asyncio_operator.spark.worker.versions import described

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
