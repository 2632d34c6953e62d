"""PyFlink: `AsyncDataStream` in a job of one task, whose Python runs in a process beside Flink's JVM.

The clock runs in that process, from the first call to the end of the last. So the time to start and end a job and its
Python is not counted. The measured values come back in a file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Time, Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    AsyncDataStream,
    AsyncFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource  # type: ignore[import-not-found]
from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]

from benchmarks.peers.functions import Asynchronous
from benchmarks.peers.task import Answer, Task, serve

TIMEOUT = Time.seconds(60)


class Call(AsyncFunction):  # type: ignore[misc]
    """A work of a task; writes what it saw into `file` at its end."""

    def __init__(self, task: Task, file: str) -> None:
        self.task = task
        self.file = file

    def open(self, context: Any) -> None:
        """In the process that calls."""
        self.function = Asynchronous(self.task)
        self.values = self.task.values() if self.task.keys else None
        self.first = self.last = 0.0
        self.rows = self.found = 0

    async def async_invoke(self, number: int) -> list[str]:
        """The result of a row, by its number: its answer as text."""
        self.first = self.first or time.perf_counter()
        answer = await self.function.call(self.values[number] if self.values is not None else number)
        self.last = time.perf_counter()
        self.rows += 1
        self.found += answer is not None
        if self.rows == self.task.rows:
            # In `close` there is no loop any more.
            await self.function.close()
        return ["" if answer is None else str(answer[0])]

    def timeout(self, number: int) -> list[str]:
        """A row that took too long; it will be missed."""
        return []

    def close(self) -> None:
        Path(self.file).write_text(json.dumps([self.last - self.first, self.rows, self.found]), encoding="utf-8")


def measure(task: Task) -> Answer:
    """Do a task."""
    configuration = Configuration()
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    flink = StreamExecutionEnvironment.get_execution_environment(configuration)
    flink.set_parallelism(1)
    source = NumberSequenceSource(0, task.rows - 1)
    numbers = flink.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    wait = AsyncDataStream.ordered_wait if task.ordered else AsyncDataStream.unordered_wait
    with tempfile.NamedTemporaryFile("r", prefix="peers-pyflink-", encoding="utf-8") as file:
        results = wait(numbers, Call(task, file.name), TIMEOUT, task.capacity, Types.STRING())
        if task.count:
            with results.execute_and_collect() as collected:
                answers = Counter(collected)
            seconds, _, found = json.load(file)
            return Answer(seconds, answers.total(), found, answers)
        sink = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
        results._j_data_stream.sinkTo(sink)
        flink.execute()
        return Answer(*json.load(file))


if __name__ == "__main__":
    serve(measure)
