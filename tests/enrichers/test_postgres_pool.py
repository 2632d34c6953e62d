"""The connections of a worker at the limit of a real server, and how the server learns the deadline of a lookup."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from asyncio_operator import AsyncWaitOperator, ConfigurationError, EnricherError
from asyncio_operator.lookup import Lookup
from asyncio_operator.services.postgres_client import cause_of
from enrichers import PostgresEnricher
from tests.enrichers.helpers import failure, opened
from tests.servers import PostgresServer

QUERY = "SELECT k AS id, -k AS v FROM unnest($1::int[]) AS k"

_numbers = itertools.count()


class Role:
    """A role whose connections are limited, and what its superuser does to them."""

    def __init__(self, server: PostgresServer, superuser: asyncpg.Connection) -> None:
        self.name = f"limited_{next(_numbers)}"
        self.dsn = server.socket_dsn(user=self.name)
        self._superuser = superuser

    async def limit(self, connections: int) -> None:
        await self._superuser.execute(f"ALTER ROLE {self.name} CONNECTION LIMIT {connections}")

    async def connected(self) -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1"
        return int(await self._superuser.fetchval(sql, self.name))

    async def terminate(self, at_most: int = 100) -> None:
        """End them, and wait until they have gone: a signal that comes late would end a lookup of later."""
        sql = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE usename = $1 LIMIT $2"
        await self._superuser.execute(sql.replace("$1", f"'{self.name}'").replace("$2", str(at_most)))


@pytest.fixture
async def role(postgres: PostgresServer) -> AsyncIterator[Role]:
    superuser = await asyncpg.connect(postgres.dsn)
    role = Role(postgres, superuser)
    await superuser.execute(f"CREATE ROLE {role.name} LOGIN CONNECTION LIMIT 1")
    yield role
    while await role.connected():
        pass
    await superuser.execute(f"DROP ROLE {role.name}")
    await superuser.close()


async def when_there_is_room(enricher: PostgresEnricher) -> Any:
    """A row. The server counts a connection that it has refused until the process of that has ended."""
    while True:
        try:
            return await enricher.lookup(1)
        except EnricherError as error:
            if not error.overload:
                raise


async def test_L8_a_pool_at_the_servers_limit_waits_for_the_connection_that_it_holds(
    role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    enricher = PostgresEnricher(role.dsn, query=QUERY, key="id", pool_size=8, max_batch=10)
    async with Lookup(enricher) as lookup:
        answers = await asyncio.gather(*map(lookup.get, range(5000)))
    assert answers == [{"v": -key} for key in range(5000)]
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for part in (
        "this Python worker holds 1 of the 8 connections that it wants",
        f'too many connections for role "{role.name}"',
        "32 x 8",
        "max_connections",
        "pool_size",
    ):
        assert part in told


async def test_L8_the_first_connection_that_cannot_be_made_is_an_error(
    role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    enricher = PostgresEnricher(role.dsn, query=QUERY, key="id", pool_size=8)
    enricher.schema()
    await role.limit(0)
    await enricher.open()
    answers = await asyncio.gather(*map(enricher.lookup, range(50)), return_exceptions=True)
    assert all("): the server has too many connections (" in str(answer) for answer in answers)
    error = await failure(enricher, 1)
    assert (error.retryable, error.overload) == (True, True)
    assert not caplog.records, "every lookup says it"
    await role.limit(1)
    assert await asyncio.wait_for(when_there_is_room(enricher), 30) == {"v": -1}
    await enricher.close()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("53300", 'too many connections for role "app"'),
        ("53300", 'too many connections for database "shop"'),
        ("53300", "sorry, too many clients already"),
        ("53300", "remaining connection slots are reserved for roles with the SUPERUSER attribute"),
        ("08P01", "no more connections allowed (max_client_conn)"),
        ("08P01", "client connections exceeded (max_db_client_connections)"),
        ("XX000", "Max client connections reached"),
        (
            "XX000",
            "MaxClientsInSessionMode: max clients reached - in Session mode max clients are limited to pool_size",
        ),
    ],
)
def test_the_words_of_servers_and_poolers_at_their_limit_are_known(state: str, words: str) -> None:
    fields: dict[str, Any] = {"S": "FATAL", "V": "FATAL", "C": state, "M": words}
    cause = cause_of(asyncpg.PostgresError.new(fields), "postgresql://bob@host/db")
    assert cause.overload
    assert cause.retryable
    assert "too many connections" in cause.text


async def test_X4_a_server_that_lets_one_in_and_then_says_nothing_is_found_out_in_the_time_to_connect() -> None:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        writer.write(message(b"R", bytes(4)) + message(b"S", b"server_version\x0018.0\0"))
        writer.write(message(b"S", b"client_encoding\0UTF8\0") + message(b"K", bytes(8)) + message(b"Z", b"I"))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        dsn = f"postgresql://bob@127.0.0.1:{server.sockets[0].getsockname()[1]}/shop?sslmode=disable"
        silent = PostgresEnricher(dsn, table="t", key="id", connect_timeout=0.1)
        async with asyncio.timeout(10):
            with pytest.raises(ConfigurationError, match="did not answer in time"):
                await Lookup(silent).open()
            with pytest.raises(ConfigurationError, match="did not answer in time"):
                await asyncio.to_thread(silent.schema)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_X7_a_lookup_that_ends_while_it_connects_leaves_nothing_for_the_log(
    postgres: PostgresServer, how: str
) -> None:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    for turns in range(20):
        connect_timeout = 0 if how == "cancelled" else 10
        query = "SELECT k, 1 AS v FROM unnest($1::int[]) AS k"
        async with opened(
            PostgresEnricher(postgres.tcp_dsn(), query=query, key="k", connect_timeout=connect_timeout)
        ) as enricher:
            lookup = asyncio.ensure_future(enricher.lookup(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "cancelled":
                lookup.cancel()
        await asyncio.wait([lookup])
        # On a busy machine it is answered within some turns, and closing ends no lookup that has its answer.
        answered = turns > 0 and not lookup.cancelled() and lookup.exception() is None
        assert lookup.result() == {"v": 1} if answered else lookup.cancelled() or lookup.exception() is not None
    await asyncio.sleep(0.05)  # connections end in later turns
    gc.collect()
    assert heard == []


# -- deadlines


ROOT = Path(__file__).parents[2]

SETTING = "SELECT k AS id, current_setting('statement_timeout') AS v FROM unnest($1::int[]) AS k"
LOOKS = SETTING.replace("statement_timeout", "client_connection_check_interval")


WATCHES = 2
"""Statements that ask the server to look for its client: of the connection that asks for the schema, and the pool's."""


