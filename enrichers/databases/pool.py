"""The connections of one worker, shared by its lookups. The pool adapts to the number that the server gives.

A lookup without a free connection waits in line. The head of the line gets the next free or new connection. Tasks of
the pool make new connections, so a cancelled lookup leaves at once, and its new connection serves another lookup.

The maximum number of connections, `_limit`, starts with the size that the user set, and then follows the server:

| a connection | the pool | what follows |
| --- | --- | --- |
| is made | | the limit is at least what the pool holds, and one more may be tried at once |
| cannot be made | holds another | no lookup fails; the limit is what it holds; one more is tried after a pause |
| is refused, the server is full | tries another, or has just lost one | the same |
| cannot be made | holds none | the lookup that waits longest gets the error |

The pause doubles from attempt to attempt. A server still counts a connection for a moment after it has ended, hence
"has just lost one".

Law: a connection is idle, in use, or being recovered. No lookup waits while a connection is idle.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Coroutine
from math import frexp, inf
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from asyncio_operator.enricher import CANCEL_TIMEOUT
from asyncio_operator.services.causes import Cause, own_words
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.secrets import Secrets

IDLE_TIMEOUT = 60.0
"""Seconds after which an unused connection is closed: a server has 100 of them by default, for all its clients."""

FIRST_PAUSE = 0.1
"""Seconds before another connection to a full server is tried. A server fills and empties with every query of a job."""

LONGEST_PAUSE = 30.0
"""The longest pause in seconds. A hundred workers then try three times per second, which costs a server little."""

LEAVING = 5.0
"""Seconds for which a server may still count an ended connection. It notices a lost client after two seconds."""


REMEDY = (
    " Each Python worker makes up to pool_size={size} connections for each such enricher, and there is a worker for "
    "each task that runs at once: 32 tasks want up to 32 x {size}. Set a smaller pool_size, run fewer tasks at once, "
    "or raise the limit{limits}."
)


LONGEST = 2.0**20
"""From this number of seconds on, statements are not limited: PostgreSQL counts milliseconds in 32 bits."""


class LimitedSession:
    """A connection whose server ends a statement that runs for longer than any lookup can wait for it.

    The server's limit is not set for each lookup, because that would cost a round trip. It is a power of two in seconds
    that is greater than the time that any lookup on this connection had left so far. With one timeout for all lookups
    it is set once. It is later than the lookup's own deadline, so it never ends a statement that a lookup waits for.
    """

    _allowed = 0.0

    async def allow(self, left: float | None) -> None:
        """Let statements run for at least `left` seconds, or without limit if `left` is None."""
        if self._allowed < (inf if left is None else left):
            seconds = inf if left is None or left >= LONGEST else 2.0 ** max(0, frexp(left)[1])
            if seconds < inf or self._allowed:
                seconds = await self._limit(seconds)
            self._allowed = seconds

    async def _limit(self, seconds: float) -> float:
        """Set the server's limit, or take it back if it is infinite; returns infinity if there is none now."""
        raise NotImplementedError


class PoolSession(Protocol):
    """The methods of a connection that the pool uses. A connection is hashable by its identity."""

    async def answer(self, *call: Any) -> Any:
        """The result of a statement."""

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self) -> None: ...

    async def recover(self) -> None:
        """Wait until the cancelled statement has ended, and the connection can take another one. If it cannot, the
        connection is closed, or an error is raised."""


S = TypeVar("S", bound=PoolSession)


