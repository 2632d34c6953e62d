"""What tasks of a Python worker share: open enrichers, the windows of rate limits, and what is known of slow calls.
`lookup.cache_directories` has the caches that they share.

A task leases an object and returns it; the next task with an equal specification gets the same one. Everything here
runs on the loop, so it needs no lock.

An enricher comes back with its open connections. One that no task has leased for `IDLE` seconds is closed, and opened
again when it is needed. Otherwise open pools would use up a server's connections after some dozens of queries. Law:
`close` runs once for each `open` that has begun, after that `open` has ended; and one specification never has two open
clients at the same time.

The window of a rate limit comes back with the starts in it. Otherwise tasks that are shorter than the window would each
start a whole limit. A window belongs to an enricher and a limit. Tasks that run in a process at the same time have one
window each, because a limit is per task, or is a task's share of a job's. When a task returns its window, windows that
are as good as new are dropped. Law: a process has one window for each task that runs at the same time, however many
tasks follow (R10).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.engine.ending import close_within
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe, describe_error, function_error
from asyncio_operator.hints import remedy
from asyncio_operator.loop.forks import forget_in_child
from asyncio_operator.policies.hedge import Hedge, Hedger
from asyncio_operator.policies.rate_limit import RateLimit, RateWindow
from asyncio_operator.policies.shutdown import CLIENT_CLOSE_TIMEOUT

logger = logging.getLogger("asyncio_operator.clients")

IDLE = 60.0
"""Seconds: longer than the pause between two micro-batches of most streams, and shorter than a person's pause."""

MOST_HEDGERS = 50
"""Kept at a time; each has 8 KB of latencies. The one that was returned first is dropped."""


class Client:
    """An enricher that is opened once, for all tasks that wait for it.

    Args:
        before: the closing of an earlier client of the same specification. Opening waits for it.
    """

    def __init__(self, enricher: Enricher, before: asyncio.Task[Any] | None) -> None:
        self.enricher = enricher
        self.leases = 0
        self.timer: asyncio.TimerHandle | None = None
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


class Clients:
    """The clients of this process, by the fingerprint of their specification."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def lease(self, fingerprint: str, enricher: Enricher) -> Enricher:
        """The open enricher with this fingerprint. The first lease opens `enricher` itself.

        Each successful lease must be returned with `release`. An enricher that fails to open is closed and forgotten.

        Raises:
            FunctionError: opening failed.
        """
        client = self._clients.get(fingerprint)
        if client is None:
            client = self._clients[fingerprint] = Client(enricher, self._closing.get(fingerprint))
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        # Counted before the wait: another task that is cancelled meanwhile must not close it under this one.
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
        """Return a lease."""
        client = self._clients[fingerprint]
        client.leases -= 1
        if not client.leases:
            client.timer = asyncio.get_running_loop().call_later(IDLE, self._forget, fingerprint, client)

    def _forget(self, fingerprint: str, client: Client) -> None:
        if self._clients.get(fingerprint) is not client:
            return  # `forget_all` was called, and it belongs to another process.
        del self._clients[fingerprint]
        closing = self._closing[fingerprint] = asyncio.ensure_future(client.close())
        closing.add_done_callback(lambda task: self._closed(fingerprint, task))

    def _closed(self, fingerprint: str, closing: asyncio.Task[None]) -> None:
        if self._closing.get(fingerprint) is closing:
            del self._closing[fingerprint]

    def forget_all(self) -> None:
        """Forget all clients in a forked child, where their loop does not run. They stay open for the parent."""
        self._clients.clear()
        self._closing.clear()


clients = Clients()


class Limiters:
    """The windows that no task uses now, by their owner and limit."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, RateLimit], list[RateWindow]] = {}

    @contextlib.contextmanager
    def lent(self, owner: str, limit: RateLimit | None) -> Iterator[RateWindow | None]:
        """The window that was returned last, or a new one, while the task runs; None without a limit."""
        if limit is None:
            yield None
            return
        free = self._free.get((owner, limit))
        limiter = free.pop() if free else RateWindow.of(limit)
        try:
            yield limiter
        finally:
            self._free.setdefault((owner, limit), []).append(limiter)
            self._forget_rested()

    def _forget_rested(self) -> None:
        # A rested window allows the same starts as a new one, so it need not be kept.
        now = clock_of(asyncio.get_running_loop())()
        kept = {key: [one for one in free if one.rested_at() > now] for key, free in self._free.items()}
        self._free = {key: free for key, free in kept.items() if free}

    def __len__(self) -> int:
        return sum(map(len, self._free.values()))

    def forget_all(self) -> None:
        """Drop all windows in a forked child, which has not started a call yet."""
        self._free.clear()


limiters = Limiters()


class Hedgers:
    """What decides about second calls, by the enricher and its `Hedge`: a task begins with the latencies, and the share
    of copies, of the task before it. Tasks of a few calls would never know which call is slow."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, Hedge], Hedger] = {}

    @contextlib.contextmanager
    def lent(self, owner: str, hedge: Hedge | None) -> Iterator[Hedger | None]:
        """The one that was returned last, or a new one, while the task runs; None without a `Hedge`."""
        if hedge is None:
            yield None
            return
        hedger = self._free.pop((owner, hedge), None) or Hedger(hedge)
        try:
            yield hedger
        finally:
            self._free[owner, hedge] = hedger
            if len(self._free) > MOST_HEDGERS:
                del self._free[next(iter(self._free))]

    def forget_all(self) -> None:
        """Drop all of them in a forked child, whose loop has another time."""
        self._free.clear()


hedgers = Hedgers()


def _forget_all() -> None:
    """In a forked child, whose loop has not run: what is open stays open for the parent."""
    for pool in (clients, limiters, hedgers):
        pool.forget_all()


forget_in_child(_forget_all)
