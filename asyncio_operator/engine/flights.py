"""Elements from admission to their end, and the calls made for them.

An element may need several calls, and with batches a call serves several elements. Only trouble makes objects: the
elements of a first call are a `Run`, and each gets a `Flight` when the call fails, is late, or is made a second time.
Times are in seconds, and this module reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncio_operator.budget.usage import Hint, Weights

SLACK = 1e-6
"""Seconds by which a deadline may be missed through rounding: a call's limit and an element's deadline are sums and
differences of the same times."""


class Flight:
    """An element in flight.

    Attributes:
        entry: gets its outcome; in the operator, its place in the queue. None: the flight itself does.
        number: of the record, in the order of the input.
        admitted: when it came in.
        attempts: those that have ended in failure.
        deadline: when it has to end; known from the start of its first attempt, infinity before.
        begun: when its present attempt started, or None before the first.
        call: the one that runs for it, unless it is past its limit.
        ended: whether it has an outcome, or no caller wants one any more.
        started: when its first attempt started.
        wakes: when its timer rings, while it waits for its next attempt, or for a place in a call; else infinity.
        split: whether it waits for a call as part of a batch that failed.
        held: whether its next attempt waits until a call that was cut has returned.
        late: calls for it that run on though they are past their limit, or not needed.
        copies: calls for it that were second ones, made while the first was running.
    """

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
        "wakes",
    )

    def __init__(self, entry: Any, value: Any, number: int, admitted: float, attempts: int) -> None:
        self.entry = entry
        self.value = value
        self.number = number
        self.admitted = admitted
        self.attempts = attempts
        self.deadline = inf
        self.begun: float | None = None
        self.started = 0.0
        self.wakes = inf
        self.split = False
        self.held = False
        self.late = 0
        self.copies = 0
        self.ended = False
        self.call: Call | None = None

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for its outcome."""
        return True

    def limit(self, attempt_timeout: float) -> float:
        """Its deadline, or the end of its attempt."""
        if attempt_timeout == inf:
            return self.deadline
        return min(self.deadline, (self.begun or 0.0) + attempt_timeout)


class Owner(Protocol):
    """Holds elements that wait for their first call, at positions.

    Attributes:
        eager: whether they need flights from the start: each of them is traced, or may be abandoned.
    """

    eager: bool

    def values(self, positions: Sequence[Any]) -> Sequence[Any]:
        """What these elements are called with."""

    def flights(self, positions: Sequence[Any]) -> Sequence[Flight]:
        """A flight for each of them, which gets its outcome."""


class Run:
    """Elements that go into their first call together: some of an owner, or of several."""

    __slots__ = ("_count", "pieces")

    def __init__(self, *pieces: tuple[Owner, Sequence[Any]]) -> None:
        self.pieces = pieces
        self._count = sum([len(positions) for _, positions in pieces])

    def __len__(self) -> int:
        return self._count

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """The elements of several runs."""
        return runs[0] if len(runs) == 1 else cls(*[piece for run in runs for piece in run.pieces])

    @property
    def eager(self) -> bool:
        return any(owner.eager for owner, _ in self.pieces)

    def values(self) -> Sequence[Any]:
        if len(self.pieces) == 1:
            owner, positions = self.pieces[0]
            return owner.values(positions)
        first, *others = [owner.values(positions) for owner, positions in self.pieces]
        if hasattr(first, "joined"):
            return first.joined(others)  # type: ignore[no-any-return]
        return [*first, *(value for values in others for value in values)]

    def flights(self) -> list[Flight]:
        return [flight for owner, positions in self.pieces for flight in owner.flights(positions)]


class Reports(Protocol):
    """Takes what calls say of themselves."""

    def on_loop(self, report: Callable[..., None], *arguments: Any) -> None:
        """Call it on the thread of the loop."""

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None: ...


