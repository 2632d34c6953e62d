"""Keeps Spark's classes in .venv/spark.jsa as a JVM has them in memory: with that file a JVM starts in half the time.

Meanwhile, on another core, it has the tests compiled.

The tests start some thirty JVMs. No test needs the file: with another Java or PySpark, or without it, they are slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"

# No Spark of the tests lives long enough to earn back what the second compiler of its JVM, and a collector with threads
# of its own, cost.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

TYPICAL = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
session = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
rows = session.createDataFrame([(number, str(number)) for number in range(9)], "id long, name string")
rows = rows.mapInArrow(lambda batches: batches, rows.schema)
assert len(rows.join(rows.groupBy("id").count(), "id").orderBy("id").collect()) == 9
rows.show()
session.stop()
"""


def options() -> str:
    """Of a JVM that runs for a few seconds."""
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if fits() else SHORT_LIVED


def fits() -> bool:
    """Whether there is an archive for this Java and this PySpark."""
    try:
        return ARCHIVE.exists() and _note().read_text(encoding="utf-8") == _made_for()
    except OSError:
        return False


def make() -> None:
    """Write the archive. It appears when it is whole: with a part of it no JVM starts."""
    partial = ARCHIVE.with_suffix(f".{os.getpid()}")
    try:
        own = {
            "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={partial}",
            "PYSPARK_PYTHON": sys.executable,
        }
        # It ends when the JVM has closed its standard output too, and has written all.
        with subprocess.Popen(
            [sys.executable, "-c", TYPICAL],
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as jvm:
            compile_tests()
            _, complaints = jvm.communicate()
        if jvm.returncode or not partial.exists():
            print(f"The JVMs of the tests start slowly, because their classes were not archived:\n{complaints[-2000:]}")
            return
        _note().write_text(_made_for(), encoding="utf-8")
        partial.replace(ARCHIVE)
    finally:
        partial.unlink(missing_ok=True)


def compile_tests() -> None:
    """Have pytest compile the tests, which it keeps: each of the processes that run them side by side would do it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    # What is wrong in a test is reported when the tests run.
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _note() -> Path:
    return ARCHIVE.with_suffix(".txt")


def _made_for() -> str:
    home = os.environ.get("JAVA_HOME")
    java = os.path.realpath(Path(home, "bin", "java") if home else shutil.which("java") or "")
    return f"{java} of {os.stat(java).st_mtime_ns}, PySpark {version('pyspark')}"


if __name__ == "__main__":
    if not fits():
        make()
