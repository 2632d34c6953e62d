"""The connections of one worker, through SQLAlchemy's asynchronous engine and the pool that all enrichers share.

SQLAlchemy makes connections, and knows which errors mean that one was lost. It keeps none: `databases.pool` does, as
it closes idle connections, adapts to the number that the server gives, and never waits for a lock.

Each statement runs in a task of its own. A cancelled lookup leaves at once. Its task is cancelled later, which makes
SQLAlchemy close the connection: its outstanding answer cannot become that of another lookup. If a statement finds that
a connection which has served before is lost, as after a restart of the server, it is sent again once on a new one. That
is safe, because lookups only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import time_left
from asyncio_operator.services.causes import Cause, own_words
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.postgres_dsn import OWN_SESSION
from asyncio_operator.services.secrets import Secrets
from enrichers.databases.pool import LimitedSession, Pool
from enrichers.sql.causes import cause_of, is_lost
from enrichers.sql.urls import CONNECT_ARGS, URL, Arguments, Url, secrets_of

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator.sql")

QUESTION_TIMEOUT = 30.0
"""Seconds for one question about names and types. It takes longer only if a lock is held on the table."""

INTERRUPT_EVERY = 0.05
"""Seconds between two interruptions of a statement that does not end."""

LIMITS = {
    "mariadb": ("SET SESSION max_statement_time = {seconds}", "SET SESSION max_statement_time = DEFAULT"),
    "mysql": ("SET SESSION max_execution_time = {milliseconds}", "SET SESSION max_execution_time = DEFAULT"),
    "postgresql": (
        f"SELECT set_config('statement_timeout', '{{milliseconds}}', false) WHERE {OWN_SESSION}",
        "SELECT set_config(name, reset_val, false) FROM pg_settings "
        f"WHERE name = 'statement_timeout' AND {OWN_SESSION}",
    ),
}
"""By dialect, how a session is limited, and how the limit is taken back. Other databases end a statement by themselves
when its connection is closed, or have no limit for a session. In the session of a pooler nothing is set."""

THREE_BYTES = ("utf8", "utf8mb3")
"""Character sets of MySQL and MariaDB that lack all characters beyond U+FFFF."""

Rows = tuple[Sequence[str], Sequence[Any]]


class Session(LimitedSession):
    """One connection, with at most one statement at a time."""

    def __init__(self, connection: AsyncConnection, *, autocommit: bool) -> None:
        self._connection = connection
        self._autocommit = autocommit
        self._running: asyncio.Task[Rows] | None = None
        self._closed = False
        self.made = asyncio.get_running_loop().time()

    def is_closed(self) -> bool:
        """Whether it can take no statement any more."""
        return self._closed or self._connection.invalidated

    async def answer(self, *call: Any) -> Rows:
        """The names of the columns of a result, and its rows."""
        # Shielded, because a cancellation must not wait for the server: `recover` ends the task.
        self._running = asyncio.ensure_future(self._answer(time_left(), *call))
        self._running.add_done_callback(_seen)
        try:
            return await asyncio.shield(self._running)
        except Exception as error:
            if is_lost(error):
                self.terminate()
            raise

    async def _answer(self, left: float | None, statement: Any, parameters: Mapping[str, Any]) -> Rows:
        await self.allow(left)
        result = await self._connection.execute(statement, parameters)
        rows = [*result.keys()], result.all()
        if not self._autocommit:
            await self._connection.rollback()
        return rows

    async def _limit(self, seconds: float) -> float:
        limit, reset = LIMITS.get(dialect_name(self._connection.dialect), ("", ""))
        if limit:
            values = {} if seconds == inf else {"seconds": seconds, "milliseconds": int(1000 * seconds)}
            sql = (limit if values else reset).format(process=await _process(self._connection), **values)
            (await self._connection.exec_driver_sql(sql)).close()
        return seconds

    async def recover(self) -> None:
        """End the statement of a cancelled lookup, and the connection with it."""
        running = self._running
        if running is not None and not running.done():
            if not _is_threaded(self._connection):
                running.cancel()
            # SQLite runs in a thread, which may not have begun the statement that is to be interrupted.
            while not running.done():
                await _interrupt(self._connection)
                await asyncio.wait([running], timeout=INTERRUPT_EVERY)
        self.terminate()

    def terminate(self) -> None:
        """Close it without waiting."""
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            self._running.cancel()
        inner = self._connection.sync_connection
        if inner is None:
            return
        if _is_threaded(self._connection):
            # Asked on a loop, the thread of aiosqlite would report its end there, when the loop may be closed.
            asker = threading.Thread(target=_cut, args=(inner,))
            asker.start()
            asker.join()
        else:
            _cut(inner)

    async def close(self) -> None:
        """Close it, with a word to the server."""
        if not self.is_closed():
            self._closed = True
            await self._connection.close()
        self.terminate()


def _seen(task: asyncio.Task[Any]) -> None:
    """Takes the error of a task whose lookup is gone, so that it is not logged."""
    if not task.cancelled():
        task.exception()


def _is_threaded(connection: AsyncConnection) -> bool:
    """Whether statements run in a thread, which a cancellation does not reach. Other drivers stop when cancelled."""
    return dialect_name(connection.dialect) == "sqlite"


def _cut(connection: sa.Connection) -> None:
    """Close a connection without a word to the server."""
    with contextlib.suppress(Exception):
        if not connection.invalidated:
            connection.invalidate()
        connection.close()


async def _interrupt(connection: AsyncConnection) -> None:
    if not _is_threaded(connection):
        return
    with contextlib.suppress(Exception):
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        await raw.driver_connection.interrupt()


async def _process(connection: AsyncConnection) -> int:
    """The number of the server's process, as the drivers asyncpg and psycopg know it; otherwise 0."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if hasattr(driver, "get_server_pid"):
        return int(driver.get_server_pid())
    return int(getattr(getattr(driver, "info", None), "backend_pid", 0))


