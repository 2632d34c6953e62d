"""The client of one worker, on the loop that opened it, for one server or for a cluster.

Connections are made when they are needed, and again after a restart of the server. If a command finds its connection
lost, it is sent again at once; that is safe, because commands only read. A cancelled command closes its connection, so
that its answer cannot be taken for the next command's. A semaphore here limits the commands at a time. redis-py's
blocking pool could do it, but it loses a place if it is cancelled while it returns a connection.

A cluster divides names into 16,384 slots, and a command may have names of one slot only. A batch becomes one pipeline
for each node, with a command for each slot; the nodes are asked at the same time. redis-py learns the nodes from the
first one that answers, follows MOVED and ASK, and learns them again if it is sent elsewhere too often. In a pipeline it
leaves lost connections to its caller. So a batch with an answer that another node could give is sent again as a whole,
after the nodes were forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from asyncio_operator.services.redis_client import RedisClient, Url

AGAIN = 1
"""The number of times that a command is sent again if its connection is lost."""

ELSEWHERE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterError,
    exceptions.AskError,
    exceptions.TryAgainError,
)
"""Errors that another node, or the same one a moment later, may not give. `MovedError` is an `AskError`."""

Command = tuple[str | bytes, ...]


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


class ClusterConnections(Connections):
    """Up to `size` commands at a time, each with one connection to every node that it concerns."""

    def __init__(self, source: Url, *, size: int, connect_timeout: float) -> None:
        super().__init__(source, size=size, connect_timeout=connect_timeout, cluster=True)
        self._forgotten = 0

    async def values(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The values of names, from one MGET for each slot. None for a name that does not exist or is not a plain
        value, an error for a failed command."""
        slots: dict[int, list[int]] = {}
        slot_of = self._client.redis.keyslot
        for place, name in enumerate(names):
            slots.setdefault(slot_of(name), []).append(place)
        answers = await self._asked([("MGET", *(names[place] for place in places)) for places in slots.values()])
        found: list[Any] = [None] * len(names)
        for places, answer in zip(slots.values(), answers, strict=True):
            several = [answer] * len(places) if isinstance(answer, Exception) else answer
            for place, value in zip(places, several, strict=True):
                found[place] = value
        return found

    async def hashes(self, names: Sequence[bytes]) -> Sequence[Any]:
        """The hashes of names, from HGETALL. Empty for a missing name, an error for a failed command."""
        return await self._asked([("HGETALL", name) for name in names])

    async def _asked(self, commands: Sequence[Command]) -> Sequence[Any]:
        left = AGAIN
        while True:
            async with self._slots:
                forgotten = self._forgotten
                answers = await self._sent(commands)
            lost = [answer for answer in answers if isinstance(answer, ELSEWHERE)]
            if not lost:
                return answers
            if not left:
                raise lost[0]
            left -= 1
            # This cuts the connections of other batches, so of all that have failed together only one does it.
            if forgotten == self._forgotten:
                self._forgotten += 1
                await self._client.redis.aclose()

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        async with self._client.redis.pipeline() as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            try:
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
            except AttributeError as error:
                # Another batch has cut a connection before this one wrote to it: redis-py then has no writer.
                return [exceptions.ConnectionError(f"the connection was cut: {error}")]
            return answers
