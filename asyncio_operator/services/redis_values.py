"""Values with a time to live in one Redis: read many, write many, and a lock for a time. For a cache.

Every question also asks for the server's time. Ages are counted by that clock, whatever the clocks of the workers say.

A user of the server with limited rights needs the commands MGET, SET, DEL and TIME for the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from asyncio_operator.hints import needs

with needs("a cache in Redis", "redis", "redis"):
    import redis.asyncio  # noqa: F401

from redis.exceptions import MasterDownError, ReadOnlyError

from asyncio_operator.services.causes import own_words
from asyncio_operator.services.redis_client import RedisClient, Url, cause_of, check_url, secrets_of
from asyncio_operator.services.secret_source import SecretSource

STORE = SecretSource("store", "address", partial(check_url, argument="store"))  # The argument ``store`` of a cache.

AGAIN = 1
"""The number of times that a command is sent again if its connection is lost. To repeat one of these does no harm."""

Write = tuple[bytes, bytes | None, int]
"""A name, its value or None to delete it, and the milliseconds that the value lives."""


class RedisValues(RedisClient):
    """A client on the loop that opened it. Its methods raise the errors of redis-py, for `problem`. To make a
    connection, and for a function to return the address, it has `connect_timeout` seconds."""

    def __init__(self, source: Url, *, connect_timeout: float) -> None:
        super().__init__(source, connect_timeout=connect_timeout, again=AGAIN, kind=STORE)

    async def time(self) -> float:
        """The time of the server, in seconds."""
        return _seconds(await self.redis.time())

    async def read(self, names: Sequence[bytes]) -> tuple[float, Sequence[bytes | None]]:
        """The time of the server, and the values of names. None for a name that does not exist or is no plain value."""
        async with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.time()
            pipeline.mget(names)
            time, values = await pipeline.execute()
            return _seconds(time), values

    async def write(self, values: Sequence[Write]) -> Exception | None:
        """Write or delete values. Returns the first error of a value that the server refuses."""
        async with self.redis.pipeline(transaction=False) as pipeline:
            for name, value, milliseconds in values:
                if value is None:
                    pipeline.delete(name)
                else:
                    pipeline.set(name, value, px=milliseconds)
            replies = await pipeline.execute(raise_on_error=False)
        return next((reply for reply in replies if isinstance(reply, Exception)), None)

    async def lock(self, names: Sequence[bytes], milliseconds: int) -> list[bool]:
        """Take locks, which end by themselves after a time. False for a lock that is taken already."""
        async with self.redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.set(name, b"", nx=True, px=milliseconds)
            return [bool(reply) for reply in await pipeline.execute()]

    def problem(self, error: Exception) -> str:
        """What an error means, without secrets."""
        return f"{cause_of(error).text}{own_words(error, secrets_of(self.url))}"

    def is_replica(self, error: Exception) -> bool:
        """Whether an error says that the server is no primary, as after a failover."""
        return isinstance(error, ReadOnlyError | MasterDownError)


def _seconds(time: Any) -> float:
    seconds, microseconds = time
    return int(seconds) + int(microseconds) / 1e6
