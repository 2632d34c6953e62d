"""One run: a job, its faults, and the verdict."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from asyncio_operator.testing import History
from examples.cluster import standalone
from tests.chaos.cluster import Cluster, Task, session, tasks_of
from tests.chaos.faults import DRIVER, FAULTS, Scene, Strike, hold_a_key
from tests.chaos.jobs import Job
from tests.chaos.judge import asked_again, history_of, wrong_calls
from tests.chaos.left import Left
from tests.chaos.report import Outcome
from tests.chaos.service import LATENCY, RUN, CountingService
from tests.chaos.streams import Drivers, StreamRun
from tests.spark.helpers import in_background

HANGS = 240.0
"""Seconds after which a job hangs. A job whose executor is killed four times takes a minute on two busy cores."""


class Runs:
    """Runs jobs on one cluster, as a context manager.

    Args:
        directory: of the cluster.
        artifacts: gets the histories of runs that were wrong.
        keep_all: whether it gets those of all runs.
    """

    def __init__(self, directory: Path, service: CountingService, artifacts: Path, *, keep_all: bool = False) -> None:
        self._directory = directory
        self._service = service
        self._artifacts = artifacts
        self._keep_all = keep_all
        self._stack = ExitStack()
        self._session = ExitStack()
        self._numbers = itertools.count(1)
        self._master: str | None = None
        self._cluster: Cluster | None = None
        self._drivers: Drivers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_session()
        self._stack.close()

    def run(self, kind: str, seed: int, moments: int = 1) -> Outcome:
        """Run a job with faults of this kind at moments that are drawn from the seed."""
        name, master = f"{kind}-{seed}-{next(self._numbers)}", self._started()
        one: Run | StreamRun
        if kind == DRIVER:
            # The drivers of the stream need the cores.
            self._end_session()
            one = StreamRun(self._drivers_of(master), self._service, seed, name, moments)
        else:
            if self._cluster is None:
                self._cluster = self._session.enter_context(session(self._directory, master))
            one = Run(self._cluster, self._service, kind, seed, name, moments)
        outcome = Outcome(kind, seed, str(one.job), expected=one.job.calls)
        try:
            outcome.wrong = tuple(one.play(outcome))
        except Exception as error:
            # One failure must not end hours of runs. The next run has a new session.
            outcome.wrong = (f"{type(error).__name__}: {error}"[:600],)
            self._end_session()
        if (outcome.wrong or self._keep_all) and one.history is not None:
            self._artifacts.mkdir(parents=True, exist_ok=True)
            one.history.dump(self._artifacts / f"{kind}-{seed}.jsonl")
        self._service.forget(name)
        shutil.rmtree(self._directory / name, ignore_errors=True)
        return outcome

    def _started(self) -> str:
        """The URL of the cluster's master. The cluster starts with the first run."""
        if self._master is None:
            self._master = self._stack.enter_context(standalone(self._directory))
        return self._master

    def _drivers_of(self, master: str) -> Drivers:
        if self._drivers is None:
            self._drivers = self._stack.enter_context(Drivers(self._directory, master))
        return self._drivers

    def _end_session(self) -> None:
        self._cluster = None
        self._session.close()


class Run:
    """A job with faults of one kind."""

    def __init__(
        self, cluster: Cluster, service: CountingService, kind: str, seed: int, name: str, moments: int
    ) -> None:
        self.history: History | None = None
        self._drawn = random.Random(f"{kind} {seed}")
        self.job = Job.drawn(self._drawn, shuffle=kind == "shuffle")
        self._cluster = cluster
        self._service = service
        self._kind = kind
        self._moments = moments
        self._name = name
        self._directory = cluster.directory / name
        self._left = Left(cluster.directory, service)

    def play(self, outcome: Outcome) -> list[str]:
        """Run it. Returns what is wrong, and fills the figures of the outcome."""
        cluster, service = self._cluster, self._service
        cluster.wait_until_ready()
        began = time.monotonic()
        cluster.events()
        self._directory.mkdir()
        self._left.note()
        frame = self.job.frame(cluster.spark, service.url, self._directory)
        cluster.spark.sparkContext.setLocalProperty(RUN, self._name)
        over = list[bool]()
        hangs = began + HANGS
        scene = Scene(
            cluster, service, self._drawn, self._name, self.job, lambda: bool(over) or time.monotonic() > hangs
        )
        if self._kind == "speculation":
            hold_a_key(scene)

        def rows() -> list[tuple[Any, ...]]:
            try:
                return [tuple(row) for row in frame.select("id", "key", "v", "w").collect()]
            finally:
                over.append(True)

        thread, results = in_background(rows)
        strikes = self._strikes(scene, outcome)
        thread.join(max(0.0, hangs - time.monotonic()))
        service.release()
        if not results:
            raise TimeoutError(f"the job hangs: it has not ended in {HANGS:.0f} s")
        wrong = self._judge_rows(results[0], outcome)
        if self.job.journal and not wrong:
            wrong += self._again(frame)
        wrong += self._left.behind(cluster.application, self._directory, sum(len(one.killed) for one in strikes))
        wrong += self._judge_calls(strikes, outcome)
        outcome.seconds = round(time.monotonic() - began, 2)
        return wrong

    def _strikes(self, scene: Scene, outcome: Outcome) -> list[Strike]:
        """Strike at each moment: a part of the calls is answered; of the second lookup's if a shuffle is before it."""
        lookup = 1 if self._kind == "shuffle" else None
        calls = self.job.calls if lookup is None else self.job.calls_of(lookup)
        last = 0.0 if self._kind == "speculation" else 0.98
        strikes = []
        for until in sorted(self._drawn.uniform(0.0, last) * calls for _ in range(self._moments)):
            while not scene.over() and self._service.count(self._name, lookup) < until:
                time.sleep(0.005)
            time.sleep(self._drawn.uniform(0.0, 2 * LATENCY))
            moment = self._service.count(self._name)
            self._left.note()
            if (strike := FAULTS[self._kind](scene)) is not None:
                strikes.append(strike)
                outcome.add(strike.what, moment)
            self._left.note()
        return strikes

    def _judge_rows(self, result: Any, outcome: Outcome) -> list[str]:
        if isinstance(result, Exception):
            return [f"the job failed: {str(result)[:600]}"]
        outcome.rows = len(result)
        return [] if self.job.are_right(result) else ["the rows are not those of a run without faults"]

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
        found = [] if self.job.are_right([tuple(row) for row in results[0]]) else ["its journal gives other rows"]
        return found + ([f"the finished job makes {calls} calls when it runs again"] if calls else [])

    def _judge_calls(self, strikes: list[Strike], outcome: Outcome) -> list[str]:
        self._cluster.wait_for_events()
        tasks: dict[int, Task] = tasks_of(self._cluster.events())
        # A copy of a task may still run for a while, with calls that have begun.
        calls = self._service.ended_calls(self._name)
        if {call.task for call in calls} - tasks.keys():
            self._cluster.spark.range(1).count()  # The log is written to disk at the end of a job.
            tasks |= tasks_of(self._cluster.events())
        self.history = history_of(self.job, tasks, calls, strikes)
        outcome.calls, outcome.again = len(calls), asked_again(calls)
        outcome.attempts = len({call.task for call in calls})
        return wrong_calls(self.job, tasks, calls, self.history)
