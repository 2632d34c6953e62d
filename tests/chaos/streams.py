"""The driver of a stream is killed at a random moment, and another one goes on from the checkpoint.

The drivers are processes of their own. The stream reads files of numbered rows, two for each micro-batch, and writes
Parquet files. The event log of a killed driver lacks the latest tasks: they begin with their first call, and end with
the kill.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

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
from tests.faults.programs import end_program, kill_family, line_of, spark_program

FILES = 8

IN_BATCH = 2
"""Files of a micro-batch, one for each executor."""

HANGS = 150.0
"""Seconds after which a driver hangs."""

OF_A_DRIVER = 1_000_000
"""Added to the numbers of tasks of the second driver."""

PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.chaos.jobs import Job
from tests.chaos.service import RUN

settings, url, run, directory, job, in_batch = json.loads(sys.argv[1])
builder = SparkSession.builder.config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.setLocalProperty(RUN, run)
place = Path(directory)
rows = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", in_batch).parquet(str(place / "in"))
out = Job(**job).enriched(rows, url, place).writeStream.format("parquet").trigger(availableNow=True)
try:
    query = out.option("checkpointLocation", str(place / "checkpoint")).option("path", str(place / "out")).start()
    query.awaitTermination()
    found = spark.read.parquet(str(place / "out")).select("id", "key", "v", "w").collect()
    (place / "rows.json").write_text(json.dumps([tuple(row) for row in found]))
    print("done", flush=True)
except Exception as error:
    print(json.dumps(str(error)[:600]), flush=True)
sys.stdin.readline()
spark.stop()
"""


class StreamRun:
    """A stream whose driver is killed once.

    Args:
        cluster: the directory of the cluster.
        name: of the run; it is also a directory.
    """

    def __init__(self, cluster: Path, master: str, service: CountingService, seed: int, name: str) -> None:
        self.history: History | None = None
        self._drawn = random.Random(f"driver {seed}")
        self.job = replace(Job.drawn(self._drawn), ordered=False)
        self._master = master
        self._cluster = cluster
        self._service = service
        self._name = name
        self._directory = cluster / name
        self._left = Left(cluster, service)

    def play(self, outcome: Outcome) -> list[str]:
        """Run it. Returns what is wrong, and fills the figures of the outcome."""
        began = time.monotonic()
        log = Log(self._cluster / "events")
        log.lines()
        self._write_input()
        strike, early = self._until_it_is_killed(outcome)
        text = early or self._until_the_end()
        wrong = self._judge_rows(text, outcome)
        wrong += self._left.behind(self._directory, 2)
        wrong += self._judge_calls(log, strike, outcome)
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

    def _driver(self, number: int) -> tuple[object, ...]:
        """The arguments of a driver."""
        chosen = settings(self._cluster, self._master)
        job = asdict(self.job)
        return chosen, self._service.url, self._run(number), str(self._directory), job, IN_BATCH

    def _run(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _until_it_is_killed(self, outcome: Outcome) -> tuple[Strike | None, str]:
        """The first driver. Returns its kill, or what it has printed if it had ended before."""
        part, later = self._drawn.uniform(0.0, 0.98), self._drawn.uniform(0.0, 2 * LATENCY)
        with spark_program(PROGRAM, *self._driver(0)) as program:
            lines = _lines_of(program)
            deadline = time.monotonic() + HANGS
            while not lines and self._service.count(self._run(0)) <= part * self.job.calls:
                if time.monotonic() > deadline:
                    return None, "the first driver hangs"
                time.sleep(0.005)
            time.sleep(later)
            outcome.moment = self._service.count(self._run(0))
            self._left.note()
            if lines:
                end_program(program)
                return None, lines[0]
            begun = time.time()
            kill_family(program.pid)
            outcome.fault = "driver killed"
            return Strike("driver killed", begun, time.time()), ""

    def _until_the_end(self) -> str:
        """The second driver. Returns what it prints."""
        with spark_program(PROGRAM, *self._driver(1)) as program:
            lines = _lines_of(program)
            deadline = time.monotonic() + HANGS
            while not lines:
                if time.monotonic() > deadline:
                    return "the second driver hangs"
                time.sleep(0.02)
            self._left.note()
            end_program(program)
        return lines[0]

    def _judge_rows(self, text: str, outcome: Outcome) -> list[str]:
        if text != "done":
            return [f"the stream failed: {text}"]
        rows = [tuple(row) for row in json.loads((self._directory / "rows.json").read_text())]
        outcome.rows = len(rows)
        return [] if self.job.are_right(rows) else ["the rows are not those of a run without faults"]

    def _judge_calls(self, log: Log, strike: Strike | None, outcome: Outcome) -> list[str]:
        calls: list[Call] = []
        tasks: dict[int, Task] = {}
        logs = log.by_file()
        for number in range(2):
            some = self._service.calls(self._run(number))
            first = OF_A_DRIVER * number
            lines = logs[number] if number < len(logs) else []
            for name, task in tasks_of(lines).items():
                tasks[first + name] = replace(task, name=first + name)
            calls += [replace(call, task=first + call.task) for call in some]
        if strike is not None:
            _complete(tasks, calls, strike)
        self.history = history_of(self.job, tasks, calls, [] if strike is None else [strike])
        outcome.calls, outcome.again = len(calls), asked_again(calls)
        outcome.attempts = len({call.task for call in calls})
        wrong = wrong_calls(self.job, tasks, calls, self.history, places=False)
        most = self.job.calls * IN_BATCH // FILES
        if outcome.again > most:
            wrong.append(f"{outcome.again} keys were asked for again, and a micro-batch has {most}")
        return wrong


def _lines_of(program: subprocess.Popen[str]) -> list[str]:
    """A list that gets the first line that a program prints."""
    lines: list[str] = []
    threading.Thread(target=lambda: lines.append(line_of(program)), daemon=True).start()
    return lines


def _complete(tasks: dict[int, Task], calls: list[Call], strike: Strike) -> None:
    """Add tasks of the killed driver that its event log lacks, and ends of those that have none."""
    for call in calls:
        if call.task < OF_A_DRIVER and call.task not in tasks:
            tasks[call.task] = Task(call.task, "unknown", 0, 0, 0, call.start, False)
    for name, task in tasks.items():
        if name < OF_A_DRIVER and task.end is None:
            task.end, task.reason = strike.ended, "Killed"
