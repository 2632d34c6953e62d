"""Law X7 with real clients: however a task ends, its servers are rid of it, and the worker works.

What is running and who is connected is asked of the servers: an HTTP service in this process, and PostgreSQL.
test_endings.py has the ways in which Spark tells, or does not tell, a task that it is over.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Enricher
from asyncio_operator.spark import async_udf, enrich
from enrichers import FunctionEnricher, HttpEnricher, PostgresEnricher
from tests.servers import PostgresServer
from tests.spark.helpers import DAEMONS, FROM_4_1, GONE, assert_workers_are_clean, in_background, setting, wait_until
from tests.spark.test_cluster import Squares

pytestmark = pytest.mark.spark

ANSWERED = 3
"""Keys from 0 on that are answered; those behind them hang."""

POOL = 4

NAME = "hygiene"
"""What our connections to PostgreSQL call themselves."""


IDLE_TIMEOUT = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
KILL = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"


class Http:
    """An HTTP service, and the enricher that asks it.

    Attributes:
        kept: connections that may stay open for the next task, at most: a cancelled request takes its own with it.
    """

    kept = ANSWERED + 1

    def __init__(self, squares: Squares) -> None:
        self._squares = squares
        self.port = int(squares.service.url.rpartition(":")[2])
        squares.hold = lambda number, times: number >= ANSWERED

    def enricher(self) -> Enricher:
        return HttpEnricher(self._squares.service.url + "/squares/{key}", key="id", schema="square long")

    def running(self) -> int:
        return self._squares.running

    def connections(self) -> int:
        """Those that the server has open."""
        here = psutil.Process().net_connections("tcp")
        return sum(one.laddr.port == self.port and one.status == psutil.CONN_ESTABLISHED for one in here)


class Postgres:
    """The same of a PostgreSQL, with the pools of two workers."""

    kept = 2 * POOL

    def __init__(self, server: PostgresServer, **settings: str) -> None:
        self._server = server
        self._settings = {"application_name": NAME} | settings
        self.port = server.port

    def enricher(self) -> Enricher:
        slow = f"CASE WHEN k < {ANSWERED} THEN 0 ELSE 600 END"
        return PostgresEnricher(
            f"{self._server.tcp_dsn()}?{urlencode(self._settings)}",
            query=f"""
                SELECT k AS id, k * k AS square
                FROM (SELECT k, pg_sleep({slow}) FROM unnest($1::int8[]) AS k OFFSET 0) AS slept
            """,
            key="id",
            max_batch=1,
            pool_size=POOL,
        )

    def running(self) -> int:
        return self._count("state <> 'idle'")

    def connections(self) -> int:
        return self._count("true")

    def _count(self, which: str) -> int:
        [[count]] = self._server.fetch(
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{NAME}' AND {which}"
        )
        return int(count)


Outside = Http | Postgres


@pytest.fixture
def http() -> Iterator[Http]:
    squares = Squares()
    with squares.service:
        yield Http(squares)


@pytest.fixture(params=["postgres", pytest.param("http", marks=pytest.mark.faults)])
def outside(request: pytest.FixtureRequest) -> Outside:
    server = request.getfixturevalue(request.param)
    made: Outside = server if isinstance(server, Http) else Postgres(server)
    wait_until(lambda: made.running() == 0, GONE, "the requests of another test have ended")
    return made


def hanging(spark: SparkSession, outside: Outside, **options: Any) -> DataFrame:
    """Rows of which the first `ANSWERED` are found, and the others are waited for without end."""
    numbers = spark.range(0, 40, numPartitions=1)
    return enrich(numbers, outside.enricher(), on="id", **{"timeout": None, "capacity": 20} | options)


def assert_clean(spark: SparkSession, outside: Outside) -> None:
    wait_until(lambda: outside.running() == 0, GONE, f"no running request; there are {outside.running()}")
    assert_workers_are_clean(spark)
    wait_until(lambda: outside.connections() <= outside.kept, GONE, "no more connections than are of use")


def clients_of(port: int) -> set[int]:
    """The Python workers that are connected to a server."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if not DAEMONS.isdisjoint(process.info["cmdline"] or ()):
            connections = process.net_connections("tcp")
            if any(one.raddr and one.raddr.port == port for one in connections):
                found.add(process.pid)
    return found


