"""A budget that several workers share, while workers are killed, tasks run twice, and coordinators pause or restart.

Jobs run in processes of their own. Each call writes two times to a file, by the monotonic clock that all processes of a
machine share: when the budget let it start, of which the laws speak, and when it ended. On a busy machine a call runs
later than it starts, by up to half a second.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.programs import end_program, line_of, spark_program
from tests.faults.proxy import Proxy
from tests.redis_service import RedisServer, needs_redis
from tests.servers import PostgresServer
from tests.spark.helpers import python_workers, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(360)]

BUSY = 120
"""Seconds for the first calls of a job, and for the rest. On a busy machine its first worker takes 50 to start."""

RATE, PER = 40, 1.0

IN_FLIGHT = 6

PROGRAM = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession
from asyncio_operator import Budget, Limit
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher

[job] = json.loads(sys.argv[1])
builder = SparkSession.builder.master(job["master"])
for name, value in job["settings"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def logged(path, latency, throttled):
    async def look(key):
        import asyncio, os, time
        from asyncio_operator.quota.usage import running
        from asyncio_operator.enricher import hint

        begun = running.get().let_start
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"start {begun} {os.getpid()} {key}\\n".encode())
            await asyncio.sleep(latency)
            os.write(file, f"end {time.monotonic()} {os.getpid()} {key}\\n".encode())
            if key == throttled:
                hint(retry_after=3)
        finally:
            os.close(file)
        return {"answer": key}

    return look


# With weights of its own each call has an object, which knows when it was let start.
calls = logged(job["log"], job["latency"], job["throttled"])
lookup = FunctionEnricher(calls, "answer long", weigh=lambda keys: {"watched": 1.0})
limit, patience = Limit(job["rate"], job["per"], "calls"), job["patience"]
budget = Budget("shared", limit, in_flight=job["in_flight"], coordinator=job["at"], patience=patience)
rows = spark.range(0, job["rows"], 1, job["partitions"])
frame = enrich(rows, lookup, on="id", budget=budget, timeout=120, remember=None)
print("ready", flush=True)
sys.stdin.readline()
try:
    with ThreadPoolExecutor(job["copies"]) as threads:
        answers = list(threads.map(lambda _: sorted(row.answer for row in frame.collect()), range(job["copies"])))
    print(json.dumps(answers[0]), flush=True)
except Exception as error:
    print(json.dumps(str(error)), flush=True)
sys.stdin.readline()
spark.stop()
"""


class Event(NamedTuple):
    what: str
    time: float
    process: int
    key: int


class Job:
    """A job that has a budget, in a process of its own."""

    def __init__(self, log: Path, *, rows: int, at: str | None = None, **more: Any) -> None:
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(log.parent / "warehouse"),
            **more.pop("settings", {}),
        }
        spec = {
            "master": "local[2,1000]",
            "settings": settings,
            "log": str(log),
            "rows": rows,
            "partitions": 8,
            "rate": RATE,
            "per": PER,
            "in_flight": None,
            "latency": 0.02,
            "copies": 1,
            "patience": 30,
            "throttled": None,
            "at": at,
            **more,
        }
        self.rows = rows
        self.log = log
        self._program = spark_program(PROGRAM, spec)
        self.process = self._program.__enter__()
        self.outcome: Any = None
        self._reading = threading.Thread(target=self._read)

    def wait_until_ready(self) -> None:
        assert line_of(self.process) == "ready"

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self._reading.start()

    def wait(self, seconds: float = BUSY) -> Any:
        self._reading.join(seconds)
        assert not self._reading.is_alive(), "the job hangs"
        return self.outcome

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        end_program(self.process)
        self._program.__exit__(None, None, None)

    def _read(self) -> None:
        self.outcome = json.loads(line_of(self.process))


@contextlib.contextmanager
def job(log: Path, **options: Any) -> Iterator[Job]:
    made = Job(log, **options)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.close()


def events(log: Path) -> list[Event]:
    lines = log.read_text().splitlines() if log.exists() else []
    parts = (line.split() for line in lines)
    return sorted(
        (Event(what, float(when), int(process), int(key)) for what, when, process, key in parts),
        key=lambda event: event.time,
    )


