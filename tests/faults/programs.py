"""Programs with a Spark session, each in a process of its own, which tests talk to line by line and kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[2]

GONE = 30.0
"""Seconds in which killed processes must be gone."""


class Kill(NamedTuple):
    """Before and after processes were killed, on the monotonic clock, and their numbers."""

    begun: float
    ended: float
    processes: frozenset[int] = frozenset()


@contextmanager
def spark_program(code: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """A program, which gets the arguments as JSON in ``sys.argv[1]``. At the end it and all it has started are gone."""
    with subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(arguments)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            kill_family(program.pid)


def end_program(program: subprocess.Popen[str]) -> None:
    """Send the program an empty line, and wait until it has ended by itself."""
    with suppress(subprocess.TimeoutExpired):
        program.communicate("\n", timeout=GONE)


def line_of(program: subprocess.Popen[str]) -> str:
    """The next line that a program prints; empty if it has ended."""
    assert program.stdout is not None
    return program.stdout.readline().rstrip("\n")


def kill_family(process: int) -> Kill:
    """Kill a process and all that it has started, as a machine that fails does."""
    begun, family = monotonic(), list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(process)
        family = [top, *top.children(recursive=True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    return Kill(begun, monotonic(), frozenset(one.pid for one in family))
