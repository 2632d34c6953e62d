"""How the server learns a lookup's deadline: once per connection, and never behind a pooler."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from asyncio_operator import AsyncWaitOperator
from enrichers import PostgresEnricher
from tests.enrichers.helpers import opened
from tests.servers import PostgresServer

ROOT = Path(__file__).parents[2]

SETTING = "SELECT k AS id, current_setting('statement_timeout') AS v FROM unnest($1::int[]) AS k"
LOOKS = SETTING.replace("statement_timeout", "client_connection_check_interval")


WATCHES = 2
"""Statements that ask the server to look for its client: of the connection that asks for the schema, and the pool's."""


class Pooler:
    """Stands before a server as a pooler does: it tells every client a process number of its own.

    Attributes:
        asked: the simple queries of all clients; a lookup is none.
    """

    def __init__(self, port: int, lies: bool) -> None:
        self._port = port
        self._lies = lies
        self._running: set[asyncio.Task[None]] = set()
        self.asked: list[str] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            length = await reader.readexactly(4)
            to_server.write(length + await reader.readexactly(struct.unpack(">i", length)[0] - 4))
            await asyncio.gather(self._pass(reader, to_server, False), self._pass(from_server, writer, True))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            for side in (writer, to_server):
                side.close()
                with suppress(OSError):
                    await side.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while True:
                kind, length = struct.unpack(">ci", await reader.readexactly(5))
                body = await reader.readexactly(length - 4)
                if answers and kind == b"K" and self._lies:
                    body = struct.pack(">i", 7) + body[4:]
                if not answers and kind == b"Q":
                    self.asked.append(body.decode())
                writer.write(struct.pack(">ci", kind, length) + body)
        finally:
            writer.close()


@pytest.fixture
async def direct(postgres: PostgresServer) -> AsyncIterator[tuple[str, Pooler]]:
    """The server, and what listens on the way to it."""
    listener = Pooler(postgres.port, lies=False)
    port = await listener.start()
    yield postgres.tcp_dsn().replace(str(postgres.port), str(port)) + "?sslmode=disable", listener
    await listener.close()


async def limits(enricher: PostgresEnricher, *timeouts: float | None) -> list[Any]:
    """The server's limit as lookups with these deadlines find it, one after the other."""
    found = []
    for timeout in timeouts:
        operator = AsyncWaitOperator(enricher.lookup, timeout=timeout)
        found += [row["v"] async for row in operator.process([1])]
    return found


def asked(dsn: str, **options: Any) -> AbstractAsyncContextManager[PostgresEnricher]:
    return opened(PostgresEnricher(dsn, query=SETTING, key="id", pool_size=1, **options))


@pytest.mark.parametrize("cache", [0, 100])
async def test_a_limit_is_set_once_and_when_it_grows(direct: tuple[str, Pooler], cache: int) -> None:
    dsn, listener = direct
    async with asked(dsn, statement_cache_size=cache) as enricher:
        assert await limits(enricher, *[3] * 5) == ["4s"] * 5
        assert len(listener.asked) == WATCHES + 1
        assert await limits(enricher, 30, 0.01, 3, 30) == ["32s"] * 4
        assert len(listener.asked) == WATCHES + 2
        assert await limits(enricher, None, 30, 10**8) == ["0"] * 3
        assert len(listener.asked) == WATCHES + 3


async def test_without_a_deadline_the_server_is_asked_to_look_for_its_client_and_nothing_else(
    direct: tuple[str, Pooler],
) -> None:
    dsn, listener = direct
    async with asked(dsn) as enricher:
        assert await limits(enricher, None, None) == ["0"] * 2
        assert await enricher.lookup(1) == {"v": "0"}
        assert len(listener.asked) == WATCHES
        assert all("client_connection_check_interval" in sql for sql in listener.asked)


async def test_the_server_looks_for_its_client_unless_somebody_has_said_how_often(postgres: PostgresServer) -> None:
    pooler = Pooler(postgres.port, lies=True)
    port = await pooler.start()
    behind = postgres.tcp_dsn().replace(str(postgres.port), str(port)) + "?sslmode=disable"
    for dsn, interval in (
        (postgres.dsn, "2s"),
        (f"{postgres.dsn}&client_connection_check_interval=7000", "7s"),
        (behind, "0"),
    ):
        async with opened(PostgresEnricher(dsn, query=LOOKS, key="id", statement_cache_size=0)) as enricher:
            assert await enricher.lookup(1) == {"v": interval}
    await pooler.close()