def starts(log: Path) -> list[float]:
    return [event.time for event in events(log) if event.what == "start"]


def assert_no_window_holds_more_than_allowed(log: Path, rate: int = RATE, per: float = PER) -> None:
    times = starts(log)
    above = [(a, b - a) for a, b in zip(times, times[rate:], strict=False) if b - a < per]
    assert not above, f"{len(above)} of {len(times)} windows hold more than {rate}: {above[:3]}"


def most_in_flight(log: Path, dead: set[int] = frozenset()) -> int:  # type: ignore[assignment]
    """The largest number of calls in flight at a time, without those of workers that were killed."""
    running = most = 0
    for event in events(log):
        if event.process not in dead:
            running += 1 if event.what == "start" else -1
            most = max(most, running)
    return most


def seconds_without_all_slots(log: Path, dead: set[int], after: float) -> float:
    """How long workers that live have calls in flight, after this time, before these are as many as may be.

    While they have none, as between two tasks on a busy machine, nothing asks for a slot.
    """
    running, last, without = 0, after, 0.0
    for event in events(log):
        if event.process not in dead:
            if event.time > after:
                without += event.time - last if running else 0.0
                last = event.time
            running += 1 if event.what == "start" else -1
            if running == IN_FLIGHT and event.time > after:
                return without
    raise AssertionError("the living workers never had all calls in flight")


def coordinating(place: str) -> RedisServer | PostgresServer:
    """A server that has yet to be started, for a budget."""
    if place == "redis":
        needs_redis()
        return RedisServer()
    return PostgresServer()


def address_of(server: RedisServer | PostgresServer) -> str:
    return server.url if isinstance(server, RedisServer) else server.tcp_dsn()


def begun(log: Path, at_least: int = RATE) -> None:
    wait_until(lambda: len(starts(log)) >= at_least, BUSY, f"{at_least} calls")


@pytest.mark.parametrize("seed", [1, 2])
def test_G2_what_a_killed_worker_held_comes_back_and_is_never_given_out_twice(tmp_path: Path, seed: int) -> None:
    drawn, dead, killed = random.Random(seed), set(), 0.0
    log = tmp_path / "log"
    with job(log, rows=400, in_flight=IN_FLIGHT, latency=0.25) as running:
        running.start()
        begun(log)
        for _ in range(3):
            wait_until(lambda: bool(python_workers(running.process.pid)), BUSY, "a worker")
            worker = drawn.choice(python_workers(running.process.pid))
            dead.add(worker.pid)
            worker.kill()
            killed = time.monotonic()
            time.sleep(drawn.uniform(1.0, 2.0))
        assert running.wait() == list(range(400))
    assert len(dead) == 3
    assert_no_window_holds_more_than_allowed(log)
    assert most_in_flight(log, dead) <= IN_FLIGHT
    # A worker that is killed while it waits for what another held has got nothing, so the last one counts.
    assert seconds_without_all_slots(log, dead, killed) < 5.0


def test_G2_tasks_that_run_twice_at_a_time_use_the_budget_twice_and_no_more(tmp_path: Path) -> None:
    """As with speculation, which Spark does on several hosts only: both copies of each task have the same budget."""
    log = tmp_path / "log"
    with job(log, rows=200, master="local[4]", copies=2, in_flight=IN_FLIGHT) as running:
        running.start()
        assert running.wait() == list(range(200))
    assert len(starts(log)) == 400
    assert_no_window_holds_more_than_allowed(log)
    assert most_in_flight(log) <= IN_FLIGHT


def test_G7_a_driver_that_pauses_stops_starts_within_a_second_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with job(log, rows=300) as running:
        running.start()
        begun(log)
        running.process.send_signal(signal.SIGSTOP)
        paused = time.monotonic()
        time.sleep(3)
        resumed = time.monotonic()
        running.process.send_signal(signal.SIGCONT)
        assert running.wait() == list(range(300))
    late = [start for start in starts(log) if paused + 1.1 < start < resumed]
    assert not late, f"{len(late)} calls started without a driver"
    assert_no_window_holds_more_than_allowed(log)


