"""The client of one worker, on the loop that opened it.

Connections are made when they are needed, and again when the server was restarted: a command that finds its connection
lost is sent once more, at once, because it only reads. A cancelled command cuts its connection, so that its answer is
not taken for the next one's. How many commands run at once is counted here and not by redis-py's blocking pool, which
loses a place when it is cancelled while it waits to give one back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import CLOSE_TIMEOUT
from enrichers.redis.url import URL, Url

AGAIN = 1
"""How often a command is sent again whose connection turns out to be lost."""


class Connections:
    """Up to `size` connections to one server.

    Attributes:
        url: the URL that was used last, so that it can be hidden in errors.
    """

    def __init__(self, source: Url, *, size: int, connect_timeout: float) -> None:
        self._source = source
        self._size = size
        self._connect_timeout = connect_timeout
        self._slots = asyncio.Semaphore(size)
        self._client: Any = None
        self.url = source if isinstance(source, str) else ""

    async def open(self) -> None:
        """Make the client; it connects when there is something to ask.

        Raises:
            ConfigurationError: a function for the URL gives none in time, or redis-py does not take an option of it.
        """
        self.url = await URL.get(self._source, self._connect_timeout or None)
        options: dict[str, Any] = {
            "socket_connect_timeout": self._connect_timeout,
            "socket_timeout": None,  # the deadline of a lookup comes as its cancellation
            "retry": Retry(NoBackoff(), AGAIN),
            **parse_url(self.url),
        }
        options.pop("decode_responses", None)
        if callable(self._source) and options.pop("password", None) is not None:
            options.pop("username", None)
            options["credential_provider"] = _Credentials(self)
        kind = options.pop("connection_class", None)
        # Room for those that a cancellation may have lost; `_slots` is the bound.
        pool: Any = ConnectionPool(max_connections=2**31, **({"connection_class": kind} if kind else {}), **options)
        try:
            pool.make_connection()
        except Exception as error:
            problem = ConfigurationError(f"url: redis-py does not take its options ({type(error).__name__})")
        else:
            pool.reset()
            self._client = Redis.from_pool(pool)
            return
        raise problem

    async def credentials(self) -> tuple[str] | tuple[str, str]:
        """User and password of a URL that a function gives, asked for every new connection."""
        self.url = await URL.get(self._source, self._connect_timeout or None)
        options = parse_url(self.url)
        password = str(options.get("password", ""))
        return (str(options["username"]), password) if options.get("username") else (password,)

    async def values(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The values of names, from one MGET; None for those that are not there, or are no plain values."""
        async with self._slots:
            found: Sequence[Any] = await self._client.mget(names)
            return found

    async def hashes(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The hashes of names, from one pipeline of HGETALL; empty where there is none, an error where one failed."""
        async with self._slots, self._client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hgetall(name)
            found: Sequence[Any] = await pipeline.execute(raise_on_error=False)
            return found

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.aclose(), CLOSE_TIMEOUT)


class _Credentials(CredentialProvider):
    """What redis-py asks for every new connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        raise NotImplementedError("the client is asynchronous")

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await self._connections.credentials()
