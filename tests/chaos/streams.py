"""The driver of a stream is killed at random moments, and each time another one goes on from the checkpoint.

The drivers are processes of their own; the one that ends a stream begins the next one. The stream reads files of
numbered rows, two for each micro-batch, and writes Parquet files. The event log of a killed driver lacks the latest
tasks: they begin with their first call, and end with the kill.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import parquet

from asyncio_operator.testing import History
from tests.chaos.cluster import Log, Task, settings, tasks_of
from tests.chaos.faults import Strike
from tests.chaos.jobs import ROWS, Job
from tests.chaos.judge import asked_again, history_of, wrong_calls
from tests.chaos.left import Left
from tests.chaos.report import Outcome
from tests.chaos.service import LATENCY, Call, CountingService
from tests.faults.programs import kill_family, line_of, spark_program
from tests.spark.helpers import wait_until

FILES = 8

IN_BATCH = 2
"""Files of a micro-batch, one for each executor."""

HANGS = 150.0
"""Seconds after which a driver hangs."""

OF_A_DRIVER = 1_000_000
"""More than the tasks of a driver: added to the numbers of those of the next one."""

PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.chaos.jobs import Job
from tests.chaos.service import RUN

[settings] = json.loads(sys.argv[1])
builder = SparkSession.builder.config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print(spark.sparkContext.applicationId, flush=True)
for line in sys.stdin:
    if not line.strip():
        break
    url, run, directory, job, in_batch = json.loads(line)
    spark.sparkContext.setLocalProperty(RUN, run)
    place = Path(directory)
    files = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", in_batch)
    found = Job(**job).enriched(files.parquet(str(place / "in")), url, place)
    out = found.writeStream.format("parquet").trigger(availableNow=True)
    try:
        query = out.option("checkpointLocation", str(place / "checkpoint")).option("path", str(place / "out")).start()
        query.awaitTermination()
        rows = spark.read.parquet(str(place / "out")).select("id", "key", "v", "w").collect()
        (place / "rows.json").write_text(json.dumps([tuple(row) for row in rows]))
        print("done", flush=True)
    except Exception as error:
        print(json.dumps(str(error)[:600]), flush=True)
spark.stop()
"""


