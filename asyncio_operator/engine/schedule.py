"""Which elements go into the next call, and when a batch is called.

First the halves of a batch that failed, then elements that are due again, then new ones. A batch is called when it is
full, old enough, or no other element can join it (law B1). Law: an element that has ended, or has left its half of a
batch, goes into no call. This module reads no clock: it is given the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from asyncio_operator.checks import seconds
from asyncio_operator.engine.contracts import Source
from asyncio_operator.engine.flights import Call, Flight
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
        # A dict, because an element may leave at any moment and the others keep their order.
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
            # Its age is that of its first element: the wait of each has a limit, however many follow.
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


class Lineup:
    """The elements that wait for a call.

    Args:
        retrying: whether an element may come back for another attempt.

    Attributes:
        unfinished: number of elements that were handed out and have not ended.
    """

    def __init__(self, source: Source, batching: Batching | None, retrying: bool) -> None:
        self.unfinished = 0
        self._source = source
        self._retrying = retrying
        self._due: deque[Flight] = deque()
        self._halves: deque[Call] = deque()
        self._former = None if batching is None else BatchFormer(batching, self._take)

    @property
    def over(self) -> bool:
        """Whether no element is left and none can come."""
        return self._source.over and not self.unfinished and not self._source.waiting

    @property
    def forming(self) -> bool:
        """Whether a batch is being formed."""
        return self._former is not None and len(self._former) > 0

    def ended(self, flight: Flight) -> None:
        """The element has an outcome, or is abandoned. It goes into no further call."""
        flight.ended = True
        flight.split = False
        self.unfinished -= 1
        if flight.call is None and self._former is not None:
            self._former.leave(flight)

    def again(self, flight: Flight) -> None:
        """The element is due for its next attempt."""
        self._due.append(flight)

    def split(self, flights: list[Flight]) -> None:
        """Call the halves of a batch that has failed."""
        middle = len(flights) // 2
        for half in (flights[:middle], flights[middle:]):
            for flight in half:
                flight.split = True
            self._halves.append(Call(half, half=True))

    def next_call(self, now: float, running: int) -> tuple[Call | None, float]:
        """A call that may start now, or None, and when to ask again (see `BatchFormer.closes`).

        Args:
            running: number of running calls, including those past their limit.
        """
        # Halves go first: they belong to an attempt whose limit is running.
        while self._halves:
            half = self._halves.popleft()
            # An element that reached its limit while it waited has left its half.
            half.flights = [flight for flight in half.flights if flight.split]
            for flight in half.flights:
                flight.split = False
            if half.flights:
                return half, inf
        if self._former is None:
            one = self._take(now)
            return (None if one is None else Call([one])), inf
        batch = self._former.batch(now, lambda: self._nobody_can_join(running))
        return (None if batch is None else Call(batch)), self._former.closes

    def prepare(self, now: float) -> None:
        """No call may start now. Prepare elements for the next one."""
        if self._former is None:
            self._source.prepare(now)
        else:
            self._former.fill(now)

    def turned(self) -> None:
        """The loop has turned without a new element."""
        if self._former is not None:
            self._former.turned()

    def _take(self, now: float) -> Flight | None:
        # Before new elements: one that is due has a place in the buffer, and in ordered mode holds back those behind
        # it.
        while self._due:
            flight = self._due.popleft()
            if not flight.ended:
                return flight
        new = self._source.take(now)
        if new is not None:
            self.unfinished += 1
        return new

    def _nobody_can_join(self, running: int) -> bool:
        """Whether no other element can join the batch that is being formed."""
        if self._source.is_full():
            return True
        # An element that was handed out and does not wait here may come back for another attempt, or free a key.
        elsewhere = self.unfinished > len(self._former or ())
        coming_back = elsewhere and self._retrying
        # In key-ordered mode an element may wait for its key: another element occupies it, or a call that still runs
        # although its element has ended.
        getting_its_key = self._source.waiting and (elsewhere or running)
        return self._source.over and not coming_back and not getting_its_key
