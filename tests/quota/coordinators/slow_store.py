"""A server in memory that keeps the contract of stores, and replies late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from asyncio_operator.quota.coordinators.exchange import ServerCoordinator, Stored
from asyncio_operator.quota.terms import Answer
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.secrets import Secrets
from tests.operator.helpers import now


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


class SlowCoordinator(ServerCoordinator):
    """A coordinator at this server, as those at Redis and PostgreSQL are."""

    def __init__(self, server: Server, decides: Answer) -> None:
        super().__init__("a slow server", "what it keeps", decides, now)
        self._server = server

    async def connect(self) -> None:
        """It is connected."""

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

    async def drop(self) -> None:
        """Nothing is open."""

    close = drop

    def cause_of(self, error: Exception) -> tuple[Cause, Secrets, str]:
        return Cause("failed"), Secrets(), ""
