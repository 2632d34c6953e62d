"""What importing costs, in new processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks import Rows

PAIRS = 20
ROOT = Path(__file__).resolve().parent.parent

# -I and -S leave out variables, the user's folder and site-packages with the hooks in it; the start of Python is in.
COMMAND = [sys.executable, "-I", "-S", "-c"]
FIND = f"import sys; sys.path.append({str(ROOT)!r}); "


def s18() -> Rows:
    """New processes, one of each side in turn: the start of Python, the import, and the end of Python.

    Names are loaded on first use. So the second row has what most programs without Spark import, and the third all
    public names of the package.
    """
    for name, statement in (
        ("S18", "import asyncio_operator"),
        ("", "from asyncio_operator import AsyncWaitOperator"),
        ("", "from asyncio_operator import *"),
    ):
        ours, theirs = _medians(statement, "import asyncio")
        what = f"{statement} against import asyncio, whole processes"
        yield name, what, f"{ours * 1000:.1f} ms", f"{theirs * 1000:.1f} ms", ours / theirs, "<= 1.8"


def _medians(*statements: str) -> list[float]:
    """The median seconds of a process for each statement. A first turn, which may write .pyc files, is not counted."""
    turns = [[_seconds(statement) for statement in statements] for _ in range(PAIRS + 1)]
    return [median(column) for column in zip(*turns[1:], strict=True)]


def _seconds(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([*COMMAND, FIND + statement], check=True)
    return time.perf_counter() - started
