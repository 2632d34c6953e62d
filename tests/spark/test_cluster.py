"""Laws X1, X5, X7 and X9 on a cluster: a master, two workers, and executors whose Python knows nothing of this project.

What executors know of it comes with the job, in a zip. Spark runs in a process of its own, because there is one session
in a process and the other tests have that; the service is in this process, so it can be asked what is still going on.
`make faults` runs it: a cluster is five JVMs, and two of these tests kill what runs on it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from examples.cluster import HOSTS, bare_python, executors, options, package, standalone
from tests.spark.helpers import GONE, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(300)]

LONG = 120.0
"""Seconds for a job on a machine that is busy with something else."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


class Squares:
    """A service that squares numbers.

    Attributes:
        asked: how often for which number.
        running: requests that wait for their answer.
        hold: called with a number and how often it has been asked for: whether the answer waits for `release`.
        fails: called with a number: whether the answer is an error, a little later.
    """

    def __init__(self) -> None:
        self.service = FakeService(handler=self._answer)
        self.asked: Counter[int] = Counter()
        self.running = 0
        self.hold: Callable[[int, int], bool] = lambda number, times: False
        self.fails: Callable[[int], bool] = lambda number: False
        self._released = asyncio.Event()
        self._release: Callable[[], object] = self._released.set

    async def _answer(self, request: FakeRequest) -> dict[str, int] | FakeAnswer:
        loop = asyncio.get_running_loop()
        self._release = lambda: loop.call_soon_threadsafe(self._released.set)
        number = int(request.path.removeprefix("/squares/"))
        self.asked[number] += 1
        self.running += 1
        try:
            if self.hold(number, self.asked[number]):
                await self._released.wait()
            if self.fails(number):
                await asyncio.sleep(0.2)
                return FakeAnswer(status=500)
            return {"square": number * number}
        finally:
            self.running -= 1

    def release(self) -> None:
        self._release()


