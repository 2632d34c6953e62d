"""A real PgBouncer for tests, in front of the PostgreSQL of the tests: in transaction mode, as hard as it can be.

It keeps no prepared statements, has two sessions for each database, and takes the other one for every transaction
(``server_round_robin``). So what a client leaves in a session is seen by the next one, and what a client expects there
is in the other one. The program is the ``pgbouncer`` on PATH or in ``/usr/sbin``. Without it, tests that need it are
skipped. It dies with the test process, also when that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.servers import PostgresServer, Server

BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

SESSIONS = 2

LEFT = """
    SELECT 'setting', name || '=' || setting FROM pg_settings
    WHERE source = 'session' AND setting <> reset_val AND name NOT LIKE 'transaction%'
        AND name NOT IN ('application_name', 'client_encoding')
    UNION ALL SELECT 'prepared statement', name FROM pg_prepared_statements
    UNION ALL SELECT 'lock', locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
    UNION ALL SELECT 'channel', channel FROM pg_listening_channels() AS channel
    UNION ALL SELECT 'temporary table', relname FROM pg_class
        WHERE relpersistence = 't' AND relnamespace = pg_my_temp_schema()
"""
"""What is in a session beside what it began with. Each client of PgBouncer sets the two settings for its own use."""


class PgBouncer(Server):
    """PgBouncer before a server; its users are all the server's superuser, and need no password.

    Args:
        settings: of the section ``[pgbouncer]``, over the defaults.
    """

    def __init__(self, server: PostgresServer, **settings: str) -> None:
        super().__init__("pgbouncer-")
        defaults = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": str(SESSIONS),
            "server_round_robin": "1",
            "max_client_conn": "100",
        }
        options = "\n".join(f"{name} = {value}" for name, value in (defaults | settings).items())
        target = f"* = host={server.directory} port={server.port} user=postgres"
        self._file = self.directory / "pgbouncer.ini"
        self._file.write_text(f"[databases]\n{target}\n[pgbouncer]\n{options}\n")
        self._own(self._file)

    def dsn(self, database: str = "postgres", password: str = "s3cret-Pooled") -> str:
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def left(self, database: str = "postgres") -> list[tuple[str, str]]:
        """What other clients of the pooler find in its sessions; all sessions are made if there are fewer."""
        return asyncio.run(self._left(database))

    async def _left(self, database: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        async with contextlib.AsyncExitStack() as stack:
            processes = set()
            for _ in range(SESSIONS):
                stranger: Any = await asyncpg.connect(self.dsn(database), statement_cache_size=0)
                stack.push_async_callback(stranger.close)
                await stack.enter_async_context(stranger.transaction())
                processes.add(await stranger.fetchval("SELECT pg_backend_pid()"))
                found += [tuple(row) for row in await stranger.fetch(LEFT)]
            assert len(processes) == SESSIONS
        return found

    def _command(self) -> list[str]:
        assert BINARY is not None
        return [BINARY, str(self._file)]

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def needs_pgbouncer() -> None:
    """Skip the test where there is no PgBouncer."""
    if BINARY is None:
        pytest.skip("pgbouncer is not installed (Debian's package pgbouncer)")


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """One that pools the sessions of the server of the test session."""
    needs_pgbouncer()
    with PgBouncer(postgres) as pooler:
        yield pooler
