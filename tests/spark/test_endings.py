"""Law X7: however a job ends, nothing of it is left behind 5 s later, and the worker works.

Lookups hold a connection to a server of the test while they run, and ask it to be left hanging; so what is left of them
can be counted from outside, whatever became of their process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import async_udf, enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import (
    FROM_4_1,
    GONE,
    Hanging,
    assert_nothing_is_left,
    hanging_from,
    hangs_from,
    in_background,
    through_sql,
    wait_until,
)

pytestmark = pytest.mark.spark

# Each takes seconds, and both end in the same way.
MODES = ["ordered", pytest.param("unordered", marks=pytest.mark.faults)]


# Of many rows, the input is still being sent when Spark has enough.
@pytest.mark.parametrize("rows", [60, 200_000])
@pytest.mark.parametrize("mode", MODES)
def test_X7_a_job_that_has_enough_rows_ends_although_the_others_hang_without_a_timeout(
    spark: SparkSession, server: Hanging, mode: Any, rows: int
) -> None:
    df = spark.range(0, rows, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    assert (out.limit(3).collect() if mode == "ordered" else out.take(3)) == [(0, 0), (1, 1), (2, 2)]
    assert_nothing_is_left(spark, server)


def by_enrich(df: DataFrame, port: int, mode: Any = "ordered") -> DataFrame:
    return enrich(df, hanging_from(port, first=3, fails=40), on="id", timeout=None, mode=mode)


def by_sql(df: DataFrame, port: int) -> DataFrame:
    return through_sql(df, hanging_from(port, first=3, fails=40), on="id", timeout=None)


def by_udf(df: DataFrame, port: int) -> DataFrame:
    return df.select(async_udf("long", timeout=None)(hangs_from(port, first=3, fails=40))("id"))


@pytest.mark.parametrize(
    ("face", "told"),
    [
        (by_enrich, "failed for key 40: ValueError: enough"),
        (partial(by_enrich, mode="unordered"), "failed for key 40: ValueError: enough"),
        pytest.param(by_sql, "failed for key 40: ValueError: enough", marks=FROM_4_1),
        (by_udf, r"ask failed for arguments \(40,\): ValueError: enough"),
    ],
    ids=["ordered", "unordered", "sql", "async_udf"],
)
def test_X7_a_failing_task_leaves_nothing(
    spark: SparkSession, server: Hanging, face: Callable[[DataFrame, int], DataFrame], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        face(spark.range(0, 60, numPartitions=1), server.port).collect()
    assert_nothing_is_left(spark, server)


def test_X7_a_cancelled_job_leaves_nothing(spark: SparkSession, server: Hanging) -> None:
    def job() -> Any:
        spark.sparkContext.setJobGroup("to be cancelled", "hanging lookups")
        return enrich(
            spark.range(0, 60, numPartitions=2), hanging_from(server.port, first=3), on="id", timeout=None
        ).collect()

    thread, outcome = in_background(job)
    wait_until(lambda: server.open == 57, 60, "57 lookups hang")
    spark.sparkContext.cancelJobGroup("to be cancelled")
    thread.join(60)
    assert "cancelled" in str(outcome[0])
    assert_nothing_is_left(spark, server)


@pytest.mark.parametrize("mode", MODES)
def test_X7_a_task_that_fails_behind_enrich_leaves_nothing(spark: SparkSession, server: Hanging, mode: Any) -> None:
    df = spark.range(0, 200_000, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    with pytest.raises(Exception, match="behind"):
        out.selectExpr("if(x = 1, raise_error('behind'), x)").collect()
    assert_nothing_is_left(spark, server)


@pytest.mark.parametrize("how", ["left", pytest.param("inner", marks=pytest.mark.faults)])
def test_X7_answers_that_trickle_in_do_not_hide_that_spark_has_enough(
    spark: SparkSession, server: Hanging, how: Any
) -> None:
    port = server.port

    async def look_up(key: int) -> Any:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.3)
        writer.close()
        return {"x": key} if key == 0 or how == "left" else None

    out = enrich(
        spark.range(0, 200, numPartitions=1),
        FunctionEnricher(look_up, "x long"),
        on="id",
        how=how,
        mode="unordered",
        capacity=1,
    )
    assert out.limit(1).collect() == [(0, 0)]
    assert server.ever < 30, "the first row has waited for others"
    changes = {server.ever: time.monotonic()}

    def quiet() -> bool:
        return time.monotonic() - changes.setdefault(server.ever, time.monotonic()) > 1.5

    wait_until(quiet, GONE + 1.5, "no more lookups")
    assert server.ever < 100


PROGRAM = """
    import asyncio, os, sys
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from asyncio_operator.spark import enrich
    from enrichers import FunctionEnricher

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for setting in {settings}:
        builder = builder.config(*setting)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    async def look_up(key):
        if key >= 3:
            _, writer = await asyncio.open_connection("127.0.0.1", {port})
            try:
                await asyncio.Event().wait()
            finally:
                writer.close()
        return {{"x": key, "pid": os.getpid()}}

    async def slow(key):
        await asyncio.sleep(2.5 if key == 0 else 0)
        return {{"x": key, "pid": os.getpid()}}

    hanging, slow = FunctionEnricher(look_up, "x long, pid long"), FunctionEnricher(slow, "x long, pid long")
    print(enrich(spark.range(0, 200_000, numPartitions=1), hanging, on="id", timeout=None).limit(3).count(), flush=True)
    rows = enrich(spark.range(0, 100, numPartitions=2), slow, on="id", timeout=None).collect()
    print([row.x for row in rows] == list(range(100)), flush=True)
    sys.stdin.read()
    spark.stop()
"""


# One of the tests of hygiene has a Spark with the same settings too.
@pytest.mark.faults
def test_X7_other_ways_of_spark_to_talk_to_its_workers(server: Hanging) -> None:
    settings = [
        ("spark.python.worker.reuse", "false"),
        ("spark.python.udf.pipelined.enabled", "true"),
        ("spark.python.unix.domain.socket.enabled", "true"),
    ]
    program = textwrap.dedent(PROGRAM).format(port=server.port, settings=settings)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stdout is not None
            told = [process.stdout.readline().strip()]
            wait_until(lambda: server.open == 0, GONE, "no running lookup")
            told.append(process.stdout.readline().strip())
            assert told == ["3", "True"]
        finally:
            process.communicate("")
    assert server.ever == 100
