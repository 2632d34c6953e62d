"""The Python worker of a task: its loop, its clocks, its threads, and what its tasks share, such as open enrichers.

Tasks on a loop with a time of its own, as in a simulation, get a `WorkerProcess` of their own. They then read no clock,
start no thread and make no name in any other way.

An enricher is lent with its open connections (`engine.lent`). Law: `close` runs once for each `open` that has begun,
after that `open` has ended; and one specification never has two open clients at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.engine.lent import Lent
from asyncio_operator.engine.timing import close_within
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe, describe_error, function_error
from asyncio_operator.hints import remedy
from asyncio_operator.journal.storage import start_thread
from asyncio_operator.lookup.cache_directories import Caches, caches, new_caches
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.hedge import Hedge, Hedger
from asyncio_operator.policies.shutdown import CLIENT_CLOSE_TIMEOUT
from asyncio_operator.quota.share import Shares, shares

if TYPE_CHECKING:
    from asyncio_operator.journal.later_answers import JournalReader
    from asyncio_operator.journal.writer import JournalWriter

logger = logging.getLogger("asyncio_operator.clients")


class Client:
    """An enricher that is opened once, for all tasks that wait for it. Opening waits for `before`, the closing of an
    earlier client of the same specification."""

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
        """Wait until the enricher is open. Cancelling one waiter does not affect the others."""
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


MOST_HEDGERS = 50  # Kept at a time; each has 8 KB of latencies.
MOST_READERS = 4  # The same for readers of journals, which have at most 64 MB of keys each.


hedgers: Callable[[], Lent[tuple[str, Hedge], Hedger]] = partial(Lent, together=False, most=MOST_HEDGERS, seconds=inf)
"""Makes what decides about second calls, by enricher and `Hedge`: a task begins with the latencies, and the share of
copies, of a task before it. Tasks of a few calls would never know which call is slow."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What tasks use of their process."""

    loop: Callable[[], asyncio.AbstractEventLoop]  # Returns the loop that runs the tasks.
    shares: Shares
    clients: Clients = field(default_factory=partial(Lent, end=Client.close))
    caches: Caches = field(default_factory=new_caches)
    # Of journals, by all that decides what they read.
    readers: Lent[object, JournalReader] = field(default_factory=partial(Lent, together=False, most=MOST_READERS))
    hedgers: Lent[tuple[str, Hedge], Hedger] = field(default_factory=hedgers)
    wall: Clock = wall  # See `clock`, also for the next one.
    monotonic: Clock = monotonic
    # Does work that blocks, beside the loop; gets a name for its thread.
    start: Callable[[Callable[[], None], str], None] = start_thread
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # Returns 32 hexadecimal digits that no other call returns.
    drive: Callable[[JournalWriter], object] | None = None  # See `JournalWriter`.

    @asynccontextmanager
    async def opened(self, fingerprint: str, enricher: Enricher) -> AsyncIterator[Enricher]:
        """The open enricher with this fingerprint, while it is entered. The first task opens `enricher` itself. One
        that fails to open is closed and forgotten."""
        clients, is_open = self.clients, False
        client = clients.borrow(fingerprint, lambda: Client(enricher, clients.ending(fingerprint)))
        try:
            await client.opened()
            is_open = True
            yield client.enricher
        finally:
            clients.give_back(fingerprint, client, keep=is_open)


this_process = WorkerProcess(lambda: loop_thread().loop, shares, caches=caches)
