"""Law J2 with whole jobs: workers, executors and drivers that are killed at random moments, in the middle of calls.

A service notes when it was asked for which key, and when it answered. A key may be asked again only if a kill came
while its call ran, or less than `flush_every` and one write after its answer. At the end every row is there, and a
further job makes no call. ``JOURNAL_KILLS=10 make faults`` kills less often than 100 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import psutil
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Journal
from asyncio_operator.spark import enrich
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import HttpEnricher
from examples.cluster import executors, options, standalone
from tests.faults.programs import Kill, kill_family, line_of, spark_program
from tests.spark.helpers import in_background, python_workers, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("JOURNAL_KILLS", "100"))

FLUSH_EVERY = 0.3

WRITE = 1.5
"""Seconds for a write, for a call that is on its way when its process is killed, and for a busy machine."""

LATENCY = 0.02

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from asyncio_operator import Journal
from asyncio_operator.spark import enrich
from enrichers import HttpEnricher

settings, url, path, flush_every, keys = json.loads(sys.argv[1])
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.task.maxFailures", "1000")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
source = HttpEnricher(url + "/v/{key}", schema="v long, text string", missing_statuses=(404,))
rows = spark.range(0, keys, numPartitions=max(2, keys // 500))
for _ in range(2):
    journal = Journal(path, flush_every=flush_every, identity="counted")
    found = enrich(rows, source, on="id", capacity=10, timeout=60, journal=journal, remember=None)
    expected = [(key, None if key % 10 == 3 else key) for key in range(keys)]
    print("good" if [(row.id, row.v) for row in found.collect()] == expected else "wrong", flush=True)
sys.stdin.readline()
spark.stop()
"""


class Ask(NamedTuple):
    """A question for a key: when it came, and when it was answered; infinity: its client has gone before."""

    came: float
    answered: float


class Service:
    """Answers with the key. One key of ten is a miss."""

    def __init__(self) -> None:
        self.asks: dict[int, list[Ask]] = defaultdict(list)
        self.service = FakeService(handler=self._answer)

    async def _answer(self, request: FakeRequest) -> Any:
        key, came = int(request.path.removeprefix("/v/")), monotonic()
        answered = float("inf")
        try:
            await asyncio.sleep(LATENCY)
            answered = monotonic()
        finally:
            self.asks[key].append(Ask(came, answered))
        return None if key % 10 == 3 else {"v": key, "text": "x" * 50}

    def asked(self) -> int:
        """The number of questions that were answered or given up."""
        return sum(map(len, list(self.asks.values())))

    def check(self, kills: Sequence[Kill]) -> int:
        """Check every question but the first for a key. Returns the number of them."""
        again = [(key, *pair) for key, asks in self.asks.items() for pair in pairwise(asks)]
        unpaid = [
            (key, first, second)
            for key, first, second in again
            if not any(
                first.came < kill.ended + WRITE
                and kill.begun < second.came
                and first.answered > kill.begun - FLUSH_EVERY - WRITE
                for kill in kills
            )
        ]
        assert unpaid == [], f"{len(unpaid)} of {len(again)} keys were paid for twice, after {len(kills)} kills"
        return len(again)


def _more(service: Service, asked: int, over: threading.Event | None = None) -> bool:
    return service.asked() > asked or (over is not None and over.is_set())


