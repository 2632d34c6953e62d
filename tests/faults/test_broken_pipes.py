"""docs/troubleshooting.md shows what PySpark prints when Spark ends a task early, with this package and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS

pytestmark = [pytest.mark.spark, pytest.mark.faults]

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from asyncio_operator.spark import enrich
from enrichers import enricher

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(1_000_000, numPartitions=1)

@enricher("text string")
async def texts(key):
    return {"text": "x" * 100}

found = enrich(rows, texts, on="id") if sys.argv[1] == "ours" else rows.mapInArrow(lambda batches: batches, "id long")
assert found.limit(5).count() == 5
spark.stop()
"""


@pytest.mark.parametrize("side", ["ours", "bare"])
def test_pyspark_prints_a_broken_pipe_after_limit(side: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(DOCS.parent)}
    ran = subprocess.run(
        [sys.executable, str(program), side], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    shown = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    *_, place, error = shown.strip().splitlines()
    assert error in ran.stderr
    assert place.partition('"')[2].partition('"')[0].removeprefix("...") in ran.stderr
