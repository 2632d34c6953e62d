"""Asks places behind, such as a Redis or a journal, for known answers before keys are handed out to calls.

Keys that are in no place at hand, and that no running call will answer, are asked for in groups, without a lane and
without a call. A key with a known answer gets its outcome here; the others go on to their calls. So sharing (law L2)
covers the question too. Where there is no such place, keys go to their calls at once.

Laws: an answer that is known is not called for. No call is made while its answer could not be noted. A refresh that
another worker does already is dropped, and the key keeps its old answer. What a place raises ends the run.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.timing import close_within, error_of, start_task
from asyncio_operator.lookup.places import HELD
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.engine.attempts import Attempts
    from asyncio_operator.lookup.open_keys import OpenKey, PendingKeys

QUESTIONS = 2  # Groups that are asked for at a time: the next one is on its way while an answer is read.

ENOUGH = 100
"""Keys that wait for a call, at most those of one group. While there are more, no further key is asked for: the calls
decide the pace."""

Piece = tuple[Any, Sequence[Any]]  # An `OpenBatch`, and the positions of some of its keys.


class Asking(ABC):
    """Asks places behind for keys with a flight in the background, and for those that a subclass cuts off open batches,
    which know no more of the pipeline than this.
    """

    attempts: Attempts  # Make the calls for the keys.
    direct: bool  # Whether lanes take keys from windows.
    in_arrow: bool  # Keys go into calls as Arrow has them.
    slices: int  # This many keys of a window go into a call; 0: one, or calls have runs of keys.
    eager: bool  # Each key gets a flight, because each is traced.
    timed: bool  # Whether outcomes say how long their calls took (`Answer`).
    judges: bool  # Whether a result may not be the last one of its key, or its key needs a flight.

    def __init__(self, pending: PendingKeys) -> None:
        self.pending = pending  # Keys that have a flight.
        # The places, asked one after the other, each for what those before it do not know.
        self.known = pending.places.known
        self.keeps = pending.places.keeps  # Whether each answer is kept at once, in a cache or a journal.
        # What needs a call: keys with a flight, and others.
        self._flights: deque[OpenKey] = deque()
        self._unknown: deque[Piece] = deque()
        self._questions: dict[asyncio.Task[None], None] = {}
        self._held_up: asyncio.Task[None] | None = None
        self.context = copy_context()  # That in which the run was started.

    @abstractmethod
    def cut(self, most: int) -> Piece | None:
        """At most `most` keys of batches that no place at hand has, if there are any."""

    @abstractmethod
    def answered(self, opened: Any) -> None:
        """All keys of a batch have their outcomes."""

    @property
    def asked(self) -> int:
        """The number of keys that were asked for here and need a call, and of questions on their way."""
        return len(self._flights) + sum([len(positions) for _, positions in self._unknown]) + len(self._questions)

    @property
    def waiting(self) -> int:
        return len(self.pending.background) + self.asked

    def next_flights(self, most: int) -> list[Flight]:
        """At most `most` keys with a flight that have to be called for, if a call may be made."""
        # They take a place of the capacity like any call, but no room: their keys are not keys of a batch.
        flights = self.pending.background
        some: list[Flight] = []
        if self.known:
            self.ask()
            flights = self._flights
        while flights and len(some) < most and self.has_room():
            if not (flight := flights.popleft()).ended:
                flight.handed = True
                some.append(flight)
        return some

    def next_piece(self, most: int) -> Piece | None:
        """At most `most` keys that have to be called for, if a call may be made."""
        if not self.known:
            return self.cut(most)
        self.ask()
        if not self._unknown or not self.has_room():
            return None
        owner, positions = self._unknown.popleft()
        some, rest = positions[:most], positions[most:]
        if rest:
            self._unknown.appendleft((owner, rest))
        return owner, some

    def has_room(self) -> bool:
        """Whether the next call may be made, because its answer can be kept. If not, room is waited for."""
        for known in self.known:
            if not known.has_room:
                if self._held_up is None or self._held_up.done():
                    self._held_up = start_task(known.room(), self.context.copy())
                    self._held_up.add_done_callback(self._answered)
                return False
        return True

    async def close(self, seconds: float) -> BaseException | None:
        """Stop asking, and write what was learnt, within `seconds`. Returns the error of that."""
        if not self.known:
            return None
        for question in (*self._questions, self._held_up):
            if question is not None:
                question.cancel()
        names = " and ".join(one.source for one in self.known)
        return await close_within(f"the answers of the {names}", self._flush, seconds)

    async def _flush(self) -> None:
        # Side by side: each may take all of the time.
        errors = await asyncio.gather(*(error_of(one.flush) for one in self.known))
        for error in filter(None, errors):
            raise error

    # -- questions

    def ask(self) -> None:
        """Ask for the next keys, if some wait and not too many are known to need a call."""
        while len(self._questions) < QUESTIONS:
            most = min([one.most for one in self.known])
            if self.asked - len(self._questions) >= min(most, ENOUGH):
                return
            background, pieces = self.pending.background, list[Piece]()
            if background:
                asking = self._look([background.popleft() for _ in range(min(most, len(background)))])
            else:
                while most > 0 and (piece := self.cut(most)) is not None:
                    pieces.append(piece)
                    most -= len(piece[1])
                if not pieces:
                    return
                asking = self._find(pieces)
            question = start_task(asking, self.context.copy())
            self._questions[question] = None
            question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[None]) -> None:
        self._questions.pop(question, None)
        if question.cancelled():
            return
        if (error := question.exception()) is not None:
            self.attempts.lanes.fail(error)
        self.attempts.news()

    async def _find(self, pieces: list[Piece]) -> None:
        for known in self.known:
            answers, asked = iter(await known.find(Call(tuple(pieces)).values)), pieces
            pieces = []
            for owner, positions in asked:
                some = list(islice(answers, len(positions)))
                hits, left = [answer is not ABSENT for answer in some], positions
                if any(hits):
                    owner.found(list(compress(positions, hits)), list(compress(some, hits)), known.source)
                    left = [i for i, hit in zip(positions, hits, strict=True) if not hit]
                if left:
                    pieces.append((owner, left))
            if not pieces:
                return
        self._unknown.extend(pieces)

    async def _look(self, flights: Sequence[OpenKey]) -> None:
        """The same for keys with a flight: old answers are to be replaced, others are looked for."""
        for known in self.known:
            for question, refreshing in ((known.find, False), (known.renew, True)):
                some = [flight for flight in flights if flight.refreshing is refreshing and not flight.ended]
                answers = await question([flight.value for flight in some]) if some else ()
                for flight, answer in zip(some, answers, strict=True):
                    if flight.ended:
                        continue
                    if answer is not ABSENT and answer is not HELD:
                        self.pending.found(flight, answer, known.source)
                    elif answer is HELD and not flight.awaited:
                        # A row may wait for it: its old answer has expired meanwhile, so this worker calls for it too.
                        self.pending.end_uncalled(flight, None)
        self._flights.extend([flight for flight in flights if not flight.ended])
