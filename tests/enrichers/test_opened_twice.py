"""X7: what a second `open` replaces is closed, and `close` may come at any time, of all enrichers with clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp import ClientSession

from asyncio_operator import BlockingFunction, Enricher, EnricherError
from asyncio_operator.testing import FakeService
from enrichers import BlockingEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, SqlEnricher
from tests.enrichers.helpers import in_sqlite
from tests.redis_service import RedisServer, redis_server
from tests.servers import PostgresServer, postgres

__all__ = ["postgres", "redis_server"]


async def opened_twice(enricher: Enricher) -> None:
    """Opens it twice with a lookup after each, and closes it twice; before that it closes what was never open."""
    await asyncio.to_thread(enricher.schema)
    await enricher.close()
    for _ in range(2):
        await enricher.open()
        assert await enricher.lookup_many([1]) == [{"n": 2}]
    for _ in range(2):
        await enricher.close()
    with pytest.raises(EnricherError, match="is not open"):
        await enricher.lookup_many([1])


async def test_X7_sessions_of_http(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[ClientSession] = []
    make = ClientSession.__init__

    def kept(session: ClientSession, *arguments: Any, **options: Any) -> None:
        make(session, *arguments, **options)
        sessions.append(session)

    monkeypatch.setattr(ClientSession, "__init__", kept)
    with FakeService(handler=lambda request: {"n": 2}) as service:
        await opened_twice(HttpEnricher(service.url + "/{key}", schema="n int"))
    assert [session.closed for session in sessions] == [True, True]


async def test_X7_clients_and_threads_of_blocking_functions() -> None:
    clients: list[object] = []
    torn: list[object] = []

    def setup() -> object:
        clients.append(object())
        return clients[-1]

    await opened_twice(BlockingEnricher(lambda client, key: {"n": 2}, "n int", setup=setup, teardown=torn.append))
    assert len(torn) == 2
    assert torn == clients


async def test_X7_a_blocking_function_that_was_closed_too_often_ends_its_threads() -> None:
    function: BlockingFunction[int, int] = BlockingFunction(lambda value: value)
    await function.close()
    await function.open()
    assert await function.invoke(1) == 1
    await function.close()
    assert function._pool is None


async def test_X7_connections_of_sqlite(tmp_path: Any) -> None:
    create = "CREATE TABLE t (id integer primary key, n integer)"
    url = in_sqlite(tmp_path / "t.db", create, "INSERT INTO t VALUES (1, 2)")
    threads = threading.active_count()
    await opened_twice(SqlEnricher(url, table="t", key="id"))
    while threading.active_count() > threads + 1:  # noqa: ASYNC110 - the driver's executor stays.
        await asyncio.sleep(0.01)


async def test_X7_connections_of_postgres(postgres: PostgresServer) -> None:
    sql, dsn = "SELECT k AS id, 2::int AS n FROM unnest($1::int[]) k", f"{postgres.dsn}&application_name=twice"
    await opened_twice(PostgresEnricher(dsn, query=sql, key="id"))
    assert await postgres.rows("SELECT FROM pg_stat_activity WHERE application_name = 'twice'") == []


async def test_X7_connections_of_redis(redis_server: RedisServer) -> None:
    redis_server.command("SET", "twice:1", '{"n": 2}')
    before = redis_server.command("CLIENT", "LIST").count(b"\n")
    await opened_twice(RedisEnricher(redis_server.url, schema="n int", key_template="twice:{key}"))
    assert redis_server.command("CLIENT", "LIST").count(b"\n") == before
