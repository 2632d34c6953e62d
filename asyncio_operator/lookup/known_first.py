"""Asks places behind for known answers before calls are made: a `Source` in front of another one.

Its elements are keys that are in no memory of this task and that no running call will answer. It asks for them in
groups, without a lane and without a call. A key with a known answer gets its outcome here. The others go on to their
calls. So sharing (law L2) covers the question too, and a lookup without such answers has none of this in its way.

Laws: an answer that is known is not called for. No call is made while its answer could not be noted. A refresh that
another worker does already is dropped, and the key keeps its old answer. What `KnownAnswers` raises ends the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Protocol, cast

from asyncio_operator.engine.contracts import Source
from asyncio_operator.engine.ending import close_within, error_of
from asyncio_operator.engine.flights import Call, Flight, Run
from asyncio_operator.engine.flights import Owner as Elements
from asyncio_operator.engine.timing import start_task
from asyncio_operator.lookup.known import HELD, KnownAnswers
from asyncio_operator.lookup.pending import PendingKey, PendingKeys
from asyncio_operator.state.cells import ABSENT

QUESTIONS = 2
"""Groups that are asked for at a time: the next one is on its way while an answer is read."""

ENOUGH = 100
"""Keys that wait for a call, at most those of one group. While there are more, no further key is asked for: the calls
decide the pace."""


class Owner(Elements, Protocol):
    """Holds keys that wait for their first call."""

    def found(self, positions: Sequence[Any], answers: Sequence[Any], source: str) -> None:
        """These keys have known answers."""


Piece = tuple[Owner, Sequence[Any]]


class KnownFirst:
    """A `Source` that asks for known answers before it hands out elements.

    Args:
        source: of the elements.
        known: asked one after the other, each for what those before it do not know.
        news: called when an element may be taken.
        fail: called with an error that ends the run.
    """

    direct = False

    def __init__(
        self,
        source: Source,
        known: Sequence[KnownAnswers],
        pending: PendingKeys,
        news: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._source = source
        self._known = known
        self._pending = pending
        self._news = news
        self._fail = fail
        # What needs a call: refreshes, and keys of which `_waiting` is the number.
        self._old: deque[PendingKey] = deque()
        self._unknown: deque[Piece] = deque()
        self._waiting = 0
        self._questions: dict[asyncio.Task[None], None] = {}
        self._held_up: asyncio.Task[None] | None = None
        self._context = copy_context()

    @property
    def waiting(self) -> int:
        return self._source.waiting + len(self._old) + self._waiting + len(self._questions)

    @property
    def over(self) -> bool:
        return self._source.over and not (self._old or self._waiting or self._questions)

    def take(self, now: float) -> Flight | None:
        self.prepare(now)
        return self._old.popleft() if self._old and self._has_room() else None

    def take_run(self, most: int, now: float) -> Run | None:
        self.prepare(now)
        if not self._unknown or not self._has_room():
            return None
        owner, positions = self._unknown.popleft()
        some, rest = positions[:most], positions[most:]
        if rest:
            self._unknown.appendleft((owner, rest))
        self._waiting -= len(some)
        return Run((owner, some))

    def window(self, trouble: object) -> None:
        """None: it is not direct."""

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        return self._source.store(call, results, now)

    def _has_room(self) -> bool:
        """Whether the next call may be made. If not, it is waited for."""
        for known in self._known:
            if not known.has_room:
                if self._held_up is None:
                    self._held_up = start_task(known.room(), self._context.copy())
                    self._held_up.add_done_callback(self._goes_on)
                return False
        return True

    def _goes_on(self, waiting: asyncio.Task[None]) -> None:
        self._held_up = None
        self._answered(waiting)

    def prepare(self, now: float) -> None:
        while len(self._questions) < QUESTIONS:
            most = min([one.most for one in self._known])
            if len(self._old) + self._waiting >= min(most, ENOUGH):
                return
            if old := self._refreshes(now, most):
                self._start(self._renew(old))
            elif pieces := self._group(now, most):
                self._start(self._find(pieces))
            else:
                return

    def is_full(self) -> bool:
        return not (self._old or self._waiting or self._questions) and self._source.is_full()

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._source.wait(news)

    async def close(self, seconds: float) -> BaseException | None:
        """Stop asking, and write what was noted, within `seconds`. Returns the error of that."""
        for question in (*self._questions, self._held_up):
            if question is not None:
                question.cancel()
        names = " and ".join(one.source for one in self._known)
        return await close_within(f"the answers of the {names}", self._flush, seconds)

    async def _flush(self) -> None:
        # Side by side: each may take all of the time.
        errors = await asyncio.gather(*(error_of(one.flush) for one in self._known))
        for error in filter(None, errors):
            raise error

    # -- questions

    def _refreshes(self, now: float, most: int) -> list[PendingKey]:
        flights: list[PendingKey] = []
        while len(flights) < most and (flight := self._source.take(now)) is not None:
            flights.append(cast("PendingKey", flight))
        return flights

    def _group(self, now: float, most: int) -> list[Piece]:
        """Keys for the next question."""
        pieces: list[Piece] = []
        while most > 0 and (run := self._source.take_run(most, now)) is not None:
            pieces += cast("Sequence[Piece]", run.pieces)
            most -= len(run)
        return pieces

    def _start(self, asking: Any) -> None:
        question = start_task(asking, self._context.copy())
        self._questions[question] = None
        question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[None]) -> None:
        self._questions.pop(question, None)
        if question.cancelled():
            return
        if (error := question.exception()) is not None:
            self._fail(error)
        self._news()

    async def _find(self, pieces: list[Piece]) -> None:
        for known in self._known:
            answers = await known.find(Run(*pieces).values())
            pieces = self._left(pieces, answers, known.source)
            if not pieces:
                return
        self._unknown.extend(pieces)
        self._waiting += sum([len(positions) for _, positions in pieces])

    def _left(self, pieces: list[Piece], answers: Sequence[Any], source: str) -> list[Piece]:
        """Give keys their known answers. Returns the others."""
        left: list[Piece] = []
        start = 0
        for owner, positions in pieces:
            some = answers[start : start + len(positions)]
            start += len(positions)
            hits = [i for i, answer in zip(positions, some, strict=True) if answer is not ABSENT]
            if hits:
                owner.found(hits, [answer for answer in some if answer is not ABSENT], source)
                self._count(source, len(hits))
                positions = [i for i, answer in zip(positions, some, strict=True) if answer is ABSENT]
            if positions:
                left.append((owner, positions))
        return left

    def _count(self, source: str, hits: int) -> None:
        figures = self._pending.figures
        if source == "cache":
            figures.cache_hits += hits
        else:
            figures.journal_hits += hits

    async def _renew(self, flights: list[PendingKey]) -> None:
        for known in self._known:
            answers = await known.renew([flight.value for flight in flights])
            flights = [
                flight
                for flight, answer in zip(flights, answers, strict=True)
                if not self._ended(flight, answer, known.source)
            ]
        self._old.extend(flights)

    def _ended(self, flight: PendingKey, answer: Any, source: str) -> bool:
        """Give a flight its outcome, if there is an answer."""
        # A row may wait for a refresh: the old answer has expired meanwhile, so this worker has to call too.
        if answer is ABSENT or (answer is HELD and flight.awaited):
            return False
        if answer is HELD:
            self._pending.drop(flight)
        else:
            if source == "cache":
                self._pending.figures.cache_hits += flight.awaited
            else:
                self._pending.figures.journal_hits += flight.awaited
            self._pending.found(flight, answer, source)
        return True
