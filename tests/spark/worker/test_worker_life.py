"""Laws X8, L8 and X9: what lives in a worker, how long, and how much memory it takes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Enricher
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher

pytestmark = pytest.mark.spark

STATM = Path("/proc/self/statm")


def client_of(directory: Path, url: str = "a") -> Enricher:
    """An enricher that notes in files when it is opened and closed, by its URL and process."""

    class Client(Enricher):
        def __init__(self) -> None:
            self.url = url
            self.number = 0

        def schema(self) -> pa.Schema:
            return pa.schema([("pid", pa.int64()), ("client", pa.int64())])

        async def open(self) -> None:
            import threading

            assert threading.current_thread().name == "asyncio-operator-loop"
            self.number = id(self)
            self._note("open")

        async def close(self) -> None:
            self._note("close")

        def _note(self, what: str) -> None:
            with (directory / f"{what}-{self.url}-{os.getpid()}").open("a") as file:
                file.write("x")

        async def lookup(self, key: Any) -> Any:
            return {"pid": os.getpid(), "client": self.number}

    return Client()


def notes(directory: Path, what: str) -> Counter[str]:
    """How often it was done, by URL and process."""
    return Counter({p.name.removeprefix(f"{what}-"): p.stat().st_size for p in directory.glob(f"{what}-*")})


def used(spark: SparkSession, enricher: Enricher, rows: int = 100) -> set[tuple[int, int]]:
    """Process and client of every row of a job."""
    out = enrich(spark.range(0, rows, numPartitions=2), enricher, on="id").collect()
    assert len(out) == rows
    return {(row.pid, row.client) for row in out}


def test_L8_X8_jobs_one_after_the_other_use_one_client_that_is_opened_in_their_worker(
    spark: SparkSession, tmp_path: Path
) -> None:
    enricher = client_of(tmp_path)
    seen = used(spark, enricher) | used(spark, enricher)
    for _ in range(3):
        seen |= used(spark, client_of(tmp_path))
    opened = notes(tmp_path, "open")
    assert set(opened.values()) == {1}, "a worker opened one more for an equal specification"
    assert len(opened) == len({pid for pid, _ in seen}) == len(seen)
    used(spark, client_of(tmp_path, url="b"))
    opened = notes(tmp_path, "open")
    assert {name.partition("-")[0] for name in opened} == {"a", "b"}
    assert str(os.getpid()) not in {name.rpartition("-")[2] for name in opened}, "it was opened on the driver"
    assert notes(tmp_path, "close") == {}


def resident(spark: SparkSession, rows: int, mode: Any) -> int:
    """The most bytes that the worker was seen to hold while it enriched one partition of wide rows."""
    statm = STATM

    async def look_up(key: int) -> Any:
        if key % 500:
            return {"note": f"{key:0100}"}
        return {"bytes": int(statm.read_text().split()[1]) * 4096}

    df = spark.range(0, rows, numPartitions=1).selectExpr("id", "repeat(cast(id AS string), 120) AS wide")
    out = enrich(df, FunctionEnricher(look_up, "bytes long, note string"), on="id", mode=mode)
    return int(out.selectExpr("max(bytes)").collect()[0][0])


@pytest.mark.skipif(not STATM.exists(), reason="the worker reads its size from /proc")
@pytest.mark.parametrize("mode", ["ordered", pytest.param("unordered", marks=pytest.mark.faults)])
def test_X9_memory_does_not_grow_with_the_partition(spark: SparkSession, mode: str) -> None:
    small = resident(spark, 300_000, mode)  # More than the 250,000 keys that a task remembers.
    large = resident(spark, 500_000, mode)
    assert large < small + 60_000_000, f"{small:,} bytes for 300,000 rows, {large:,} for 500,000, 160 MB more"
