"""Jobs whose processes are killed at random moments, and a service that judges what it cost (laws J2, W2).

The service notes which process asked for which key, and when it answered. A key may be asked for again only if that
process was killed while the call ran, or at most `BOUND` seconds after the answer. Tasks last longer than the bound,
so that a job whose journal writes nothing breaks it.
``JOURNAL_KILLS=10 make faults`` kills less often than 100 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import psutil

from asyncio_operator.testing import FakeRequest, FakeService
from examples.cluster import executors, options, standalone
from tests.faults.programs import Kill, kill_family, line_of, spark_program
from tests.spark.helpers import in_background, python_workers, wait_until

KILLS = int(os.environ.get("JOURNAL_KILLS", "100"))

FLUSH_EVERY = 0.3

WRITE = 0.5
"""Seconds for the rest of the way: the answer to its process, a file that is written meanwhile, and its own file.
On a machine that does nothing else it is less than 0.1."""

BOUND = FLUSH_EVERY + WRITE
"""Seconds after which an answer is in a file, so that no kill costs it."""

KEYS = 10_000
"""Keys of a job, in two tasks."""

LATENCY = 0.05
"""Seconds of a call. With ten in flight a task of 5,000 keys lasts 25 seconds: 31 times the bound."""

WORKS = 2.0
"""Seconds that a process works at most before it is killed."""

SESSION = """
import json, os, sys
from pyspark.sql import SparkSession
from asyncio_operator import FixedBackoff, Journal, Retry
from asyncio_operator.spark import enrich, send
from enrichers import HttpEnricher

settings, url, *given = json.loads(sys.argv[1])
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.task.maxFailures", "1000")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def process():
    return {"X-Process": str(os.getpid())}
"""
"""How the programs begin."""

PROGRAM = (
    SESSION
    + """
directory, flush_every, keys, runs = given
source = HttpEnricher(url + "/v/{key}", schema="v long, text string", missing_statuses=(404,), headers=process)
for number in map(int, sys.stdin):
    rows = spark.range(number * keys, (number + 1) * keys, numPartitions=2)
    expected = [(key, None if key % 10 == 3 else key) for key in range(number * keys, (number + 1) * keys)]
    for _ in range(runs):
        place = f"{directory}/{number}"
        journal = None if flush_every is None else Journal(place, flush_every=flush_every, identity="counted")
        found = enrich(rows, source, on="id", capacity=10, timeout=60, journal=journal, remember=None)
        print("good" if [(row.id, row.v) for row in found.collect()] == expected else "wrong", flush=True)
