"""Elements from admission to their end, and the calls made for them.

An element may need several calls, and with batches a call serves several elements. Only trouble makes objects: the
elements of a first call are positions of an owner, and each gets a `Flight` when the call fails, is late, or is made a
second time. Times are in seconds, and this module reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from asyncio_operator.telemetry.annotations import HTTP_STATUS

if TYPE_CHECKING:
    from asyncio_operator.quota.usage import Hint, Weights
    from asyncio_operator.telemetry.annotations import Attributes

SLACK = 1e-6
"""Seconds by which a deadline may be missed through rounding: a call's limit and an element's deadline are sums and
differences of the same times."""


class Flight:
    """An element in flight."""

    __slots__ = (
        "admitted",
        "attempts",
        "begun",
        "call",
        "copies",
        "deadline",
        "ended",
        "entry",
        "held",
        "late",
        "number",
        "split",
        "started",
        "value",
        "waiters",
        "wakes",
    )

    def __init__(self, entry: Any, value: Any, admitted: float, attempts: int = 0) -> None:
        self.entry = entry  # Gets its outcome; in the operator, its place in the queue. None: the flight itself does.
        self.value = value
        self.number = 0  # Of the record, in the order of the input, if there is a trace.
        self.admitted = admitted  # When it came in.
        self.attempts = attempts  # Those that have ended in failure.
        self.deadline = inf  # When it has to end; known from the start of its first attempt, infinity before.
        self.begun: float | None = None  # When its present attempt started, or None before the first.
        self.started = 0.0  # When its first attempt started.
        # When its timer rings, while it waits for its next attempt, or for a place in a call; else infinity.
        self.wakes = inf
        self.split = False  # Whether it waits for a call as part of a batch that failed.
        self.held = False  # Whether its next attempt waits until a call that was cut has returned.
        self.late = 0  # Calls for it that run on though they are past their limit, or not needed.
        self.copies = 0  # Calls for it that were second ones, made while the first was running.
        self.ended = False  # Whether it has an outcome, or no caller wants one any more.
        self.call: Call | None = None  # The one that runs for it, unless it is past its limit.
        # Those that get its outcome too, by ``waiter.answer(position, outcome)``, each with its position.
        self.waiters: list[tuple[Any, Any]] = []

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for its outcome."""
        return self.entry is not None or bool(self.waiters)

    def limit(self, attempt_timeout: float) -> float:
        """Its deadline, or the end of its attempt."""
        if attempt_timeout == inf:
            return self.deadline
        return min(self.deadline, (self.begun or 0.0) + attempt_timeout)


class Owner(Protocol):
    """Holds elements that wait for their first call, at positions."""

    def values(self, positions: Sequence[Any]) -> Sequence[Any]:
        """What these elements are called with."""

    def flights(self, positions: Sequence[Any]) -> Sequence[Flight]:
        """A flight for each of them, which gets its outcome."""


Piece = tuple[Owner, Sequence[Any]]  # An owner, and positions of elements in it.


def joined(pieces: Sequence[Any]) -> Sequence[Any]:
    """Values that come in pieces, of Python or in Arrow, one after the other."""
    first, *others = pieces
    if others and hasattr(first, "joined"):
        return first.joined(others)  # type: ignore[no-any-return]
    return [value for values in pieces for value in values] if others else first


