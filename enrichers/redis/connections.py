"""The client of one worker, on the loop that opened it.

Connections are made when they are needed, and again after a restart of the server. If a command finds its connection
lost, it is sent again at once; that is safe, because commands only read. A cancelled command closes its connection, so
that its answer cannot be taken for the next command's. A semaphore here limits the commands at a time. redis-py's
blocking pool could do it, but it loses a place if it is cancelled while it returns a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncio_operator.services.redis_client import RedisClient
from asyncio_operator.services.redis_url import Url

AGAIN = 1
"""The number of times that a command is sent again if its connection is lost."""


class Connections:
    """Up to `size` connections to one server."""

    def __init__(self, source: Url, *, size: int, connect_timeout: float, cluster: bool = False) -> None:
        self._client = RedisClient(source, connect_timeout=connect_timeout, again=AGAIN, cluster=cluster)
        self._slots = asyncio.Semaphore(size)

    @property
    def url(self) -> str:
        """The URL that was used last, so that it can be hidden in errors."""
        return self._client.url

    async def open(self) -> None:
        """Make the client. It connects at the first command.

        Raises:
            ConfigurationError: a function for the URL returns none in time, or redis-py does not take an option of it.
        """
        await self._client.open()

    async def values(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The values of names, from one MGET. None for a name that does not exist or is not a plain value."""
        async with self._slots:
            found: Sequence[Any] = await self._client.redis.mget(names)
            return found

    async def hashes(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The hashes of names, from one pipeline of HGETALL. Empty for a missing name, an error for a failed
        command."""
        async with self._slots, self._client.redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hgetall(name)
            found: Sequence[Any] = await pipeline.execute(raise_on_error=False)
            return found

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
