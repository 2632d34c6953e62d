"""A store that workers share, as a cache sees it: it answers soon, or counts as not there for a while.

A question takes at most `WAIT` seconds, the first one `FIRST`. After one that fails, further ones are not sent, and the
store is tried again in the background, after pauses that become longer. So a store that is down, slow, paused or full
of connections costs the keys of one question `WAIT` seconds, and then nothing. What is wrong is logged, once for each
kind of problem: also a refused password, because it may be changed while a job runs, and a job must not end for that.

Law: only a function for the address that gives none is an error. It is a part of the program, and no worker could use
the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from asyncio_operator.clock import monotonic
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import ConfigurationError, describe_error

if TYPE_CHECKING:
    from asyncio_operator.services.redis_values import RedisValues, Write

logger = logging.getLogger("asyncio_operator.cache")

WAIT = 0.1
"""Seconds that keys wait for an answer of the store: many times what a near one needs, and little beside a call."""

FIRST = 1.0
"""The same at first, when it has to connect. A server whose machine is gone costs that once in the life of a worker."""

TURNS = 20
"""Turns of the loop in which an answer that has arrived is read: one for each part of it, and a few for the client."""

CONNECT = 2.0  # Seconds that the store may take in the background: to connect, to write.
ADDRESS = 10.0  # Seconds that a function for the address may take.

PAUSE = 1.0
"""Seconds after a failure until the store is tried again. Each further failure doubles them, up to `LONGEST_PAUSE`."""

LONGEST_PAUSE = 30.0

T = TypeVar("T")


class SharedStore:
    """The client of a store, with its pauses.

    Args:
        shown: the address without secrets.
        make: makes the client.
    """

    def __init__(self, shown: str, make: Callable[[], RedisValues]) -> None:
        self.used = 0.0  # When it was asked last, by the monotonic clock.
        self.late = 0  # Number of questions that it did not answer in time.
        self._shown = shown
        self._make = make
        self._client: RedisValues | None = None
        # The time of the store less that of this process, in seconds; None while the store does not answer.
        self._ahead: float | None = None
        self._trial: asyncio.Task[ConfigurationError | None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._is_new = True
        self._pause = PAUSE
        self._try_at = 0.0
        self._told: set[str] = set()

    @property
    def is_down(self) -> bool:
        """Whether it failed, and is not yet to be tried again."""
        return self._ahead is None and monotonic() < self._try_at

    def time_of(self, moment: float) -> int:
        """What the clock of the store showed at a moment of the monotonic clock, in milliseconds."""
        return round(1000 * (moment + (self._ahead or 0.0)))

    async def read(self, names: Sequence[bytes]) -> tuple[int, Sequence[bytes | None]] | None:
        """The time of the store in milliseconds, and the values of names. None if it does not answer.

        Raises:
            ConfigurationError: the function for the address gives none.
        """
        if not names or not await self._answers():
            return None
        found = await self._soon(lambda client: client.read(names))
        if found is None:
            return None
        time, values = found
        self._ahead, self._pause = time - monotonic(), PAUSE
        return round(1000 * time), values

    async def lock(self, names: Sequence[bytes], seconds: float) -> list[bool] | None:
        """Take locks for a time. False for one that is taken already. None if the store does not answer."""
        if not names or self._ahead is None:
            return None
        return await self._soon(lambda client: client.lock(names, round(1000 * seconds)))

    async def write(self, make: Callable[[], Sequence[Write]]) -> bool:
        """Write what a function makes, once the time of the store is known. Returns whether the store answers."""
        client = None
        try:
            if not await self._answers(CONNECT):
                return False
            client = self._client
            assert client is not None
            async with asyncio.timeout(CONNECT):
                refused = await client.write(make())
            if refused is not None and client.is_replica(refused):
                raise refused
        except Exception as error:
            self._fail(error, client)
            return False
        if refused is not None:
            problem = client.problem(refused)
            self.tell(f"does not take answers: {problem}", f"write {_kind(problem)}")
        return True

    def tell(self, what: str, kind: str) -> None:
        """Log a problem, if it is the first one of this kind."""
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("the store of a cache, %s, %s; this is logged once", self._shown, what)

    async def close(self) -> None:
        """Close the connections. They are opened again when they are needed."""
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.cancel()
            await asyncio.wait([trial])
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        client, self._client, self._ahead, self._is_new = self._client, None, None, True
        if client is not None:
            await client.close()

    async def _answers(self, patience: float = 0.0) -> bool:
        """Whether the store may be asked. At first the caller waits for it, and later a trial runs in the background,
        for which it waits no longer than `patience`.

        Raises:
            ConfigurationError: the function for the address gives none.
        """
        self.used = monotonic()
        if self._ahead is not None:
            return True
        if self._trial is None and not self.is_down:
            self._trial = start_task(self._try())
        trial = self._trial
        if trial is not None and (self._is_new or patience):
            await asyncio.wait([trial], timeout=max(patience, FIRST))
            self._is_new = False
        if trial is not None and trial.done() and not trial.cancelled():
            self._trial = None
            error = trial.result()
            if error is not None:
                self._is_new = True
                raise ConfigurationError(f"the store of a cache, {self._shown}: {error}") from error.__cause__
        return self._ahead is not None

    async def _try(self) -> ConfigurationError | None:
        """Ask the store for its time. Returns the error of the address."""
        if self._client is None:
            client = self._make()
            try:
                await client.open()
            except ConfigurationError as error:
                return error
            self._client = client
        try:
            # Two connections, for the two questions of a run: none has to connect while keys wait. If one fails, the
            # other is ended too.
            async with asyncio.timeout(CONNECT), asyncio.TaskGroup() as group:
                times = [group.create_task(self._client.time()) for _ in range(2)]
        except ExceptionGroup as errors:
            self._fail(errors.exceptions[0], self._client)
        except TimeoutError as error:
            self._fail(error, self._client)
        else:
            self._ahead = max(time.result() for time in times) - monotonic()
        return None

    def _fail(self, error: Exception, client: RedisValues | None) -> None:
        """The store did not answer, or with an error. It is not asked for a while."""
        problem = describe_error(error) if client is None else client.problem(error)
        self.tell(f"does not answer: {problem}; keys are looked up, and it is tried again", _kind(problem))
        # Of questions that fail at the same time the first one counts.
        if not self.is_down:
            self._ahead = None
            self._try_at = monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if client is not None and client is self._client and client.is_replica(error):
            # Its connections would stay with a server that takes no writes. New ones may find its successor.
            self._client, self._ahead = None, None
            self._leaving = start_task(client.close())

    async def _soon(self, question: Callable[[RedisValues], Coroutine[Any, Any, T]]) -> T | None:
        """The answer to a question, or None after `WAIT` seconds, or an error.

        An answer that has arrived wins: it may be that the loop was busy, and not the store.
        """
        if (client := self._client) is None:
            return None
        asked = start_task(question(client))
        # Its error after that is of no interest, and must not be logged as lost.
        asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait([asked], timeout=WAIT)
            for _ in range(TURNS):
                if asked.done():
                    return asked.result()
                await asyncio.sleep(0)
            raise TimeoutError
        except Exception as error:
            self.late += isinstance(error, TimeoutError)
            self._fail(error, client)
            return None
        finally:
            asked.cancel()


def _kind(problem: str) -> str:
    """A problem without the words of the client, which may differ each time."""
    return problem.partition("(")[0]
