"""What a journal holds, as the driver sees it: its description, and the files that count.

The driver of a classic session lists the place itself. On Spark Connect the path is the server's, so one task of the
server does it, and returns JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from asyncio_operator.errors import AsyncOperatorError, ConfigurationError, StateError, describe_error
from asyncio_operator.journal.files import is_whole, list_journal
from asyncio_operator.journal.format import ABOUT, ANSWERS, COMPACTED, Description, JournalError
from asyncio_operator.journal.identity import open_journal, read_description
from asyncio_operator.journal.locations import GS, HDFS, LOCAL, S3, Location, locate
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import Place, open_place
from asyncio_operator.journal.watched import ask_place, in_parallel
from asyncio_operator.spark.driver.columns import spark_schema
from asyncio_operator.spark.driver.sessions import context_of

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


AT_ONCE = 16
"""Threads that look at files: an object store takes some 20 ms for each file."""

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
    """A journal at one moment.

    Attributes:
        live: the names of the files that must be read, older ones first.
        nbytes: their size.
        seen: the names of all whole files: `live` has their answers.
        is_whole: whether all files are whole.
    """

    location: Location
    description: Description
    live: tuple[str, ...]
    nbytes: int
    seen: tuple[str, ...]
    is_whole: bool = True

    def rows(self, spark: SparkSession) -> DataFrame:
        """All rows of its live files, and perhaps of replaced and of later ones: equal rows of one answer are one.

        Raises:
            JournalError: Spark cannot read the place.
        """
        description = self.description
        schema = spark_types(description.keys, description.answers, ABOUT)
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


def spark_types(*schemas: pa.Schema) -> StructType:
    """The columns of a journal in Spark's types."""
    return spark_schema(pa.schema([field for schema in schemas for field in schema]))


def quoted(name: str) -> str:
    """The name of a column, as an expression of Spark."""
    return "`" + name.replace("`", "``") + "`"


def location_of(path: str | Path | Journal) -> Location:
    """The location of a journal, which may be given as a `Journal`.

    Raises:
        ConfigurationError: it is no such path.
    """
    return path.location if isinstance(path, Journal) else locate(path)


def contents_of(
    spark: SparkSession, location: Location, wanted: Description | None = None, *, make: bool = True
) -> Contents:
    """What a journal holds.

    Args:
        wanted: is checked against the journal; None: there must be one.
        make: makes a journal with the wanted description if there is none.

    Raises:
        ConfigurationError: there is none, or it holds something else.
        StateError: a file of it is damaged or of another format.
        JournalError: the place does not answer.
    """
    found = at_place(spark, location, partial(_contents, location, None if wanted is None else wanted.text, make))
    description = Description.read(found["description"].encode(), str(location))
    return Contents(location, description, tuple(found["live"]), found["bytes"], tuple(found["seen"]), found["whole"])


def _contents(location: Location, wanted: str | None, make: bool, place: Place) -> dict[str, Any]:
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
        "bytes": sum(entry.size for entry in live),
        "whole": not broken,
        "seen": [entry.name for entry in listing.files if entry.name not in broken],
    }


Ask = Callable[[Place], dict[str, Any]]
"""Reads a place, or writes to it, and returns what JSON can hold."""


def at_place(spark: SparkSession, location: Location, ask: Ask) -> dict[str, Any]:
    """The result of a function that is called where the location is: here, or on the server of Spark Connect.

    Raises:
        ConfigurationError, StateError, JournalError: as the function raised. Errors of the system, and a place that
            hangs, are `JournalError`.
    """
    if context_of(spark) is not None:
        found = _answer(location, ask)
    else:
        task = spark.range(0, 1, 1, 1).mapInArrow(_Remote(location, ask), "found string")
        [row] = task.collect()
        found = json.loads(row["found"])
    if "error" in found:
        raise ERRORS[found["error"]](found["message"])
    return found


def _answer(location: Location, ask: Ask) -> dict[str, Any]:
    try:
        return ask_place(open_place(location), ask)
    except (ConfigurationError, StateError, JournalError) as error:
        kind = next(name for name, one in ERRORS.items() if isinstance(error, one))
        return {"error": kind, "message": str(error)}
    except (OSError, pa.ArrowException) as error:
        first = describe_error(error).partition("\n")[0]
        return {
            "error": "JournalError",
            "message": f"the journal {location} cannot be read or made ({first}): check that the place exists, and "
            "that this user may write there",
        }


class _Remote:
    """Calls the function in a task. It is sent to a worker of the server."""

    def __init__(self, location: Location, ask: Ask) -> None:
        self._location = location
        self._ask = ask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            """The function takes nothing from them."""
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(_answer(self._location, self._ask))]})
