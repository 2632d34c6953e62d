"""In Spark on two cores: `enrich`, and four ways without it.

The four ways: a blocking client in `mapPartitions`, a thread pool in a pandas UDF, Spark's own threads for an Arrow UDF
(`spark.sql.execution.pythonUDF.arrow.concurrency.level`), and `asyncio.gather` for each Arrow batch. Each is minimal:
none caches keys or rows. All run over the same two partitions into Spark's sink ``noop``, which reads every column. In
a check, rows are counted instead. The same program runs this library, in the environment of the project, and the
others, in theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType

from benchmarks.peers.functions import SCHEMAS, Asynchronous, Blocking, shared
from benchmarks.peers.task import SERVED, Answer, Task, serve
from examples.stage import cause, local_spark, workspace

Side = Callable[[DataFrame, str, Task], DataFrame]
"""From the rows, the name of their key, and the task to the rows with an answer."""


def enriched(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """This library."""
    from asyncio_operator import Budget
    from asyncio_operator.spark import enrich
    from benchmarks.peers.programs.operator import enricher_of, retrying
    from enrichers import FunctionEnricher

    if task.rate:
        both = Budget("both tasks", in_flight=2 * task.capacity)
        return enrich(rows, enricher_of(task), on=key, capacity=2 * task.capacity, budget=both, **retrying(task))
    if task.work in SERVED:
        shape: Literal["distinct", "inline"] = "distinct" if task.side == "distinct" else "inline"
        return enrich(rows, enricher_of(task), on=key, capacity=task.capacity, strategy=shape, **retrying(task))
    if task.work == "postgres":
        return enrich(rows, enricher_of(task), on=key, capacity=task.capacity)
    work = Asynchronous(task).call

    async def call(value: Any) -> dict[str, Any] | None:
        row = await work(value)
        return None if row is None else {"answer": row[0]}

    mode: Literal["ordered", "unordered"] = "ordered" if task.ordered else "unordered"
    return enrich(rows, FunctionEnricher(call, SCHEMAS[task.work]), on=key, mode=mode, capacity=task.capacity)


def blocking(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """A call per row, one after the other, in `mapPartitions`."""
    place = rows.columns.index(key)
    nothing = (None,) * len(_answer(task).fields)

    def partition(part: Iterable[Any]) -> Iterator[Any]:
        function = Blocking(task, 1)
        function.open()
        for row in part:
            yield (*row, *(function(row[place]) or nothing))
        function.close()

    return rows.rdd.mapPartitions(partition).toDF(StructType([*rows.schema.fields, *_answer(task).fields]))


def threads(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """A pool of threads in a pandas UDF that keeps it from batch to batch."""
    names = _answer(task).names

    def batches(series: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        function = Blocking(task, task.capacity)
        function.open()
        with ThreadPoolExecutor(task.capacity) as pool:
            for keys in series:
                answers = pool.map(function, (None if pd.isna(key) else key for key in keys))
                yield pd.DataFrame([answer or (None,) * len(names) for answer in answers], columns=names)
        function.close()

    # Spark reads the kind of the UDF from these; they are no types of this module.
    batches.__annotations__ = {"series": Iterator[pd.Series], "return": Iterator[pd.DataFrame]}
    return _unpacked(rows, pandas_udf(batches, _answer(task))(key))  # type: ignore[call-overload]


def arrow(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """Spark's own threads, which it makes for each batch."""
    unchecked = replace(task, check=False)
    rows.sparkSession.conf.set("spark.sql.execution.pythonUDF.arrow.concurrency.level", task.capacity)

    def call(value: Any) -> Any:
        return shared(unchecked, task.capacity)(value)

    return _unpacked(rows, F.udf(call, _answer(task), useArrow=True)(key))


def gather(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """`asyncio.gather` for each Arrow batch, with a semaphore."""
    place = rows.columns.index(key)
    names = _answer(task).names
    schema = StructType([*rows.schema.fields, *_answer(task).fields])

    def batches(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import uvloop

        function = Asynchronous(task)
        limit = asyncio.Semaphore(task.capacity)

        async def call(value: Any) -> Any:
            async with limit:
                return await function.call(value)

        async def call_all(values: list[Any]) -> list[Any]:
            return await asyncio.gather(*map(call, values))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for part in parts:
                answers = runner.run(call_all(part.column(place).to_pylist()))
                columns = zip(*(answer or (None,) * len(names) for answer in answers), strict=True)
                yield pa.RecordBatch.from_arrays([*part.columns, *map(pa.array, columns)], [*part.schema.names, *names])
            runner.run(function.close())

    return rows.mapInArrow(batches, schema)


def openaivec(rows: DataFrame, key: str, task: Task) -> DataFrame:
    """The pandas UDF of openaivec, which remembers texts within a partition."""
    from benchmarks.peers.programs.openaivec import answers_udf

    return rows.withColumn("name", answers_udf(rows.sparkSession, task)(F.col(key).cast("string")))


SIDES: dict[str, Side] = {
    "enrich": enriched,
    "model": enriched,
    "distinct": enriched,
    "openaivec": openaivec,
    "blocking": blocking,
    "threads": threads,
    "arrow": arrow,
    "gather": gather,
}


def _answer(task: Task) -> StructType:
    answer = StructType.fromDDL(SCHEMAS[task.work])
    assert isinstance(answer, StructType)
    return answer


def _unpacked(rows: DataFrame, answer: Any) -> DataFrame:
    return rows.withColumn("answers", answer).select(*rows.columns, "answers.*")


def measure(spark: SparkSession, inputs: dict[Any, DataFrame], task: Task) -> Answer:
    """Do a task; the input of "postgres" is cached before the clock starts."""
    if task.work == "skew" and not task.ordered and task.side != "enrich":
        return Answer(cannot="knows one order only")
    if task.side in ("model", "distinct", "openaivec") and not task.count:
        return Answer(cannot="asks models only")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", task.batch)
    source = task.table, task.rows
    if source not in inputs:
        if task.table:
            inputs[source] = spark.read.parquet(task.table).limit(task.rows).repartition(2).cache()
            inputs[source].count()
        else:
            inputs[source] = spark.range(0, task.rows, 1, 2)
    frame = SIDES[task.side](inputs[source], task.column, task)
    started = time.perf_counter()
    try:
        if task.count:
            answers = Counter(row[0] or "" for row in frame.select(frame.columns[-1]).collect())
            seconds = time.perf_counter() - started
            return Answer(seconds, answers.total(), answers.total() - answers[""], answers)
        if task.check:
            last = frame.columns[-1]
            counts = frame.agg(F.count(F.lit(1)), F.count(F.col(last))).collect()[0]
            return Answer(time.perf_counter() - started, *counts)
        frame.write.format("noop").mode("overwrite").save()
    except Exception as error:
        raise RuntimeError(cause(error)) from error
    return Answer(time.perf_counter() - started)


if __name__ == "__main__":
    # A task may run again, as on a cluster: "faults" kills a worker.
    with workspace("peers") as directory, local_spark(directory, spark__master="local[2,4]") as session:
        tables: dict[Any, DataFrame] = {}
        serve(lambda task: measure(session, tables, task))
