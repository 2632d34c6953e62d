"""Connections: one for a query of the driver, several for the lookups of a worker.

`services.postgres_client` makes them. When a lookup is cancelled, asyncpg sends a cancel request, and the pool takes
the connection back when the server has cancelled the statement. A killed worker sends no cancel request; then the
server ends the statement itself (see `LimitedSession`). Connections are not reset between statements: lookups change
nothing in their session, and a reset would cost a second round trip per statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, TypeVar

import asyncpg

from asyncio_operator.enricher import time_left
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.postgres_client import Session, cause_of, connect
from asyncio_operator.services.postgres_dsn import DSN, Dsn, secrets_of
from asyncio_operator.services.secrets import Secrets
from enrichers.databases.pool import LimitedSession, Pool

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator.postgres")

APPLICATION_NAME = "asyncio-operator"

QUESTION_TIMEOUT = 30.0
"""Seconds for one query about names and types. It takes longer only if another session holds a lock on the table."""

FAREWELL = 0.05
"""Seconds for a server to close a connection that it refused, so that no socket stays open."""

LIMIT = """
    SELECT pg_catalog.set_config('statement_timeout', '{milliseconds}', false)
    WHERE NOT (
        SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'statement_timeout'
    )::int8 BETWEEN 1 AND {milliseconds}
"""
"""Limits a session, unless the DSN, the role or the database has a lower limit; then it returns no row."""


class LookupSession(Session, LimitedSession):
    """A connection for lookups. Statements are not limited if the server does not allow it, or behind a pooler."""

    async def answer(self, *call: Any) -> Any:
        """The rows of a statement."""
        await self.allow(time_left())
        return await self.fetch(*call)

    async def _limit(self, seconds: float) -> float:
        if seconds == inf and self._allowed:
            await self.execute("RESET statement_timeout")
        elif self.own and await self.execute(LIMIT.format(milliseconds=int(1000 * seconds))) == "SELECT 1":
            return seconds
        return inf

    async def recover(self) -> None:
        """Wait until a cancelled statement has ended: asyncpg sends the next one only then."""
        with contextlib.suppress(asyncpg.PostgresError):  # the cancellation came late, and ended this statement
            await self.execute("SELECT 1")


class Connections(Pool[LookupSession]):
    """The connections of one worker.

    Attributes:
        dsn: the connection string that was used last. It is hidden in errors.
    """

    _logger = logger
    _limits = ": max_connections of the server, CONNECTION LIMIT of role or database, max_client_conn of PgBouncer"

    def __init__(
        self, dsn: Dsn, subject: str, size: int, *, connect_timeout: float | None, statement_cache_size: int
    ) -> None:
        super().__init__(subject, size, bounded=connect_timeout is not None)
        self._source = dsn
        self._timeout = connect_timeout
        self._statement_cache_size = statement_cache_size
        self.dsn = dsn if isinstance(dsn, str) else ""

    async def fetch(self, sql: str, *parameters: Any) -> Any:
        """The rows of a statement, from the first connection that is free."""
        try:
            return await self.answer(await self.acquire(), sql, *parameters)
        except asyncpg.ReadOnlySQLTransactionError:
            # The former primary is a standby now, so all connections to it are useless.
            self.expire()
            raise

    async def _connect(self) -> LookupSession:
        self.dsn = await DSN.get(self._source, self._timeout)
        session: LookupSession = await connect(
            self.dsn,
            self._timeout,
            APPLICATION_NAME,
            statement_cache_size=self._statement_cache_size,
            kind=LookupSession,
        )
        return session

    def _cause(self, problem: BaseException) -> Cause:
        return cause_of(problem, self.dsn)

    def _secrets(self) -> Secrets:
        return secrets_of(self.dsn)


async def ask(dsn: str, connect_timeout: float | None, question: Callable[[Any], Awaitable[T]]) -> T:
    """The result of `question` for a new connection, which is closed afterwards.

    No statement is asked twice, so none is kept, whatever the enricher's `statement_cache_size` is.
    """
    try:
        connection = await connect(dsn, connect_timeout, APPLICATION_NAME, command_timeout=QUESTION_TIMEOUT)
    except Exception:
        # TLS ends with a message from both sides, and the loop may end after this query.
        await asyncio.sleep(FAREWELL)
        raise
    try:
        return await question(connection)
    finally:
        await closed_in_time(connection.close())
