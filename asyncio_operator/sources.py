"""Where the elements of managed calls come from: the protocol of a source.

A source never makes its caller wait: when it finds nothing because the input has nothing now, `wants_input` says so,
and `read_ahead` waits for the input in a task of its own, so that other news can end the wait of the lane that seeks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from asyncio_operator.engine.flights import Flight


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
