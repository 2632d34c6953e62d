"""A budget in PostgreSQL: one row of the table ``asyncio_operator_budgets`` for each, locked while it is replaced.

The table is made at first use if it is missing and the user may create it; otherwise the error has the statement. Time
is ``clock_timestamp()``, read when the row is locked. A client that stalls while it holds the lock is disconnected by
the server after a second. Rows are small and often replaced, so pages keep room for new versions (HOT updates).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from asyncio_operator.budget.terms import Json
from asyncio_operator.clock import monotonic
from asyncio_operator.coordinators.contract import ASK_TIMEOUT, CHECK_SERVER, Answer, stored_state
from asyncio_operator.errors import CoordinatorError, shown_address
from asyncio_operator.hints import not_installed

try:
    import asyncpg
except ImportError as error:
    raise not_installed("a budget in PostgreSQL", "asyncpg", "postgres") from error

from asyncio_operator.policies.shutdown import CLOSE_TIMEOUT
from asyncio_operator.services.causes import caused, own_words
from asyncio_operator.services.postgres_causes import cause_of
from asyncio_operator.services.postgres_client import connect
from asyncio_operator.services.postgres_dsn import DSN, Dsn, check_dsn, secrets_of

__all__ = ["CREATE", "PostgresCoordinator", "check_dsn"]

CREATE = (
    "CREATE TABLE IF NOT EXISTS asyncio_operator_budgets "
    "(name text PRIMARY KEY, state text NOT NULL) WITH (fillfactor = 25)"
)

GRANT = "GRANT SELECT, INSERT, UPDATE ON asyncio_operator_budgets TO this_user"

BEGIN = """
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SET LOCAL idle_in_transaction_session_timeout = 1000;
    SET LOCAL lock_timeout = 1500;
"""

# Outside of the inner query, the time is read after the lock was given.
LOCK = """
    SELECT state, extract(epoch FROM clock_timestamp())::float8 AS now
    FROM (SELECT state FROM asyncio_operator_budgets WHERE name = $1 FOR UPDATE) AS locked
"""

INSERT = "INSERT INTO asyncio_operator_budgets (name, state) VALUES ($1, '') ON CONFLICT DO NOTHING"

UPDATE = "UPDATE asyncio_operator_budgets SET state = $2 WHERE name = $1"

LOST_STATEMENTS = {"26000", "42P05"}
"""Prepared statements went to another session: a pooler is in between."""


class PostgresCoordinator:
    """One budget in one PostgreSQL."""

    def __init__(self, source: Dsn, name: str, answer: Answer) -> None:
        self.shown = shown_address(source)
        self._source = source
        self._name = name
        self._answer = answer
        self._connection: Any = None
        self._dsn = source if isinstance(source, str) else ""
        self._prepares = True

    async def ask(self, message: Json) -> Json:
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                return await self._with_table(message)
        except CoordinatorError:
            self._drop()
            raise
        except Exception as error:
            if getattr(error, "sqlstate", None) in LOST_STATEMENTS:
                self._prepares = False
            problem = self._problem(error)
            self._drop()
        except BaseException:
            self._drop()
            raise
        raise problem

    async def _with_table(self, message: Json) -> Json:
        await self._begin()
        try:
            return await self._ask(message)
        except asyncpg.UndefinedTableError:
            await self._connection.execute("ROLLBACK")
        # Two clients that create a table at the same time may both see that it is missing.
        with contextlib.suppress(
            asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError
        ):
            await self._connection.execute(CREATE)
        await self._begin()
        return await self._ask(message)

    async def _begin(self) -> None:
        if self._connection is not None:
            # The connection may have been lost long ago, and nothing has been changed yet.
            with contextlib.suppress(Exception):
                await self._connection.execute(BEGIN)
                return
        await self._connect()
        await self._connection.execute(BEGIN)

    async def _ask(self, message: Json) -> Json:
        connection = self._connection
        sent = monotonic()
        row = await connection.fetchrow(LOCK, self._name)
        if row is None:
            await connection.execute(INSERT, self._name)
            row = await connection.fetchrow(LOCK, self._name)
        place = f"the row {self._name!r} of asyncio_operator_budgets"
        before = stored_state(row["state"], self.shown, place) if row["state"] else None
        state, reply = self._answer(before, message, row["now"])
        await connection.execute(UPDATE, self._name, json.dumps(state, separators=(",", ":")))
        await connection.execute("COMMIT")
        return {**reply, "sent": sent}

    async def _connect(self) -> None:
        self._drop()
        self._dsn = await DSN.get(self._source, ASK_TIMEOUT)
        cached = 100 if self._prepares else 0
        self._connection = await connect(self._dsn, ASK_TIMEOUT, "asyncio-operator budget", statement_cache_size=cached)

    def _problem(self, error: Exception) -> CoordinatorError:
        cause, hidden = cause_of(error, self._dsn), secrets_of(self._dsn)
        remedy = CHECK_SERVER if cause.retryable else ""
        if getattr(error, "sqlstate", None) in ("42501", "3F000"):
            remedy = f"; ask a user who may to run: {CREATE}; {GRANT}"
        message = f"the coordinator {self.shown}: {cause.text}{own_words(error, hidden)}{remedy}"
        return caused(CoordinatorError(message, lasting=cause.retryable is False), error, hidden)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=CLOSE_TIMEOUT)
