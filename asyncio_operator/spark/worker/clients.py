"""The open enrichers that tasks of a Python worker share.

An enricher is lent with its open connections (`engine.lent`). Law: `close` runs once for each `open` that has begun,
after that `open` has ended; and one specification never has two open clients at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.engine.ending import close_within
from asyncio_operator.engine.lent import Lent
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe, describe_error, function_error
from asyncio_operator.hints import remedy
from asyncio_operator.policies.shutdown import CLIENT_CLOSE_TIMEOUT

logger = logging.getLogger("asyncio_operator.clients")


class Client:
    """An enricher that is opened once, for all tasks that wait for it.

    Args:
        before: the closing of an earlier client of the same specification. Opening waits for it.
    """

    def __init__(self, enricher: Enricher, before: asyncio.Task[Any] | None) -> None:
        self.enricher = enricher
        self._begun = False
        self._before = before
        self._opening = asyncio.ensure_future(self._open(before))

    async def _open(self, before: asyncio.Task[Any] | None) -> BaseException | None:
        """The error of `open`, or None. It is returned, because a raised ``SystemExit`` would pass through the loop."""
        # Two open clients of one specification would need twice the connections that the user allowed.
        if before is not None:
            await asyncio.wait([before], timeout=2 * CLIENT_CLOSE_TIMEOUT)
        self._begun = True
        begun = monotonic()
        try:
            await self.enricher.open()
        except BaseException as error:
            return error
        logger.info("%s is open, after %.3f s", describe(self.enricher), monotonic() - begun)
        return None

    async def opened(self) -> None:
        """Wait until the enricher is open. Cancelling one waiter does not affect the others.

        Raises:
            FunctionError: opening failed.
        """
        error = await asyncio.shield(self._opening)
        if error is not None:
            failed = f"{describe(self.enricher)} could not be opened: {describe_error(error)}{remedy(error)}"
            raise function_error(failed, "", attempts=1, cause=error)

    async def close(self) -> None:
        """Close it, within `CLIENT_CLOSE_TIMEOUT` seconds. Errors are logged."""
        self._opening.cancel()
        error = await close_within(describe(self.enricher), self._end, CLIENT_CLOSE_TIMEOUT)
        if isinstance(error, asyncio.CancelledError):
            raise error
        if error is not None:
            logger.warning("closing %s failed", describe(self.enricher), exc_info=error)

    async def _end(self) -> None:
        await asyncio.wait([self._opening])
        if self._begun:
            await self.enricher.close()
            logger.info("%s is closed", describe(self.enricher))
        elif self._before is not None:
            # The next client waits for this task, and must not open before the earlier client has closed.
            await asyncio.wait([self._before])


Clients = Lent[str, Client]
"""By the fingerprint of the specification."""


@asynccontextmanager
async def opened(clients: Clients, fingerprint: str, enricher: Enricher) -> AsyncIterator[Enricher]:
    """The open enricher with this fingerprint, while it is entered. The first task opens `enricher` itself.

    An enricher that fails to open is closed and forgotten.

    Raises:
        FunctionError: opening failed.
    """
    client = clients.borrow(fingerprint, lambda: Client(enricher, clients.ending(fingerprint)))
    is_open = False
    try:
        await client.opened()
        is_open = True
        yield client.enricher
    finally:
        clients.give_back(fingerprint, client, keep=is_open)
