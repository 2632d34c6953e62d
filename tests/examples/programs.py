"""Runs an example as a reader does: as a program of its own, from its command line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa

from examples.enrich_flights import read_data

ROOT = Path(__file__).resolve().parents[2]


def start_example(name: str, *arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program `name`.py after its end; it runs in `directory`, where its temporary files go too."""
    own = {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments],
        env=os.environ | own | environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def run_example(name: str, *arguments: str, **environment: str) -> str:
    """What the program `name`.py prints. It must succeed, complain of nothing and leave no file."""
    with temporary_directory() as directory:
        done = start_example(name, *arguments, directory=directory, **environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert [*directory.iterdir()] == []
    return done.stdout


def frames() -> dict[str, pd.DataFrame]:
    """The data of the examples in pandas, where integers may be null."""
    types = {pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype(), pa.string(): pd.StringDtype()}
    return {name: table.to_pandas(types_mapper=types.get) for name, table in read_data().items()}


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Its path is short: the socket of an embedded PostgreSQL needs that."""
    with tempfile.TemporaryDirectory(prefix="example-") as name:
        yield Path(name)