class Cluster:
    """A cluster, and a process with a session on it.

    Attributes:
        directory: of all that the cluster writes.
        python: of its executors.
    """

    def __init__(self, directory: Path, python: Path, driver: ProcessPoolExecutor) -> None:
        self.directory = directory
        self.python = python
        self._driver = driver

    def begin(self, program: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function of this module in the process of the session."""
        return self._driver.submit(program, *arguments)

    def run(self, program: Callable[..., Any], *arguments: Any) -> Any:
        return self.begin(program, *arguments).result(LONG)


@contextmanager
def driver(directory: Path) -> Iterator[ProcessPoolExecutor]:
    """A process for a session; it is gone afterwards, with its children."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    process = psutil.Process(pool.submit(os.getpid).result(LONG))
    try:
        yield pool
    finally:
        family = [process, *process.children(recursive=True)]
        pool.shutdown(wait=False, cancel_futures=True)
        for one in reversed(family):
            if one.is_running():
                one.kill()
        psutil.wait_procs(family, GONE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    python = bare_python(directory / "python")
    with standalone(directory) as master, driver(directory) as pool:
        made = Cluster(directory, python, pool)
        made.run(start, options(directory, master, python) | SPECULATION)
        assert made.run(modules) == {None}, "the executors find the package without being sent it"
        made.run(send, package(directory))
        yield made


@pytest.fixture
def squares() -> Iterator[Squares]:
    made = Squares()
    with made.service:
        yield made


# -- what the process of the session does

_session: Any = None


def start(settings: dict[str, str]) -> None:
    global _session
    from pyspark.sql import SparkSession

    os.environ.pop("PYTHONPATH", None)
    os.environ["PYSPARK_PYTHON"] = settings["spark.sql.execution.pyspark.python"]
    os.environ["SPARK_LOCAL_IP"] = settings["spark.driver.host"]
    builder = SparkSession.builder.appName("asyncio-operator cluster tests")
    for name, value in (settings | {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}).items():
        builder = builder.config(name, value)
    _session = builder.getOrCreate()
    _session.sparkContext.setLogLevel("OFF")


def spark() -> SparkSession:
    session: SparkSession = _session
    return session


def modules() -> set[str | None]:
    """Where the executors have the two packages from."""

    def look(_: int) -> list[str | None]:
        from importlib.util import find_spec

        found = [find_spec(name) for name in ("asyncio_operator", "enrichers")]
        return [None if spec is None else spec.origin for spec in found]

    return set(spark().sparkContext.parallelize(range(4), 4).flatMap(look).collect())


def send(zipped: Path) -> None:
    spark().sparkContext.addPyFile(str(zipped))


def places() -> list[tuple[int, str, str, str]]:
    """Keys, and the interpreter, the directory and the package's file of the process that looked them up."""
    from asyncio_operator.spark import enrich
    from enrichers import FunctionEnricher

    async def look(key: int) -> dict[str, str]:
        import sys

        import asyncio_operator.spark.worker.links

        return {
            "python": sys.executable,
            "directory": os.getcwd(),
            "file": asyncio_operator.spark.worker.links.__file__,
        }

    enricher = FunctionEnricher(look, "python string, directory string, file string")
    return [tuple(row) for row in enrich(spark().range(0, 40, numPartitions=4), enricher, on="id").collect()]


def square(
    url: str, rows: int, partitions: int, capacity: int = 100, in_flight: int | None = None
) -> list[tuple[int, int]]:
    from asyncio_operator import Budget
    from asyncio_operator.spark import enrich
    from enrichers import HttpEnricher

    enricher = HttpEnricher(url + "/squares/{key}", schema="square long")
    numbers = spark().range(0, rows, numPartitions=partitions)
    budget = None if in_flight is None else Budget("squares", in_flight=in_flight)
    squared = enrich(numbers, enricher, on="id", capacity=capacity, budget=budget, timeout=None)
    return [tuple(row) for row in squared.collect()]


def watched() -> set[bool]:
    """Whether the watch over the loop of executors takes files of the package for what they are."""

    def look(_: int) -> bool:
        from asyncio_operator.engine import lanes, watch

        return lanes.Lanes._work.__code__.co_filename.startswith(watch._OURS)

    return set(spark().sparkContext.parallelize(range(4), 4).map(look).collect())


# -- the tests


def test_the_package_comes_with_the_job_and_from_nowhere_else(cluster: Cluster) -> None:
    rows = cluster.run(places)
    assert [key for key, *_ in rows] == list(range(40))
    for _, python, directory, file in rows:
        assert python == str(cluster.python)
        assert Path(directory).is_relative_to(cluster.directory)
        inside = ("asyncio_operator.zip", "asyncio_operator", "spark", "worker", "links.py")
        assert Path(directory, file).parts[-5:] == inside
        assert Path(directory, file).resolve().is_relative_to(directory)
        # Each executor has a directory of its own, in that of its worker.
        assert Path(directory).parents[1].name in HOSTS


def test_G1_tasks_of_two_executors_share_the_calls_of_a_job(cluster: Cluster, squares: Squares) -> None:
    assert cluster.run(square, squares.service.url, 200, 4, 3, 3) == [(i, i * i) for i in range(200)]
    assert squares.service.most_at_once <= 3


def test_X1_X7_of_two_attempts_at_a_task_the_slower_one_leaves_nothing(cluster: Cluster, squares: Squares) -> None:
    squares.hold = lambda number, times: number == 15 and times == 1
    wait_until(lambda: len(executors(cluster.directory)) == 2, LONG, "both executors are there")
    rows = cluster.begin(square, squares.service.url, 20, 2).result(LONG)
    assert rows == [(i, i * i) for i in range(20)]
    assert squares.asked[15] == 2
    wait_until(lambda: squares.running == 0, GONE, "the call of the slower attempt has ended")
    assert squares.service.abandoned == 1
    assert cluster.run(square, squares.service.url, 20, 2) == rows


def test_the_watch_over_the_loop_knows_the_package_in_a_zip(cluster: Cluster) -> None:
    assert cluster.run(watched) == {True}


def test_X1_X7_X9_a_killed_executor_costs_no_row_and_leaves_nothing(cluster: Cluster, squares: Squares) -> None:
    squares.hold = lambda number, times: number % 10 == 9
    job = cluster.begin(square, squares.service.url, 400, 4, 4)
    # Two tasks run at a time, with four calls each; before the first that hangs nine are answered.
    wait_until(lambda: squares.running == 8 or job.done(), LONG, "both tasks are in the middle")
    asked = set(squares.asked)
    victim = executors(cluster.directory)[0]
    family = [victim, *victim.children(recursive=True)]
    assert len(family) >= 3, "a JVM, a daemon and a Python worker"
    victim.kill()
    _, alive = psutil.wait_procs(family, GONE)
    assert alive == []
    wait_until(lambda: squares.service.abandoned >= 4, GONE, "the calls of the killed executor have ended")
    squares.release()
    assert job.result(LONG) == [(i, i * i) for i in range(400)]
    assert any(squares.asked[number] > 1 for number in asked), "no task was made again"
    assert squares.service.most_at_once <= 8
    wait_until(lambda: squares.running == 0, GONE, "no running call")
