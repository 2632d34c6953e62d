"""The example on a cluster: no flight is lost although an executor is killed, and nothing of the cluster stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.cluster import CAPACITY
from tests.examples.programs import frames
from tests.spark.helpers import GONE, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 6_000


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    own = {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "cluster.py"), "--rows", str(ROWS), *arguments],
        env=os.environ | own,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes(directory: Path) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(one.info["cmdline"] or ())]


def kill_all(directory: Path) -> None:
    for process in processes(directory):
        process.kill()


# tests/spark/test_cluster.py has the same laws on a cluster that its tests share; this one takes half a minute.
@pytest.mark.faults
def test_it_enriches_every_flight_although_an_executor_is_killed_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as program:
        try:
            said, complaints = program.communicate(timeout=240)
        finally:
            program.kill()
            kill_all(tmp_path)
    assert (program.returncode, complaints) == (0, ""), said + complaints
    data = frames()
    known = data["flights"].head(ROWS)["dest"].isin(data["airports"]["faa"]).sum()
    assert f"{ROWS:,} rows, of which {known:,} have an airport." in said
    assert "(an executor is killed)" in said
    packages = re.findall(r"^  (\S+) has it from (\S+)$", said, re.MULTILINE)
    assert len(packages) == 2
    for python, package in packages:
        assert Path(python).parts[-3:] == ("python", "bin", "python")
        assert Path(package).parts[-3:] == ("asyncio_operator.zip", "asyncio_operator", "__init__.py")
        assert Path(package).is_relative_to(tmp_path)
    [most] = re.findall(r"at most (\d+) at once", said)
    assert int(most) <= 2 * CAPACITY
    assert [*tmp_path.iterdir()] == []


@pytest.mark.faults
def test_killed_outright_it_leaves_no_process(tmp_path: Path) -> None:
    with start(tmp_path) as program:
        try:
            assert program.stdout is not None
            while "Starting the service" not in (line := program.stdout.readline()):
                assert line, "the program has ended"
            program.kill()
            program.communicate(timeout=GONE)
            wait_until(lambda: processes(tmp_path) == [], 3 * GONE, "no process is left")
        finally:
            program.kill()
            kill_all(tmp_path)
