"""Law X10, and what else is promised of streams: `enrich` on streaming DataFrames in a real Spark.

The input is files of JSON lines, a micro-batch for each. `known` is the enricher of most tests: it knows keys that are
no multiples of 5, and gives two rows for multiples of 7.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, window
from pyspark.sql.streaming.query import StreamingQuery

from asyncio_operator import Cache
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import BATCH_SIZE, FROM_4_0, GONE, Hanging, hanging_from, setting, wait_until

pytestmark = pytest.mark.spark

SCHEMA = "n long, id long"


def known() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        await asyncio.sleep(0.001)
        rows = [{"x": key, "nr": nr} for nr in range(2 if key % 7 == 0 else 1)]
        return rows if key % 5 else None

    return FunctionEnricher(look_up, "x long, nr int")


def write(directory: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One more file of the stream, which is a micro-batch."""
    directory.mkdir(exist_ok=True)
    number = len(list(directory.iterdir()))
    lines = "".join(f"{row!r}\n" for row in rows).replace("'", '"').replace("None", "null")
    # It appears whole, and Spark takes files in the order of their times.
    part = directory.parent / f"{number}.json"
    part.write_text(lines)
    os.utime(part, (number + 1, number + 1))
    part.rename(directory / part.name)


def numbered(directory: Path, files: int = 4, rows: int = 20) -> None:
    """Files of numbered rows; keys recur, and some are null."""
    start = len(list(directory.iterdir())) if directory.exists() else 0
    for file in range(start, start + files):
        numbers = range(file * rows, (file + 1) * rows)
        write(directory, ({"n": n, "id": None if n % 11 == 0 else n * 7 % 50} for n in numbers))


def stream(spark: SparkSession, directory: Path, schema: str = SCHEMA) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))


def to_parquet(out: DataFrame, directory: Path, name: str) -> StreamingQuery:
    """A query for all that is there, with a checkpoint."""
    writer = out.writeStream.format("parquet").option("path", str(directory / name))
    return writer.option("checkpointLocation", str(directory / f"{name}.checkpoint")).trigger(availableNow=True).start()


