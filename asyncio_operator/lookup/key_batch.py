"""Batches of keys, the outcome of each key, and when they leave.

A `KeyBatch` holds the distinct keys of one batch of rows and, by position, their outcomes. An outcome is the plain
answer, an `Answer` if the caller wants its source and latency, a `Failure`, or still `PENDING`. Answers of many keys in
columns are kept as they came, and their keys have no object each (`IN_COLUMNS`).

Batches leave in order, or as they end, and in parts if a key is slow (`Delivery`). A batch is delivered when all its
keys have an outcome. A part of it is delivered earlier if that part has been ready for a while, or if its room is
needed. `buffer` bounds the memory in two ways: the keys that are looked up and not yet emitted, and the rows. But
`BATCHES` batches may always be in the pipeline, or it would run empty between them.

Law: an outcome is written once. This module knows neither calls nor threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, repeat
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from asyncio_operator.engine.timing import wake

if TYPE_CHECKING:
    from asyncio_operator.arrow.column_answers import Piece
    from asyncio_operator.arrow.key_index import ArrowKeys
    from asyncio_operator.engine.timers import Timers

BATCHES = 4
"""Batches that may be in the pipeline whatever their size: one is emitted, one waits for a slow key, two are in
flight."""

FLUSH = 0.1  # Seconds after which the ready outcomes of an incomplete batch are delivered: half of what law X9 allows.
STARVED_FLUSH = 0.005  # The same while calls wait for the room that this makes: many times the cost of a search.

PENDING: Any = object()  # The placeholder of an outcome that has not arrived yet.
IN_COLUMNS: Any = object()  # An outcome that is in the columns of its batch.


@dataclass(slots=True, eq=False)
class Answer:
    """An answer and where it came from (call, cache, shared, stale, journal)."""

    answer: Any
    source: str  # "call", "cache", "shared", "stale" or "journal".
    attempts: int  # Number of calls made for it, retries and second calls included; 0 if nothing was called.
    latency: float | None  # Seconds that they took, waits between them included; None if nothing was called.
    error: BaseException | None = None  # With source "stale", the error of the failed lookup.
    http_status: int | None = None  # Of the last answer of its call, if the enricher has said it.


TURNS = count()  # Numbers what comes, in its order.


class Calls(NamedTuple):
    """What is known of the calls that have given the answers of some keys."""

    attempts: int = 1  # The calls that each answer took.
    latencies: Iterable[float] = repeat(0.0)  # Seconds of the last of them.
    # Under a budget, what each key weighed beside its call, by unit.
    weights: Iterable[Mapping[str, float] | None] = repeat(None)
    http_statuses: Iterable[int | None] = repeat(None)  # See `Answer`.
    # How many answers had come in all, a number of `TURNS` and when that was, in the time of the places, for each time
    # at which some came; None: all of them now.
    came: Sequence[tuple[int, int, float]] | None = None
    names: Sequence[int] | None = None  # Of the keys, as batches have them; None: places have to find them.


ONE_CALL = Calls()  # Nothing is known of the calls but that each answer took one.


@dataclass(slots=True, eq=False)
class Failure:
    """The outcome of a key whose lookup failed.

    Attributes:
        error: the error of the lookup.
        traceback: the original traceback of the error. Raising the error for a waiter adds to the error's own one.
        timed_out: whether the key passed its deadline.
        source, attempts, latency: see `Answer`.
    """

    error: BaseException
    latency: float | None
    timed_out: bool = False
    attempts: int = 1
    source: str = "call"
    traceback: TracebackType | None = field(init=False)
    http_status: ClassVar[None] = None

    def __post_init__(self) -> None:
        self.traceback = self.error.__traceback__

    def __repr__(self) -> str:
        return f"Failure({self.error!r}, {self.source}, after {self.attempts} attempts)"


def shared(outcome: Any) -> Any:
    """The outcome of a lookup, marked as shared, for waiters that did not ask first."""
    if type(outcome) is Answer:
        return Answer(outcome.answer, "shared", outcome.attempts, outcome.latency, outcome.error, outcome.http_status)
    if type(outcome) is Failure:
        return Failure(outcome.error, outcome.latency, outcome.timed_out, outcome.attempts, "shared")
    return outcome


def answer_of(outcome: Any) -> Any:
    """What a lookup returned. The object is the same for all who share it."""
    return outcome.answer if type(outcome) is Answer else outcome


class Ascent:
    """Whether keys ascend from batch to batch, as in a table that is sorted by its key: then none has come before."""

    def __init__(self) -> None:
        self.goes_on = True
        self._greatest: Any = None  # None before the first

    def add(self, batch: KeyBatch) -> None:
        """The batch comes next: its keys go on to ascend only if they are greater than all before."""
        keys = batch.keys
        if self.goes_on and len(keys):
            self.goes_on = batch.ascending and (self._greatest is None or bool(keys[0] > self._greatest))
            self._greatest = keys[-1] if self.goes_on else None
        batch.ascending = self.goes_on


class KeyBatch:
    """The distinct keys of a batch of rows.

    Args:
        keys: in the order of their first row.
        rows: number of rows that have these keys.
        payload: the rows themselves. This class does not read them.

    Attributes:
        ascending: whether every key is known to be greater than the one before; once the batch was read, also than all
            keys of earlier ones.
        delivered: number of leading keys that have been delivered (in unordered mode: number of keys).
        ended: whether every key has an outcome.
        known: number of keys whose outcome was set before the batch was read.
        objects: the keys as Python has them.
    """

    def __init__(self, keys: ArrowKeys, rows: int, payload: Any = None, ascending: bool = False) -> None:
        self.keys = keys
        self.ascending = ascending
        self.rows = rows
        self.payload = payload
        self.outcomes: list[Any] = [PENDING] * len(keys)
        self.delivered = 0
        self.ended = False
        self.known = 0
        self._pieces: list[Piece] = []

    @cached_property
    def objects(self) -> list[Any]:
        return list(self.keys)

    def store(self, positions: Sequence[int], answers: Any, reports: Sequence[Any] | None = None) -> None:
        """These keys have their answers, or their outcomes.

        Args:
            reports: their outcomes, of which the answers in columns are `IN_COLUMNS`.
        """
        outcomes = reports or answers
        if hasattr(answers, "table"):
            # First: another thread reads outcomes.
            self._pieces.append(answers.piece(positions))
            outcomes = reports or [IN_COLUMNS] * len(answers)
            if hasattr(positions, "tolist"):
                # They ascend, so one step does for those that follow each other. To read an array number by number
                # takes several times as long.
                first, last = int(positions[0]), int(positions[-1])
                follow = last - first + 1 == len(positions)
                positions = range(first, last + 1) if follow else positions.tolist()
        mine = self.outcomes
        if type(positions) is range:
            mine[positions.start : positions.stop] = outcomes
        else:
            for i, outcome in zip(positions, outcomes, strict=True):
                mine[i] = outcome

    def found(self, positions: Sequence[int] | None = None) -> Sequence[Any]:
        """The outcomes of the keys at some positions; None: of all. `ColumnAnswers` if all answers are in columns."""
        outcomes, pieces = self.outcomes, self._pieces
        if positions is not None:
            outcomes = [outcomes[i] for i in positions]
        if not pieces:
            return outcomes
        # Imported here: it loads pyarrow, which made these answers.
        from asyncio_operator.arrow.column_answers import joined

        places, in_columns = pieces[0]
        count = len(self.keys)
        # One call for all keys may have found rows of a large table, which are not to be copied.
        if type(places) is not slice or places.stop - places.start < count:
            in_columns = joined(pieces, count, positions)
        if positions is not None:
            in_columns = in_columns.at(positions).compact()
        if outcomes.count(IN_COLUMNS) == len(outcomes) or all(answer_of(one) is IN_COLUMNS for one in outcomes):
            return in_columns
        return [
            one if answer_of(one) is not IN_COLUMNS else replace(one, answer=row) if type(one) is Answer else row
            for one, row in zip(outcomes, in_columns, strict=True)
        ]

    def ready(self) -> int:
        """The number of leading keys that all have an outcome."""
        outcomes = self.outcomes
        for i in range(self.delivered, len(outcomes)):
            if outcomes[i] is PENDING:
                return i
        return len(outcomes)

    def answered(self) -> int:
        """The number of keys that have an outcome."""
        return sum([outcome is not PENDING for outcome in self.outcomes])


class Delivery:
    """The batches in the pipeline.

    Args:
        deliver: called with a batch and the number of its leading keys that are ready (in unordered mode: of all keys
            that are ready). ``batch.ended`` marks the last delivery of a batch.
        timers: of the run.
    """

    def __init__(self, deliver: Callable[[KeyBatch, int], None], timers: Timers, *, ordered: bool, buffer: int) -> None:
        self.batches: deque[KeyBatch] = deque()  # Batches that have not ended, in the order of the input.
        self.keys = 0  # Number of keys that have been admitted and not emitted.
        self.settle: Callable[[], None] = lambda: None  # Called before ready outcomes are searched.
        self._deliver = deliver
        self.ordered = ordered  # Whether keys leave in the order of the input.
        self._buffer = buffer
        self._handed = 0
        self._rows = 0
        self._count = 0
        self._room: asyncio.Future[None] | None = None
        self._timers = timers
        self._searching = False

    def room(self) -> int:
        """The number of keys that may still be admitted."""
        return self._buffer - self.keys

    def takes_a_batch(self) -> bool:
        """Whether another batch may be read."""
        return self._count < BATCHES or self._rows < self._buffer

    def take(self, batch: KeyBatch, ends: bool) -> None:
        """A batch has been read, which ends at once or not."""
        self.batches.append(batch)
        self._count += 1
        self._rows += batch.rows
        if not (ends or self._searching):
            self.flush()

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future. New room completes it too."""
        self._room = news
        try:
            # Law X9 gives ready rows some time to leave in whole batches; calls that wait for their room do not have
            # it.
            if self._stuck():
                self.flush()
            await news
        finally:
            self._room = None

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """The consumer has passed on the rows of `keys` keys and, if `batch` is given, all of that batch."""
        self.keys -= keys
        self._handed -= keys
        if batch is not None:
            self._rows -= batch.rows
            self._count -= 1
        wake(self._room)

    def end(self, batch: KeyBatch) -> None:
        """Every key of the batch has an outcome."""
        # `flush` may have seen the last outcome first.
        if batch.ended:
            return
        batch.ended = True
        if not self.ordered:
            self.batches.remove(batch)
            self._hand_over(batch, len(batch.keys))
            return
        while self.batches and self.batches[0].ended:
            first = self.batches.popleft()
            self._hand_over(first, len(first.keys))

    def flush(self) -> None:
        """Deliver all ready outcomes, of incomplete batches too, and do it again after a delay."""
        self.close()
        self.settle()
        # A copy, because a batch that ends here leaves the deque.
        for batch in list(self.batches):
            ready = batch.ready() if self.ordered else batch.answered()
            if ready == len(batch.keys):
                self.end(batch)
                continue
            if ready > batch.delivered:
                self._hand_over(batch, ready)
            # In order, no row of a later batch may leave before the rest of this one.
            if self.ordered:
                break
        self._searching = bool(self.batches)
        if self._searching:
            wait = STARVED_FLUSH if self._stuck() else FLUSH
            self._timers.remind(self.flush, self._timers.clock() + wait)

    def close(self) -> None:
        """Stop searching for ready outcomes."""
        self._searching = False
        self._timers.remind(self.flush, inf)

    def _hand_over(self, batch: KeyBatch, ready: int) -> None:
        self._handed += ready - batch.delivered
        batch.delivered = ready
        self._deliver(batch, ready)

    def _stuck(self) -> bool:
        """Whether calls wait for room and the consumer has nothing to do: only a part of a batch can then make room."""
        waits = self._room is not None and not self._room.done()
        return waits and self._handed <= 0 and (self.room() <= 0 or not self.takes_a_batch())