@pytest.mark.parametrize("place", ["driver", "redis"])
def test_G1_calls_that_outlast_a_pause_of_their_coordinator_keep_their_slots(tmp_path: Path, place: str) -> None:
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = None
        if place == "redis":
            needs_redis()
            server = stack.enter_context(RedisServer())
        at = None if server is None else server.url
        running = stack.enter_context(
            job(log, rows=3 * IN_FLIGHT, partitions=2, in_flight=IN_FLIGHT, latency=9.0, at=at)
        )
        running.start()
        begun(log, IN_FLIGHT)
        if server is None:
            running.process.send_signal(signal.SIGSTOP)
            time.sleep(6)
            running.process.send_signal(signal.SIGCONT)
        else:
            server.pause()
            time.sleep(6)
            server.resume()
        assert running.wait() == list(range(3 * IN_FLIGHT))
    assert most_in_flight(log) == IN_FLIGHT


def test_G5_what_one_task_hears_stops_the_tasks_of_all_workers_within_half_a_second(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with job(log, rows=300, throttled=90) as running:
        running.start()
        assert running.wait() == list(range(300))
    [heard] = [event.time for event in events(log) if event.what == "end" and event.key == 90]
    before = {event.process for event in events(log) if event.time < heard}
    assert len(before) == 2, "only one worker has made calls by then"
    assert not [start for start in starts(log) if heard + 0.5 < start < heard + 3]


@pytest.mark.parametrize("fault", ["restart", "pause"])
def test_G7_a_redis_that_restarts_or_pauses_stops_starts_and_loses_no_limit(tmp_path: Path, fault: str) -> None:
    needs_redis()
    log = tmp_path / "log"
    paused = resumed = 0.0
    with RedisServer() as server, job(log, rows=300, at=server.url) as running:
        running.start()
        begun(log)
        if fault == "restart":
            server.restart()
        else:
            server.pause()
            paused = time.monotonic()
            time.sleep(3)
            resumed = time.monotonic()
            server.resume()
        assert running.wait() == list(range(300))
    if resumed:
        assert not [start for start in starts(log) if paused + 1.1 < start < resumed]
    assert_no_window_holds_more_than_allowed(log)


def test_G7_while_postgres_is_down_nothing_starts_and_no_limit_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with PostgresServer() as server, job(log, rows=300, at=server.tcp_dsn()) as running:
        running.start()
        begun(log)
        server.kill()
        killed = time.monotonic()
        time.sleep(3)
        started = time.monotonic()
        server.start()
        assert running.wait() == list(range(300))
    assert not [start for start in starts(log) if killed + 1.1 < start < started]
    assert_no_window_holds_more_than_allowed(log)


def test_G7_a_coordinator_that_stays_away_fails_the_job_after_patience_with_its_name(tmp_path: Path) -> None:
    needs_redis()
    log = tmp_path / "log"
    with RedisServer() as server, job(log, rows=300, at=server.url, patience=2, master="local[2]") as running:
        running.start()
        begun(log)
        server.stop()
        error = running.wait()
    assert "CoordinatorError" in error
    assert f"redis://127.0.0.1:{server.port}" in error
    assert server.password not in error


@pytest.mark.parametrize("place", ["redis", "postgres"])
def test_G2_two_applications_at_a_slow_coordinator_keep_the_budget_and_both_end(tmp_path: Path, place: str) -> None:
    """An exchange takes two or three replies of 0.3 s each, and permits last for a second."""
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = coordinating(place)
        stack.enter_context(server)
        proxy = stack.enter_context(Proxy(("127.0.0.1", server.port)))
        at = address_of(server).replace(f":{server.port}", f":{proxy.port}")
        proxy.delay(0.3)
        options: dict[str, Any] = {"rows": 20, "rate": 20, "per": 10.0, "at": at, "in_flight": IN_FLIGHT}
        jobs = [stack.enter_context(contextlib.closing(Job(log, patience=10, **options))) for _ in range(2)]
        for one in jobs:
            one.wait_until_ready()
        for one in jobs:
            one.start()
        assert [one.wait() for one in jobs] == [list(range(20))] * 2
    assert_no_window_holds_more_than_allowed(log, 20, 10.0)
    assert most_in_flight(log) <= IN_FLIGHT
