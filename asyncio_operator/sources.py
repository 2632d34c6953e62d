"""Where the elements of managed calls come from: the protocol of a source, and the reader of an input.

A source never makes its caller wait: when it finds nothing because the input has nothing now, `wants_input` says so,
and `read_ahead` waits for the input in a task of its own, so that whoever seeks work can be called away from waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from asyncio_operator.flights import Flight
from asyncio_operator.inputs import Input

logger = logging.getLogger("asyncio_operator")

NOTHING: Any = object()


class Source(Protocol):
    """Hands out flights."""

    wants_input: bool
    """Whether there was nothing to read of the input; whoever waits for it takes that back."""

    @property
    def waiting(self) -> int:
        """Flights that have been made, and not taken."""

    @property
    def over(self) -> bool:
        """Whether no flight will come any more."""

    def take(self, now: float) -> Flight | None:
        """The next flight that may have its first attempt, if there is one."""

    def prepare(self, now: float) -> None:
        """Make flights until there is one to take."""

    def read_ahead(self, news: Callable[[], None]) -> None:
        """Wait for the input, if nobody does, and then call `news`."""

    def stop(self) -> None:
        """Nothing is asked for any more: read nothing."""

    def is_full(self) -> bool:
        """Whether no flight can be made until something leaves."""

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future; if it is full now, some room completes it too."""


class Reader:
    """Reads an input, one element at a time.

    Attributes:
        over: whether the input has ended.
    """

    def __init__(self, elements: Input) -> None:
        self.over = False
        self._input = elements
        self._elements: Iterator[Any] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def read(self) -> Any:
        """The next element, or `NOTHING` if there is none now. Raises what waiting for it raised."""
        if self._error is not None:
            raise self._error
        while not self.over:
            if self._elements is None:
                if not self._input.has_some():
                    return NOTHING
                self._elements = iter(self._input)
            for element in self._elements:
                return element
            self._input.exhausted()
            self._elements = None
        return NOTHING

    def read_ahead(self, news: Callable[[], None]) -> None:
        """Wait for the input, if nobody does, and then call `news`."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._wait(news))

    async def _wait(self, news: Callable[[], None]) -> None:
        """An error is kept for the next `read`, because ``SystemExit`` would pass through the loop."""
        try:
            self.over = not await self._input.ready()
        except BaseException as error:
            self._error = error
        self._reading = None
        news()

    def to_come(self) -> list[Any]:
        """What was read of the input, and has not been given."""
        return self._input.read_ahead()

    def stop(self) -> None:
        """Nothing is read any more."""
        if self._reading is not None:
            self._reading.cancel()

    async def close(self, grace_period: float) -> None:
        """Wait until nothing is read. An input that ignores its cancellation for `grace_period` seconds is left."""
        self.stop()
        reading = self._reading
        if reading is not None:
            await asyncio.wait([reading], timeout=grace_period)
            if not reading.done():
                logger.error(
                    "the input ignored its cancellation for the grace period of %.1f s and is left behind", grace_period
                )
