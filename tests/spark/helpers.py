"""What the tests on a real Spark share. Nothing of it travels to the workers, which need not know this folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

BATCH_SIZE = "spark.sql.execution.arrow.maxRecordsPerBatch"

GONE = 10.0
"""Seconds after the end of a task in which nothing of it may be left: the 5 of law X7, and 5 for a busy machine."""


@contextmanager
def setting(spark: SparkSession, name: str, value: object) -> Iterator[None]:
    """A Spark setting for a while."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def in_partitions(spark: SparkSession, rows: Sequence[Any], schema: str, partitions: int) -> DataFrame:
    """Rows in order, so many partitions; with fewer rows than partitions some are empty."""
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def jobs(spark: SparkSession) -> set[int]:
    """All jobs that ever ran outside of a job group."""
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def python_workers(driver: int | None = None) -> list[psutil.Process]:
    """The Python workers of a driver, this one by default, without the daemon that forks them."""
    found = []
    for child in psutil.Process(driver or os.getpid()).children(recursive=True):
        try:
            if "pyspark.daemon" in child.cmdline() and "pyspark.daemon" in psutil.Process(child.ppid()).cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found
