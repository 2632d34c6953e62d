"""The cluster and the session that many jobs share: its processes, and what Spark's event log says of tasks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from examples.cluster import HOSTS, executors, options
from examples.stage import local_spark
from tests.spark.helpers import DAEMON, DAEMONS, wait_until

READY = 60.0
"""Seconds in which an executor that has ended must have a successor."""

SETTINGS = {
    "spark.task.maxFailures": "100",
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.decommission.enabled": "true",
    # A fetch from an executor that is gone fails at once, not after 15 seconds.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
    "spark.python.daemon.module": DAEMON,
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""A task is made again until it ends, every fault may make copies of tasks, and the event log can be read at once."""


def settings(directory: Path, master: str) -> dict[str, str]:
    """The configuration of sessions."""
    events = directory / "events"
    events.mkdir(exist_ok=True)
    return options(directory, master, Path(sys.executable)) | SETTINGS | {"spark.eventLog.dir": events.as_uri()}


@dataclass(slots=True)
class Task:
    """An attempt of a task, as Spark's driver saw it. Seconds of the wall clock.

    Attributes:
        reason: why it ended, such as "Success", "TaskKilled"; None if its end was not seen.
    """

    name: int
    executor: str
    partition: int
    start: float
    end: float | None = None
    reason: str | None = None


def tasks_of(lines: Iterable[str]) -> dict[int, Task]:
    """The attempts in the lines of an event log. Ends without a start are left out."""
    found: dict[int, Task] = {}
    for line in lines:
        event = json.loads(line)
        kind, info = event["Event"], event.get("Task Info")
        if kind == "SparkListenerTaskStart":
            start = info["Launch Time"] / 1000
            found[info["Task ID"]] = Task(info["Task ID"], info["Executor ID"], info["Partition ID"], start)
        elif kind == "SparkListenerTaskEnd" and info["Task ID"] in found:
            task = found[info["Task ID"]]
            task.end, task.reason = info["Finish Time"] / 1000, event["Task End Reason"]["Reason"]
    return found


class Log:
    """Reads growing event logs, each from where the last reading ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}

    def lines(self, application: str) -> list[str]:
        """The new lines of an application. A line that is not complete is left for the next reading."""
        # The name ends with ".inprogress" until the application has ended.
        for path in self._directory.glob(f"{application}*"):
            with path.open("rb") as file:
                file.seek(begin := self._read.get(application, 0))
                new = file.read()
            end = new.rfind(b"\n") + 1
            self._read[application] = begin + end
            lines = new[:end].decode("utf-8", "replace").splitlines()
            return [line for line in lines if line.startswith("{")]
        return []


class Executor:
    """A running executor.

    Attributes:
        name: its number in its application.
        application: the identifier of its application.
    """

    def __init__(self, process: psutil.Process) -> None:
        self.process = process
        command = process.cmdline()
        self.name = command[command.index("--executor-id") + 1]
        self.application = command[command.index("--app-id") + 1]

    def family(self) -> list[psutil.Process]:
        """The JVM and all that it has started."""
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """Its Python workers, without the daemon that forks them."""
        found = []
        for one in self.family()[1:]:
            with contextlib.suppress(psutil.Error):
                command = one.cmdline()
                if not DAEMONS.isdisjoint(command) and psutil.Process(one.ppid()).cmdline() == command:
                    found.append(one)
        return found


class Cluster:
    """A standalone cluster and a session.

    Attributes:
        directory: of all that the cluster writes.
        master: its URL.
    """

    def __init__(self, directory: Path, master: str, spark: SparkSession) -> None:
        self.directory = directory
        self.master = master
        self.spark = spark
        self.application: str = spark.sparkContext.applicationId
        self._log = Log(directory / "events")

    def executors(self) -> list[Executor]:
        """The executors that live, in the order of their names."""
        return sorted(living(self.directory, self.application), key=lambda one: int(one.name))

    def events(self) -> list[str]:
        """The new lines of the event log."""
        return self._log.lines(self.application)

    def wait_until_ready(self) -> None:
        """Wait until both executors are there, and the driver knows them."""
        context = self.spark.sparkContext._jsc.sc()

        def ready() -> bool:
            known = set(context.getExecutorIds().mkString(" ").split())
            return len(known) == len(HOSTS) and known == {one.name for one in self.executors()}

        wait_until(ready, READY, "both executors are there")

    def wait_for_events(self) -> None:
        """Wait until the listener of the event log has had all events."""
        with contextlib.suppress(Exception):
            self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def living(directory: Path, application: str | None = None) -> Iterator[Executor]:
    """The executors of a cluster, or those of one application."""
    for process in executors(directory):
        with contextlib.suppress(psutil.Error, ValueError):
            if process.status() != psutil.STATUS_ZOMBIE:
                executor = Executor(process)
                if application in (None, executor.application):
                    yield executor


@contextmanager
def session(directory: Path, master: str) -> Iterator[Cluster]:
    """A session on a cluster."""
    os.environ.pop("PYTHONPATH", None)
    with local_spark(directory, **settings(directory, master)) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield Cluster(directory, master, spark)
