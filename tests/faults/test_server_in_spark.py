"""A PostgreSQL that is stopped, killed, restarted, in recovery or out of connections while a job asks it.

The job cannot be over before that happens: the answer to one key hangs for as long as the server is the one that was
there at the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import asyncpg
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, FixedBackoff, Retry
from asyncio_operator.spark import enrich
from enrichers import PostgresEnricher
from tests.servers import PostgresServer, Standby
from tests.spark.helpers import GONE, assert_workers_are_clean, in_background, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults]

ROWS = 3000

HELD = 1234

POOL = 4

PATIENT = Retry(max_attempts=300, backoff=FixedBackoff(0.1))

IN_TIME = 60.0


@pytest.fixture
def server() -> Iterator[Standby]:
    server = Standby(max_connections="12", superuser_reserved_connections="2")
    with server:
        server.fetch("CREATE ROLE shop LOGIN PASSWORD 'hunter2'")
        yield server


def sevenfold(server: PostgresServer, held: bool = True) -> PostgresEnricher:
    [[started]] = server.fetch("SELECT pg_postmaster_start_time()::text")
    hangs = f"k = {HELD} AND pg_postmaster_start_time() = '{started}'" if held else "false"
    sql = f"""
        SELECT k AS id, 7 * k AS v FROM (
            SELECT k, CASE WHEN {hangs} THEN pg_sleep(600) END FROM unnest($1::int8[]) AS k OFFSET 0
        ) AS slept
    """
    return PostgresEnricher(
        server.tcp_dsn(user="shop", password="hunter2"), query=sql, key="id", max_batch=20, pool_size=POOL
    )


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=2)


def expected() -> list[tuple[int, int]]:
    return [(key, 7 * key) for key in range(ROWS)]


def hangs(server: PostgresServer) -> bool:
    return bool(server.fetch("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


def connections(server: PostgresServer) -> int:
    return len(server.fetch("SELECT 1 FROM pg_stat_activity WHERE usename = 'shop'"))


def assert_clean(spark: SparkSession, server: PostgresServer) -> None:
    assert_workers_are_clean(spark)
    wait_until(lambda: connections(server) <= 2 * POOL, GONE, "no more connections than pools keep")
    wait_until(lambda: not hangs(server), GONE, "no statement is left")


@pytest.mark.parametrize("end", ["restart", "kill", "recovery", "standby"])
def test_a_server_that_goes_and_comes_back_costs_no_row(spark: SparkSession, server: Standby, end: str) -> None:
    out = enrich(numbers(spark), sevenfold(server), on="id", retry=PATIENT, timeout=90)
    job, outcome = in_background(out.collect)
    wait_until(lambda: hangs(server) or bool(outcome), IN_TIME, "the job has come to the key that hangs")
    if end == "restart":
        server.restart()
    elif end == "kill":
        server.kill()
        server.start()
    else:
        # Nobody is answered in recovery, then reads are again, then it is a primary.
        server.demote(answers=end == "standby")
        job.join(1.0)
        assert (end == "recovery") == job.is_alive(), outcome
        server.promote()
    job.join(IN_TIME)
    assert outcome, "the job hangs"
    assert [tuple(row) for row in outcome[0]] == expected()
    assert_clean(spark, server)


@pytest.mark.parametrize("end", ["stop", "kill", "recovery"])
def test_a_server_that_does_not_come_back_is_one_clear_error_in_time(
    spark: SparkSession, server: Standby, end: str
) -> None:
    retry = Retry(max_attempts=3, backoff=FixedBackoff(0.1))
    out = enrich(numbers(spark), sevenfold(server), on="id", retry=retry, timeout=30)
    job, outcome = in_background(out.collect)
    wait_until(lambda: hangs(server) or bool(outcome), IN_TIME, "the job has come to the key that hangs")
    if end == "recovery":
        server.demote(answers=False)
    else:
        getattr(server, end)()
    job.join(IN_TIME)
    assert outcome, "the job hangs"
    told = str(outcome[0])
    assert "PostgresEnricher(" in told
    assert ("starting or shutting down" if end == "recovery" else "the server is not reachable") in told
    assert "hunter2" not in told
    server.promote()
    again = enrich(numbers(spark), sevenfold(server, held=False), on="id", retry=PATIENT, cache=Cache())
    assert [tuple(row) for row in again.collect()] == expected()
    assert_clean(spark, server)


def test_a_server_that_does_not_come_back_costs_answers_and_no_row_where_it_shall_not_fail_the_job(
    spark: SparkSession, server: Standby
) -> None:
    out = enrich(numbers(spark), sevenfold(server), on="id", on_error="null", status_column="how", timeout=30)
    job, outcome = in_background(out.collect)
    wait_until(lambda: hangs(server) or bool(outcome), IN_TIME, "the job has come to the key that hangs")
    server.kill()
    job.join(IN_TIME)
    assert outcome, "the job hangs"
    assert [row.id for row in outcome[0]] == list(range(ROWS))
    assert [row.v for row in outcome[0]] == [7 * row.id if row.how.status == "found" else None for row in outcome[0]]
    assert {row.how.status for row in outcome[0]} == {"found", "failed"}


def taken(server: PostgresServer, stack: ExitStack, left: int) -> None:
    """Take connections until `left` are left for others than superusers."""
    runner = stack.enter_context(asyncio.Runner())
    for _ in range(12 - 2 - left):
        connection = runner.run(asyncpg.connect(server.tcp_dsn(user="shop", password="hunter2")))
        stack.callback(connection.terminate)


def test_a_server_with_too_few_connections_costs_no_row(spark: SparkSession, server: Standby) -> None:
    """One is left, and a worker wants four: it makes do with that one."""
    enricher = sevenfold(server, held=False)
    out = enrich(numbers(spark).coalesce(1), enricher, on="id", timeout=90)
    with ExitStack() as stack:
        taken(server, stack, left=1)
        assert [tuple(row) for row in out.collect()] == expected()


def test_a_server_without_a_connection_left_is_one_clear_error_in_time(spark: SparkSession, server: Standby) -> None:
    enricher = sevenfold(server, held=False)
    out = enrich(numbers(spark), enricher, on="id", retry=Retry(3, FixedBackoff(0.1)), timeout=30)
    with ExitStack() as stack:
        taken(server, stack, left=0)
        with pytest.raises(Exception, match="the server has too many connections") as caught:
            out.collect()
        assert "hunter2" not in str(caught.value)
    assert [tuple(row) for row in out.collect()] == expected()
    assert_clean(spark, server)
