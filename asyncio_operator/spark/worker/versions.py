"""What differs between the versions of PySpark, from 3.5 on, and between a classic session, which has a driver in this
process, and Spark Connect, which has none. No other module depends on the version.

since 4.0   The analysis of a table function has `AnalyzeArgument` and `AnalyzeResult`. `from_arrow_type` knows binaries
            and lists of a fixed size. `to_arrow_type` can refuse a struct with two fields of one name. A DataFrame of
            Spark Connect is a `pyspark.sql.DataFrame`. The progress of a query is an object, and no dictionary.
since 4.1   There are functions of columns, and table functions, over Arrow batches.
since 4.3   `to_arrow_type` takes the time zone of timestamps. Before, it was UTC.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
import pyspark
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, functions, udtf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.types import DataType, StructField, StructType

from asyncio_operator.checks import must_be
from asyncio_operator.errors import ConfigurationError

AnalyzeResult: Any = getattr(udtf, "AnalyzeResult", object)

arrow_udf: Any = getattr(functions, "arrow_udf", None)
"""Makes a function of columns over Arrow batches; None before 4.1."""

ARROW_TABLE_FUNCTION: int | None = getattr(getattr(pyspark.util, "PythonEvalType", None), "SQL_ARROW_UDTF", None)
"""The kind of a table function over Arrow batches; None before 4.1."""

_WANTED = {"error_on_duplicated_field_names_in_struct": True, "timezone": "UTC"}
_KNOWN: Any = {name: value for name, value in _WANTED.items() if name in inspect.signature(to_arrow_type).parameters}


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type in which Spark exchanges values of a Spark type. It raises if there is none."""
    if _KNOWN.keys() != _WANTED.keys():
        _refuse_twins(data_type)
    return to_arrow_type(data_type, **_KNOWN)


def _refuse_twins(data_type: DataType) -> None:
    """Raise if a struct has two fields of one name."""
    names = data_type.names if isinstance(data_type, StructType) else []
    if len({*names}) < len(names):
        raise ValueError(f"two fields of {data_type.simpleString()} have one name")
    for inner in vars(data_type).values():
        for kind in inner if isinstance(inner, list) else [inner]:
            if isinstance(kind := kind.dataType if isinstance(kind, StructField) else kind, DataType):
                _refuse_twins(kind)


def spark_data_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type; of a time without a zone, `TimestampNTZType`. It raises if there is none."""
    return from_arrow_type(_plain(kind), prefer_timestamp_ntz=True)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type in which binaries, texts and lists of a fixed size, and large ones, are those of any size."""
    if kinds.is_fixed_size_binary(kind) or kinds.is_large_binary(kind):
        return pa.binary()
    if kinds.is_large_string(kind):
        return pa.string()
    if kinds.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return pa.struct(map(_plain_field, kind)) if kinds.is_struct(kind) else kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))


def micro_batch_of(progress: object) -> tuple[str, int]:
    """The run id and the number of the micro-batch of a query's progress. ConfigurationError: it is something else."""
    if isinstance(progress, StreamingQueryProgress):
        return str(progress.runId), progress.batchId
    if isinstance(progress, dict) and {"runId", "batchId"} <= progress.keys():
        return str(progress["runId"]), int(progress["batchId"])
    raise must_be("batch", progress, "the progress of a streaming query, as query.lastProgress is")


def is_dataframe(thing: object) -> bool:
    """Whether it is a Spark DataFrame, of a classic session or of Spark Connect."""
    return isinstance(thing, DataFrame) or (
        type(thing).__name__ == "DataFrame" and type(thing).__module__ == "pyspark.sql.connect.dataframe"
    )


def too_old(face: str, instead: str) -> ConfigurationError:
    """The error of a function that needs functions over Arrow batches; `instead` says what works without them."""
    return ConfigurationError(f"{face} needs PySpark 4.1 or newer, and this is {pyspark.__version__}; {instead}")


DESCRIPTION = "spark.job.description"


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a session, whose driver is this process; None on Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # Each version of Spark Connect has its own error.
        return None


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Jobs that this thread runs here have this description in Spark's UI, unless the user has set one."""
    context = context_of(spark)
    if context is None or context.getLocalProperty(DESCRIPTION) is not None:
        yield
        return
    context.setJobDescription(text)
    try:
        yield
    finally:
        context._jsc.setLocalProperty(DESCRIPTION, None)