class Pool(ABC, Generic[S]):
    """Up to `size` connections. They are made when lookups need them, and closed when idle for `IDLE_TIMEOUT`.

    Args:
        subject: names the enricher in the log.
        bounded: whether `_connect` ends by itself. If not, it ends with the wait of the lookup that it was begun for.
    """

    _logger: ClassVar[logging.Logger]
    _limits: ClassVar[str]
    """The limits of a server that may be raised, at the end of `REMEDY`."""

    def __init__(self, subject: str, size: int, *, bounded: bool = True) -> None:
        self._subject = subject
        self._size = self._limit = size
        self._shrunk = False
        self._bounded = bounded
        self._pause = FIRST_PAUSE
        self._again = self._lost = -inf
        self._generation = 0
        self._sessions: dict[S, int] = {}
        self._idle: dict[S, float] = {}
        self._waiters: OrderedDict[asyncio.Future[S], None] = OrderedDict()
        self._attempts: dict[asyncio.Task[None], asyncio.Future[S]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._growth: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._returned: asyncio.Future[None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # A connection outlives the call that it was made for, so it must not keep that call's context.
        self._context = contextvars.copy_context()

    @abstractmethod
    async def _connect(self) -> S:
        """A new connection."""

    @abstractmethod
    def _cause(self, problem: BaseException) -> Cause:
        """The cause of an error of `_connect`. With an overload the server has no place for another connection."""

    @abstractmethod
    def _secrets(self) -> Secrets:
        """What the log must not show."""

    def __repr__(self) -> str:
        held, idle, wait = len(self._sessions), len(self._idle), len(self._waiters)
        return f"<Pool of {held} connections, {idle} idle, {wait} waiting, limit {self._limit} of {self._size}>"

    async def acquire(self) -> S:
        """A connection for one statement. Return it with `release` or `recover`.

        Raises:
            Exception: what `_connect` raised, if the pool holds none; `ConnectionAbortedError` if it is closed.
        """
        if self._closed:
            raise ConnectionAbortedError("the pool is closed")
        # The connection that was used last: so those that are not needed grow old, and are closed.
        while self._idle:
            session, _ = self._idle.popitem()
            if not session.is_closed():
                return session
            self._drop(session)
        waiter: asyncio.Future[S] = self._loop.create_future()
        self._waiters[waiter] = None
        self._grow()
        try:
            return await waiter
        except BaseException:
            self._waiters.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())  # it came in the moment of the cancellation
            raise
        finally:
            if not self._bounded:
                self._give_up(waiter)
                self._grow()

    async def answer(self, session: S, *call: Any) -> Any:
        """The result of a statement on a connection, which is returned then."""
        try:
            result = await session.answer(*call)
        except Exception:
            self.release(session)
            raise
        except BaseException:
            self.recover(session)
            raise
        self.release(session)
        return result

    def release(self, session: S) -> None:
        """Return a connection whose statement has ended."""
        # A connection of an older generation leads to a server that is no longer the primary.
        if session.is_closed() or self._sessions.get(session) != self._generation:
            self._drop(session)
            return
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(session)
            return
        self._idle[session] = self._loop.time()
        if self._sweep is None and not self._closed:
            self._sweep = self._loop.call_later(IDLE_TIMEOUT, self._close_unused)
        self._tell_close()

    def recover(self, session: S) -> None:
        """Return a connection whose statement was cancelled. It is reused when the server has ended the statement, or
        closed if that takes too long."""
        self._spawn(self._recover(session))

    def expire(self) -> None:
        """Stop using all connections that were made before now."""
        self._generation += 1
        for session in [*self._idle]:
            del self._idle[session]
            self._drop(session)

    async def close(self) -> None:
        """Close every connection when its statement has ended, or after `CLOSE_TIMEOUT`."""
        self._closed = True
        for timer in (self._growth, self._sweep):
            if timer is not None:
                timer.cancel()
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(ConnectionAbortedError("the pool is closed"))
        self._give_up()
        try:
            await closed_in_time(self._farewell())
        finally:
            for session in [*self._sessions]:
                session.terminate()
            self._sessions.clear()
            self._idle.clear()

    async def _farewell(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        while len(self._idle) < len(self._sessions):
            self._returned = self._loop.create_future()
            await self._returned
        await asyncio.gather(*(session.close() for session in self._idle), return_exceptions=True)

    # -- making connections

    def _grow(self) -> None:
        """Make the connections that lookups wait for, up to the limit."""
        while not self._closed and len(self._attempts) < len(self._waiters):
            total = len(self._sessions) + len(self._attempts)
            if total >= self._size:
                return
            if total >= self._limit:
                # Beyond the limit, one at a time.
                if self._attempts:
                    return
                if self._again > self._loop.time():
                    self._wake_at(self._again)
                    return
            # The last lookup in line has the most time left.
            self._attempts[self._spawn(self._attempt())] = next(reversed(self._waiters))

    def _wake_at(self, when: float) -> None:
        if self._growth is not None:
            if self._growth.when() <= when:
                return
            self._growth.cancel()
        self._growth = self._loop.call_at(when, self._pause_is_over)

    def _pause_is_over(self) -> None:
        self._growth = None
        self._grow()

    def _give_up(self, waiter: asyncio.Future[S] | None = None) -> None:
        """Cancel the attempts that were started for one waiting lookup, or all."""
        for task in [task for task, cause in self._attempts.items() if waiter in (cause, None)]:
            del self._attempts[task]
            task.cancel()

    async def _attempt(self) -> None:
        """Make one connection. Nothing is raised, because ``SystemExit`` would pass through the loop."""
        task, generation = asyncio.current_task(), self._generation
        assert task is not None
        made: S | BaseException
        try:
            await asyncio.sleep(0)  # an eager task has to be known before it ends
            made = await self._connect()
        except asyncio.CancelledError:
            made = ConnectionAbortedError("the attempt to connect was cancelled")
        except BaseException as error:
            made = error
        # Given up meanwhile, with a cancellation that came too late.
        if task not in self._attempts:
            if not isinstance(made, BaseException):
                made.terminate()
            return
        del self._attempts[task]
        if isinstance(made, BaseException):
            self._failed(made)
            return
        self._sessions[made] = generation
        self._limit = max(self._limit, len(self._sessions))
        # The server has places again, so the next one need not wait.
        self._pause, self._again = FIRST_PAUSE, -inf
        self.release(made)
        self._grow()

    def _failed(self, problem: BaseException) -> None:
        """An attempt has failed: one lookup gets the error, or all go on with the existing connections."""
        now = self._loop.time()
        full = self._cause(problem).overload
        if not full:
            self._lost = now
        if self._sessions or (full and (self._attempts or now - self._lost < LEAVING)):
            self._limit = len(self._sessions) + len(self._attempts)
            # Attempts that were started together fail together, and count as one: else the pause would jump to its end.
            if now >= self._again:
                self._again = now + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
            if not self._shrunk and self._sessions and self._waiters and not self._attempts:
                self._shrunk = True
                self._warn(problem)
        else:
            # One attempt at a time is enough to find out whether a full server is still full.
            self._limit = 1 if full else max(1, self._limit)
            waiter = self._next_waiter()
            if waiter is not None:
                waiter.set_exception(problem)
        self._grow()

    def _warn(self, problem: BaseException) -> None:
        """Say, once in the life of the pool, that it goes on with fewer connections than its lookups want."""
        cause, held = self._cause(problem), len(self._sessions)
        self._logger.warning(
            "%s: this Python worker holds %d of the %d connections that it wants, and cannot make another one: %s%s. "
            "Lookups wait for the connections that it holds, and it tries again later.%s",
            self._subject,
            held,
            min(self._size, held + len(self._waiters)),
            cause.text,
            own_words(problem, self._secrets()),
            REMEDY.format(size=self._size, limits=self._limits) if cause.overload else "",
        )

    # -- taking connections back

    async def _recover(self, session: S) -> None:
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await session.recover()
        except asyncio.CancelledError:
            session.terminate()
            raise
        except Exception:
            session.terminate()
        finally:
            self.release(session)

    def _drop(self, session: S) -> None:
        """Close a connection at once, which makes room for another one."""
        session.terminate()
        self._sessions.pop(session, None)
        self._lost = self._loop.time()
        self._pause, self._again = FIRST_PAUSE, -inf
        self._tell_close()
        self._grow()

    def _close_unused(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for session, since in [*self._idle.items()]:
            if since + IDLE_TIMEOUT > now:
                self._sweep = self._loop.call_at(since + IDLE_TIMEOUT, self._close_unused)
                return
            del self._idle[session]
            self._drop(session)

    # -- waiting

    def _next_waiter(self) -> asyncio.Future[S] | None:
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            # A waiter that was cancelled in this turn of the loop has not left the line yet.
            if not waiter.done():
                return waiter
        return None

    def _tell_close(self) -> None:
        if self._returned is not None and not self._returned.done():
            self._returned.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
