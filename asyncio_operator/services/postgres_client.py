"""The one place that connects to PostgreSQL: for the driver's questions, for lookups, and for coordinators of budgets.

Between this process and the server may be a pooler, such as PgBouncer, that gives each transaction to any session that
is free. So nothing that is sent from here, or by asyncpg, may stay in a session of a pooler: other clients use it next.
`Session.own` says whose session it is.

A connection is usable when it has answered a first statement. The time to connect limits both, because a server may
accept a client and then be silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import asyncpg

from asyncio_operator.services.postgres_dsn import OWN_SESSION, names_application

FIRST = f"""
    SELECT CASE WHEN context = 'user' AND reset_val = '0' THEN pg_catalog.set_config(name, '2000', false) END
    FROM pg_catalog.pg_settings
    WHERE name = 'client_connection_check_interval' AND {OWN_SESSION}
"""
"""Returns no row behind a pooler.

In a session of our own it makes the server check every two seconds whether its client still exists, and end the
statement if not: a killed process does not close its connection properly. Since PostgreSQL 14. A value that an
administrator has set stays, and so does one that the user may not set.
"""


class ConnectingLoop:
    """The event loop, as asyncpg uses it while it connects.

    asyncpg asks for TLS through a protocol with a future, `on_data`. If it is cancelled before it waits for that
    future, no task does, and asyncio logs the error that the end of the connection puts into it. So a connection that
    fails, or is cancelled, takes its future with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    async def create_connection(self, factory: Callable[[], Any], *address: Any, **options: Any) -> Any:
        futures: list[asyncio.Future[Any]] = []

        def make() -> Any:
            protocol = factory()
            if hasattr(protocol, "on_data"):
                futures.append(protocol.on_data)
            return protocol

        try:
            return await self.loop.create_connection(make, *address, **options)
        except BaseException:
            for future in futures:
                future.cancel()
            raise


class Session(asyncpg.Connection):  # type: ignore[misc]
    """A connection that leaves nothing in a session that others use.

    Attributes:
        own: whether every statement runs in one session, which no other client uses; False behind a pooler. Only
            where it is True may a statement set something for its session.
    """

    own = True

    _server_caps: Any

    def __init__(self, protocol: Any, transport: Any, loop: ConnectingLoop, *more: Any) -> None:
        super().__init__(protocol, transport, loop.loop, *more)

    async def start(self) -> None:
        """Get the answer to a first statement, and learn from it whose session it is."""
        # On some systems a server cannot check its client, and refuses the setting.
        with contextlib.suppress(asyncpg.PostgresError):
            self.own = await self.execute(FIRST.format(process=self.get_server_pid())) != "SELECT 0"
        if not self.own:
            # asyncpg would switch jit off to ask for types, and on again, perhaps in the session of another client.
            self._server_caps = self._server_caps._replace(jit=False)

    def _get_unique_id(self, prefix: str) -> str:
        """The name of a prepared statement. asyncpg numbers them, alike in every process.

        Behind a pooler such a number could name the statement of another client, whose rows would be taken for the
        answer. A name that occurs once is an error there.
        """
        return f"__asyncio_operator_{prefix}_{uuid4().hex}__"


async def connect(
    dsn: str,
    seconds: float | None,
    application: str,
    *,
    statement_cache_size: int = 0,
    kind: type[Session] = Session,
    command_timeout: float | None = None,
) -> Any:
    """A new connection of the class `kind` that has answered a first statement.

    Args:
        dsn: where to connect to.
        seconds: for all of it; None: no limit.
        application: what the server calls the client, unless the DSN says that.
        statement_cache_size: prepared statements that it keeps; with 0 no statement has a name, so that each is right
            behind every pooler.
        command_timeout: seconds for each statement; None: no limit.
    """
    settings = {} if names_application(dsn) else {"application_name": application}
    async with asyncio.timeout(seconds):
        session: Any = await asyncpg.connect(
            dsn,
            timeout=seconds,
            server_settings=settings,
            statement_cache_size=statement_cache_size,
            max_cacheable_statement_size=0,
            command_timeout=command_timeout,
            connection_class=kind,
            loop=ConnectingLoop(asyncio.get_running_loop()),
        )
        try:
            await session.start()
        except BaseException:
            session.terminate()
            raise
    return session
