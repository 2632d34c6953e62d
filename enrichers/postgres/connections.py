"""Connections: one for a question on the driver, a pool of them in a worker.

A pool belongs to the loop that opened it. It connects when it is needed, drops connections that the server has
closed, and closes what is unused. When a call is cancelled, asyncpg sends the server a cancel request; the connection
goes back to the pool when the server has obeyed, or is cut after `CANCEL_TIMEOUT`. A worker that is killed cancels
nothing: then the server ends a statement by itself, see `Session`. Nothing resets a connection between two statements,
because a lookup leaves nothing else behind in its session: that would be a second round trip for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from math import frexp, inf
from typing import Any, TypeVar

import asyncpg

from asyncio_operator.enricher import CANCEL_TIMEOUT, CLOSE_TIMEOUT, time_left
from enrichers.postgres.dsn import DSN, Dsn, names_application

T = TypeVar("T")

APPLICATION_NAME = "asyncio-operator"

QUESTION_TIMEOUT = 30.0
"""Seconds for one question about names and types; it takes longer only where somebody holds a lock on the table."""

FAREWELL = 0.05
"""Seconds for a server to take leave of a connection that it refused, so that no socket stays open."""

IDLE_TIMEOUT = 60.0
"""Seconds after which an unused connection is closed: a server has 100 of them by default, for all its clients."""


LONGEST = 2.0**20
"""Seconds from which on a statement is not limited: the server counts milliseconds in 32 bits."""

LIMIT = """
    SELECT pg_catalog.set_config('statement_timeout', '{milliseconds}', false)
    WHERE pg_catalog.pg_backend_pid() = {process} AND NOT (
        SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'statement_timeout'
    )::int8 BETWEEN 1 AND {milliseconds}
"""
"""Limits a session unless the DSN, the role or the database limits it more; gives no row then.

A pooler, such as PgBouncer, tells its clients numbers of processes that are its own. Behind one the next statement may
run in another session, and this session may serve somebody else: nothing is set there.
"""


WATCHED = """
    SELECT pg_catalog.set_config(name, '2000', false) FROM pg_catalog.pg_settings
    WHERE name = 'client_connection_check_interval' AND context = 'user' AND reset_val = '0'
    AND pg_catalog.pg_backend_pid() = {process}
"""
"""Lets the server look every two seconds whether its client is still there, and end the statement of one that is not: a
process that was killed says no farewell. From PostgreSQL 14; where somebody has set it, or nobody may, it stays."""


class Session(asyncpg.Connection):  # type: ignore[misc]
    """A connection whose server ends a statement that runs for longer than the lookup that waits for it could.

    The limit is not that of each lookup, which would be a round trip for each. It is a power of two in seconds, above
    what any lookup on this connection had left so far: with one timeout for all it is set once. It comes after the
    lookup's own deadline, so that it never ends what somebody still waits for.

    Attributes:
        allowed: seconds; 0 before the first lookup, infinity where the server is not, or may not be, told a limit.
    """

    allowed = 0.0

    async def allow(self, left: float | None) -> None:
        """Let statements run for `left` seconds at least, without limit if that is None."""
        seconds = inf if left is None or left >= LONGEST else 2.0 ** max(0, frexp(left)[1])
        if seconds < inf:
            limit = LIMIT.format(milliseconds=int(1000 * seconds), process=self.get_server_pid())
            seconds = seconds if await self.execute(limit) == "SELECT 1" else inf
        elif self.allowed:
            await self.execute("RESET statement_timeout")
        self.allowed = seconds


class Connections:
    """The pool of one worker.

    Attributes:
        dsn: the connection string that was used last, so that it can be hidden in errors.
    """

    def __init__(self, dsn: Dsn, *, size: int, connect_timeout: float | None, statement_cache_size: int) -> None:
        self._source = dsn
        self._size = size
        self._timeout = connect_timeout
        self._statement_cache_size = statement_cache_size
        self._pool: Any = None
        self.dsn = dsn if isinstance(dsn, str) else ""

    async def open(self) -> None:
        """Make the pool. Nothing is connected yet: a server that is down fails a lookup, which may be retried.

        A function for the connection string is tried: what this process lacks for it is nothing that a key is to blame
        for, and would be missing in every lookup.

        Raises:
            ConfigurationError: there is no connection string.
        """
        await DSN.get(self._source, self._timeout)
        self._pool = await asyncpg.create_pool(
            min_size=0,
            max_size=self._size,
            max_inactive_connection_lifetime=IDLE_TIMEOUT,
            connection_class=Session,
            connect=self._connect,
            init=_watch,
            reset=_leave,
        )

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """The rows of a statement, from the first connection that is free."""
        connection = await self._pool.acquire()
        try:
            left = time_left()
            if connection.allowed < (inf if left is None else left):
                await connection.allow(left)
            rows: list[Any] = await connection.fetch(sql, *parameters)
        except BaseException as error:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                # What was the primary is a standby now: all connections to it are of no use.
                await self._pool.expire_connections()
            # It waits for the server to end a cancelled query; what fails here has cut the connection already.
            await self._release(connection, timeout=CANCEL_TIMEOUT)
            raise
        await self._release(connection)
        return rows

    async def _release(self, connection: Any, **options: float) -> None:
        with contextlib.suppress(Exception):
            await self._pool.release(connection, **options)

    async def close(self) -> None:
        """Close every connection, cutting those that take longer than `CLOSE_TIMEOUT`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(pool.close(), CLOSE_TIMEOUT)

    async def _connect(self, *_: Any, **options: Any) -> Any:
        self.dsn = await DSN.get(self._source, self._timeout)
        cache = self._statement_cache_size
        return await connect(self.dsn, timeout=self._timeout, statement_cache_size=cache, **options)


async def connect(dsn: str, **options: Any) -> Any:
    """A connection that tells the server who it is."""
    settings = {} if names_application(dsn) else {"application_name": APPLICATION_NAME}
    return await asyncpg.connect(dsn, server_settings=settings, max_cacheable_statement_size=0, **options)


async def ask(dsn: str, connect_timeout: float | None, question: Callable[[Any], Awaitable[T]]) -> T:
    """What `question` gives for a connection of its own, which is closed afterwards."""
    try:
        connection = await connect(dsn, timeout=connect_timeout, command_timeout=QUESTION_TIMEOUT)
    except Exception:
        # TLS ends with a word from either side, and the loop may end with this question.
        await asyncio.sleep(FAREWELL)
        raise
    try:
        return await question(connection)
    finally:
        with contextlib.suppress(Exception):
            await connection.close(timeout=CLOSE_TIMEOUT)


async def _watch(session: Session) -> None:
    # On some systems a server cannot look, and refuses it.
    with contextlib.suppress(asyncpg.PostgresError):
        await session.execute(WATCHED.format(process=session.get_server_pid()))


async def _leave(_connection: Any) -> None:
    """In place of asyncpg's reset of a session."""