@pytest.fixture
def logged(postgres: PostgresServer) -> Callable[[], list[str]]:
    """The simple statements of sessions with `LOGS`, as the server logs them; a lookup is none."""
    begun = len(postgres.log())
    return lambda: postgres.log()[begun:].split("LOG:  statement: ")[1:]


LOGS = "&log_statement=all"


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
async def test_a_limit_is_set_once_and_when_it_grows(
    postgres: PostgresServer, logged: Callable[[], list[str]], cache: int
) -> None:
    async with asked(postgres.dsn + LOGS, statement_cache_size=cache) as enricher:
        assert await limits(enricher, *[3] * 5) == ["4s"] * 5
        assert len(logged()) == WATCHES + 1
        assert await limits(enricher, 30, 1, 3, 30) == ["32s"] * 4
        assert len(logged()) == WATCHES + 2
        assert await limits(enricher, None, 30, 10**8) == ["0"] * 3
        assert len(logged()) == WATCHES + 3


async def test_without_a_deadline_the_server_is_asked_to_look_for_its_client_and_nothing_else(
    postgres: PostgresServer, logged: Callable[[], list[str]]
) -> None:
    async with asked(postgres.dsn + LOGS) as enricher:
        assert await limits(enricher, None, None) == ["0"] * 2
        assert await enricher.lookup(1) == {"v": "0"}
        assert len(logged()) == WATCHES
        assert all("client_connection_check_interval" in sql for sql in logged())


async def test_the_server_looks_for_its_client_unless_somebody_has_said_how_often(postgres: PostgresServer) -> None:
    said = f"{postgres.dsn}&client_connection_check_interval=7000"
    for dsn, interval in ((postgres.dsn, "2s"), (said, "7s")):
        async with opened(PostgresEnricher(dsn, query=LOOKS, key="id", statement_cache_size=0)) as enricher:
            assert await enricher.lookup(1) == {"v": interval}


async def test_a_limit_of_the_dsn_is_lowered_and_never_raised(postgres: PostgresServer) -> None:
    dsn = postgres.dsn
    async with asked(f"{dsn}&statement_timeout=5000") as enricher:
        assert await limits(enricher, 3, 30, 30, None, 3) == ["4s", "4s", "4s", "4s", "4s"]
    async with asked(f"{dsn}&statement_timeout=5000") as enricher:
        assert await limits(enricher, 30, 30, None, 3) == ["5s"] * 4


async def test_a_new_connection_is_told_anew(postgres: PostgresServer) -> None:
    async with asked(f"{postgres.dsn}&application_name=anew") as enricher:
        assert await limits(enricher, 3) == ["4s"]
        sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'anew'"
        await postgres.run(sql)
        assert await limits(enricher, 30) == ["32s"]


async def until_a_statement(postgres: PostgresServer, name: str, state: Literal["sleeps", "is over"]) -> None:
    """A statement that sleeps wakes now and then, to look for its client: it is over when its session is not active."""
    condition = {"sleeps": "bool_or(wait_event = 'PgSleep')", "is over": "bool_and(state <> 'active')"}[state]
    default = {"sleeps": "false", "is over": "true"}[state]
    sql = f"SELECT coalesce({condition}, {default}) FROM pg_stat_activity WHERE application_name = $1"
    async with asyncio.timeout(60):
        while await postgres.rows(sql, name) == [(False,)]:
            pass


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