@pytest.mark.parametrize(
    "interrupt", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["told", "interrupted"]
)
def test_X7_a_cancelled_job_group_leaves_no_request(spark: SparkSession, outside: Outside, interrupt: bool) -> None:
    def job() -> Any:
        spark.sparkContext.setJobGroup("hygiene", "to be cancelled", interruptOnCancel=interrupt)
        return hanging(spark, outside).collect()

    thread, outcome = in_background(job)
    wait_until(lambda: outside.running() >= POOL or bool(outcome), 60, "requests hang")
    spark.sparkContext.cancelJobGroup("hygiene")
    thread.join(60)
    assert "cancelled" in str(outcome[0])
    assert_clean(spark, outside)


@pytest.mark.parametrize(
    "settings", [None, {}, {"client_connection_check_interval": "1000"}], ids=["http", "sql", "looking"]
)
def test_X7_a_killed_python_worker_leaves_no_request_and_no_statement(
    spark: SparkSession, request: pytest.FixtureRequest, settings: dict[str, str] | None
) -> None:
    """With that setting PostgreSQL looks for its clients itself, while a statement runs."""
    server = request.getfixturevalue("http" if settings is None else "own_postgres")
    outside: Outside = server if settings is None else Postgres(server, **settings)
    thread, outcome = in_background(hanging(spark, outside).collect)
    wait_until(lambda: outside.running() >= POOL or bool(outcome), 60, "requests hang")
    for pid in clients_of(outside.port):
        os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert "crashed" in str(outcome[0])
    assert_clean(spark, outside)


@FROM_4_1
def test_X7_a_worker_that_has_fallen_silent_is_ended_by_spark_and_leaves_no_connection(
    spark: SparkSession, http: Http
) -> None:
    port = http.port

    async def look(key: int) -> Any:
        import ctypes

        await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.2)
        # Until it returns nothing runs in this interpreter, on no thread.
        ctypes.PyDLL(None).sleep(600)

    with setting(spark, IDLE_TIMEOUT, 2), setting(spark, KILL, "true"):
        frozen = enrich(spark.range(0, 5, numPartitions=1), FunctionEnricher(look, "x int"), on="id", timeout=None)
        thread, outcome = in_background(frozen.collect)
        wait_until(lambda: http.connections() == 5 or bool(outcome), 60, "lookups are connected")
        thread.join(60)
    assert re.search("idle timeout|crashed", str(outcome[0]))
    wait_until(lambda: http.connections() == 0, GONE, "no connection is open")
    assert_clean(spark, http)


@FROM_4_1
@pytest.mark.parametrize("face", ["enrich", pytest.param("async_udf", marks=pytest.mark.faults)])
def test_X7_a_worker_that_waits_for_slow_answers_is_not_silent(spark: SparkSession, face: str) -> None:
    async def slow(key: int) -> Any:
        await asyncio.sleep(4 if key == 0 else 0)
        return key if face == "async_udf" else {"x": key}

    with setting(spark, IDLE_TIMEOUT, 2), setting(spark, KILL, "true"):
        numbers = spark.range(0, 30, numPartitions=2)
        if face == "enrich":
            waited = enrich(numbers, FunctionEnricher(slow, "x long"), on="id")
        else:
            waited = numbers.withColumn("x", async_udf("long")(slow)("id"))
        assert waited.collect() == [(i, i) for i in range(30)]


def test_L8_connections_that_nobody_uses_are_closed_without_another_task(spark: SparkSession, outside: Outside) -> None:
    async def hasten(key: int) -> Any:
        from asyncio_operator.engine import lent

        lent.IDLE = key / 10
        return {"pid": os.getpid()}

    def idle_after(tenths: int) -> None:
        for _ in range(3):
            keys = spark.range(0, 8, numPartitions=4).selectExpr(f"{tenths} AS key", "id")
            enrich(keys, FunctionEnricher(hasten, "pid long"), on="key").collect()

    idle_after(5)
    try:
        numbers = spark.range(0, ANSWERED, numPartitions=2)
        assert [row.square for row in enrich(numbers, outside.enricher(), on="id").collect()] == [0, 1, 4]
        assert outside.connections() > 0
        wait_until(lambda: outside.connections() == 0, GONE, "no connection is open")
    finally:
        idle_after(600)
