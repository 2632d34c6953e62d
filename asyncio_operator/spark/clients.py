"""Opened enrichers that live as long as the Python worker, one for every specification, on the loop thread.

A task leases one and gives it back; the next task with an equal specification gets the same, with its connections open.
One that nobody has leased for `IDLE` seconds is closed, and opened again on use: pools that stay open use up a server's
connections after some dozens of queries. All of this runs on the loop, so it needs no lock.

Law: `close` runs once for every `open` that has begun, after it has ended; and one specification has no two clients
open at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from asyncio_operator.enricher import Enricher
from asyncio_operator.environment import remedy
from asyncio_operator.errors import FunctionError, describe, describe_error
from asyncio_operator.shutdown import CLIENT_CLOSE_TIMEOUT

logger = logging.getLogger("asyncio_operator")

IDLE = 60.0
"""Seconds; longer than the pause between two micro-batches of most streams, shorter than a person's between queries."""


class Client:
    """An enricher that is opened once, however many ask for it.

    Args:
        before: the closing of another client of the same specification, to be waited for.
    """

    def __init__(self, enricher: Enricher, before: asyncio.Task[Any] | None) -> None:
        self.enricher = enricher
        self.leases = 0
        self.timer: asyncio.TimerHandle | None = None
        self._begun = False
        self._before = before
        self._opening = asyncio.ensure_future(self._open(before))

    async def _open(self, before: asyncio.Task[Any] | None) -> BaseException | None:
        """What opening failed of. It is not raised, because ``SystemExit`` would pass through the loop."""
        if before is not None:
            await asyncio.wait([before], timeout=2 * CLIENT_CLOSE_TIMEOUT)
        self._begun = True
        try:
            await self.enricher.open()
        except BaseException as error:
            return error
        return None

    async def opened(self) -> None:
        """Wait until it is open. A waiter that is cancelled does not disturb the others.

        Raises:
            FunctionError: opening failed.
        """
        error = await asyncio.shield(self._opening)
        if error is not None:
            raise FunctionError(
                f"{describe(self.enricher)} could not be opened: {describe_error(error)}{remedy(error)}", attempts=1
            ) from error

    async def close(self) -> None:
        """Close it, within `CLIENT_CLOSE_TIMEOUT` seconds; what goes wrong is logged."""
        self._opening.cancel()
        try:
            async with asyncio.timeout(CLIENT_CLOSE_TIMEOUT):
                await asyncio.wait([self._opening])
                if self._begun:
                    await self.enricher.close()
                elif self._before is not None:
                    # Whoever waits for this one must not be earlier than it would have been.
                    await asyncio.wait([self._before])
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            logger.warning("closing %s failed", describe(self.enricher), exc_info=error)


class Clients:
    """The clients of this process, by the fingerprint of their specification."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def lease(self, fingerprint: str, enricher: Enricher) -> Enricher:
        """The opened enricher of that fingerprint; `enricher` itself if there is none yet.

        Every lease that was granted has to be given back by `release`. One that fails to open is closed and forgotten.

        Raises:
            FunctionError: opening failed.
        """
        client = self._clients.get(fingerprint)
        if client is None:
            client = self._clients[fingerprint] = Client(enricher, self._closing.get(fingerprint))
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        client.leases += 1
        try:
            await client.opened()
        except BaseException:
            client.leases -= 1
            if not client.leases:
                self._forget(fingerprint, client)
            raise
        return client.enricher

    def release(self, fingerprint: str) -> None:
        """Give a lease back."""
        client = self._clients[fingerprint]
        client.leases -= 1
        if not client.leases:
            client.timer = asyncio.get_running_loop().call_later(IDLE, self._forget, fingerprint, client)

    def _forget(self, fingerprint: str, client: Client) -> None:
        del self._clients[fingerprint]
        closing = self._closing[fingerprint] = asyncio.ensure_future(client.close())
        closing.add_done_callback(lambda task: self._closed(fingerprint, task))

    def _closed(self, fingerprint: str, closing: asyncio.Task[None]) -> None:
        if self._closing.get(fingerprint) is closing:
            del self._closing[fingerprint]

    def forget_all(self) -> None:
        """For a forked child, in which the loop of these clients does not run: forget them, and leave them open."""
        self._clients.clear()
        self._closing.clear()


clients = Clients()

os.register_at_fork(after_in_child=clients.forget_all)
