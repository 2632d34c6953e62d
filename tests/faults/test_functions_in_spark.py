"""Functions that do what no function should: rows in are rows out, or the job fails with one clear error, in time.

The next job works in either case, and finds the workers as it would have without.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import FEEDER, GONE, assert_workers_are_clean, in_background, wait_until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]

IN_TIME = 60.0


def numbers(spark: SparkSession, rows: int = 40, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, numPartitions=partitions)


def test_a_function_that_blocks_the_loop_costs_time_and_no_row(spark: SparkSession) -> None:
    async def look(key: int) -> Any:
        if key % 10 == 3:
            time.sleep(0.2)  # noqa: ASYNC251
        return {"x": 7 * key}

    rows = enrich(numbers(spark), FunctionEnricher(look, "x long"), on="id", timeout=60).collect()
    assert [tuple(row) for row in rows] == [(key, 7 * key) for key in range(40)]
    assert_workers_are_clean(spark)


@pytest.mark.parametrize("interrupt", [False, True], ids=["told", "interrupted"])
@pytest.mark.faults
def test_a_function_that_blocks_the_loop_for_ever_ends_with_its_job(
    spark: SparkSession, tmp_path: Path, interrupt: bool
) -> None:
    async def look(key: int) -> Any:
        if key == 3:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(600)  # noqa: ASYNC251
        return {"x": 7 * key}

    def job() -> Any:
        spark.sparkContext.setJobGroup("blocked", "to be cancelled", interruptOnCancel=interrupt)
        return enrich(numbers(spark), FunctionEnricher(look, "x long"), on="id", timeout=1.0).collect()

    thread, outcome = in_background(job)
    wait_until(lambda: any(tmp_path.iterdir()) or bool(outcome), IN_TIME, "the loop is held up")
    spark.sparkContext.cancelJobGroup("blocked")
    thread.join(IN_TIME)
    assert "cancelled" in str(outcome[0])
    [pid] = [int(path.name) for path in tmp_path.iterdir()]
    wait_until(lambda: not psutil.pid_exists(pid), GONE, "the worker is gone")
    assert_workers_are_clean(spark)


@pytest.mark.faults
@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_a_function_that_swallows_its_cancellation_is_late_all_the_same(spark: SparkSession, on_error: Any) -> None:
    async def look(key: int) -> Any:
        if key % 10 == 3:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
        return {"x": 7 * key}

    enricher = FunctionEnricher(look, "x long")
    out = enrich(numbers(spark), enricher, on="id", timeout=0.3, on_error=on_error, status_column="how", capacity=4)
    if on_error == "fail":
        with pytest.raises(Exception, match=r"failed for key \d*3: ElementTimeoutError: .*within its timeout of 0.3 s"):
            out.collect()
    else:
        rows = out.collect()
        assert [(row.id, row.x) for row in rows] == [(key, None if key % 10 == 3 else 7 * key) for key in range(40)]
        assert {row.id for row in rows if row.how.status == "timed_out"} == {3, 13, 23, 33}
    assert_workers_are_clean(spark)


def never(tmp_path: Path, deaf: Callable[[int], bool]) -> FunctionEnricher:
    """For some keys it does not let itself be cancelled, as long as there is no file "over"."""
    over = tmp_path / "over"

    async def look(key: int) -> Any:
        while deaf(key) and not over.exists():
            (tmp_path / f"{key}-{os.getpid()}").touch()
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return {"x": 7 * key}

    return FunctionEnricher(look, "x long")


@pytest.mark.faults
def test_calls_that_never_end_hold_their_places_and_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """One place of four in each task is lost; at the end of the task it is left behind, after a grace period."""
    enricher = never(tmp_path, lambda key: key % 20 == 3)
    out = enrich(numbers(spark), enricher, on="id", timeout=0.3, on_error="null", capacity=4)
    assert [tuple(row) for row in out.collect()] == [(k, None if k % 20 == 3 else 7 * k) for k in range(40)]
    (tmp_path / "over").touch()
    assert_workers_are_clean(spark)


@pytest.mark.faults
def test_calls_that_never_end_and_hold_all_places_hold_up_the_job_until_it_is_cancelled(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Law O12: no one can know that they will not return. A cancelled job ends them."""
    enricher = never(tmp_path, lambda key: key % 2 == 1)

    def job() -> Any:
        spark.sparkContext.setJobGroup("deaf", "to be cancelled")
        return enrich(numbers(spark), enricher, on="id", timeout=0.3, on_error="null", capacity=4).collect()

    thread, outcome = in_background(job)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 8 or bool(outcome), IN_TIME, "all places are taken")
    spark.sparkContext.cancelJobGroup("deaf")
    thread.join(IN_TIME)
    assert "cancelled" in str(outcome[0])
    assert_workers_are_clean(spark)


@pytest.mark.parametrize("leak", ["task", pytest.param("thread", marks=pytest.mark.faults)])
def test_what_a_function_leaks_costs_no_row_and_is_found_until_it_is_over(
    spark: SparkSession, tmp_path: Path, leak: str
) -> None:
    over = tmp_path / "over"

    async def look(key: int) -> Any:
        async def left() -> None:
            while not over.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        leaked: Any = None
        if key % 20 == 3 and leak == "task":
            leaked = asyncio.create_task(left())
        elif key % 20 == 3:
            leaked = threading.Thread(target=lambda: asyncio.run(left()), name=FEEDER)
            leaked.start()
        return {"x": 7 * key, "leaked": str(leaked)}

    rows = enrich(numbers(spark), FunctionEnricher(look, "x long, leaked string"), on="id").collect()
    assert [(row.id, row.x) for row in rows] == [(key, 7 * key) for key in range(40)]
    with pytest.raises(AssertionError, match="left behind in a worker: .*" + (FEEDER if leak == "thread" else "left")):
        assert_workers_are_clean(spark, seconds=0)
    # It is the function's own: it runs to its end, in the worker, and not longer.
    over.touch()
    assert_workers_are_clean(spark)


PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher

size = int(sys.argv[1])
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "3g").getOrCreate()
spark.sparkContext.setLogLevel("OFF")


async def look(key):
    return {"x": chr(97 + key) * size}


for rows in (spark.range(0, 2, numPartitions=1), spark.range(0, 6, numPartitions=1).selectExpr("id - id AS id")):
    lengths = enrich(rows, FunctionEnricher(look, "x string"), on="id").selectExpr("length(x)", "substring(x, -1)")
    print([tuple(row) for row in lengths.collect()])
spark.stop()
"""


@pytest.mark.timeout(300)
@pytest.mark.faults
def test_a_function_that_returns_gigabytes_costs_no_row() -> None:
    """A column of the second job has 2.4 GB in six rows, more than one array of Arrow can hold."""
    size = 400_000_000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(size)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout.splitlines() == [str([(size, "a"), (size, "b")]), str([(size, "a")] * 6)], done.stderr[-3000:]