def finished(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(90), "the query is not over"
    return query


def written(spark: SparkSession, directory: Path, name: str) -> list[Any]:
    return sorted(map(tuple, spark.read.parquet(str(directory / name)).collect()), key=repr)


# -- X10: restarts


def batch_ids(query: Any) -> list[int]:
    """The numbers of its micro-batches. Before PySpark 4.0, a progress was a dictionary."""
    return [one["batchId"] if isinstance(one, dict) else one.batchId for one in query.recentProgress]


def test_X10_a_micro_batch_that_the_sink_has_and_the_checkpoint_has_not_is_not_written_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run() -> StreamingQuery:
        # Two tasks in each micro-batch.
        rows = stream(spark, tmp_path / "in").repartition(2)
        return finished(to_parquet(enrich(rows, known(), on="id", mode="unordered", cache=Cache()), tmp_path, "out"))

    numbered(tmp_path / "in", files=2)
    run()
    once = written(spark, tmp_path, "out")
    # What a kill between the two leaves.
    for file in ("1", ".1.crc"):
        (tmp_path / "out.checkpoint" / "commits" / file).unlink()
    numbered(tmp_path / "in", files=1)
    assert batch_ids(run()) == [1, 2]
    rows = written(spark, tmp_path, "out")
    assert [row for row in rows if row[0] < 40] == once
    assert {row[0] for row in rows} == set(range(60))


def test_X10_a_lookup_that_fails_ends_the_query_with_its_key_and_foreach_batch_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbered(tmp_path / "in")
    down = tmp_path / "down"
    is_down = down.exists

    async def look_up(key: int) -> Any:
        if key == 37 and is_down():
            raise ConnectionError("no route to the service")
        return {"x": key} if key % 5 else None

    batches: list[int] = []

    def save(df: DataFrame, batch: int) -> None:
        batches.append(batch)
        # Written anew if the micro-batch comes again.
        enrich(df, FunctionEnricher(look_up, "x long"), on="id").write.mode("overwrite").parquet(
            str(tmp_path / "out" / f"batch={batch}")
        )

    def run() -> StreamingQuery:
        writer = stream(spark, tmp_path / "in").writeStream.foreachBatch(save)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        return finished(query)

    down.touch()
    with pytest.raises(StreamingQueryException, match="failed for key 37: ConnectionError: no route to the service"):
        run()
    assert batches == [0, 1, 2]
    down.unlink()
    run()
    assert batches == [0, 1, 2, 2, 3]
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("n").collect()
    assert [row.n for row in rows] == list(range(80))
    assert [row.x for row in rows] == [row.id if row.id is not None and row.id % 5 else None for row in rows]


# -- the rows of a stream are those of a batch


@pytest.mark.parametrize(("mode", "partitions", "how"), [("ordered", None, "left"), ("unordered", 3, "inner")])
def test_X1_X2_X10_a_stream_gives_the_rows_that_a_batch_gives(
    spark: SparkSession, tmp_path: Path, mode: Any, partitions: int | None, how: Any
) -> None:
    numbered(tmp_path / "in", files=2, rows=300)

    def enriched(df: DataFrame) -> DataFrame:
        df = (df if partitions is None else df.repartition(partitions)).withColumn("odd.`name`", col("n") * 2)
        return enrich(df, known(), on="id", mode=mode, how=how, status_column="how").drop("how")

    with setting(spark, BATCH_SIZE, 20):
        finished(to_parquet(enriched(stream(spark, tmp_path / "in")), tmp_path, "out"))
        expected = enriched(spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
        rows = spark.read.parquet(str(tmp_path / "out"))
        assert rows.schema == expected.schema
        assert written(spark, tmp_path, "out") == sorted(map(tuple, expected.collect()), key=repr)
    if mode == "ordered" and partitions is None:
        # A micro-batch was one partition, and is one file.
        for file in (tmp_path / "out").glob("*.parquet"):
            numbers = [row.n for row in spark.read.parquet(str(file)).collect()]
            assert numbers == sorted(numbers)


def test_continuous_processing_is_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    out = enrich(spark.readStream.format("rate").load(), known(), on="value")
    writer = (
        out.writeStream.format("console").option("checkpointLocation", str(tmp_path)).trigger(continuous="1 second")
    )
    with pytest.raises(AnalysisException, match=r"Continuous processing does not support (Python)?MapInArrow"):
        writer.start()


def test_X7_a_query_that_is_stopped_leaves_no_running_lookup(
    spark: SparkSession, tmp_path: Path, server: Hanging
) -> None:
    numbered(tmp_path / "in", files=2)
    out = enrich(stream(spark, tmp_path / "in").repartition(2), hanging_from(server.port, 3), on="id", timeout=None)
    query = out.writeStream.format("noop").start()
    wait_until(lambda: server.open > 5, 60, "lookups hang")
    query.stop()
    assert query.exception() is None
    wait_until(lambda: server.open == 0, GONE, f"no running lookup; there are {server.open} of {server.ever}")
    finished(to_parquet(enrich(stream(spark, tmp_path / "in"), known(), on="id"), tmp_path, "out"))


# -- the watermark


KIND = "id % 3"
"""What `kind` finds, as an expression of Spark's."""


def kind() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        return {"kind": key % 3}

    return FunctionEnricher(look_up, "kind long")


def with_watermark(df: DataFrame) -> DataFrame:
    return df.withWatermark("ts", "10 seconds")


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy(window("ts", "10 seconds"), "kind").count().select(col("window.end"), "kind", "count")


def counted_then_known(df: DataFrame) -> DataFrame:
    return enrich(counted(df.selectExpr("ts", f"{KIND} AS kind")), known(), on="kind")


PLACES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nowhere": lambda df: counted(with_watermark(df).selectExpr("ts", f"{KIND} AS kind")),
    "before the watermark": lambda df: counted(with_watermark(enrich(df, kind(), on="id"))),
    "between watermark and aggregation, with names that need renaming": lambda df: counted(
        enrich(with_watermark(df).withColumn("odd.`name`", col("id")), kind(), on="odd.`name`")
    ),
    "behind the aggregation": lambda df: counted_then_known(with_watermark(df)).where("nr = 0 OR nr IS NULL"),
}


@FROM_4_0  # Before, a progress was a dictionary.
def test_X10_enrich_before_and_behind_a_stateful_operator_leaves_its_watermark_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    def row(second: int, n: int) -> dict[str, Any]:
        return {"ts": f"2024-01-01T00:{second // 60:02}:{second % 60:02}", "id": n}

    write(tmp_path / "in", [row(second, second) for second in range(40)])
    # 29 s is the watermark of this micro-batch, and what is before that is too late in the next: 5 and 12 are.
    write(tmp_path / "in", [row(second, 1000 + second) for second in (19, 25, 35, 65, 90)])
    write(tmp_path / "in", [row(second, 2000 + second) for second in (5, 12, 70, 79, 81, 200)])
    results = {}
    for place, query_of in PLACES.items():
        with setting(spark, "spark.sql.shuffle.partitions", 1):
            out = query_of(stream(spark, tmp_path / "in", "ts timestamp, id long"))
            writer = out.writeStream.format("memory").queryName("counts").outputMode("append")
            query = finished(writer.trigger(availableNow=True).start())
        rows = sorted(tuple(row)[:3] for row in spark.table("counts").collect())
        progress = query.recentProgress
        watermarks = [batch.eventTime.get("watermark") for batch in progress]
        late = [batch.stateOperators[0].numRowsDroppedByWatermark for batch in progress]
        results[place] = (rows, watermarks, late)
        assert rows
        assert watermarks[-1] == "2024-01-01T00:03:10.000Z"
        assert sum(late) > 0
    for place in PLACES:
        assert results[place] == results["nowhere"], place
