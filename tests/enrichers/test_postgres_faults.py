"""When the server, the connection or the caller's patience ends: errors, the pool, cancellation, a failover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from asyncio_operator import AsyncWaitOperator, EnricherError, FixedBackoff, Retry
from asyncio_operator.services import closing
from asyncio_operator.services.postgres_client import lookup_error, source_error
from enrichers import PostgresEnricher
from enrichers.databases import pool
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure, opened, told
from tests.servers import PostgresServer, Standby

ALIVE = "SELECT k AS id, -k AS v FROM unnest($1::int[]) AS k"


@pytest.fixture(scope="module")
def mortal() -> Iterator[Standby]:
    with Standby(password="hunter2", max_connections="10", superuser_reserved_connections="1") as server:
        yield server


@pytest.fixture
def server(mortal: Standby) -> Iterator[Standby]:
    """A server that a test may stop, kill, hang and demote."""
    yield mortal
    mortal.promote()


@pytest.fixture
async def enricher(server: Standby) -> AsyncIterator[PostgresEnricher]:
    """Open, with three connections."""
    async with opened(PostgresEnricher(server.tcp_dsn(), query=ALIVE, key="id", pool_size=3)) as enricher:
        assert await asyncio.gather(*map(enricher.lookup, (1, 2, 3))) == [{"v": -1}, {"v": -2}, {"v": -3}]
        yield enricher


async def until_it_answers(enricher: PostgresEnricher, key: Any) -> Any:
    """The answer after the failures of connections that died unnoticed: one for each in the pool at most."""
    for _ in range(enricher.pool_size):
        try:
            return await enricher.lookup(key)
        except EnricherError as error:
            if not error.retryable:
                raise
    return await enricher.lookup(key)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_connection_lost_in_the_middle_of_a_query_is_retryable(server: Standby, end: str) -> None:
    async with opened(
        PostgresEnricher(
            server.tcp_dsn(), query="SELECT k AS id, pg_sleep(600)::text AS v FROM unnest($1::int[]) AS k", key="id"
        )
    ) as slow:
        lookup = asyncio.ensure_future(slow.lookup(5))
        await until_sleeping(server, 1)
        await asyncio.to_thread(getattr(server, end))
        with pytest.raises(EnricherError) as caught:
            await lookup
        assert caught.value.retryable is True
        assert ": the server closed the connection" in str(caught.value)


async def sleeping(server: PostgresServer) -> int:
    """How many queries the server holds in pg_sleep."""
    return len(await server.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


async def until_sleeping(server: PostgresServer, number: int) -> None:
    while await sleeping(server) != number:
        pass


SLEEP = "SELECT k AS id, CASE WHEN k < 0 THEN pg_sleep(600)::text END AS v FROM unnest($1::int[]) AS k"


async def test_a_cancelled_lookup_ends_its_query_and_leaves_the_pool_usable(postgres: PostgresServer) -> None:
    async with opened(PostgresEnricher(postgres.tcp_dsn(), query=SLEEP, key="id", pool_size=2)) as enricher:
        for _ in range(3):
            lookups = [asyncio.ensure_future(enricher.lookup(-1)) for _ in range(2)]
            await until_sleeping(postgres, 2)
            waiting = asyncio.ensure_future(enricher.lookup(1))
            for lookup in lookups:
                lookup.cancel()
            assert await waiting == {"v": None}, "it waited for a connection, and got one"
            for lookup in lookups:
                with pytest.raises(asyncio.CancelledError):
                    await lookup
            await until_sleeping(postgres, 0)
            assert await enricher.lookup_many([1, 2]) == [{"v": None}] * 2


async def connected(postgres: PostgresServer, application: str) -> int:
    return len(await postgres.rows("SELECT FROM pg_stat_activity WHERE application_name = $1", application))


async def test_close_leaves_no_connection(postgres: PostgresServer) -> None:
    enricher = PostgresEnricher(f"{postgres.dsn}&application_name=closing", query=SLEEP, key="id")
    for _ in range(2):
        await enricher.open()
        assert await enricher.lookup(1) == {"v": None}
        assert await connected(postgres, "closing") == 1
        await enricher.close()
        while await connected(postgres, "closing"):
            pass
        error = await failure(enricher, 1)
        assert "is not open" in str(error)
        assert error.retryable is False


async def test_a_server_that_hangs_holds_up_neither_a_cancelled_lookup_nor_close(
    server: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CANCEL_TIMEOUT", 0.05)
    monkeypatch.setattr(closing, "CLOSE_TIMEOUT", 0.05)
    async with opened(PostgresEnricher(server.tcp_dsn(), query=SLEEP, key="id")) as enricher:
        cancelled, running = (asyncio.ensure_future(enricher.lookup(-1)) for _ in range(2))
        await until_sleeping(server, 2)
        server.pause()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    with pytest.raises(EnricherError) as caught:
        await running
    assert caught.value.retryable is True
    server.resume()


async def test_the_server_knows_who_asks(postgres: PostgresServer) -> None:
    query = "SELECT k AS id, current_setting('application_name') AS v FROM unnest($1::int[]) AS k"
    for dsn, expected in [
        (postgres.dsn, "asyncio-operator"),
        (f"{postgres.dsn}&application_name=my%20job", "my job"),
    ]:
        async with opened(PostgresEnricher(dsn, query=query, key="id")) as enricher:
            assert await enricher.lookup(1) == {"v": expected}


async def test_a_dsn_function_is_called_for_every_new_connection(server: Standby) -> None:
    """So that short-lived credentials work."""
    calls: list[int] = []

    def fresh() -> str:
        calls.append(1)
        return server.tcp_dsn()

    query = "SELECT k AS id, pg_backend_pid() AS v FROM unnest($1::int[]) AS k"
    enricher = PostgresEnricher(fresh, query=query, key="id", pool_size=1)
    enricher.schema()
    await enricher.open()
    assert await enricher.lookup(1) == await enricher.lookup(2)
    assert len(calls) == 3, "asked for the schema, tried when opened, and the first connection"
    server.restart()
    await until_it_answers(enricher, 3)
    assert len(calls) == 4
    await enricher.close()


async def test_a_dsn_function_that_fails_in_a_worker_is_an_error_of_the_lookup(postgres: PostgresServer) -> None:
    failing = False

    def vault() -> str:
        if failing:
            raise OSError("the vault is sealed")
        return postgres.dsn

    enricher = PostgresEnricher(vault, query=SLEEP, key="id")
    enricher.schema()
    await enricher.open()
    failing = True
    error = await failure(enricher, 1)
    assert "vault raised OSError" in str(error)
    assert error.retryable is not False
    failing = False
    assert await enricher.lookup(1) == {"v": None}
    await enricher.close()


@pytest.mark.parametrize(
    ("computed", "told"),
    [
        ("(k * 100)::numeric(3,1)", "a value that is computed for its rows is out of range (numeric field overflow"),
        ("(k * 2000000000)::int", "a value that is computed for its rows is out of range"),
        ("1 / (k - 7)", "what is computed for its rows divides by zero"),
    ],
)
async def test_X5_what_a_query_cannot_compute_is_not_laid_at_the_keys_door(
    postgres: PostgresServer, computed: str, told: str
) -> None:
    query = f"SELECT k::int AS id, {computed} AS v FROM unnest($1::int8[]) AS k"
    async with opened(PostgresEnricher(postgres.dsn, query=query, key="id")) as enricher:
        assert f"key 7: {told}" in str(await failure(enricher, 7))


async def test_a_table_that_is_dropped_while_a_job_runs_is_not_retried(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS v")
    async with database.enricher(table="t", key="id") as enricher:
        assert await enricher.lookup(1) == {"v": 2}
        await database.execute("ALTER TABLE t ADD COLUMN w int")
        assert await enricher.lookup(1) == {"v": 2}, "a table that has grown is no error"
        await database.execute("DROP TABLE t")
        error = await failure(enricher, 1)
        assert error.retryable is False
        assert 'PostgresEnricher(table="t"): the server refuses the statement' in str(error), "no key is to blame"


def test_X5_a_secret_in_asyncpgs_own_words_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    dsn = "postgresql://bob:hun%40ter2@host/db"
    deep = ValueError("bad password hun@ter2")
    shallow = asyncpg.InterfaceError("could not parse")
    shallow.__cause__ = deep
    noted = asyncpg.InterfaceError("could not parse")
    noted.add_note(f"it was {dsn}")
    for error in (asyncpg.InterfaceError(f"invalid dsn {dsn}"), deep, shallow, noted):
        for raised in (lookup_error(error, "x", "key 1", dsn), source_error(error, "x", dsn)):
            try:
                try:
                    raise error
                except Exception:
                    raise raised  # noqa: B904
            except Exception as final:
                logging.getLogger("a job").exception("failed")
                for text in (told(final), caplog.text):
                    assert "hun@ter2" not in text
                    assert "hun%40ter2" not in text


# -- restarts and failovers


WHO = """
    SELECT k AS id, pg_backend_pid() AS v, CASE WHEN k < 0 THEN nextval('s') END AS n FROM unnest($1::int[]) AS k
"""


RETRY = Retry(max_attempts=4, backoff=FixedBackoff(0.0))
"""One attempt more than there are connections in the pool: each may have to be found dead once."""


async def with_retries(enricher: PostgresEnricher) -> list[Any]:
    operator = AsyncWaitOperator(enricher.lookup, retry=RETRY, capacity=3, timeout=30)
    return [row async for row in operator.process(range(50))]


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
        before = await until_it_answers(enricher, 1)
        error = await failure(enricher, -1)
        assert (error.retryable, error.any_key) == (True, True)
        assert "the server is read-only" in str(error)
        assert isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError)
        after = await until_it_answers(enricher, 1)
        assert after["v"] != before["v"], "the old connection leads to what is a standby now"
        assert await asyncio.to_thread(server.fetch, "SELECT pg_promote()") == [(True,)]
        assert (await enricher.lookup(-1))["n"] is not None  # type: ignore[index,call-overload]


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
