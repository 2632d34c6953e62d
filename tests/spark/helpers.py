"""What the tests on a real Spark share. Nothing of it travels to the workers, which need not know this folder."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import enrich, register_lookup
from enrichers import FunctionEnricher

BATCH_SIZE = "spark.sql.execution.arrow.maxRecordsPerBatch"

FROM_4_0 = pytest.mark.skipif(pyspark.__version__ < "4.0", reason="PySpark 4.0 brought what it is about")
FROM_4_1 = pytest.mark.skipif(pyspark.__version__ < "4.1", reason="PySpark 4.1 brought what it is about")

_numbers = itertools.count()

DAEMON = "tests.spark.daemon"
"""For ``spark.python.daemon.module``: with it a new Python worker starts in half the time."""

DAEMONS = {"pyspark.daemon", DAEMON}

GONE = 10.0
"""Seconds after the end of a task in which nothing of it may be left: the 5 of law X7, and 5 for a busy machine."""


def local_session(master: str, warehouse: Path, settings: Mapping[str, object]) -> SparkSession:
    """A session on this machine alone, whose workers run this Python."""
    os.environ["PYSPARK_PYTHON"] = str(Path(__file__).with_name("python"))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("asyncio-operator tests")
    ours = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**ours, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return session


@contextmanager
def setting(spark: SparkSession, name: str, value: object) -> Iterator[None]:
    """A Spark setting for a while."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def in_partitions(spark: SparkSession, rows: Sequence[Any], schema: str, partitions: int) -> DataFrame:
    """Rows in order, in `partitions` partitions; with fewer rows than partitions some are empty."""
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def through_sql(df: DataFrame, enricher: Any, clause: str = "", **options: Any) -> DataFrame:
    """`enrich`, by way of a table function."""
    number = next(_numbers)
    register_lookup(df.sparkSession, f"function_{number}", enricher, **options)
    df.createOrReplaceTempView(f"table_{number}")
    return df.sparkSession.sql(f"SELECT * FROM function_{number}(TABLE(table_{number}) {clause})")


def as_arrow(df: DataFrame) -> pa.Table:
    """Its rows, as `toArrow` gives them since PySpark 4.0."""
    frame: Any = df
    return frame.toArrow() if hasattr(frame, "toArrow") else pa.Table.from_batches(frame._collect_as_arrow())


def jobs(spark: SparkSession) -> set[int]:
    """All jobs that ever ran outside of a job group."""
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def in_background(job: Callable[[], Any]) -> tuple[InheritableThread, list[Any]]:
    """A thread that runs a job, and the list into which it puts the result or the error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(job())
        except Exception as error:
            outcome.append(error)

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def python_workers(driver: int | None = None) -> list[psutil.Process]:
    """The Python workers of a driver, this one by default, without the daemon that forks them."""
    found = []
    for child in psutil.Process(driver or os.getpid()).children(recursive=True):
        try:
            if not DAEMONS.isdisjoint(child.cmdline()) and psutil.Process(child.ppid()).cmdline() == child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def kill_workers() -> None:
    """End them, and wait until they are gone."""
    processes = python_workers()
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 30)
    if pyspark.__version__ < "4.0":
        _forget_dead_workers()


def _forget_dead_workers() -> None:
    """Before 4.0 Spark gives a task an idle worker that is dead, and the task fails: let such tasks be of no test.

    Workers of RDDs and of DataFrames have pools of their own.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        return
    for frame in (
        spark.range(0, 1, numPartitions=1).mapInArrow(lambda batches: batches, "id long"),
        in_partitions(spark, [(0,)], "id long", 1),
    ):
        while True:
            with suppress(Py4JJavaError):
                # The dead are taken first; one that lives is left.
                frame.collect()
                break


# -- what a task leaves behind


LOOP, FEEDER = "asyncio-operator-loop", "asyncio-operator-feeder"

OF_A_RUN = Counter({"LoopFrame._failure": 1, "Run._live": 1, "Lanes._live": 3})
"""The tasks of a run with two elements in flight, and a lane that waits in case one of them fails."""


def probe() -> FunctionEnricher:
    """Tells of its worker: its threads of ours, when this task's own feeder is over, and the tasks on its loop.

    The threads of a BlockingEnricher, which another test may have used, stay for a minute, as pools do.
    """

    async def look(key: int) -> Any:
        import threading

        names: list[str] = []
        for _ in range(100):
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith((FEEDER, LOOP))]
            if FEEDER not in names:
                break
            await asyncio.sleep(0.01)
        running = [getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()]
        return {"threads": names, "tasks": running}

    return FunctionEnricher(look, "threads array<string>, tasks array<string>")


def workers(spark: SparkSession) -> list[Any]:
    """What workers tell of themselves; idle ones take turns."""
    rows = enrich(spark.range(0, 16, numPartitions=8), probe(), on="id").collect()
    assert [row.id for row in rows] == list(range(16))
    return rows


def left_behind(told: Iterable[Any]) -> list[str]:
    """Threads and tasks that are not those of the run that has asked, as a probe has seen them in each worker."""
    left = [Counter(one["threads"]) - Counter([LOOP]) + (Counter(one["tasks"]) - OF_A_RUN) for one in told]
    return sorted({name for names in left for name in names})


def assert_nobody_is_left(ask: Callable[[], Iterable[Any]], seconds: float = GONE) -> None:
    """What `ask` hears of a probe is clean, after `seconds` at most."""
    deadline = time.monotonic() + seconds
    while left := left_behind(ask()):
        assert time.monotonic() < deadline, f"left behind in a worker: {left}"


def assert_workers_are_clean(spark: SparkSession, seconds: float = GONE) -> None:
    assert_nobody_is_left(lambda: workers(spark), seconds)


class Hanging:
    """A server that accepts, counts, and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        self.port: int = self._listener.getsockname()[1]
        self.open = 0
        self.ever = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.open += 1
                self.ever += 1
            threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1)
        with self._lock:
            self.open -= 1

    def close(self) -> None:
        # Closing alone does not wake a thread that is in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def hangs_from(port: int, first: int, fails: int | None = None) -> Callable[[int], Awaitable[int]]:
    """A function that returns its number. Calls from `first` on hang; that of `fails` raises once others hang."""

    async def ask(number: int) -> int:
        if number < first:
            return number
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if number == fails:
                await asyncio.sleep(0.2)
                raise ValueError("enough")
            await asyncio.Event().wait()
        finally:
            writer.close()
        return number

    return ask


def hanging_from(port: int, first: int, fails: int | None = None) -> FunctionEnricher:
    """The same as a lookup."""
    ask = hangs_from(port, first, fails)

    async def look_up(key: int) -> Any:
        return {"x": await ask(key)}

    return FunctionEnricher(look_up, "x long")


def assert_nothing_is_left(spark: SparkSession, server: Hanging) -> None:
    assert server.ever > 0, "nothing has hung"
    wait_until(lambda: server.open == 0, GONE, f"no running lookup; there are {server.open} of {server.ever}")
    assert_workers_are_clean(spark)
