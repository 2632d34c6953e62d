"""Decides when a batch is called: if it is full, old enough, or no element can join it (law B1). The caller passes the
time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from asyncio_operator.checks import seconds
from asyncio_operator.engine.flights import Flight
from asyncio_operator.policies.batching import Batching

IDLE_TURNS = 10
"""With ``linger=0``, the loop counts as idle after this many turns without a new element. An element of an asynchronous
input takes a few turns."""

A_TURN_LATER = -inf
"""Used in place of a time: after the next turn of the loop."""


class BatchFormer:
    """Collects elements for one batch after the other.

    Attributes:
        closes: when to ask again for the batch that is being formed: infinity if there is none, `A_TURN_LATER` if the
            batch waits for an idle loop.
    """

    def __init__(self, batching: Batching, take: Callable[[float], Flight | None]) -> None:
        self.closes = inf
        self._max_size = batching.max_size
        self._linger = seconds(batching.linger)
        self._take = take
        self._batch: dict[Flight, None] = {}
        self._turns = 0

    def __len__(self) -> int:
        """The number of waiting elements."""
        return len(self._batch)

    def turned(self) -> None:
        """The loop has turned without a new element."""
        self._turns += 1

    def leave(self, flight: Flight) -> None:
        """Remove an element, if it waits here: it has passed its deadline, or was abandoned."""
        self._batch.pop(flight, None)

    def fill(self, now: float) -> None:
        """Take available elements while the batch has room."""
        batch = self._batch
        while len(batch) < self._max_size and (flight := self._take(now)) is not None:
            if not batch:
                self.closes = now + self._linger if self._linger else A_TURN_LATER
            self._turns = 0
            batch[flight] = None
        if not batch:
            self.closes = inf

    def batch(self, now: float, hurry: Callable[[], bool]) -> list[Flight] | None:
        """Take available elements. Returns the batch if it must be called now, else None.

        Args:
            hurry: returns whether waiting for more elements is useless.
        """
        self.fill(now)
        batch = self._batch
        if not batch:
            return None
        over = now >= self.closes if self._linger else self._turns >= IDLE_TURNS
        if len(batch) < self._max_size and not over and not hurry():
            return None
        self._batch = {}
        self.closes = inf
        return list(batch)
