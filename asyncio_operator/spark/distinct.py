"""The strategy "distinct": looks up the distinct keys of the whole DataFrame, and joins the answers back.

Every key is looked up once in a job, and rows never pass through Python. That is faster if rows are wide, or if keys
repeat far apart. The price: Spark reads the DataFrame twice, shuffles the keys, and returns rows in any order. Both
reads must return the same rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.worker.enrich_task import EnrichTask


def enrich_distinct(df: DataFrame, task: EnrichTask, schema: StructType, join_hint: str | None) -> DataFrame:
    """`df` with the columns that the task adds to its keys.

    Args:
        task: made for rows of `df`.
        schema: schema of the output.
        join_hint: how Spark joins, such as "broadcast"; None: Spark decides.

    Raises:
        ConfigurationError: `df` is a stream.
    """
    if df.isStreaming:
        raise ConfigurationError(
            'strategy="distinct" reads the DataFrame twice, and a stream is read once; use "inline", with a cache'
        )
    numbered = df.toDF(*(f"_{i}" for i in range(len(df.columns))))
    positions = task.layout.keys
    keys = numbered.select(
        *(
            _plain(F.col(f"_{position}"), df.schema.fields[position]).alias(f"k{i}")
            for i, position in enumerate(positions)
        )
    )
    added = schema.fields[len(df.columns) :]
    fields = [StructField(f"k{i}", keys.schema.fields[i].dataType) for i in range(len(positions))]
    fields += [StructField(f"a{i}", field.dataType) for i, field in enumerate(added)]
    found = keys.distinct().mapInArrow(task.of_keys(), StructType(fields))
    if join_hint is not None:
        found = found.hint(join_hint)
    # Null keys must match too: they are misses, which may be dropped or have a status.
    same = [
        _plain(numbered[f"_{position}"], df.schema.fields[position]).eqNullSafe(found[f"k{i}"])
        for i, position in enumerate(positions)
    ]
    condition = same[0]
    for one in same[1:]:
        condition &= one
    # With an inner join Spark cannot skip the lookup, even if its columns are not used.
    how = "inner" if task.layout.inner or task.layout.required or task.layout.drop_failed else "left"
    joined = numbered.join(found, condition, how)
    columns = [*(numbered[f"_{i}"] for i in range(len(df.columns))), *(found[f"a{i}"] for i in range(len(added)))]
    return joined.select(*columns).toDF(*schema.names)


def _plain(column: Column, field: StructField) -> Column:
    """The column without a collation: Spark then compares texts character by character, as the enricher does."""
    if isinstance(field.dataType, StringType) and getattr(field.dataType, "collation", "UTF8_BINARY") != "UTF8_BINARY":
        return F.collate(column, "UTF8_BINARY")
    return column