"""
)


class Ask(NamedTuple):
    """A question for a key: who asked, when it came, and when it was answered; infinity: its client has gone before."""

    process: int
    came: float
    answered: float


class Verdict(NamedTuple):
    """What kills have cost.

    Attributes:
        again: questions for keys that had been asked for before.
        unpaid: the keys of those that no kill excuses.
        oldest: seconds between an answer and the kill that cost it, the most of all.
    """

    again: int
    unpaid: Sequence[Any]
    oldest: float


class Service:
    """Answers with the key. One key of ten is a miss.

    Attributes:
        latency: seconds of a call.
        asked: the number of questions.
        processes: those that have asked.
        program: runs the jobs.
    """

    program = PROGRAM

    def __init__(self) -> None:
        self.asks: dict[Any, list[Ask]] = defaultdict(list)
        self.latency = LATENCY
        self.asked = 0
        self.processes: set[int] = set()
        self.service = FakeService(handler=self._answer)

    async def _answer(self, request: FakeRequest) -> Any:
        process, key = int(request.headers["x-process"]), int(request.path.removeprefix("/v/"))
        came, answered = monotonic(), inf
        self.asked += 1
        self.processes.add(process)
        try:
            await self.wait(key)
            answered = monotonic()
        finally:
            self.asks[key].append(Ask(process, came, answered))
        return None if key % 10 == 3 else {"v": key, "text": "x" * 50}

    async def wait(self, key: int) -> None:
        """Take the time of a call."""
        await asyncio.sleep(self.latency)

    def judge(self, kills: Sequence[Kill]) -> Verdict:
        """Hold every question but the first for a key against the kills."""
        again = [(key, *pair) for key, asks in self.asks.items() for pair in pairwise(sorted(asks, key=_came))]
        ages, unpaid = [0.0], []
        for key, first, second in again:
            killed = [one for one in kills if first.process in one.processes and one.begun < second.came]
            age = min((one.begun - first.answered for one in killed), default=inf)
            if age <= BOUND:
                ages.append(age)
            else:
                unpaid.append(key)
        return Verdict(len(again), unpaid, max(ages))

    def check(self, kills: Sequence[Kill]) -> None:
        """Check that the kills have cost no more than they may."""
        again, unpaid, oldest = self.judge(kills)
        print(
            f"{len(kills)} kills, {again} of {len(self.asks)} keys were asked for again, {oldest:.2f} s at most after"
        )
        assert unpaid == [], f"{len(unpaid)} of {again} keys were paid for twice, after {len(kills)} kills"
        assert again >= len(kills), "the kills were of processes that did nothing"


def _came(ask: Ask) -> float:
    return ask.came


Settings = dict[str, str]

Program = subprocess.Popen[str]

Find = Callable[[int], list[psutil.Process]]
"""Finds processes of a driver to kill."""

LOCAL = {"spark.master": "local[2,1000]"}


def start(
    service: Service,
    directory: Path,
    settings: Settings,
    flush_every: float | None = FLUSH_EVERY,
    keys: int = KEYS,
    runs: int = 2,
) -> AbstractContextManager[Program]:
    """The program. It runs a job for each number that it reads, `runs` times; None: without a journal."""
    return spark_program(service.program, settings, str(service.service.url), str(directory), flush_every, keys, runs)


def begin(program: Program, number: int) -> None:
    """Let the program begin a job."""
    assert program.stdin is not None
    with suppress(BrokenPipeError):
        program.stdin.write(f"{number}\n")
        program.stdin.flush()


def finish(program: Program, service: Service) -> None:
    """The two jobs of a number end, with all rows, and the second makes no call."""
    assert line_of(program) == "good"
    asked = service.asked
    assert line_of(program) == "good"
    assert service.asked == asked, "a finished job that runs again makes calls"


class KilledJob:
    """A job, in a thread that waits for its end."""

    def __init__(self, program: Program, service: Service, number: int, end: Callable[[Program, Service], None]):
        self._program = program
        self._service = service
        self._end = end
        self._over = threading.Event()
        begin(program, number)
        self._thread, self._outcome = in_background(self._wait)

    def _wait(self) -> None:
        try:
            self._end(self._program, self._service)
        finally:
            self._over.set()

    def goes_on(self, asked: int, processes: set[int], seconds: float = 120) -> bool:
        """Wait until more than `asked` questions have come, and one of another process than those, or for some
        seconds. False: the job has ended."""
        service = self._service
        with suppress(AssertionError):
            goes_on = lambda: service.asked > asked and service.processes > processes  # noqa: E731
            wait_until(lambda: self._over.is_set() or goes_on(), seconds, "it goes on")
        return not self._over.is_set()

    def is_over(self, seconds: float) -> bool:
        """Whether it has ended, after `seconds` at most."""
        return self._over.wait(seconds)

    def join(self) -> None:
        """Wait until it has ended, and raise its error."""
        self._thread.join(600)
        assert self._outcome == [None], f"the job has not ended, or is wrong: {self._outcome}"


def kill_processes(
    service: Service, directory: Path, kills: int, seed: int, find: Find, settings: Settings
) -> list[Kill]:
    """Kill processes that `find` finds while jobs run, one or two at a time, until there were enough kills."""
    drawn, killed, number = random.Random(seed), list[Kill](), 0
    with service.service, start(service, directory, settings) as program:
        while len(killed) < kills:
            asked, before = service.asked, set[int]()
            job = KilledJob(program, service, number, finish)
            # One kill of ten is of a process that may have asked for nothing.
            while len(killed) < kills and (drawn.random() < 0.1 or job.goes_on(asked, before)):
                if job.is_over(drawn.uniform(0.0, WORKS)):
                    break
                asked, before = service.asked, set(service.processes)
                found = find(program.pid)
                some = drawn.sample(found, min(len(found), drawn.randint(1, 2), kills - len(killed)))
                killed += [kill_family(process.pid) for process in some]
                if not some:
                    before = set()
            if len(killed) == kills:
                service.latency = 0.0
            job.join()
            number += 1
    return killed


def kill_drivers(service: Service, directory: Path, kills: int, seed: int, settings: Settings) -> list[Kill]:
    """Kill drivers of one job after another until there were enough kills."""
    drawn, killed, number = random.Random(seed), list[Kill](), 0
    with service.service:
        while True:
            with start(service, directory, settings) as program:
                asked, before = service.asked, set(service.processes)
                job = KilledJob(program, service, number, finish)
                if len(killed) == kills:
                    service.latency = 0.0
                    job.join()
                    return killed
                # Some are killed before they have asked for anything.
                begun = drawn.random() < 0.1 or job.goes_on(asked, before)
                if begun and not job.is_over(drawn.uniform(0.0, WORKS)):
                    killed.append(kill_family(program.pid))
                    continue
                job.join()
                number += 1


def kill_at_random_moments(service: Service, directory: Path, victims: str, seed: int) -> list[Kill]:
    """Kill workers, executors or drivers of jobs, `KILLS` times."""
    match victims:
        case "workers":
            return kill_processes(service, directory, KILLS, seed, python_workers, LOCAL)
        case "executors":
            with standalone(directory) as master:
                settings = options(directory, master, Path(sys.executable))
                find = lambda _: executors(directory)  # noqa: E731
                return kill_processes(service, directory / "journals", KILLS, seed, find, settings)
    return kill_drivers(service, directory, KILLS, seed, LOCAL)
