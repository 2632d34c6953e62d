"""The works as functions of a key: `Asynchronous` for event loops, `Blocking` for threads.

Both send the same request over the same number of connections and return the same answer: a tuple of the columns in
`SCHEMAS`, or None. The clients are the usual ones (asyncpg and aiohttp, psycopg and requests). The HTTP service is
called by a hand-written loop: wait for `Retry-After`, and try again. Clients are imported where they are used, because
not every environment has all of them, and made on the first call, on its loop. The objects are sent to workers.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.peers.task import SERVED, Task

SCHEMAS = {
    "at_once": "answer long",
    "fixed": "answer long",
    "skew": "answer long",
    "postgres": "manufacturer string, model string, seats long",
    **dict.fromkeys(SERVED, "name string"),
}
"""The columns that each work adds, as Spark writes them."""

QUERY = "SELECT manufacturer, model, seats FROM {planes} WHERE tailnum = {key}"

CONNECTIONS = 10
"""To PostgreSQL, of each pool."""

INSTRUCTIONS = "Answer with the name of the row of this key."
"""For a model, as its system text."""

ATTEMPTS = 20
PATIENCE = 30.0
"""Seconds after which a request has failed, where the task does not say."""

FIXED = 0.01

Row = tuple[Any, ...]


def latency(work: str, key: Any) -> float:
    """Seconds that the outside system takes for a key."""
    if work == "skew":
        return 0.2 if key % 200 == 100 else 0.002
    return FIXED if work == "fixed" else 0.0


def _pause(headers: Any) -> float:
    """Seconds until the next attempt."""
    return float(headers.get("Retry-After", 0.1)) * random.uniform(1.0, 1.1)


async def _at_once(key: Any) -> Row | None:
    return (1,)


async def _fixed(key: Any) -> Row | None:
    await asyncio.sleep(FIXED)
    return (1,)


async def _skewed(key: Any) -> Row | None:
    await asyncio.sleep(latency("skew", key))
    return (1,)


async def _leave(_connection: Any) -> None:
    """Replaces the pool's reset of a connection after each row, which would be one more round trip.

    No program here changes a connection, and neither this library nor psycopg's pool resets it.
    """


class Asynchronous:
    """A work as the coroutine function `call`. `close` closes its clients, `end` does so from outside of their loop."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._client: Any = None
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        calls = {"at_once": _at_once, "fixed": _fixed, "skew": _skewed, "postgres": self._row}
        calls |= dict.fromkeys(SERVED, self._answer)
        self.call: Callable[[Any], Awaitable[Row | None]] = calls[task.work]

    async def open(self) -> None:
        """Make the client; otherwise the first call does."""
        if self._opening is None:
            self._opening = asyncio.Lock()
            self._loop = asyncio.get_running_loop()
        async with self._opening:
            if self._client is None and self._task.work == "postgres":
                import asyncpg

                size = {"min_size": CONNECTIONS, "max_size": CONNECTIONS}
                self._client = await asyncpg.create_pool(self._task.dsn, reset=_leave, **size)
            elif self._client is None and self._task.work in SERVED:
                import aiohttp

                self._client = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=self._task.capacity),
                    timeout=aiohttp.ClientTimeout(total=self._task.patience or PATIENCE),
                )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def end(self) -> None:
        if self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.close(), self._loop).result(10)

    async def _row(self, key: Any) -> Row | None:
        if self._client is None:
            await self.open()
        if key is None:
            return None
        row = await self._client.fetchrow(QUERY.format(planes=self._task.planes, key="$1"), key)
        return None if row is None else tuple(row)

    async def _answer(self, key: Any) -> Row | None:
        if self._client is None:
            await self.open()
        from aiohttp import ClientError

        for _ in range(ATTEMPTS):
            headers: Any = {}
            try:
                async with self._client.get(f"{self._task.url}/rows/{key}") as response:
                    if response.status == 404:
                        return None
                    if response.ok:
                        return ((await response.json())["name"],)
                    headers = response.headers
            except (ClientError, TimeoutError):
                pass
            await asyncio.sleep(_pause(headers))
        raise RuntimeError(f"no answer in {ATTEMPTS} attempts")


class Blocking:
    """A work as an ordinary function, which any number of threads may call."""

    def __init__(self, task: Task, threads: int) -> None:
        self._task = task
        self._connections = min(threads, CONNECTIONS)
        self._client: Any = None

    def __call__(self, key: Any) -> Row | None:
        match self._task.work:
            case "postgres":
                return self._row(key)
            case "at_once":
                return (1,)
            case work if work in SERVED:
                return self._answer(key)
            case work:
                time.sleep(latency(work, key))
                return (1,)

    def open(self) -> None:
        """Make the client, in the process that uses it, before any thread calls."""
        if self._client is None and self._task.work == "postgres":
            import psycopg_pool  # type: ignore[import-not-found]

            self._client = psycopg_pool.ConnectionPool(
                self._task.dsn,
                min_size=1,
                max_size=self._connections,
                max_idle=5.0,
                kwargs={"autocommit": True},
            )
            self._client.wait()
        elif self._client is None and self._task.work in SERVED:
            self._client = threading.local()

    def close(self) -> None:
        if self._task.work == "postgres":
            self._client.close()

    def _row(self, key: Any) -> Row | None:
        if key is None:
            return None
        query = QUERY.format(planes=self._task.planes, key="%s")
        with self._client.connection() as connection:
            row: Row | None = connection.execute(query, (key,)).fetchone()
        return row

    def _answer(self, key: Any) -> Row | None:
        import requests  # type: ignore[import-untyped]

        if not hasattr(self._client, "session"):
            # A session must not be shared between threads.
            self._client.session = requests.Session()
        for _ in range(ATTEMPTS):
            headers: Any = {}
            try:
                patience = self._task.patience or PATIENCE
                response = self._client.session.get(f"{self._task.url}/rows/{key}", timeout=patience)
                if response.status_code == 404:
                    return None
                if response.ok:
                    return (response.json()["name"],)
                headers = response.headers
            except requests.RequestException:
                pass
            time.sleep(_pause(headers))
        raise RuntimeError(f"no answer in {ATTEMPTS} attempts")


_shared: dict[tuple[Task, int], Blocking] = {}
_sharing = threading.Lock()


def shared(task: Task, threads: int) -> Blocking:
    """The open object of this process, for a worker that has no hooks for its start and end."""
    with _sharing:
        function = _shared.setdefault((task, threads), Blocking(task, threads))
        function.open()
        return function