async def test_a_limit_of_the_dsn_is_lowered_and_never_raised(direct: tuple[str, Pooler]) -> None:
    dsn, _ = direct
    async with asked(f"{dsn}&statement_timeout=5000") as enricher:
        assert await limits(enricher, 3, 30, 30, None, 3) == ["4s", "4s", "4s", "4s", "4s"]
    async with asked(f"{dsn}&statement_timeout=5000") as enricher:
        assert await limits(enricher, 30, 30, None, 3) == ["5s"] * 4


async def test_a_new_connection_is_told_anew(postgres: PostgresServer) -> None:
    async with asked(f"{postgres.dsn}&application_name=anew") as enricher:
        assert await limits(enricher, 3) == ["4s"]
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'anew'"
        )
        await connection.close()
        assert await limits(enricher, 30) == ["32s"]


async def test_behind_a_pooler_no_session_is_changed(postgres: PostgresServer) -> None:
    """In transaction mode the next statement runs in another session, and this one serves somebody else."""
    pooler = Pooler(postgres.port, lies=True)
    port = await pooler.start()
    dsn = postgres.tcp_dsn().replace(str(postgres.port), str(port)) + "?sslmode=disable"
    async with asked(dsn, statement_cache_size=0) as enricher:
        assert await limits(enricher, 3, 30, 300) == ["0"] * 3
        assert len(pooler.asked) == WATCHES, "it is found out once per connection"
    await pooler.close()


async def until_a_statement(postgres: PostgresServer, name: str, state: Literal["sleeps", "is over"]) -> None:
    """A statement that sleeps wakes now and then, to look for its client: it is over when its session is not active."""
    condition = {"sleeps": "bool_or(wait_event = 'PgSleep')", "is over": "bool_and(state <> 'active')"}[state]
    default = {"sleeps": "false", "is over": "true"}[state]
    sql = f"SELECT coalesce({condition}, {default}) FROM pg_stat_activity WHERE application_name = $1"
    connection = await asyncpg.connect(postgres.dsn)
    async with asyncio.timeout(60):
        while not await connection.fetchval(sql, name):
            pass
    await connection.close()


async def test_a_statement_ends_at_the_deadline_of_its_lookup(postgres: PostgresServer) -> None:
    query = "SELECT k AS id, pg_backend_pid() AS v, pg_sleep(k) FROM unnest($1::int[]) AS k"
    dsn = f"{postgres.dsn}&application_name=late"
    async with opened(PostgresEnricher(dsn, query=query, key="id", columns=["v"], pool_size=1)) as enricher:
        process = await enricher.lookup(0)
        operator = AsyncWaitOperator(enricher.lookup, timeout=0.05, on_timeout=lambda key: "late")
        assert [row async for row in operator.process([600])] == ["late"]
        await until_a_statement(postgres, "late", "is over")
        assert await enricher.lookup(0) == process, "the connection is still of use"


CHILD = """
import asyncio, sys
from asyncio_operator import AsyncWaitOperator
from enrichers import PostgresEnricher

async def main():
    query = "SELECT k AS id, pg_sleep(600)::text AS v FROM unnest($1::int[]) AS k"
    enricher = PostgresEnricher(sys.argv[1], query=query, key="id")
    await enricher.open()
    async for _ in AsyncWaitOperator(enricher.lookup, timeout=float(sys.argv[2])).process([1]):
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("end", "deadline", "told"),
    [
        (signal.SIGKILL, 600, "connection to client lost"),
        (signal.SIGSTOP, 1.9, "canceling statement due to statement timeout"),
    ],
)
async def test_X7_the_server_ends_the_statement_of_a_worker_that_is_gone(
    postgres: PostgresServer, end: signal.Signals, deadline: float, told: str
) -> None:
    name = f"gone-{end.name}"
    dsn = f"{postgres.dsn}&application_name={name}"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, dsn, str(deadline)), cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        await until_a_statement(postgres, name, "sleeps")
        child.send_signal(end)
        await until_a_statement(postgres, name, "is over")
        assert told in postgres.log()
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
