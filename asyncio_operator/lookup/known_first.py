"""Asks for known answers before calls are made: a `Source` in front of another one.

Its flights are keys that are in no memory of this task and that no running call will answer. It asks for them in
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
from typing import Any, cast

from asyncio_operator.engine.contracts import Source
from asyncio_operator.engine.ending import close_within, error_of
from asyncio_operator.engine.flights import Flight
from asyncio_operator.engine.timing import start_task
from asyncio_operator.lookup.known import HELD, KnownAnswers
from asyncio_operator.lookup.pending import PendingKey, PendingKeys
from asyncio_operator.state.cells import ABSENT

QUESTIONS = 2
"""Groups that are asked for at a time: the next one is on its way while an answer is read."""

ENOUGH = 100
"""Keys that wait for a call, at most those of one group. While there are more, no further key is asked for: the calls
decide the pace."""


class KnownFirst:
    """A `Source` that asks for known answers before it hands out flights.

    Args:
        source: makes the flights.
        known: asked one after the other, each for what those before it do not know.
        news: called when a flight may be taken.
        fail: called with an error that ends the run.
    """

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
        # All flights that were taken from the source and not handed out, and those of them that need a call.
        self._flights: set[Flight] = set()
        self._unknown: deque[Flight] = deque()
        self._questions: dict[asyncio.Task[None], None] = {}
        self._held_up: asyncio.Task[None] | None = None
        self._context = copy_context()

    @property
    def waiting(self) -> int:
        return self._source.waiting + len(self._flights)

    @property
    def over(self) -> bool:
        return self._source.over and not self._flights

    def take(self, now: float) -> Flight | None:
        self.prepare(now)
        while self._unknown and self._has_room():
            flight = self._unknown.popleft()
            if flight in self._flights:
                self._flights.remove(flight)
                return flight
        return None

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
            if len(self._unknown) >= min(most, ENOUGH):
                return
            flights = self._group(now, most)
            if not flights:
                return
            self._flights.update(flights)
            for refreshing in (False, True):
                some = [one for one in flights if one.refreshing is refreshing]
                if some:
                    self._start(some, refreshing)

    def is_full(self) -> bool:
        return not self._flights and self._source.is_full()

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self._source.wait(news)

    def abandon(self, flight: Flight) -> bool:
        """Forget a flight. Returns False if it was handed out already."""
        if flight not in self._flights:
            return False
        self._flights.remove(flight)
        flight.ended = True
        return True

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

    def _group(self, now: float, most: int) -> list[PendingKey]:
        """Keys for the next questions."""
        flights: list[PendingKey] = []
        while len(flights) < most and (flight := self._source.take(now)) is not None:
            flights.append(cast("PendingKey", flight))
        return flights

    def _start(self, flights: list[PendingKey], refreshing: bool) -> None:
        question = start_task(self._ask(flights, refreshing), self._context.copy())
        self._questions[question] = None
        question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[None]) -> None:
        self._questions.pop(question, None)
        if question.cancelled():
            return
        if (error := question.exception()) is not None:
            self._fail(error)
        self._news()

    async def _ask(self, flights: list[PendingKey], refreshing: bool) -> None:
        for known in self._known:
            keys = [flight.value for flight in flights]
            answers = await (known.renew(keys) if refreshing else known.find(keys))
            flights = [
                flight
                for flight, answer in zip(flights, answers, strict=True)
                if flight in self._flights and not self._ended(flight, answer, known.source)
            ]
            if not flights:
                return
        self._unknown.extend(flights)

    def _ended(self, flight: PendingKey, answer: Any, source: str) -> bool:
        """Give a flight its outcome, if there is an answer."""
        # A row may wait for a refresh: the old answer has expired meanwhile, so this worker has to call too.
        if answer is ABSENT or (answer is HELD and flight.awaited):
            return False
        self._flights.remove(flight)
        if answer is HELD:
            self._pending.drop(flight)
        else:
            if source == "cache":
                self._pending.figures.cache_hits += flight.awaited
            else:
                self._pending.figures.journal_hits += flight.awaited
            self._pending.found(flight, answer, source)
        return True
