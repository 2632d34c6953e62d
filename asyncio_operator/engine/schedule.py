"""Which elements go into the next call, and when a batch is called.

First calls that are formed and wait: what a budget does not admit yet, and the halves of a batch that failed. Then
elements that are due again, then new ones. A batch is called when it is full, old enough, or no other element can join
it (law B1). Where a budget is scarce, calls that no caller waits for, such as refreshes of a cache, go last. Law: an
element that has ended, or has left its half of a batch, goes into no call. This module reads no clock: it is given the
time.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from asyncio_operator.checks import seconds
from asyncio_operator.engine.contracts import Source
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.policies.batching import Batching

IDLE_TURNS = 10
"""With ``linger=0``, the loop counts as idle after this many turns without a new element. An element of an asynchronous
input takes a few turns."""

A_TURN_LATER = -inf  # Used instead of a time: after the next turn of the loop.


class Schedule:
    """The elements that wait for a call.

    Args:
        retrying: whether an element may come back for another attempt.
    """

    def __init__(self, source: Source, batching: Batching | None, retrying: bool) -> None:
        self.unfinished = 0  # Number of elements that were handed out and have not ended.
        # When to ask again for the batch that is being formed: infinity if there is none, `A_TURN_LATER` if the batch
        # waits for an idle loop.
        self.closes = inf
        self._source = source
        self._retrying = retrying
        self.due: deque[Flight] = deque()  # Elements that wait for their next attempt to start.
        self.formed: deque[Call] = deque()  # Calls that wait, and go first.
        # First calls for one element that wait for a limit: after those, and before new elements (law R8).
        self.held: deque[Call] = deque()
        # Calls that a budget did not admit, and that no caller waits for.
        self._unawaited: deque[Call] = deque()
        self._batched = batching is not None
        self._max_size = 1 if batching is None else batching.max_size
        self._linger = 0.0 if batching is None else seconds(batching.linger)
        # The batch that is being formed: flights, and calls for elements without. A dict, because an element with a
        # flight may leave at any moment, and the others keep their order.
        self._batch: dict[Flight | Call, None] = {}
        self.forming = 0  # Number of elements in the batch that is being formed.
        self.turns = 0  # Of the loop without a new element.

    @property
    def over(self) -> bool:
        """Whether no element is left and none can come."""
        return self._source.over and not self.unfinished and not self._source.waiting

    @property
    def is_due(self) -> bool:
        """Whether elements wait for a call that goes before those of new ones."""
        return bool(self.due or self.formed or self.held)

    def count(self, call: Call) -> None:
        if not call.counted:
            call.counted = True
            self.unfinished += call.count

    def ended(self, flight: Flight) -> None:
        """The element has an outcome, or is abandoned. It goes into no further call."""
        flight.ended = True
        flight.split = False
        self.unfinished -= 1
        if flight in self._batch:
            del self._batch[flight]
            self.forming -= 1

    def split(self, flights: list[Flight]) -> None:
        """Call the halves of a batch that has failed: what is left of it."""
        for half in filter(None, halves(flights)):
            self.formed.append(Call(half, half=True))
            _mark(half, True)

    def hold(self, call: Call) -> None:
        """The call may not start yet. It is the next one again, with the elements that are still in it by then."""
        calls = self.held if call.is_first and not self._batched else self.formed
        (calls if call.awaited else self._unawaited).appendleft(call)
        if call.half:
            _mark(call.flights, True)

    def prepare(self, now: float) -> None:
        """No call may start now. Prepare elements for the next one."""
        if self._batched:
            self._fill(now)
        else:
            self._source.prepare(now)

    def next_call(self, now: float, running: int) -> tuple[Call | None, float]:
        """A call that may start now, or None, and when to ask again (see `closes`).

        Args:
            running: number of running calls, including those past their limit.
        """
        if self._unawaited:
            # A caller may have begun to wait for one of them.
            calls, self._unawaited = self._unawaited, deque()
            for held in calls:
                (self.formed if held.awaited else self._unawaited).append(held)
        # These go first: halves belong to an attempt whose limit is running.
        call = self._first(self.formed)
        if call is not None:
            return call, inf
        if not self._batched:
            if (call := self._next_due() or self._first(self.held)) is not None:
                return call, inf
            while (call := self._take_run(1, now)) is not None and self._unawaited and not call.awaited:
                self._unawaited.append(call)
            return call or self._first(self._unawaited), inf
        self._fill(now)
        if not self.forming or not self._is_ready(now, running):
            return self._first(self._unawaited), self.closes
        batch, self._batch, self.forming, self.closes = list(self._batch), {}, 0, inf
        runs = [one for one in batch if type(one) is Call]
        if len(runs) == len(batch):
            return runs[0] if len(runs) == 1 else Call(tuple([piece for run in runs for piece in run.pieces])), inf
        flights: list[Any] = []
        for one in batch:
            flights += one.flights if type(one) is Call else (one,)
        return Call(flights), inf

    def _first(self, calls: deque[Call]) -> Call | None:
        """Remove the first call that has elements left."""
        while calls:
            call = calls.popleft()
            if call.pieces:
                return call
            # An element that reached its limit while it waited has left its call.
            present = [flight for flight in call.flights if (flight.split if call.half else not flight.ended)]
            if len(present) < len(call.flights):
                call.flights, call.weights = present, None
            if call.half:
                _mark(present, False)
            if present:
                return call
        return None

    def _fill(self, now: float) -> None:
        """Take available elements while the batch has room."""
        while (room := self._max_size - self.forming) > 0:
            # First one that is due: it has a place in the buffer, and in ordered mode holds back those behind it.
            run = self._next_due() or self._take_run(room, now)
            if run is None:
                break
            # Its age is that of its first element: the wait of each has a limit, however many follow.
            if not self.forming:
                self.closes = now + self._linger if self._linger else A_TURN_LATER
            self.turns = 0
            self._batch.update(dict.fromkeys([run] if run.pieces else run.flights))
            self.forming += run.count
        if not self.forming:
            self.closes = inf

    def _take_run(self, most: int, now: float) -> Call | None:
        run = self._source.take_run(most, now)
        if run is not None:
            self.unfinished += run.count
        return run

    def _next_due(self) -> Call | None:
        while self.due:
            flight = self.due.popleft()
            if not flight.ended:
                return Call([flight])
        return None

    def _is_ready(self, now: float, running: int) -> bool:
        """Whether the batch is full or old enough, or no other element can join it."""
        if self.forming >= self._max_size or self._source.is_full():
            return True
        if now >= self.closes if self._linger else self.turns >= IDLE_TURNS:
            return True
        # An element that was handed out and does not wait here may come back for another attempt, or free a key.
        elsewhere = self.unfinished > self.forming
        coming_back = elsewhere and self._retrying
        # In key-ordered mode an element may wait for its key: another element occupies it, or a call that still runs
        # although its element has ended.
        getting_its_key = self._source.waiting and (elsewhere or running)
        return self._source.over and not coming_back and not getting_its_key


def halves(flights: list[Flight]) -> tuple[list[Flight], list[Flight]]:
    """The first and the second half."""
    middle = len(flights) // 2
    return flights[:middle], flights[middle:]


def _mark(flights: list[Flight], split: bool) -> None:
    for flight in flights:
        flight.split = split
