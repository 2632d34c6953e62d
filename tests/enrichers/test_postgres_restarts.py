"""A server that stops, dies, recovers, fails over or is full: what a lookup says, and how the pool comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from asyncio_operator import AsyncWaitOperator, EnricherError, FixedBackoff, Retry
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure, opened
from tests.servers import PostgresServer, Standby

ALIVE = "SELECT k AS id, -k AS v FROM unnest($1::int[]) AS k"
WHO = """
    SELECT k AS id, pg_backend_pid() AS v, CASE WHEN k < 0 THEN nextval('s') END AS n FROM unnest($1::int[]) AS k
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Standby]:
    """One server for this module; every test leaves it running, as a primary."""
    server = Standby(password="hunter2", max_connections="10", superuser_reserved_connections="1")
    with server:
        yield server


@pytest.fixture
async def enricher(server: Standby) -> AsyncIterator[PostgresEnricher]:
    async with opened(
        PostgresEnricher(f"{server.tcp_dsn()}?application_name=lookups", query=ALIVE, key="id", pool_size=3)
    ) as enricher:
        assert await asyncio.gather(*map(enricher.lookup, (1, 2, 3))) == [{"v": -1}, {"v": -2}, {"v": -3}]
        yield enricher


RETRY = Retry(max_attempts=4, backoff=FixedBackoff(0.0))
"""One attempt more than there are connections in the pool: each may have to be found dead once."""


async def with_retries(enricher: PostgresEnricher, keys: int = 50) -> list[Any]:
    operator = AsyncWaitOperator(enricher.lookup, retry=RETRY, capacity=3, timeout=30)
    return [row async for row in operator.process(range(keys))]


@pytest.mark.parametrize("end", ["restart", "kill"])
async def test_a_restart_costs_retries_and_no_rows(server: Standby, enricher: PostgresEnricher, end: str) -> None:
    if end == "kill":
        server.kill()
        server.start()
    else:
        server.restart()
    assert await with_retries(enricher) == [{"v": -key} for key in range(50)]


async def test_a_server_that_cannot_connect_now_is_retryable(server: Standby, enricher: PostgresEnricher) -> None:
    server.demote(answers=False)
    errors = [await failure(enricher, key) for key in range(6)]
    assert [(error.retryable, error.any_key) for error in errors] == [(True, True)] * 6
    assert "starting or shutting down" in str(errors[-1])
    assert getattr(errors[-1].__cause__, "sqlstate", None) == "57P03"
    server.promote()
    assert await with_retries(enricher) == [{"v": -key} for key in range(50)]


async def test_a_failover_to_read_only_is_retryable_and_makes_new_connections(server: Standby) -> None:
    await asyncio.to_thread(server.fetch, "DROP SEQUENCE IF EXISTS s")
    await asyncio.to_thread(server.fetch, "CREATE SEQUENCE s")
    async with opened(PostgresEnricher(server.dsn, query=WHO, key="id", pool_size=1)) as enricher:
        await enricher.lookup(-1)
        server.demote(answers=True)
        before = await reading(enricher)
        error = await failure(enricher, -1)
        assert (error.retryable, error.any_key) == (True, True)
        assert "the server is read-only" in str(error)
        assert isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError)
        after = await reading(enricher)
        assert after["v"] != before["v"], "the old connection leads to what is a standby now"
        assert await asyncio.to_thread(server.fetch, "SELECT pg_promote()") == [(True,)]
        assert (await enricher.lookup(-1))["n"] is not None  # type: ignore[index,call-overload]


async def reading(enricher: PostgresEnricher) -> Any:
    for _ in range(enricher.pool_size):
        with suppress(EnricherError):
            return await enricher.lookup(1)
    return await enricher.lookup(1)


async def test_of_several_hosts_the_primary_is_taken_and_waited_for(server: Standby, postgres: PostgresServer) -> None:
    """With target_session_attrs a pool follows a failover by itself."""
    hosts = f"127.0.0.1:{server.port},127.0.0.1:{server.port}"
    dsn = f"postgresql://postgres:hunter2@{hosts}/postgres?target_session_attrs=primary"
    async with opened(PostgresEnricher(dsn, query=ALIVE, key="id", pool_size=1)) as enricher:
        server.demote(answers=True)
        error = await failure(enricher, 1)
        assert error.retryable is True
        error = await failure(enricher, 1)
        assert error.retryable is True
        assert "target_session_attrs" in str(error)
        server.promote()
        assert await enricher.lookup(1) == {"v": -1}


async def test_a_lock_that_is_not_given_in_time_is_retryable(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS v")
    dsn = f"{database.dsn}&lock_timeout=20"
    async with database.enricher(dsn=dsn, table="t", key="id") as enricher:
        other = await asyncpg.connect(database.dsn)
        async with other.transaction():
            await other.execute("LOCK t IN ACCESS EXCLUSIVE MODE")
            error = await failure(enricher, 1)
            assert error.retryable is True
            assert "could not get a lock" in str(error)
        await other.close()
        assert await enricher.lookup(1) == {"v": 2}
