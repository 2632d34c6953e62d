"""The README: its program runs as it stands and prints what it says, its ratios are those of the benchmarks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import report

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.spark
def test_the_program_runs_without_a_server_and_prints_what_the_readme_shows(tmp_path: Path) -> None:
    [program], [table] = blocks("python"), blocks("text")
    (tmp_path / "readme.py").write_text(program, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    run = subprocess.run(
        [sys.executable, "readme.py"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip() == table.strip()


def test_it_is_read_in_three_minutes() -> None:
    assert TEXT.count("\n") <= 160


def test_its_ratios_are_those_of_the_benchmarks() -> None:
    _, ratios = report.read(ROOT / "docs" / "benchmarks.md")
    found = dict(re.findall(r"^\| (.+?) \| ([\d.]+) times \|$", TEXT, re.MULTILINE))
    threads, gather = "thread pool in a pandas UDF", "gather per Arrow batch"
    measured = {
        "a blocking call for each row": ratios["blocking client in mapPartitions", "skew"],
        "a pool of 100 threads, 10,000 rows in an Arrow batch": ratios[threads, "skew"],
        "`asyncio.gather`, 10,000 rows in an Arrow batch": ratios[gather, "skew"],
        "a pool of 100 threads, 100 rows in an Arrow batch": ratios[threads, "small"],
        "`asyncio.gather`, 100 rows in an Arrow batch": ratios[gather, "small"],
    }
    assert found == {way: f"{ratio:.2g}" for way, ratio in measured.items()}
