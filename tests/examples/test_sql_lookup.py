"""The example with a table function of SQL: it runs, answers, refuses, and leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


# A short name: the embedded PostgreSQL needs a short path for its socket.
def test_program(tmp_path: Path) -> None:
    own = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "sql_lookup.py"), "--orders", "3000"],
        env=os.environ | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    counts = [int(count) for count in re.findall(r"^\|customer \d*[13579]\s*\|(\d+)\s*\|\d+", run.stdout, re.MULTILINE)]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    assert re.findall(r"^\|(..)\s*\|\d+\s*\|\d+\s*\|(?:found|missing)", run.stdout, re.MULTILINE) == ["DE", "FR", "NL"]
    assert """ConfigurationError: how is 'outer'; it must be "left" | "inner\"""" in run.stdout
    assert list(tmp_path.iterdir()) == []