class Driver:
    """A driver, which runs streams one after another.

    Attributes:
        application: the identifier of its application.
        lines: what it has printed since its last stream was started.
    """

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.application = line_of(program)
        self.lines: list[str] = []
        self._program = program

    def start(self, *stream: object) -> None:
        """Start a stream. A line says how it has ended."""
        lines = self.lines = []
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(stream) + "\n")
        self._program.stdin.flush()
        threading.Thread(target=lambda: lines.append(line_of(self._program)), daemon=True).start()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until a condition holds, or the stream has ended.

        Raises:
            AssertionError: the driver hangs.
        """
        wait_until(lambda: bool(self.lines) or until(), HANGS, "the stream has ended")

    def kill(self) -> None:
        """Kill it, with its JVM."""
        kill_family(self._program.pid)


class Drivers:
    """The driver of the streams, as a context manager. A driver that was killed has a successor.

    Args:
        cluster: the directory of the cluster.
        master: its URL.
    """

    def __init__(self, cluster: Path, master: str) -> None:
        self.cluster = cluster
        self.log = Log(cluster / "events")
        self._settings = settings(cluster, master)
        self._stack = ExitStack()
        self._driver: Driver | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    def driver(self) -> Driver:
        """The driver; a new one if there is none."""
        if self._driver is None:
            self._driver = Driver(self._stack.enter_context(spark_program(PROGRAM, self._settings)))
        return self._driver

    def drop(self) -> None:
        """Kill the driver, with all that it has started."""
        self._driver = None
        self._stack.close()


class StreamRun:
    """A stream whose driver is killed, and the next one too, at as many moments.

    Args:
        name: of the run; it is also a directory.
    """

    def __init__(self, drivers: Drivers, service: CountingService, seed: int, name: str, moments: int) -> None:
        self.history: History | None = None
        self._drawn = random.Random(f"driver {seed}")
        self.job = replace(Job.drawn(self._drawn), ordered=False)
        self._drivers = drivers
        self._service = service
        self._name = name
        self._moments = moments
        self._directory = drivers.cluster / name
        self._left = Left(drivers.cluster, service)

    def play(self, outcome: Outcome) -> list[str]:
        """Run it. Returns what is wrong, and fills the figures of the outcome."""
        driver = self._drivers.driver()
        began = time.monotonic()
        self._drivers.log.lines(driver.application)
        self._write_input()
        applications, strikes = [driver.application], list[Strike]()
        try:
            for until in sorted(self._drawn.uniform(0.0, 0.98) * self.job.calls for _ in range(self._moments)):
                strike = self._kill(driver, len(strikes), until, outcome)
                if strike is None:
                    break
                strikes.append(strike)
                driver = self._drivers.driver()
                applications.append(driver.application)
            else:
                driver.start(*self._stream(len(strikes)))
                driver.wait(lambda: False)
            self._left.note()
        except AssertionError:
            self._drivers.drop()
            raise
        wrong = self._judge_rows(driver.lines[0], outcome)
        wrong += self._left.behind(driver.application, self._directory, 2 * len(strikes))
        wrong += self._judge_calls(applications, strikes, outcome)
        outcome.seconds = round(time.monotonic() - began, 2)
        return wrong

    def _write_input(self) -> None:
        (self._directory / "in").mkdir(parents=True)
        rows, size = self.job.rows(), ROWS // FILES
        for number in range(FILES):
            some = rows[number * size : (number + 1) * size]
            table = pa.table({"id": [row[0] for row in some], "key": [row[1] for row in some]})
            path = self._directory / "in" / f"{number}.parquet"
            parquet.write_table(table, path)
            os.utime(path, (number + 1, number + 1))

    def _stream(self, number: int) -> tuple[object, ...]:
        """What a driver gets."""
        return self._service.url, self._run(number), str(self._directory), asdict(self.job), IN_BATCH

    def _run(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _kill(self, driver: Driver, number: int, until: float, outcome: Outcome) -> Strike | None:
        """Start the stream, and kill its driver. Returns None if the stream had ended before."""
        earlier = sum(self._service.count(self._run(one)) for one in range(number))
        later = self._drawn.uniform(0.0, 2 * LATENCY)
        driver.start(*self._stream(number))
        # After a call of its own: a kill before that interrupts nothing.
        driver.wait(lambda: (own := self._service.count(self._run(number))) > 0 and earlier + own > until)
        time.sleep(later)
        moment = earlier + self._service.count(self._run(number))
        self._left.note()
        if driver.lines:
            return None
        begun = time.time()
        driver.kill()
        strike = Strike("driver killed", begun, time.time())
        self._drivers.drop()
        outcome.add(strike.what, moment)
        return strike

    def _judge_rows(self, text: str, outcome: Outcome) -> list[str]:
        if text != "done":
            return [f"the stream failed: {text}"]
        rows = [tuple(row) for row in json.loads((self._directory / "rows.json").read_text())]
        outcome.rows = len(rows)
        return [] if self.job.are_right(rows) else ["the rows are not those of a run without faults"]

    def _judge_calls(self, applications: list[str], strikes: list[Strike], outcome: Outcome) -> list[str]:
        calls: list[Call] = []
        tasks: dict[int, Task] = {}
        wrong = list[str]()
        for number, application in enumerate(applications):
            first = OF_A_DRIVER * number
            its_tasks = tasks_of(self._drivers.log.lines(application))
            its_calls = self._service.ended_calls(self._run(number))
            if number < len(strikes):
                _complete(its_tasks, its_calls, strikes[number])
            tasks |= {first + name: replace(task, name=first + name) for name, task in its_tasks.items()}
            wrong += wrong_repeats(self.job, calls, its_calls)
            calls += [replace(call, task=first + call.task) for call in its_calls]
        self.history = history_of(self.job, tasks, calls, strikes)
        outcome.calls, outcome.again = len(calls), asked_again(calls)
        outcome.attempts = len({call.task for call in calls})
        return wrong + wrong_calls(self.job, tasks, calls, self.history, places=False)


def wrong_repeats(job: Job, before: Iterable[Call], calls: Iterable[Call]) -> list[str]:
    """What is wrong with the keys that a driver asked for, and the drivers before it too."""
    asked = {(call.lookup, call.key) for call in before}
    again = len(asked & {(call.lookup, call.key) for call in calls})
    most = job.calls * IN_BATCH // FILES
    return [f"a driver asked for {again} keys again, and a micro-batch has {most}"] if again > most else []


def _complete(tasks: dict[int, Task], calls: Iterable[Call], strike: Strike) -> None:
    """Add tasks of a killed driver that its event log lacks, and ends of those that have none."""
    for call in calls:
        if call.task not in tasks:
            tasks[call.task] = Task(call.task, "unknown", 0, call.start)
    for task in tasks.values():
        if task.end is None:
            task.end, task.reason = strike.ended, "Killed"
