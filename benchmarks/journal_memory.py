"""Law J5: the memory of a job with a large journal, and with one of a tenth of its answers.

Each job runs in a driver of its own, with new Python workers, and looks up the same number of rows: half of their keys
are in the journal, and the other half are called. Spark shuffles the journal; of the small one it may then make a
broadcast. As a check of the method, the same driver then reads the journal into its memory.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pyarrow import parquet
from pyspark.sql import SparkSession

from asyncio_operator import Journal
from asyncio_operator.spark import enrich
from benchmarks import Rows
from benchmarks.measuring import fill_journal
from enrichers import FunctionEnricher
from examples.stage import local_spark, workspace

KNOWN = 100_000
"""Answers of the smaller journal. Each has about 60 bytes in Arrow's memory."""

ROWS = 20_000

ANSWER = "title string, stars int, price double"

HOLDS = "memory of the same driver, which then reads the journal"


async def _peak_of_worker(key: int) -> Mapping[str, float]:
    return {"price": _peak()}


def _peak() -> float:
    """The most memory that this process ever had, in MB. Linux only; `getrusage` counts what was before an `exec`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def journal_memory() -> Rows:
    """Peak memory of the driver's Python and of the workers, and the heap that Spark keeps, with 1,000,000 known
    answers compared with 100,000."""
    with workspace("benchmark") as directory:
        measured = []
        for known in (10 * KNOWN, KNOWN):
            path = directory / str(known)
            fill_journal(Journal(path, identity="memory"), FunctionEnricher(_peak_of_worker, ANSWER).schema(), known)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as driver:
                measured.append(driver.submit(_measured, path, known, directory).result())
    for name in measured[0]:
        many, few = (figures[name] for figures in measured)
        about = f"{name}, {10 * KNOWN:,} / {KNOWN:,} known"
        yield "S17", about, f"{many:.0f} MB", f"{few:.0f} MB", many / few, "" if name == HOLDS else "<= 1.1"


def _measured(path: Path, known: int, directory: Path) -> dict[str, float]:
    """The figures of a job, in MB by name."""
    journal = Journal(path, identity="memory")
    with local_spark(directory, spark__sql__shuffle__partitions="2") as spark:
        rows = spark.range(0, ROWS, 1, 2).selectExpr(f"IF(id % 2 = 0, id * {known // ROWS}, -id) AS id")
        enriched = enrich(rows, FunctionEnricher(_peak_of_worker, ANSWER), on="id", journal=journal, mode="unordered")
        [answered] = enriched.selectExpr("count(title)", "count(*)", "max(IF(title IS NULL, price, 0))").collect()
        assert answered[:2] == (ROWS // 2, ROWS)
        figures = {
            "memory of the driver's Python": _peak(),
            "memory of a Python worker": answered[2],
            "heap that Spark has in use": _heap(spark),
        }
        held = parquet.read_table(path, columns=["id", "title", "stars", "price"])
        assert held.num_rows >= known
        return figures | {HOLDS: _peak()}


def _heap(spark: SparkSession) -> float:
    """What the JVM still uses after it has collected garbage, in MB."""
    jvm: Any = spark._jvm
    memory, used = jvm.java.lang.management.ManagementFactory.getMemoryMXBean(), list[float]()
    for _ in range(3):
        # The first collection finds what Spark then lets go of.
        jvm.java.lang.System.gc()
        used.append(memory.getHeapMemoryUsage().getUsed() / 1e6)
        time.sleep(0.2)
    return min(used)
