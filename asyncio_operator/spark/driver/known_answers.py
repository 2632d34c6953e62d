"""Known answers of a journal as DataFrames: the latest living answer of each key, and rows joined with them (law J5).

All of it is an expression of Spark. So a journal is in the memory of neither the driver nor a worker, and what lives is
decided when a job runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DoubleType, FractionalType, IntegralType, LongType, StringType

from asyncio_operator.checks import seconds
from asyncio_operator.journal.answers import ORDER
from asyncio_operator.journal.options import Journal
from asyncio_operator.spark.driver.columns import plain_text
from asyncio_operator.spark.driver.journal_files import Contents, quoted, spark_types

BROADCAST = 10 << 20
"""Spark's default of the largest table that is sent to all executors, in bytes."""

IN_MEMORY = 8
"""Times that a file's bytes are in the memory of Spark, about. Two million answers of 5 bytes in a file, sent to all
executors, ended a driver with a gigabyte."""

PARTITIONS = 200
"""Spark's default of the partitions of a shuffle, where the setting is not a number, as "auto" is."""

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
    positions: Sequence[int],
    *,
    contents: Contents,
    journal: Journal,
    columns: Sequence[str],
    keeps_order: bool,
    where: str | None = None,
) -> DataFrame:
    """The rows of `df`, and at the end a column with the known answer of each row's key.

    It is null if no answer is known, else struct<ends: bigint, rows: array<struct>>: when it expires (see `latest`),
    and its rows; a miss has none. Columns get other names, positions stay.

    Args:
        positions: of the key columns in `df`.
        columns: of the answers.
        keeps_order: the rows stay in the order of all rows of `df`.
        where: the condition under which an answer is known, of its first row as `row`, with columns `a0`, `a1`, ...
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
    stored = [field.dataType for field in spark_types(contents.description.keys).fields]
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
