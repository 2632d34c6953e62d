"""The keys of a partition on their way to calls: a `Source` of keys, as far as the delivery has room.

A batch of keys is opened when it is read: keys that a place knows, or that calls for earlier batches will answer, need
no call (laws L1, L2). For the others places behind are asked (`asking`). Where a call takes one key, the open batch is
the window that the lanes share: a key costs one step of an iterator and one store in a list. Limits are asked at that
step, and a window ends while its next key has to wait for them. So it is also where keys stay in Arrow, in slices: no
key has an object, is shared with another batch, or is remembered, because to ask a table in memory again costs less.
Otherwise the keys are cut into runs for the calls: a run costs one step for all of its keys, and its results are stored
at once. Only a call in trouble gives its keys a flight each (`open_keys`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from asyncio_operator.engine.flights import Call
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.window import CallWindow
from asyncio_operator.lookup.asking import Asking, Piece
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import PENDING, Ascent, Failure, KeyBatch, shared
from asyncio_operator.lookup.open_keys import OpenKey, PendingKeys, weights_of

if TYPE_CHECKING:
    from asyncio_operator.lookup.known import KnownAnswers
    from asyncio_operator.lookup.options import LookupOptions


class OpenBatch(CallWindow):
    """A batch whose keys, or those at some positions, wait for outcomes: an `Owner` of positions, and a window of the
    lanes if the source is direct.

    Args:
        positions: those of the keys to call for, ascending.

    Attributes:
        missing: the number of keys without an outcome, as far as is known: it does not count the results of a window
            that is not over.
        entered: names of its keys in the table of open keys.
        followers: batches that wait for outcomes of this one, with the positions of their keys, there and here.
    """

    def __init__(self, batch: KeyBatch, positions: Sequence[int], source: KeySource) -> None:
        gate, final = source.attempts.gate, not (source.judges or source.slices)
        # A place keeps what calls have weighed.
        plain = final and not (source.timed or gate.listens or (gate.weighs and source.keeps))
        super().__init__(self, source.attempts, plain, final)
        self.batch = batch
        self.positions = positions
        self.missing = len(positions)
        self.entered: Sequence[Any] = ()
        self.followers: list[tuple[OpenBatch, list[tuple[int, int]]]] = []
        self.eager = source.eager
        # If nothing keeps the result of a plain call, the lane stores it.
        self.results = batch.outcomes if self._plain and not source.keeps else None
        # Results that have come and that no place has learnt, by slot, and the seconds of their calls. An object for
        # each would start the garbage collector, which walks through all that a cache holds.
        self._come: dict[Any, Any] = {}
        self._latencies: list[float] = []
        self.complete: Callable[[Any, Any, float], object] = source.attempts.complete
        if self.final:
            self.complete = self.arrived if self._plain else self._arrived_heard
        self._now = source.attempts.now
        self._source = source
        self._next = 0
        self._passed = 0
        # The keys of the windows that are not over, and the calls of the present one.
        self._admitted: Sequence[int] = ()
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())
        self._troubled: set[int] = set()

    @property
    def is_cut(self) -> bool:
        """Whether all of its keys are in runs."""
        return self._next == len(self.positions)

    def enter(self, running: dict[Any, Any]) -> None:
        """Enter the keys that are called for in the table of open keys."""
        names, outcomes = self.batch.names, self.batch.outcomes
        # Answers of runs are remembered as they come, those of a window when it is over.
        if not self._source.direct:
            names = [names[i] for i in self.positions if outcomes[i] is PENDING]
        elif len(self.positions) < len(names):
            names = [names[i] for i in self.positions]
        self.entered = names
        running.update(dict.fromkeys(names, self))

    def cut(self, most: int) -> Sequence[int]:
        """The positions of the next run."""
        start = self._next
        self._next = min(start + most, len(self.positions))
        return self.positions[start : self._next]

    def passed(self, ordered: bool) -> int:
        """The number of keys, since the last call, before the next one to be called for. A key whose outcome is known
        takes no room before one that is before it: in order it cannot leave first, and would hold its room for ever. In
        any order it leaves first."""
        before, total = self._passed, len(self.batch.keys)
        if not ordered:
            self._passed = total - len(self.positions) + self._next
        else:
            self._passed = total if self.is_cut else self.positions[self._next]
        return self._passed - before

    def values(self, positions: Sequence[int]) -> Sequence[Any]:
        keys: Any = self.batch.keys
        if type(positions) is range:
            return keys[positions.start : positions.stop]  # type: ignore[no-any-return]
        return keys.at(positions) if self.batch.in_arrow else [keys[i] for i in positions]

    def flights(self, positions: Sequence[int]) -> list[OpenKey]:
        self._troubled.update(positions)
        return [
            self._source.pending.want(key, self, i) for key, i in zip(self.values(positions), positions, strict=True)
        ]

    def store(self, positions: Sequence[int], outcomes: Sequence[Any]) -> None:
        """These keys have their outcomes."""
        self.batch.store(positions, outcomes)
        self._answered(len(positions))

    def answer(self, position: int, outcome: Any) -> None:
        """One key has its outcome."""
        self.batch.outcomes[position] = outcome
        self._answered(1)

    def found(self, positions: Sequence[int], answers: Sequence[Any], source: str) -> None:
        """These keys are known in a place behind."""
        pending = self._source.pending
        if self.eager:
            for flight, answer in zip(self.flights(positions), answers, strict=True):
                pending.found(flight, answer, source)
            return
        keys = self.values(positions)
        self.store(positions, pending.places.found(keys, answers, source))
        for key in keys:
            pending.places.refresh_if_old(key)

    def _answered(self, count: int) -> None:
        self.missing -= count
        if not self.missing:
            self._source.answered(self)

    # -- batches that wait for keys of this one

    def waits_for(self, name: Any, answered: bool = False) -> bool:
        """Whether the outcome of a key is to come, or, if `answered`, whether it is not a failure."""
        outcome = self.batch.outcomes[self.batch.places[name]]
        return outcome is PENDING or (answered and type(outcome) is not Failure)

    def pass_on(self) -> None:
        """Give those that wait the outcomes that have come."""
        outcomes = self.batch.outcomes
        followers, self.followers = self.followers, []
        for follower, pairs in followers:
            come = [pair for pair in pairs if outcomes[pair[1]] is not PENDING]
            if len(come) < len(pairs):
                self.followers.append((follower, [pair for pair in pairs if outcomes[pair[1]] is PENDING]))
            if come:
                found = self.batch.found([place for _, place in come])
                follower.store([i for i, _ in come], found if hasattr(found, "table") else list(map(shared, found)))

    # -- the window of the lanes

    def admit(self, positions: Sequence[int]) -> None:
        """Open the window for these keys."""
        self._admitted = [*self._admitted, *positions] if self._admitted else positions
        size = self._source.slices
        slots: Any = [positions[i : i + size] for i in range(0, len(positions), size)] if size else positions
        # `zip` takes a position before its key, so `_left` always knows how many keys no lane has taken.
        self._left = iter(slots)
        values = map(self.values, slots) if size else self.values(positions)
        self._range = zip(self._left if self._plain else map(self._call, self._left), values, strict=False)

    def _call(self, slot: Any) -> Call:
        """The call for a key, or for a slice."""
        call = Call(((self, slot if self._source.slices else (slot,)),))
        call.counted = False
        if self.eager:
            call.make_flights()
        return call

    def left_over(self) -> int:
        """The number of calls of the present window that no lane has taken."""
        # The iterator that the lanes share knows it, so that no key has to be counted.
        return int(self._left.__length_hint__())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.let_start(self._with_room() if self._source.known else self._range)

    def _with_room(self) -> Iterator[tuple[Any, Any]]:
        """The calls that may be made now, as long as their answers can be kept."""
        left, has_room = self._left.__length_hint__, self._source.has_room
        while left() and has_room():
            yield next(self._range)

    def hold(self, slot: Any, refusal: BaseException | None) -> Call:
        # It counts again when it starts, and has its outcome when that has come, and not with its window.
        self._source.pending.figures.calls -= 1
        if not self.eager:
            self._troubled.update(slot.pieces[0][1] if type(slot) is Call else (slot,))
        return super().hold(slot, refusal)

    def arrived(self, slot: Any, result: Any, started: float) -> None:
        """A result has come that is kept. Places learn it with all others of this turn of the loop."""
        self._come[slot] = result
        self._latencies.append(self._now() - started)
        if self._source.pending.places.survives:
            self._source.settle_one(self)
        elif len(self._latencies) == 1:
            asyncio.get_running_loop().call_soon(self._source.settle_one, self, context=self._source.context)

    def _arrived_heard(self, call: Call, result: Any, started: float) -> None:
        """The same, where a limit hears of the call, or the outcome says how long it took."""
        self.attempts.gate.ended(call, self._now())
        self.arrived(call, result, started)

    def learn(self) -> list[tuple[Any, Any, float]]:
        """Store and keep the results that have come. Returns those that are no outcomes, with the slots and the seconds
        of their calls."""
        come, latencies, self._come, self._latencies = self._come, self._latencies, {}, []
        if not come or self._learnt(list(come), list(come.values()), latencies):
            return []
        # Each by itself: the others are kept before the first wrong one may end the run.
        each = zip(come, come.values(), latencies, strict=True)
        return [one for one in each if not self._learnt([one[0]], [one[1]], [one[2]])]

    def _learnt(self, slots: list[Any], results: list[Any], latencies: list[float]) -> bool:
        """Store and keep these results, or none of them, if one of them is no outcome."""
        positions, about = slots, list[Any]()
        if not self._plain:
            positions = [call.pieces[0][1][0] for call in slots]
            weights = list(map(weights_of, slots)) if self._source.keeps else repeat(None)
            about = [weights, [call.http_status for call in slots]]
        outcomes = self._source.pending.outcomes(self.values(positions), results, latencies, *about)
        if outcomes is not None:
            self.batch.store(positions, outcomes)
        return outcomes is not None

    def settle(self) -> None:
        """The same, and end the keys whose results are no outcomes."""
        for slot, result, latency in self.learn():
            call = self._call(slot) if self._plain else slot
            self.attempts.begun(call, self._now() - latency)
            for flight in call.flights:
                cast("OpenKey", flight).latency = latency
            self.attempts.complete_each(call, (result,), (True,))

    def value_of(self, slot: Any) -> Any:
        return self.batch.keys[slot] if self._plain else slot.values[0]

    def left(self) -> None:
        if self.left_over():
            return
        self.settle()
        answered, self._admitted = self._admitted, ()
        if self._troubled:
            answered = [i for i in answered if i not in self._troubled]
        if answered and self.results is not None:
            outcomes = self.batch.outcomes
            whole = len(answered) == len(outcomes)
            some = outcomes if whole else [outcomes[i] for i in answered]
            keys = self.batch.keys if whole else self.values(answered)
            self._source.pending.places.learn(keys, some, some)
        if answered:
            self._answered(len(answered))


class KeySource(Asking):
    """Hands out keys, in runs or in windows, and flights of refreshes; a `Source`.

    Args:
        eager: each key gets a flight, because each is traced.
        slices: keys stay in Arrow, and this many go into a call; 0: keys are Python's.

    Attributes:
        timed: whether outcomes say how long their calls took (`Answer`).
        judges: whether a result may not be the last one of its key, or its key needs a flight.
        remembers: whether answers that have come are used again.
    """

    alone = False
    keyed = None

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        pending: PendingKeys,
        known: Sequence[KnownAnswers],
        options: LookupOptions,
        *,
        eager: bool,
        direct: bool,
        slices: int,
    ) -> None:
        super().__init__(pending, known)
        self.delivery = delivery
        delivery.settle = self._settle
        self.eager = eager
        self.direct = direct
        self.slices = slices
        self.timed = options.timed
        self.judges = options.judges or options.hedge is not None or eager
        self.keeps = pending.places.keeps
        self.remembers = bool(options.remember)
        self._reader = reader
        self._current: OpenBatch | None = None
        self._window: OpenBatch | None = None
        # In the order of the input; those whose keys no other batch has looked for; those whose end is reported now.
        self._opened: dict[OpenBatch, None] = {}
        self._apart: dict[OpenBatch, None] = {}
        self._ended: deque[OpenBatch] = deque()
        # As long as keys ascend, none is open already.
        self._ascent = Ascent()

    @property
    def over(self) -> bool:
        if not self._reader.over or self._current is not None or self.waiting:
            return False
        # A key that a lane calls for may need another attempt.
        return not self.direct or not self._opened

    @property
    def left_over(self) -> int:
        """The number of calls in the window that no lane has taken."""
        return 0 if self._window is None else self._window.left_over()

    def window(self) -> OpenBatch | None:
        window = self._window
        if not self.left_over:
            piece = self.next_piece(sys.maxsize) if self.direct else None
            if piece is None:
                return None
            if self.known:
                # The next answers come while these keys are called for.
                self.ask()
            window = self._window = piece[0]
            assert window is not None
            window.admit(piece[1])
            self.pending.figures.calls += self.left_over
        return window if self.has_room() else None

    def take_run(self, most: int, now: float) -> Call | None:
        if (flight := self.next_flight()) is not None:
            return Call([flight])
        piece = None if self.direct else self.next_piece(most)
        return None if piece is None else Call((piece,))

    def prepare(self, now: float) -> None:
        if self.known:
            self.ask()
        else:
            self._read()

    def stop(self) -> None:
        """There is nothing to do."""

    def cut(self, most: int) -> Piece | None:
        self._read()
        current = self._current
        if current is None:
            return None
        # Keys in Arrow take no memory of their own.
        room = len(current.positions) if self.slices else self.delivery.room()
        if room <= 0:
            return None
        positions = current.cut(min(most, room))
        self._pass(current)
        return current, positions

    def _read(self) -> None:
        """Read the input until there is a key to cut off."""
        while self._current is None and self.delivery.takes_a_batch():
            batch = self._reader.read()
            if batch is NOTHING:
                return
            self._open(batch)

    def _open(self, batch: KeyBatch) -> None:
        places = self.pending.places
        current = OpenBatch(batch, places.recall(batch), self)
        earlier = () if self.slices else self._share(current)
        self.delivery.take(batch)
        self._current = current
        self._opened[current] = self._apart[current] = None
        if places.refreshes:
            # A refresh looks for open keys too.
            self._enter()
        self._pass(current)
        if not current.missing:
            self.answered(current)
        for opened in earlier:
            opened.pass_on()

    def _share(self, current: OpenBatch) -> Iterable[OpenBatch]:
        """Let keys wait that are open already. Returns the batches for whose outcomes they wait."""
        batch = current.batch
        if self._ascent.add(batch.keys, batch.ascending):
            return ()
        self._enter()
        names, running = batch.names, self.pending.running
        following: dict[OpenBatch, list[int]] = {}
        if running and not running.keys().isdisjoint(names):
            left: list[int] = []
            for i in current.positions:
                present = running.get(names[i])
                if isinstance(present, OpenBatch) and present.waits_for(names[i], self.remembers):
                    following.setdefault(present, []).append(i)
                # A refresh of a key whose old answer has expired meanwhile.
                elif not isinstance(present, OpenKey) or not self.pending.join(names[i], current, i):
                    left.append(i)
            for one, some in following.items():
                pairs = batch.shared_with(one.batch, some)
                one.followers.append((current, pairs))
                self.pending.figures.shared += len(pairs)
                if len(pairs) < len(some):
                    left = sorted({*left, *some} - {i for i, _ in pairs})
            current.positions = left
        return following

    def _enter(self) -> None:
        """Enter the open keys in the table."""
        for opened in self._apart:
            opened.enter(self.pending.running)
        self._apart.clear()

    def answered(self, opened: OpenBatch) -> None:
        """All keys of a batch have their outcomes."""
        self._ended.append(opened)
        if len(self._ended) > 1:
            # It has waited for a batch whose outcomes are passed on now.
            return
        running = self.pending.running
        while self._ended:
            one = self._ended[0]
            del self._opened[one]
            self._apart.pop(one, None)
            # Some may be open for another batch by now.
            for name in [name for name in one.entered if running.get(name) is one]:
                del running[name]
            self.delivery.end(one.batch)
            one.pass_on()
            self._ended.popleft()
        if not self._opened:
            self.attempts.news()

    def _settle(self) -> None:
        for opened in [one for one in self._opened if one.followers]:
            opened.pass_on()

    def _pass(self, current: OpenBatch) -> None:
        self.delivery.keys += current.passed(self.delivery.ordered)
        if current.is_cut:
            self._current = None

    def values(self, call: Call) -> Any:
        if not self.slices or call.pieces:
            return call.values
        # A part of a slice in Arrow: Python may not be able to hold its keys.
        waiters = [cast("OpenKey", flight).waiters[0] for flight in call.flights]
        return waiters[0][0].batch.keys.at([position for _, position in waiters])

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        latency = now - call.started
        # A window counts its outcomes when it is over, but for those of calls that had to wait.
        if self.direct and not call.counted:
            ((owner, positions),) = call.pieces
            assert isinstance(owner, OpenBatch)
            self.pending.figures.latency.add_many(latency, call.count)
            if self.slices:
                # No place keeps them: to ask for them again costs less.
                owner.batch.store(positions, results)
            else:
                owner.arrived(call, results[0], call.started)
            return True
        about = repeat(weights_of(call)), repeat(call.http_status)
        outcomes = self.pending.outcomes(call.values, results, repeat(latency), *about)
        if outcomes is None:
            return False
        self.pending.figures.latency.add_many(latency, call.count)
        start = 0
        for owner, positions in call.pieces:
            assert isinstance(owner, OpenBatch)
            stop = start + len(positions)
            some = outcomes if len(call.pieces) == 1 else outcomes[start:stop]
            owner.store(positions, some)
            start = stop
        return True

    def settle_one(self, opened: OpenBatch) -> None:
        try:
            opened.settle()
        except BaseException as error:
            self.attempts.lanes.fail(error)

    async def close(self, seconds: float) -> BaseException | None:
        for opened in self._opened:
            # What was paid for is kept, however the run ends.
            opened.learn()
        return await super().close(seconds)

    def is_full(self) -> bool:
        stuck = self.delivery.room() <= 0 or (self._current is None and not self.delivery.takes_a_batch())
        return stuck and not self.asked

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self.delivery.wait(news)
