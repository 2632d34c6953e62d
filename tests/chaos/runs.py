"""One run: a job, its fault, and the verdict."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psutil

from tests.chaos.cluster import Cluster, Task, connections, session, standalone, tasks_of
from tests.chaos.faults import FAULTS, Scene, Strike, hold_a_key
from tests.chaos.jobs import Job
from tests.chaos.judge import asked_again, history_of, wrong_calls
from tests.chaos.report import Outcome
from tests.chaos.service import LATENCY, RUN, CountingService
from tests.spark.helpers import GONE, in_background

HANGS = 150.0
"""Seconds after which a job hangs."""


class Runs:
    """Runs jobs on one cluster, as a context manager.

    Args:
        directory: of the cluster.
        artifacts: gets the histories of runs that were wrong.
    """

    def __init__(self, directory: Path, service: CountingService, artifacts: Path) -> None:
        self._directory = directory
        self._service = service
        self._artifacts = artifacts
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def cluster(self) -> Cluster:
        """The cluster. It starts with the first run."""
        if self._cluster is None:
            master = self._stack.enter_context(standalone(self._directory))
            self._cluster = self._stack.enter_context(session(self._directory, master))
        return self._cluster

    def run(self, kind: str, seed: int) -> Outcome:
        """Run a job with a fault of this kind, drawn from the seed."""
        cluster, drawn = self.cluster(), random.Random(f"{kind} {seed}")
        job = Job.drawn(drawn, shuffle=kind == "shuffle")
        outcome = Outcome(kind, seed, str(job), expected=job.calls)
        one = Run(cluster, self._service, job, drawn, f"{kind}-{seed}-{next(self._numbers)}")
        try:
            outcome.wrong = tuple(one.play(kind, outcome))
        except AssertionError as error:
            outcome.wrong = (str(error),)
        if outcome.wrong and one.history is not None:
            self._artifacts.mkdir(parents=True, exist_ok=True)
            one.history.dump(self._artifacts / f"{kind}-{seed}.jsonl")
        one.forget()
        return outcome


class Run:
    """A job with a fault."""

    def __init__(self, cluster: Cluster, service: CountingService, job: Job, drawn: random.Random, name: str) -> None:
        self.history: Any = None
        self._cluster = cluster
        self._service = service
        self._job = job
        self._drawn = drawn
        self._name = name
        self._directory = cluster.directory / name
        self._processes: set[psutil.Process] = set()

    def play(self, kind: str, outcome: Outcome) -> list[str]:
        """Run it. Returns what is wrong, and fills the figures of the outcome."""
        cluster, service = self._cluster, self._service
        cluster.wait_until_ready()
        began = time.monotonic()
        cluster.log.lines()
        self._directory.mkdir()
        self._note_processes()
        frame = self._job.frame(cluster.spark, service.url, self._directory)
        cluster.spark.sparkContext.setLocalProperty(RUN, self._name)
        over = list[bool]()
        scene = Scene(cluster, service, self._drawn, self._name, self._job, lambda: bool(over))
        moment = self._moment(kind)
        if kind == "speculation":
            hold_a_key(scene)

        def rows() -> list[tuple[Any, ...]]:
            try:
                return [tuple(row) for row in frame.select("id", "key", "v", "w").collect()]
            finally:
                over.append(True)

        thread, results = in_background(rows)
        strike = self._strike(scene, kind, moment, outcome)
        thread.join(max(0.0, HANGS - (time.monotonic() - began)))
        service.release()
        if not results:
            cluster.spark.sparkContext.cancelAllJobs()
            return ["the job hangs"]
        wrong = self._judge_rows(results[0], outcome)
        if self._job.journal and not wrong:
            wrong += self._again(frame)
        wrong += self._left([] if strike is None else [strike])
        wrong += self._judge_calls([] if strike is None else [strike], outcome)
        outcome.seconds = round(time.monotonic() - began, 2)
        return wrong

    def forget(self) -> None:
        """Delete what the run has written."""
        self._service.forget(self._name)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _moment(self, kind: str) -> tuple[int | None, float]:
        """The lookup whose answers are counted, and the part of them that come before the fault."""
        part = self._drawn.uniform(0.0, 0.98)
        return (1 if kind == "shuffle" else None), part

    def _strike(self, scene: Scene, kind: str, moment: tuple[int | None, float], outcome: Outcome) -> Strike | None:
        lookup, part = moment
        all_calls = self._job.calls if lookup is None else self._job.calls_of(lookup)
        while not scene.over() and self._service.count(self._name, lookup) < part * all_calls and kind != "speculation":
            time.sleep(0.005)
        time.sleep(self._drawn.uniform(0.0, 2 * LATENCY))
        outcome.moment = self._service.count(self._name)
        self._note_processes()
        strike = None if scene.over() else FAULTS[kind](scene)
        if strike is not None:
            outcome.fault = strike.what
        self._note_processes()
        return strike

    def _note_processes(self) -> None:
        self._processes |= {one for executor in self._cluster.executors() for one in executor.family()}

    def _judge_rows(self, result: Any, outcome: Outcome) -> list[str]:
        if isinstance(result, Exception):
            return [f"the job failed: {str(result)[:600]}"]
        outcome.rows = len(result)
        return [] if self._job.are_right(result) else ["the rows are not those of a run without faults"]

    def _again(self, frame: Any) -> list[str]:
        """The finished job runs again, and makes no call."""
        # Copies of tasks of the first job may still run, and ask.
        again = f"{self._name}-again"
        self._cluster.spark.sparkContext.setLocalProperty(RUN, again)
        thread, results = in_background(frame.select("id", "key", "v", "w").collect)
        thread.join(HANGS)
        if not results or isinstance(results[0], Exception):
            return [f"the finished job does not run again: {str(results)[:600]}"]
        calls = len(self._service.calls(again))
        found = [] if self._job.are_right([tuple(row) for row in results[0]]) else ["its journal gives other rows"]
        return found + ([f"the finished job makes {calls} calls when it runs again"] if calls else [])

    def _left(self, strikes: list[Strike]) -> list[str]:
        """What is left behind, after the time that it has to end."""
        deadline = time.monotonic() + GONE
        while left := self._remains(strikes):
            if time.monotonic() > deadline:
                return left
            time.sleep(0.05)
        return []

    def _remains(self, strikes: list[Strike]) -> list[str]:
        family = {one for executor in self._cluster.executors() for one in executor.family()}
        gone = [one for one in self._processes - family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        port = urlsplit(self._service.url).port or 0
        found = [f"a process of no executor: {one.pid}" for one in gone]
        if self._service.running:
            found.append(f"{self._service.running} requests run")
        if strays := connections(port, family):
            found.append(f"{strays} connections of no executor")
        parts = len([*self._directory.rglob("*.part")])
        if parts > sum(len(strike.killed) for strike in strikes):
            found.append(f"{parts} files in the journal that no kill explains")
        return found

    def _judge_calls(self, strikes: list[Strike], outcome: Outcome) -> list[str]:
        self._cluster.wait_for_events()
        tasks: dict[int, Task] = tasks_of(self._cluster.log.lines())
        calls = self._service.calls(self._name)
        if {call.task for call in calls} - tasks.keys():
            self._cluster.spark.range(1).count()  # The log is written to disk at the end of a job.
            tasks |= tasks_of(self._cluster.log.lines())
        self.history = history_of(self._job, tasks, calls, strikes)
        outcome.calls, outcome.again = len(calls), asked_again(calls)
        outcome.attempts = len({call.task for call in calls})
        return wrong_calls(self._job, tasks, calls, self.history)
