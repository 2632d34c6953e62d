"""Connections: one for a question on the driver, a pool of them in a worker.

A pool belongs to the loop that opened it. It connects when it is needed, drops connections that the server has
closed, and closes what is unused. When a call is cancelled, asyncpg sends the server a cancel request; the connection
goes back to the pool when the server has obeyed, or is cut after `PATIENCE`. Nothing resets a connection between two
statements, because a lookup leaves nothing behind in its session: that would be a second round trip for each.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import asyncpg

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import missing_here
from enrichers.postgres.dsn import check_dsn, names_application

Dsn = str | Callable[[], str]
T = TypeVar("T")

APPLICATION_NAME = "asyncio-operator"

PATIENCE = 5.0
"""Seconds that the server may take to end a cancelled query, or to close a connection, before that is cut."""

QUESTION_TIMEOUT = 30.0
"""Seconds for one question about names and types; it takes longer only where somebody holds a lock on the table."""

IDLE_TIMEOUT = 60.0
"""Seconds after which an unused connection is closed: a server has 100 of them by default, for all its clients."""


class Connections:
    """The pool of one worker.

    Attributes:
        dsn: the connection string that was used last, so that it can be hidden in errors.
    """

    def __init__(self, dsn: Dsn, *, size: int, connect_timeout: float, statement_cache_size: int) -> None:
        self._source = dsn
        self._size = size
        self._options = {"timeout": connect_timeout, "statement_cache_size": statement_cache_size}
        self._pool: Any = None
        self.dsn = dsn if isinstance(dsn, str) else ""

    async def open(self) -> None:
        """Make the pool. Nothing is connected yet: a server that is down fails a lookup, which may be retried.

        A function for the connection string is tried: what this process lacks for it is nothing that a key is to blame
        for, and would be missing in every lookup.

        Raises:
            ConfigurationError: there is no connection string.
        """
        await connection_string(self._source)
        self._pool = await asyncpg.create_pool(
            min_size=0,
            max_size=self._size,
            max_inactive_connection_lifetime=IDLE_TIMEOUT,
            connect=self._connect,
            reset=_leave,
        )

    async def fetch(self, sql: str, *arrays: Sequence[Any]) -> list[Any]:
        """The rows of a statement, from the first connection that is free."""
        connection = await self._pool.acquire()
        try:
            rows: list[Any] = await connection.fetch(sql, *arrays)
            return rows
        finally:
            # It waits for the server to end a cancelled query; what fails here has cut the connection already.
            with contextlib.suppress(Exception):
                await self._pool.release(connection, timeout=PATIENCE)

    async def close(self) -> None:
        """Close every connection, cutting those that take longer than `PATIENCE`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(pool.close(), PATIENCE)

    async def _connect(self, *_: Any, **options: Any) -> Any:
        self.dsn = await connection_string(self._source)
        return await connect(self.dsn, **options, **self._options)


async def connect(dsn: str, **options: Any) -> Any:
    """A connection that tells the server who it is."""
    settings = {} if names_application(dsn) else {"application_name": APPLICATION_NAME}
    return await asyncpg.connect(dsn, server_settings=settings, max_cacheable_statement_size=0, **options)


async def connection_string(source: Dsn) -> str:
    """The checked connection string. A function that gives it may block: it runs in a thread.

    Raises:
        ConfigurationError: the function failed, or gave something else.
    """
    if isinstance(source, str):
        return source
    function = f"dsn: the function {shown_source(source)}"
    try:
        dsn = await asyncio.to_thread(source)
    except Exception as error:
        # Of other errors nothing more is shown: they may hold a secret.
        missing = missing_here(error)
        why = f": {missing}" if missing else ""
        raise ConfigurationError(f"{function} raised {type(error).__name__}{why}") from (error if missing else None)
    if dsn is None:
        raise ConfigurationError(
            f"{function} gave None; if it reads an environment variable, that is not set in this process (Spark gives "
            "NAME to the executors by spark.executorEnv.NAME)"
        )
    return check_dsn(dsn)


def shown_source(source: Callable[[], str]) -> str:
    """A function that gives a connection string, without what it may have captured."""
    return getattr(source, "__qualname__", type(source).__qualname__)


async def ask(dsn: str, connect_timeout: float, question: Callable[[Any], Awaitable[T]]) -> T:
    """What `question` gives for a connection of its own, which is closed afterwards."""
    connection = await connect(dsn, timeout=connect_timeout, command_timeout=QUESTION_TIMEOUT)
    try:
        return await question(connection)
    finally:
        with contextlib.suppress(Exception):
            await connection.close(timeout=PATIENCE)


def run_in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine gives, run on a loop of its own: the caller may be inside a running loop, as in a notebook."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            outcome.set_result(loop.run_until_complete(work()))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="asyncio-operator-postgres", daemon=True)
    thread.start()
    try:
        return outcome.result()
    finally:
        if outcome.done():
            thread.join()


async def _leave(_connection: Any) -> None:
    """In place of asyncpg's reset of a session."""
