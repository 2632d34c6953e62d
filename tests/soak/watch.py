"""What is measured of the soak, and what is expected of it: numbers do not rise."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psutil

from tests.soak.trouble import jvm
from tests.spark.helpers import python_workers

STUCK = 120.0
"""Seconds without a finished micro-batch after which the query is held to hang. One takes a second; the longest trouble
is over after three, and a retry is due after one more."""

MEGABYTE = 1_000_000

WARM_UP = 60.0
"""Seconds in which new workers open what they need."""

LONG_ENOUGH = 300.0
"""Seconds over which a trend says something."""


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


TOLERANCES = {"memory": 30, "own_memory": 20, "threads": 2, "own_threads": 4, "files": 10, "own_files": 40}
"""By how much each may rise. Allocators give memory back by pieces, the executor of a loop may get a thread late, and
connections come and go with the trouble, in this process by hundreds. The caches of a worker are on disk, and RocksDB
writes out what it was given when that is 64 MB: some 15 MB come together in the time that counts. Each of two workers
gets some 150,000 rows in that time: 30 MB are 200 bytes for each, less than whatever is kept for a row."""


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
    """What has risen over the last two thirds, in which workers live on, but for their first minute."""
    end = samples[-1].at
    late = [each for each in samples if each.at >= end / 3 + WARM_UP and each.workers]
    if not late or end - late[0].at < LONG_ENOUGH:
        print("  too short a run to tell whether anything rises")
        return []
    found = []
    for name, tolerance in TOLERANCES.items():
        values = [float(getattr(each, name)) for each in late]
        print(
            f"  {name}: {values[0]:.0f} at a third of the time, {values[-1]:.0f} at the end, trend {trend(values):+.1f}"
        )
        if trend(values) > tolerance:
            found.append(f"{name} has risen by {trend(values):.0f}, from {min(values):.0f} to {max(values):.0f}")
    return found


def trend(values: Sequence[float]) -> float:
    """By how much they rise from the first to the last, whatever a few of them are: twice the median of what each is
    more than that of half the time before (after Theil, 1950, and Sen, 1968, who take all pairs)."""
    half = len(values) // 2
    return 2 * median(after - before for before, after in zip(values, values[half:], strict=False))


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
