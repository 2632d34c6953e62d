"""A budget in PostgreSQL: one row of the table ``asyncio_operator_budgets`` for each.

The table is made at first use if it is missing and the user may create it; otherwise the error has the statement. Each
request of an exchange (`exchange`) is one statement, and a transaction of its own: so no lock is held while messages
travel, and the state is that of the last transaction. Behind a pooler nothing may be set for a session: there the
statement gets a transaction around it if the session's own settings would not let it run (`TRANSACTION`). Time is
``clock_timestamp()``. A server is named by when it was started, so one that was promoted, restored or started again has
another name. Rows are small and often replaced, so pages keep room for new versions (HOT updates).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from asyncio_operator.errors import CoordinatorError, shown_address
from asyncio_operator.hints import needs
from asyncio_operator.quota.coordinators.exchange import ServerCoordinator, Stored
from asyncio_operator.quota.terms import ASK_TIMEOUT, Answer

with needs("a budget in PostgreSQL", "asyncpg", "postgres"):
    import asyncpg

from asyncio_operator.services.causes import Cause
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.postgres_client import cause_of, connect
from asyncio_operator.services.postgres_dsn import DSN, Dsn, check_dsn, secrets_of
from asyncio_operator.services.secrets import Secrets

__all__ = ["CREATE", "PostgresCoordinator", "check_dsn"]

CREATE = (
    "CREATE TABLE IF NOT EXISTS asyncio_operator_budgets (name text PRIMARY KEY, version text NOT NULL, "
    "state text NOT NULL, mailbox jsonb NOT NULL) WITH (fillfactor = 25)"
)

GRANT = "GRANT SELECT, INSERT, UPDATE ON asyncio_operator_budgets TO this_user"

MODE = "ISOLATION LEVEL READ COMMITTED, READ WRITE"

SESSION = f"SET SESSION CHARACTERISTICS AS TRANSACTION {MODE}"

TRANSACTION = f"BEGIN {MODE}; SET LOCAL idle_in_transaction_session_timeout = '2s'"
"""For a role or a database with other defaults. A worker that is stopped in between would else keep the row locked."""

SERVER = "extract(epoch FROM pg_postmaster_start_time())::text"

# What an update returns is the row as it is then. A SELECT might return it as it was before a wait for another client.
POST = f"""
    INSERT INTO asyncio_operator_budgets AS kept (name, version, state, mailbox)
    VALUES ($1, '', '', jsonb_build_object($2::text, extract(epoch FROM clock_timestamp())::text || ' ' || $3::text))
    ON CONFLICT (name) DO UPDATE SET mailbox = kept.mailbox || excluded.mailbox
    RETURNING version, state, mailbox::text, extract(epoch FROM clock_timestamp())::float8 AS now, {SERVER} AS server
"""

SAME = f"version = $2 AND {SERVER} = $3"

SWAP = f"""
    UPDATE asyncio_operator_budgets
    SET version = CASE WHEN {SAME} THEN $4 ELSE version END,
        state = CASE WHEN {SAME} THEN $5 ELSE state END,
        mailbox = CASE WHEN {SAME} THEN mailbox - $6::text[] ELSE mailbox END
    WHERE name = $1
    RETURNING version, CASE WHEN version = $4 THEN '' ELSE state END AS state, mailbox::text,
        extract(epoch FROM clock_timestamp())::float8 AS now, {SERVER} AS server
"""

OTHER_DEFAULTS = (asyncpg.SerializationError, asyncpg.ReadOnlySQLTransactionError)
"""What a statement raises if transactions of its session are not by default as in `MODE`."""


class PostgresCoordinator(ServerCoordinator):
    """One budget in one PostgreSQL."""

    lost = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)

    def __init__(self, source: Dsn, name: str, answer: Answer) -> None:
        super().__init__(shown_address(source), f"the row {name!r} of asyncio_operator_budgets", answer)
        self._source = source
        self._name = name
        self._connection: Any = None
        self._dsn = source if isinstance(source, str) else ""
        self._statements: dict[str, Any] = {}
        self._default = True

    async def connect(self) -> None:
        if self._connection is None:
            self._dsn = await DSN.get(self._source, ASK_TIMEOUT)
            self._statements = {}
            self._connection = await connect(self._dsn, ASK_TIMEOUT, "asyncio-operator budget")
            if self._connection.own:
                await self._connection.execute(SESSION)

    async def post(self, identity: str, message: str) -> Stored:
        try:
            return _stored(await self._row(POST, self._name, identity, message))
        except asyncpg.UndefinedTableError:
            # Two clients that create a table at the same time may both see that it is missing.
            with contextlib.suppress(
                asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError
            ):
                await self._connection.execute(f"SET TRANSACTION {MODE}; {CREATE}")
        return _stored(await self._row(POST, self._name, identity, message))

    async def swap(self, stored: Stored, new_version: str, text: str, answered: list[str]) -> Stored | None:
        row = None
        with contextlib.suppress(asyncpg.UndefinedTableError):
            row = await self._row(SWAP, self._name, stored.version, stored.server, new_version, text, answered)
        if row is None:
            raise CoordinatorError(f"the coordinator {self.shown}: {self.place} was deleted")
        return None if row["version"] == new_version else _stored(row)

    async def _row(self, sql: str, *values: Any) -> Any:
        """The row that a statement returns. In a session of our own the statement is prepared once."""
        connection = self._connection
        if connection.own:
            if sql not in self._statements:
                self._statements[sql] = await connection.prepare(sql)
            return await self._statements[sql].fetchrow(*values)
        if self._default:
            try:
                return await connection.fetchrow(sql, *values)
            except OTHER_DEFAULTS:
                self._default = False
        await connection.execute(TRANSACTION)
        try:
            row = await connection.fetchrow(sql, *values)
        except asyncpg.PostgresError:
            await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return row

    def cause_of(self, error: Exception) -> tuple[Cause, Secrets, str]:
        denied = getattr(error, "sqlstate", None) in ("42501", "3F000")
        remedy = f"; ask a user who may to run: {CREATE}; {GRANT}" if denied else ""
        return cause_of(error, self._dsn), secrets_of(self._dsn), remedy

    async def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await closed_in_time(connection.close())


def _stored(row: Any) -> Stored:
    return Stored(row["version"], row["state"], json.loads(row["mailbox"]), row["now"], row["server"])
