"""`map_partitions`, and an operator given to `rdd.mapPartitions`, on a real Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, TaskContext
from pyspark.sql import SparkSession

from asyncio_operator import AsyncFunction, AsyncWaitOperator, Cache, ConfigurationError, Record, Watermark
from asyncio_operator.spark import enrich, map_partitions
from asyncio_operator.spark.rdd import PartitionTask
from asyncio_operator.timers import InternalTimerService, Timer
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher
from tests.spark.helpers import GONE, Hanging, assert_nobody_is_left, hangs_from, in_background, jobs, probe, wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def numbers(spark: SparkSession) -> RDD[int]:
    return spark.sparkContext.parallelize(range(100), 2)


async def double(number: int) -> int:
    await asyncio.sleep(0.001 * (number % 3))
    return 2 * number


def half(number: int) -> int:
    return number // 2


async def seldom(number: int) -> int:
    if number % 10 == 3:
        raise ValueError(f"not {number}")
    return number


@pytest.mark.parametrize("store", ["heap", "rocksdb"])
def test_O19_each_key_of_a_partition_is_called_for_once_and_a_cache_on_disk_serves_the_next_task(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    log = tmp_path / "calls"

    async def ask(value: int) -> int:
        with log.open("a") as calls:
            calls.write("x")
        return 2 * value

    directory = str(tmp_path / "cache") if store == "rocksdb" else None
    rdd = spark.sparkContext.parallelize([n % 10 for n in range(1_000)], 1)
    results = map_partitions(rdd, ask, cache=Cache(store=store, directory=directory))
    for _ in range(2):
        assert results.collect() == [n % 10 * 2 for n in range(1_000)]
    assert len(log.read_text()) == (10 if store == "rocksdb" else 20)


def test_T9_each_partition_has_timers_that_were_made_in_its_worker(spark: SparkSession, tmp_path: Path) -> None:
    class Twice(AsyncFunction[int, int]):
        def make_timers(self) -> InternalTimerService:
            (tmp_path / f"{os.getpid()}").touch()
            self.timers = InternalTimerService(on_event_time=self.fired)
            return self.timers

        def fired(self, timer: Timer) -> None:
            self.timers.collect(Record("fired", timer.timestamp))

        async def invoke(self, value: int) -> int:
            self.timers.current_key = value
            self.timers.register_event_time_timer(10 * value)
            return 2 * value

    elements = [Record(1, 1), Watermark(10), Record(3, 2), Watermark(20)]
    function = Twice()
    rdd = spark.sparkContext.parallelize([*elements, *elements], 2)
    out = map_partitions(rdd, function, timers=function.make_timers).collect()
    assert out == 2 * [Record(2, 1), Record("fired", 10), Watermark(10), Record(6, 2), Watermark(20)]
    assert not (tmp_path / f"{os.getpid()}").exists()


@pytest.mark.parametrize("directly", [False, True])
def test_X8_each_task_opens_its_own_function_in_its_worker(spark: SparkSession, tmp_path: Path, directly: bool) -> None:
    class Client(AsyncFunction[int, tuple[int, int]]):
        client: int | None = None

        async def open(self) -> None:
            assert self.client is None, "opened twice"
            self.client = os.getpid()
            note("opened")

        async def invoke(self, value: int) -> tuple[int, int]:
            assert self.client == os.getpid()
            return value, self.client

        async def close(self) -> None:
            note("closed")

    def note(what: str) -> None:
        with (tmp_path / what).open("a") as file:
            file.write("x")

    function = Client()
    rdd = spark.sparkContext.parallelize(range(12), 4)
    operator = AsyncWaitOperator(function)
    out = (rdd.mapPartitions(operator) if directly else map_partitions(rdd, function)).collect()
    assert [value for value, _ in out] == list(range(12))
    assert os.getpid() not in {pid for _, pid in out}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"opened": "xxxx", "closed": "xxxx"}
    assert function.client is None
    assert operator.metrics.admitted == 0


def test_one_function_twice_in_a_stage_is_two_functions(numbers: RDD[int]) -> None:
    class Once(AsyncFunction[int, int]):
        opened = False

        async def open(self) -> None:
            assert not self.opened
            self.opened = True

        async def invoke(self, value: int) -> int:
            return value + 1

    function = Once()
    assert map_partitions(map_partitions(numbers, function), function).collect() == list(range(2, 102))


def written(rdd: RDD[int], path: Path) -> list[int]:
    rdd.saveAsTextFile(str(path / "text"))
    return [int(line) for part in (path / "text").glob("part-*") for line in part.read_text().splitlines()]


SINKS: dict[str, Callable[[RDD[int], Path], Any]] = {
    "zip": lambda rdd, path: [a for a, b in rdd.zip(rdd.context.parallelize(range(40), 2)).collect() if a == b],
    "shuffle": lambda rdd, path: rdd.map(lambda n: (n, 1)).reduceByKey(max).keys().collect(),
    "text": written,
}


@pytest.mark.parametrize("sink", SINKS)
def test_X7_looking_whether_spark_is_there_adds_nothing(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    async def slow(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    rdd = spark.sparkContext.parallelize(range(40), 2).mapPartitions(PartitionTask(slow, {"capacity": 2}, watch=0.001))
    assert sorted(SINKS[sink](rdd, tmp_path)) == list(range(40))


# -- what is refused


def test_X4_what_cannot_travel_is_refused_with_the_words_of_enrich(numbers: RDD[int], spark: SparkSession) -> None:
    lock = threading.Lock()

    async def locked(number: int) -> Any:
        with lock:
            return number

    before = jobs(spark)
    with pytest.raises(ConfigurationError) as told:
        map_partitions(numbers, locked)
    with pytest.raises(ConfigurationError) as told_by_enrich:
        enrich(spark.range(1), FunctionEnricher(locked, "x long"), on="id")
    words = str(told_by_enrich.value).partition(" cannot be pickled")[2]
    assert "cannot pickle '_thread.lock' object. Make clients, locks and sessions in its open()" in words
    assert str(told.value) == f"{locked!r} cannot be pickled{words}"
    with pytest.raises(ConfigurationError, match=r"cannot pickle '_thread\.lock' object"):
        map_partitions(numbers, double, on_error=lambda value, error: lock)
    assert jobs(spark) == before


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (double, {"capacity": 0}, "capacity is 0; it must be an int of at least 1"),
        (double, {"mode": "key_ordered"}, "key is missing"),
        (double, {"grace_period": -1}, "grace_period is -1"),
        (half, {}, "Wrap an ordinary function that blocks in BlockingFunction"),
        (AsyncWaitOperator(double), {}, "pass the operator's function and its options to map_partitions instead"),
        (double, {"capcity": 5}, "'capcity' is not an option of map_partitions; did you mean 'capacity'"),
        (double, {"journal": None}, "'journal' is not an option of map_partitions; enrich keeps answers"),
        (double, {"cache_key": abs}, "cache_key is given, and cache is not"),
        (double, {"trace": Trace()}, "what is recorded in a worker does not return"),
        (double, {"timers": InternalTimerService()}, "a function without arguments that makes the timers of a task"),
        (double, {"timers": half}, "which takes .*; it must take no arguments"),
    ],
)
def test_X4_a_wrong_option_is_told_on_the_driver(
    spark: SparkSession, numbers: RDD[int], function: Any, options: dict[str, Any], says: str
) -> None:
    before = jobs(spark)
    with pytest.raises(ConfigurationError, match=says):
        map_partitions(numbers, function, **options)
    assert jobs(spark) == before


def test_X4_what_is_no_rdd_is_refused_with_what_to_use(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"rdd is a DataFrame; use enrich\(.*map_partitions\(df.rdd"):
        map_partitions(spark.range(3), double)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"rdd is of type list; it must be an RDD, as sc.parallelize"):
        map_partitions([1, 2], double)  # type: ignore[arg-type]


# -- how it ends


@pytest.mark.parametrize("directly", [False, True])
def test_X5_an_error_in_a_worker_names_the_element_and_the_cause(numbers: RDD[int], directly: bool) -> None:
    rdd = numbers.mapPartitions(AsyncWaitOperator(seldom)) if directly else map_partitions(numbers, seldom)
    with pytest.raises(Exception, match=r"FunctionError: .*element \d?3.*ValueError: not \d?3") as caught:
        rdd.collect()
    assert "in seldom" in str(caught.value)


def test_one_operator_twice_in_a_stage_fails_and_says_so(numbers: RDD[int]) -> None:
    operator = AsyncWaitOperator(double)
    with pytest.raises(Exception, match=r"StateError: the operator is running.*make a second operator"):
        numbers.mapPartitions(operator).mapPartitions(operator).collect()


def opened(port: int, ask: Callable[[int], Awaitable[int]]) -> AsyncFunction[int, int]:
    """The function with a client: while it is open it has one more connection."""

    class Opened(AsyncFunction[int, int]):
        async def open(self) -> None:
            _, self.client = await asyncio.open_connection("127.0.0.1", port)

        async def invoke(self, value: int) -> int:
            return await ask(value)

        async def close(self) -> None:
            self.client.close()

    return Opened()


def assert_nothing_is_left(numbers: RDD[int], server: Hanging) -> None:
    """No call, no open function, no thread, and a worker that is used again works."""
    assert server.ever > 1, "nothing has hung"
    wait_until(lambda: server.open == 0, GONE, f"no connection; there are {server.open} of {server.ever}")
    few = map_partitions(numbers.context.parallelize(range(8), 4), probe().lookup)
    assert_nobody_is_left(few.collect)


@pytest.mark.parametrize("directly", [False, True])
def test_X7_take_leaves_nothing(numbers: RDD[int], server: Hanging, directly: bool) -> None:
    function = opened(server.port, hangs_from(server.port, first=3))
    rdd = numbers.mapPartitions(AsyncWaitOperator(function)) if directly else map_partitions(numbers, function)
    assert rdd.take(3) == [0, 1, 2]
    assert_nothing_is_left(numbers, server)


def test_X7_cancelled_jobs_and_killed_tasks_leave_nothing(
    spark: SparkSession, numbers: RDD[int], server: Hanging, tmp_path: Path
) -> None:
    def told(elements: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        (tmp_path / str(context.taskAttemptId())).touch()
        return elements

    def job() -> Any:
        spark.sparkContext.setJobGroup("hanging", "to be cancelled")
        function = opened(server.port, hangs_from(server.port, first=0))
        return map_partitions(numbers.mapPartitions(told), function).collect()

    thread, outcome = in_background(job)
    wait_until(lambda: server.open == 102, 60, "two tasks hang")
    killed = min(int(file.name) for file in tmp_path.iterdir())
    spark.sparkContext._jsc.sc().killTaskAttempt(killed, True, "a test")
    wait_until(lambda: server.ever == 153 and server.open == 102, 60, "one task is gone and runs again")
    spark.sparkContext.cancelJobGroup("hanging")
    thread.join(60)
    assert "cancelled" in str(outcome[0])
    assert_nothing_is_left(numbers, server)