class Ticket:
    """A call that was let start. Under a budget, `usage` finds it in the context of the call, and reports to it.

    What a thread reports before it ends comes to the loop before its result does.

    Attributes:
        weights: what it is estimated to weigh.
        started, age, judged: see `Limits`.
        over: whether it has returned.
        settled: what it has turned out to weigh, as far as the call has said.
        billed: whether its source bills it, as far as the call or its error has said; None if neither has.
    """

    age = 0.0
    judged = over = False
    settled: dict[str, float] | None = None
    billed: bool | None = None

    def __init__(self, gate: Reports, weights: Weights, started: float) -> None:
        self._gate = gate
        self.weights = weights
        self.started = started

    def settle(self, weights: Weights) -> None:
        self._gate.on_loop(self._settle, weights)

    def bill(self, whether: bool) -> None:
        self._gate.on_loop(self._bill, whether)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        self._gate.on_loop(self._gate.hint, limits, retry_after)

    def _settle(self, weights: Weights) -> None:
        if self.over:
            return
        settled = self.settled = self.settled or {}
        for unit, amount in weights.items():
            settled[unit] = settled.get(unit, 0.0) + amount

    def _bill(self, whether: bool) -> None:
        if not self.over:
            self.billed = whether or bool(self.billed)


class Call:
    """A call for one element, or for the elements of a batch.

    Args:
        elements: their flights, or a run of elements that have none yet.

    Attributes:
        run: the elements while none of them has a flight; then None.
        flights: the elements, in the order of the values that it is called with. Reading it makes them.
        deadline: of the elements of a run, whose first attempt is this call.
        late: those that have left it, at their deadlines, while it runs on.
        half: whether it belongs to an attempt that has begun: it is a part of a batch that failed, or the copy of a
            slow call.
        started: when it started.
        weights: under a budget, what it is estimated to weigh; None before that is known.
        ticket: of the gate, from its start on.
        http_status: of its answer, if that is asked for and the call has said it.
    """

    __slots__ = (
        "_flights",
        "deadline",
        "half",
        "http_status",
        "late",
        "run",
        "started",
        "ticket",
        "weights",
    )

    def __init__(self, elements: list[Flight] | Run, half: bool = False) -> None:
        self.run: Run | None = None
        self._flights: list[Flight] = []
        if isinstance(elements, Run):
            self.run = elements
        else:
            self._flights = elements
        self.deadline: float | None = None
        self.late: dict[Flight, None] = {}
        self.half = half
        self.started = 0.0
        self.weights: Weights | None = None
        self.ticket: Ticket | None = None
        self.http_status: int | None = None

    @property
    def flights(self) -> list[Flight]:
        if self.run is not None:
            run, self.run = self.run, None
            self._flights = run.flights()
            if self.deadline is not None:
                for flight in self._flights:
                    flight.begun = flight.started = self.started
                    flight.deadline, flight.call = self.deadline, self
        return self._flights

    @flights.setter
    def flights(self, flights: list[Flight]) -> None:
        self._flights = flights

    @property
    def count(self) -> int:
        """The number of its elements."""
        return len(self._flights if self.run is None else self.run)

    @property
    def values(self) -> Sequence[Any]:
        """What its elements are called with."""
        return [flight.value for flight in self._flights] if self.run is None else self.run.values()

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for one of its elements."""
        return self.run is not None or any(flight.awaited for flight in self._flights)

    @property
    def is_first(self) -> bool:
        """Whether no call has failed for its elements before."""
        return not self.half and (self.run is not None or not any(flight.attempts for flight in self._flights))

    def limit(self, attempt_timeout: float) -> float:
        """When it has to be looked at: the first deadline of its elements, or the end of their attempt."""
        if self.run is not None:
            assert self.deadline is not None
            return min(self.deadline, self.started + attempt_timeout)
        present = self.present
        if len(present) == 1:
            return present[0].limit(attempt_timeout)
        return min([flight.limit(attempt_timeout) for flight in present])

    @property
    def present(self) -> list[Flight]:
        """The elements that it may still give an outcome."""
        return [flight for flight in self.flights if flight not in self.late] if self.late else self.flights
