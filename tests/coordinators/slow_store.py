"""A server in memory that keeps the contract of stores, and replies late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from asyncio_operator.coordinators.exchange import Stored


@dataclass
class Server:
    """What the server keeps.

    Attributes:
        round_trip: seconds from a request to its reply, on virtual time.
        name: names it.
        ahead: seconds by which its clock is ahead of virtual time.
        requests: how many there were.
    """

    round_trip: float = 0.0
    ahead: float = 0.0
    version: str = ""
    text: str = ""
    mailbox: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    name: str = "one"

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    def read(self) -> Stored:
        return Stored(self.version, self.text, dict(self.mailbox), self.now(), self.name)


class SlowStore:
    """One client's connection to it."""

    shown, place = "a slow server", "what it keeps"

    def __init__(self, server: Server) -> None:
        self._server = server

    async def _travel(self) -> None:
        await asyncio.sleep(self._server.round_trip / 2)

    async def post(self, identity: str, message: str) -> Stored:
        await self._travel()
        server = self._server
        server.requests += 1
        server.mailbox[identity] = f"{server.now()} {message}"
        found = server.read()
        await self._travel()
        return found

    async def swap(self, stored: Stored, new_version: str, text: str, answered: list[str]) -> Stored | None:
        await self._travel()
        server, found = self._server, None
        server.requests += 1
        if (server.version, server.name) == (stored.version, stored.server):
            server.version, server.text = new_version, text
            for identity in answered:
                server.mailbox.pop(identity, None)
        else:
            found = server.read()
        await self._travel()
        return found

    async def close(self) -> None:
        """Nothing is open."""
