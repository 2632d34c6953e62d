"""The client of one worker, on the loop that opened it.

Connections are made when they are needed, and again after a restart of the server. If a command finds its connection
lost, it is sent again at once; that is safe, because commands only read. A cancelled command closes its connection, so
that its answer cannot be taken for the next command's. A semaphore here limits the commands at a time. redis-py's
blocking pool could do it, but it loses a place if it is cancelled while it returns a connection.
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
from asyncio_operator.services.redis_url import URL, Url

AGAIN = 1
"""The number of times that a command is sent again if its connection is lost."""


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
        """Make the client. It connects at the first command.

        Raises:
            ConfigurationError: a function for the URL returns none in time, or redis-py does not take an option of it.
        """
        self.url = await URL.get(self._source, self._connect_timeout or None)
        options: dict[str, Any] = {
            "socket_connect_timeout": self._connect_timeout,
            "socket_timeout": None,  # A lookup that passes its deadline is cancelled.
            "retry": Retry(NoBackoff(), AGAIN),
            **parse_url(self.url),
        }
        options.pop("decode_responses", None)
        if callable(self._source) and options.pop("password", None) is not None:
            options.pop("username", None)
            options["credential_provider"] = _Credentials(self)
        kind = options.pop("connection_class", None)
        # `_slots` is the limit. The pool must have more room, because a cancellation may lose a place in it.
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
        """User and password from the function for the URL, which is called for every new connection."""
        self.url = await URL.get(self._source, self._connect_timeout or None)
        options = parse_url(self.url)
        password = str(options.get("password", ""))
        return (str(options["username"]), password) if options.get("username") else (password,)

    async def values(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The values of names, from one MGET. None for a name that does not exist or is not a plain value."""
        async with self._slots:
            found: Sequence[Any] = await self._client.mget(names)
            return found

    async def hashes(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The hashes of names, from one pipeline of HGETALL. Empty for a missing name, an error for a failed
        command."""
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
    """Gives redis-py the credentials for every new connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        raise NotImplementedError("the client is asynchronous")

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await self._connections.credentials()