def dialect_name(dialect: sa.Dialect) -> str:
    """The name of a dialect, MariaDB apart from MySQL, also if the URL says mysql."""
    return "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name


class Database:
    """Makes connections from a URL and arguments, or from functions that return them.

    Args:
        connect_timeout: seconds to make a connection, and for a function to return; None: no limit.

    Attributes:
        url: the URL that was used last.
        secrets: what must not be shown of it, and of the arguments.
    """

    def __init__(self, url: Url, arguments: Arguments | None, connect_timeout: float | None) -> None:
        self._source = url
        self._arguments = arguments
        self._timeout = connect_timeout
        self._engine: AsyncEngine | None = None
        self._made_of: tuple[str, Mapping[str, Any]] | None = None
        self.url = url if isinstance(url, str) else ""
        self.secrets = Secrets()

    async def engine(self) -> AsyncEngine:
        """The engine for the URL and the arguments as they are now.

        Raises:
            ConfigurationError: a function returns none in time, or the driver is not installed.
        """
        url = await URL.get(self._source, self._timeout)
        arguments = {} if self._arguments is None else await CONNECT_ARGS.get(self._arguments, self._timeout)
        if self._engine is not None and self._made_of == (url, arguments):
            return self._engine
        self.url, self.secrets = url, secrets_of(url, arguments)
        _check_file(url)
        try:
            # The utf8 of MySQL and MariaDB has only characters of up to three bytes: an emoji would be sent as a
            # question mark.
            address, given = sa.make_url(url), dict(arguments)
            if address.get_backend_name() in ("mysql", "mariadb"):
                if address.query.get("charset") in THREE_BYTES:
                    address = address.update_query_dict({"charset": "utf8mb4"})
                if given.get("charset") in THREE_BYTES:
                    given["charset"] = "utf8mb4"
            self._engine = create_async_engine(address, connect_args=given, poolclass=NullPool, hide_parameters=True)
        except ImportError as error:
            problem = ConfigurationError(f"url: {_unimported(sa.make_url(url), error)}")
        except Exception as error:
            problem = ConfigurationError(f"url: SQLAlchemy does not take it{own_words(error, self.secrets)}")
        else:
            self._made_of = (url, arguments)
            return self._engine
        raise problem

    async def connect(self) -> Session:
        """A new connection."""
        engine = await self.engine()
        async with asyncio.timeout(self._timeout):
            connection = await engine.connect()
            session = Session(connection, autocommit=True)
            try:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
            except (exc.ArgumentError, NotImplementedError):
                return Session(connection, autocommit=False)
            except BaseException:
                session.terminate()
                raise
        return session

    async def ask(self, question: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """The result of `question` for a new connection, which is closed afterwards."""
        engine = await self.engine()
        async with asyncio.timeout(self._timeout):
            connection = await engine.connect()
        asked = asyncio.ensure_future(question(connection))
        try:
            await asyncio.wait([asked], timeout=QUESTION_TIMEOUT)
            if asked.done():
                return asked.result()
            raise TimeoutError(f"no answer within {QUESTION_TIMEOUT:g} s")
        finally:
            if not asked.done():
                await _interrupt(connection)
                asked.cancel()
                await asyncio.wait([asked])
            await closed_in_time(connection.close())


def _unimported(url: sa.URL, error: ImportError) -> str:
    """Whether a driver is absent, or there and broken, as without a library of its own; and what to do."""
    # The driver psycopg_async is of the module psycopg.
    absent = isinstance(error, ModuleNotFoundError) and url.get_driver_name().startswith(error.name or " ")
    if absent:
        problem = f"the driver of {url.drivername!r} is not installed ({error}); install it with pip"
    else:
        problem = f"the driver of {url.drivername!r} cannot be imported ({error}); install what it needs"
    return f"{problem}, with Spark also in the Python of every worker"


def _check_file(url: str) -> None:
    """Raise if a file of SQLite does not exist, where SQLite would make an empty one, or cannot be opened, where
    the thread of aiosqlite would report its end to a loop that may be closed."""
    parsed = sa.make_url(url)
    name = parsed.database or ""
    if parsed.get_backend_name() != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return
    if not os.path.exists(name):
        raise ConfigurationError(
            f"url: there is no file {name!r} on this machine, in {os.getcwd()!r}; a path from the root has four "
            "slashes, as in sqlite+aiosqlite:////data/shop.db"
        )
    try:
        sqlite3.connect(name).close()
    except sqlite3.OperationalError as error:
        problem = ConfigurationError(f"url: the file of the database cannot be opened: {name!r} ({error})")
    else:
        return
    raise problem


class Connections(Pool[Session]):
    """The connections of one worker, which `database` makes."""

    _logger = logger
    _limits = " of the server"

    def __init__(self, database: Database, subject: str, size: int) -> None:
        super().__init__(subject, size)
        self.database = database

    async def fetch(self, statement: Any, parameters: Mapping[str, Any]) -> Any:
        """The result of a statement, from the first connection that is free."""
        asked = asyncio.get_running_loop().time()
        while True:
            session = await self.acquire()
            try:
                return await self.answer(session, statement, parameters)
            except Exception as error:
                # One that was there before, also if no statement has used it, may have been lost before this one.
                if session.made >= asked or not is_lost(error):
                    raise
            # The server has probably closed the other connections too.
            self.expire()
            asked = -inf

    async def _connect(self) -> Session:
        return await self.database.connect()

    def _cause(self, problem: BaseException) -> Cause:
        return cause_of(problem)

    def _secrets(self) -> Secrets:
        return self.database.secrets