class Call:
    """A call for one element, or for those of a batch. It is what the gate lets start, and hears of.

    Under a budget `usage` finds it in the context of the call, and reports to it. What a thread reports before it ends
    comes to the loop before its result does.

    Args:
        elements: their flights, or pieces of owners: elements that have no flights yet.

    Attributes:
        pieces: the elements while none of them has a flight; then empty.
        flights: the elements, in the order of the values that it is called with. Reading it makes them.
        deadline: of the elements in pieces, whose first attempt is this call.
        late: those that have left it, at their deadlines, while it runs on.
        half: whether it belongs to an attempt that has begun: it is a part of a batch that failed, or the copy of a
            slow call.
        counted: whether its elements are among those that the schedule knows.
        started: when it started.
        gate: that has let it start.
        let_start, age: when that was, by the time of the loop, and by the clock of the circuit breaker.
        running: whether the gate waits for its end.
        judged: whether the limits know how it has ended.
        refusal: why it may not start, if a budget has said so already.
        weights: under a budget, what it is estimated to weigh; None before that is known.
        settled: what it has turned out to weigh, as far as the call has said.
        billed: whether its source bills it, as far as the call or its error has said; None if neither has.
        http_status: of its answers, as far as that is asked for and the call has said it; None if they differ.
    """

    # Not set in `__init__`: a call for one key is made in a third of the time.
    deadline: float | None = None
    late: Mapping[Flight, None] = MappingProxyType({})
    counted = True
    started = let_start = age = 0.0
    gate: Any = None
    running = judged = False
    refusal: BaseException | None = None
    weights: Weights | None = None
    settled: dict[str, float] | None = None
    billed: bool | None = None
    _statuses: frozenset[Any] = frozenset()

    def __init__(self, elements: list[Flight] | tuple[Piece, ...], half: bool = False) -> None:
        self.half = half
        self.pieces: tuple[Piece, ...] = ()
        self._flights: list[Flight] = []
        if type(elements) is tuple:
            self.pieces = elements
        else:
            self._flights = elements  # type: ignore[assignment]

    @property
    def flights(self) -> list[Flight]:
        if self.pieces:
            self.make_flights()
        return self._flights

    @flights.setter
    def flights(self, flights: list[Flight]) -> None:
        self._flights = flights

    def make_flights(self) -> None:
        """Give the elements in pieces a flight each."""
        pieces, self.pieces = self.pieces, ()
        self._flights = [flight for owner, positions in pieces for flight in owner.flights(positions)]
        if self.deadline is not None:
            for flight in self._flights:
                flight.begun = flight.started = self.started
                flight.admitted = min(flight.admitted, self.started)
                flight.deadline, flight.call = self.deadline, self

    @property
    def count(self) -> int:
        """The number of its elements."""
        pieces = self.pieces
        if len(pieces) == 1:
            return len(pieces[0][1])
        return sum([len(positions) for _, positions in pieces]) if pieces else len(self._flights)

    @property
    def values(self) -> Sequence[Any]:
        """What its elements are called with."""
        if not self.pieces:
            return [flight.value for flight in self._flights]
        return joined([owner.values(positions) for owner, positions in self.pieces])

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for one of its elements."""
        return bool(self.pieces) or any(flight.awaited for flight in self._flights)

    @property
    def is_first(self) -> bool:
        """Whether no call has failed for its elements before."""
        return not self.half and (bool(self.pieces) or not any(flight.attempts for flight in self._flights))

    def limit(self, attempt_timeout: float) -> float:
        """When it has to be looked at: the first deadline of its elements, or the end of their attempt."""
        present = self.present
        if len(present) == 1:
            return present[0].limit(attempt_timeout)
        return min([flight.limit(attempt_timeout) for flight in present])

    @property
    def present(self) -> list[Flight]:
        """The elements that it may still give an outcome."""
        return [flight for flight in self.flights if flight not in self.late] if self.late else self.flights

    # -- what it says of itself

    def note(self, attributes: Attributes) -> None:
        if HTTP_STATUS in attributes:
            self._statuses |= {attributes[HTTP_STATUS]}

    @property
    def http_status(self) -> int | None:
        status = next(iter(self._statuses)) if len(self._statuses) == 1 else None
        return status if type(status) is int else None

    def settle(self, weights: Weights) -> None:
        self.gate.on_loop(self._settle, weights)

    def bill(self, whether: bool) -> None:
        self.gate.on_loop(self._bill, whether)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        self.gate.on_loop(self.gate.hint, limits, retry_after)

    def _settle(self, weights: Weights) -> None:
        if self.running:
            self.settled = settled = self.settled or {}
            for unit, amount in weights.items():
                settled[unit] = settled.get(unit, 0.0) + amount

    def _bill(self, whether: bool) -> None:
        if self.running:
            self.billed = whether or bool(self.billed)
