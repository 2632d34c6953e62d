"""What is measured of the soak, and what is expected of it: numbers of the last third are those of the second."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import psutil

from tests.soak.trouble import jvm
from tests.spark.helpers import python_workers

STUCK = 120.0
"""Seconds without a finished micro-batch after which the query is held to hang. One takes a second; the longest trouble
is over after three, and a retry is due after one more."""

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment: of the Python workers the largest of each, and of this process, in which service and proxies are.

    Attributes:
        at: seconds since the beginning.
        memory: megabytes (RSS).
    """

    at: float
    workers: int
    memory: float
    threads: int
    files: int
    own_memory: float
    own_threads: int
    own_files: int


TOLERANCES: dict[str, tuple[Callable[[Iterable[float]], float], float, float]] = {
    # Allocators keep what they once had, by pieces; a leak of a kilobyte per row would be 100 MB in ten minutes.
    "memory": (median, 1.15, 20),
    "own_memory": (median, 1.15, 20),
    # The executor of a loop may get its fifth thread late.
    "threads": (median, 1.0, 4),
    "own_threads": (median, 1.0, 4),
    # Connections come and go with the trouble, by hundreds in this process, but there are never more than calls.
    "files": (max, 1.0, 20),
    "own_files": (max, 1.0, 100),
}
"""What is taken of a third, and by which factor, and then by how much, that of the last may be above the second's."""


def sample(at: float) -> Sample:
    measured = [each for worker in python_workers() if (each := _measured(worker))]
    own = _measured(psutil.Process())
    assert own is not None
    largest = [max((each[i] for each in measured), default=0) for i in range(3)]
    return Sample(at, len(measured), largest[0], int(largest[1]), int(largest[2]), own[0], int(own[1]), int(own[2]))


def _measured(process: psutil.Process) -> tuple[float, float, float] | None:
    try:
        with process.oneshot():
            return process.memory_info().rss / MEGABYTE, process.num_threads(), process.num_fds()
    except psutil.Error:
        return None


def grown(samples: Sequence[Sample]) -> list[str]:
    """What is not flat."""
    end = samples[-1].at
    second = [each for each in samples if end / 3 <= each.at < end * 2 / 3 and each.workers]
    last = [each for each in samples if each.at >= end * 2 / 3 and each.workers]
    if not second or not last:
        return ["there are too few samples"]
    found = []
    for name, (typical, factor, more) in TOLERANCES.items():
        before, after = (typical(getattr(each, name) for each in part) for part in (second, last))
        print(f"  {typical.__name__} of {name}: {before:.0f} in the second third, {after:.0f} in the last")
        if after > before * factor + more:
            found.append(f"{name} has grown from {before:.0f} to {after:.0f}")
    return found


class Watchdog:
    """Knows when there was progress."""

    def __init__(self) -> None:
        self._seen = -1
        self._since = time.monotonic()

    def is_stuck(self, progress: int) -> bool:
        if progress != self._seen:
            self._seen, self._since = progress, time.monotonic()
        return time.monotonic() - self._since > STUCK


def dump_stacks() -> None:
    """Of all threads of this process, of the Python workers and of the JVM."""
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    for worker in python_workers():
        worker.send_signal(signal.SIGUSR1)
    machine = jvm()
    if machine is not None:
        os.kill(machine.pid, signal.SIGQUIT)
        time.sleep(2)