def job(service: Service, journal: Path, keys: int, **settings: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """The program."""
    return spark_program(PROGRAM, settings, str(service.service.url), str(journal), FLUSH_EVERY, keys)


def finished(program: subprocess.Popen[str], service: Service) -> None:
    """The two jobs of a program end, with all rows, and the second makes no call."""
    assert line_of(program) == "good"
    asked = service.asked()
    assert line_of(program) == "good"
    assert service.asked() == asked, "a finished job that runs again makes calls"


def kill_while_it_runs(
    service: Service, journal: Path, keys: int, kills: int, seed: int, find: Any, **settings: str
) -> int:
    """Kill one of the processes that `find` finds, again and again, while one job runs."""
    drawn, killed = random.Random(seed), list[Kill]()
    with service.service, job(service, journal, keys, **settings) as program:
        wait_until(lambda: len(service.asks) > 10 or program.poll() is not None, 120, "the job asks")
        over = threading.Event()

        def end() -> None:
            finished(program, service)
            over.set()

        done = threading.Thread(target=end)
        done.start()
        while len(killed) < kills and not over.wait(drawn.uniform(0.05, 0.8)):
            asked = service.asked()
            for process in drawn.sample(found := find(program.pid), min(1, len(found))):
                killed.append(kill_family(process.pid))
            # The next kill is of a process that works, and not of one that starts.
            with suppress(AssertionError):
                goes_on = partial(_more, service, asked + 5, over)
                wait_until(goes_on, 30, "it goes on")
        done.join(600)
        assert over.is_set(), f"the job has not ended, or is wrong; seed {seed}, {len(killed)} kills"
    again = service.check(killed)
    print(f"{len(killed)} kills, {again} of {keys} keys were asked again")
    return len(killed)


@pytest.mark.faults
def test_J2_workers_killed_at_a_hundred_moments_lose_only_what_was_in_flight(tmp_path: Path) -> None:
    def workers(driver: int) -> list[psutil.Process]:
        return python_workers(driver)

    settings = {"spark.master": "local[2,1000]"}
    killed = kill_while_it_runs(Service(), tmp_path / "journal", 400 * KILLS, KILLS, 1, workers, **settings)
    assert killed >= 0.9 * KILLS, "the job was over too soon"


@pytest.mark.faults
def test_J2_executors_killed_at_a_hundred_moments_lose_only_what_was_in_flight(tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        settings = options(tmp_path, master, Path(sys.executable))
        killed = kill_while_it_runs(
            Service(), tmp_path / "journal", 400 * KILLS, KILLS, 2, lambda _: executors(tmp_path), **settings
        )
        assert killed >= 0.9 * KILLS, "the job was over too soon"


@pytest.mark.faults
def test_J2_drivers_killed_at_a_hundred_moments_lose_only_what_was_in_flight(tmp_path: Path) -> None:
    drawn, service, killed, keys = random.Random(3), Service(), list[Kill](), 300 * KILLS
    with service.service:
        while len(killed) < KILLS and len(service.asks) < 0.95 * keys:
            asked = service.asked()
            with job(service, tmp_path / "journal", keys, **{"spark.master": "local[2]"}) as program:
                # Some are killed before they have asked anything.
                if drawn.random() < 0.9:
                    wait_until(partial(_more, service, asked), 120, "the job asks")
                threading.Event().wait(drawn.uniform(0.0, 1.0))
                killed.append(kill_family(program.pid))
        with job(service, tmp_path / "journal", keys, **{"spark.master": "local[2]"}) as program:
            finished(program, service)
    again = service.check(killed)
    print(f"{len(killed)} kills, {again} of {keys} keys were asked again")
    assert len(killed) == KILLS, "the keys were all asked for too soon"


class SlowOnce(Service):
    """Answers the first question for one key only after it was asked for it again."""

    def __init__(self, key: int) -> None:
        super().__init__()
        self._path = f"/v/{key}"
        self._is_second = False
        self._answered = asyncio.Event()

    async def _answer(self, request: FakeRequest) -> Any:
        if request.path != self._path:
            return await super()._answer(request)
        is_first, self._is_second = not self._is_second, True
        key, came = int(request.path.removeprefix("/v/")), monotonic()
        answered = float("inf")
        try:
            if is_first:
                await self._answered.wait()
            answered = monotonic()
        finally:
            self.asks[key].append(Ask(came, answered))
            if not is_first:
                self._answered.set()
        return {"v": key, "text": "x"}


@pytest.mark.faults
def test_J4_the_copy_of_a_slow_task_asks_only_for_what_was_in_flight(tmp_path: Path) -> None:
    """Spark's speculation: both copies of the task write to the journal at the same time."""
    keys = 1000
    slow = keys - 1
    service = SlowOnce(slow)
    with standalone(tmp_path) as master:
        settings = options(tmp_path, master, Path(sys.executable)) | {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.minTaskRuntime": "1s",
        }
        with service.service, job(service, tmp_path / "journal", keys, **settings) as program:
            finished(program, service)
    again = {key: asks for key, asks in service.asks.items() if len(asks) > 1}
    assert len(again.pop(slow)) == 2, "there was one copy of one task"
    # The copy lists the files each second.
    late = {key for key, (first, second, *_) in again.items() if second.came > first.answered + FLUSH_EVERY + WRITE + 1}
    assert not late, f"{len(late)} of {len(again)} keys were paid for twice"


@pytest.mark.timeout(120)
def test_J2_a_job_whose_worker_was_killed_asks_again_only_for_what_was_in_flight(
    spark: SparkSession, tmp_path: Path
) -> None:
    service, killed, outcome = Service(), list[Kill](), list[Any]()
    with service.service:
        source = HttpEnricher(f"{service.service.url}/v/{{key}}", schema="v long, text string")
        journal = Journal(tmp_path / "journal", flush_every=FLUSH_EVERY)
        for is_killed in (True, False):
            rows = spark.range(0, 200, numPartitions=1)
            found = enrich(rows, source, on="id", capacity=4, journal=journal)
            asked = service.asked()
            thread, outcome = in_background(found.collect)
            if is_killed:
                wait_until(partial(_more, service, asked + 60), 60, "the job asks")
                killed += [kill_family(worker.pid) for worker in python_workers()]
            thread.join(100)
        [answers] = outcome
    assert [(row.id, row.v) for row in answers] == [(key, None if key % 10 == 3 else key) for key in range(200)]
    assert 0 < service.check(killed) < 200
