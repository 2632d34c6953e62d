"""The README: its program runs as it stands and prints what it says, its ratios are those of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.peers import report

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.spark
def test_the_program_runs_without_a_server_and_prints_what_the_readme_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session of the tests, which is the one that `getOrCreate` gets."""
    [program], [table] = blocks("python"), blocks("text")
    exec(compile(program, "README.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == table.strip()


def test_it_is_read_in_three_minutes() -> None:
    assert TEXT.count("\n") <= 160


def test_its_ratios_are_those_of_the_benchmarks() -> None:
    _, ratios = report.read(ROOT / "benchmarks" / "figures.md")
    found = dict(re.findall(r"^\| (.+?) \| ([\d.]+)x \|$", TEXT, re.MULTILINE))
    text = (ROOT / "benchmarks" / "figures.md").read_text(encoding="utf-8")
    [(ours, by_hand)] = re.findall(r"`enrich` ([\d.]+) s, `mapInArrow` with asyncpg by hand ([\d.]+) s", text)
    threads, gather = "thread pool in a pandas UDF", "gather per Arrow batch"
    measured = {
        "a blocking call for each row": ratios["blocking client in mapPartitions", "skew"],
        "a pool of 100 threads, 10,000 rows in an Arrow batch": ratios[threads, "skew"],
        "`asyncio.gather`, 10,000 rows in an Arrow batch": ratios[gather, "skew"],
        "`asyncpg` by hand, 1,000 keys in a statement, 4 connections": float(by_hand) / float(ours),
        "a pool of 100 threads, 100 rows in an Arrow batch": ratios[threads, "small"],
        "`asyncio.gather`, 100 rows in an Arrow batch": ratios[gather, "small"],
    }
    assert found == {way: f"{ratio:.2g}" for way, ratio in measured.items()}
