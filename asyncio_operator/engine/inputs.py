"""The input of a run: one protocol over ordinary and asynchronous iterables, and its one reader.

An input is read in two steps: `ready` waits until there may be an element, and iterating gives the elements that are
available now and stops, without waiting. No element is read before it is requested. Errors pass through unchanged.

Law O17: an asynchronous generator ends with the run that reads it, and so does the output of another run. If the run
waits for the generator when it ends, its cancellation ends the generator. So it is closed in the other case too, or
chance would decide. Every other iterable stays open: it belongs to the user, who may go on reading it after the run.
Each step of the input is made in one context, a copy of that in which the run was started: a variable that one step
sets may be reset in the next step, which another task may make.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import copy_context
from itertools import repeat
from typing import Any

from asyncio_operator.engine.contexts import call_within
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import ConfigurationError

logger = logging.getLogger("asyncio_operator.calls")

NOTHING: Any = object()

_PLAIN: tuple[Iterable[Any], ...] = ([], (), range(0), range(1 << 70), {}, {}.values(), {}.items(), set(), deque(), "")

PLAIN_ITERATORS = frozenset(type(iter(plain)) for plain in _PLAIN)
"""Iterators that run no code of the user, and whose steps take no time worth measuring."""


class SyncInput(Input):
    """An ordinary iterable, read on the loop. While it blocks, the loop and all calls on it are blocked."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = iter(elements)
        self.instant = type(self._elements) in PLAIN_ITERATORS
        self._ended = False

    async def ready(self) -> bool:
        return not self._ended

    def has_some(self) -> bool:
        return not self._ended

    def __iter__(self) -> Iterator[Any]:
        return self._elements

    def exhausted(self) -> None:
        self._ended = True

    async def release(self) -> None:
        self._ended = True
        self._elements = iter(())


class AsyncInput(Input):
    """An asynchronous iterable, read one element at a time."""

    def __init__(self, elements: AsyncIterable[Any]) -> None:
        self._elements: AsyncIterator[Any] | None = aiter(elements)
        self._next: list[Any] = []
        self._reading = False

    async def ready(self) -> bool:
        if not self._next:
            if self._elements is None:
                return False
            self._reading = True
            try:
                self._next.append(await anext(self._elements))
            except StopAsyncIteration:
                return False
            finally:
                self._reading = False
        return True

    def has_some(self) -> bool:
        return bool(self._next)

    def read_ahead(self) -> list[Any]:
        return list(self._next)

    def __iter__(self) -> Iterator[Any]:
        while self._next:
            yield self._next.pop()

    async def release(self) -> None:
        elements, self._elements = self._elements, None
        # A generator that ignored its cancellation is still in a step, and closing it would raise.
        if isinstance(elements, AsyncGenerator) and not self._reading:
            await elements.aclose()


def as_input(elements: Any) -> Input:
    """The input for an iterable of a user.

    Raises:
        ConfigurationError: it is not iterable.
    """
    if isinstance(elements, Input):
        return elements
    if isinstance(elements, AsyncIterable):
        return AsyncInput(elements)
    if isinstance(elements, Iterable):
        return SyncInput(elements)
    raise ConfigurationError(
        f"elements is of type {type(elements).__name__}; it must be an iterable or an asynchronous iterable"
    )


class Reader:
    """Reads the input of a run, and is the only one that does.

    A lane that waits for nothing else waits for the input itself (`ready`). If other news may come first, a task waits
    for the input (`read_ahead`). Law O18: after `stop` it gives no elements, even if the input ignores its
    cancellation. Elements that the input then gives are in its `read_ahead`, so none is lost.
    """

    def __init__(self, elements: Input) -> None:
        self.instant = elements.instant
        self.reading: asyncio.Task[None] | None = None  # The task that waits for the input, if one does.
        self.wanted = False  # Whether nothing was found, and more may come. Who reads resets it before.
        self._context = copy_context()
        self.input = elements
        self._over = False
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether no element will be read any more."""
        return self._over or self._stopped

    async def ready(self) -> bool:
        """Wait until there may be an element to read. False if none will come."""
        if not self.over and not await call_within(self._context, self.input.ready):
            self._over = True
        return not self.over

    def read_ahead(self, news: Callable[[], None]) -> None:
        """Wait for the input in a task, unless one waits already, and then call `news`."""
        if self.reading is None and not self.over:
            self.reading = start_task(self._wait(news))

    async def _wait(self, news: Callable[[], None]) -> None:
        """An error is kept for the next `read`, because ``SystemExit`` would pass through the loop."""
        loop = asyncio.get_running_loop()
        try:
            await self.ready()
        except BaseException as error:
            if not loop.is_running():
                # The loop is gone, and this coroutine is being thrown away.
                raise
            self._error = error
        self.reading = None
        news()

    def __iter__(self) -> Iterator[Any]:
        """All that can be read now; call `input.exhausted` at its end."""
        elements = iter(() if self.over else self.input)
        return elements if self.instant else map(self._context.run, repeat(elements.__next__))

    def has_some(self) -> bool:
        """Whether iterating may give something now. Raises what waiting for it raised."""
        if self._error is not None:
            raise self._error
        if self.over:
            return False
        if self.input.has_some():
            return True
        self.wanted = True
        return False

    def read(self) -> Any:
        """The next element, or `NOTHING` if there is none now. Raises what waiting for it raised."""
        while self.has_some():
            for element in self:
                return element
            self.input.exhausted()
        return NOTHING

    def stop(self) -> None:
        """Nothing is read any more. An input that is being read is cancelled once, so that it may clean up."""
        if not self._stopped:
            self._stopped = True
            if self.reading is not None:
                self.reading.cancel()

    async def close(self, grace_period: float) -> None:
        """Wait until nothing is read, and let go of the input, for `grace_period` seconds. An input that ignores its
        cancellation is left behind, and one that is still closing is cancelled. It is not closed by
        `timing.close_within`, because its two waits share the seconds.

        Raises:
            BaseException: closing the input failed.
        """
        self.stop()
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_period
        reading = self.reading
        if reading is not None:
            await asyncio.wait([reading], timeout=grace_period)
            if not reading.done():
                logger.error(
                    "the input ignored its cancellation for the grace period of %.1f s and is left behind", grace_period
                )
        limit = asyncio.timeout_at(ends)
        try:
            async with limit:
                await call_within(self._context, self.input.release)
        except TimeoutError:
            if not limit.expired():
                raise
            logger.error(
                "closing the input took longer than the grace period of %.1f s, and was cancelled", grace_period
            )
