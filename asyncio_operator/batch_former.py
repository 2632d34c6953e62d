"""When a batch is called: full, old enough, or waiting for nobody (law B1). Pure; it is given the time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from asyncio_operator.flights import Flight
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.options import seconds

IDLE_TURNS = 10
"""Turns of the loop without a new element after which it counts as idle, for ``linger=0``: an element of an
asynchronous input takes a few."""

A_TURN_LATER = -inf
"""Instead of a time: when the loop has turned."""


class BatchFormer:
    """Collects elements for one batch after the other.

    Attributes:
        closes: when to ask for the batch that is being formed again: infinity if there is none, `A_TURN_LATER` if it
            waits for the loop to be idle.
    """

    def __init__(self, batching: Batching, take: Callable[[float], Flight | None]) -> None:
        self.closes = inf
        self._max_size = batching.max_size
        self._linger = seconds(batching.linger)
        self._take = take
        self._batch: dict[Flight, None] = {}
        self._turns = 0

    def __len__(self) -> int:
        """How many elements wait."""
        return len(self._batch)

    def turned(self) -> None:
        """The loop has turned, and nothing new has come."""
        self._turns += 1

    def leave(self, flight: Flight) -> None:
        """The element has ended, at its deadline or abandoned: it waits here no more, if it did."""
        self._batch.pop(flight, None)

    def fill(self, now: float) -> None:
        """Take what there is, as long as there is room in the batch."""
        batch = self._batch
        while len(batch) < self._max_size and (flight := self._take(now)) is not None:
            if not batch:
                self.closes = now + self._linger if self._linger else A_TURN_LATER
            self._turns = 0
            batch[flight] = None
        if not batch:
            self.closes = inf

    def batch(self, now: float, hurry: Callable[[], bool]) -> list[Flight] | None:
        """Take what there is, and give the batch if it is to be called now.

        Args:
            hurry: whether it makes no sense to wait for more.
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
