"""The keys of a partition on their way to calls: a `Source` of keys, as far as the delivery has room.

A batch of keys is opened when it is read: keys that a place knows, or that calls for earlier batches will answer, need
no call (laws L1, L2). For the others places behind are asked (`asking`). Where a call takes one key, the open batch is
the window that the lanes share: a key costs one step of an iterator and one store in a list. Limits are asked at that
step, and a window ends while its next key has to wait for them. So it is also where keys stay in Arrow, in slices: no
key has an object, is shared with another batch, or is remembered, because to ask a table in memory again costs less.
Otherwise the keys are cut into runs for the calls: a run costs one step for all of its keys, and its results are stored
at once. Only a call in trouble gives its keys a flight each (`pending`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, cast

from asyncio_operator.budget.usage import ONE, Weights, running
from asyncio_operator.engine.contracts import Trouble
from asyncio_operator.engine.flights import Call, Flight, Ticket
from asyncio_operator.engine.gate import REFUSALS, REFUSED, Gate
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.timing import COARSEST
from asyncio_operator.lookup.asking import AskingSource, Piece
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import PENDING, Answer, Ascent, Failure, KeyBatch, shared
from asyncio_operator.lookup.open_keys import OpenKey
from asyncio_operator.lookup.pending import PendingKeys, weights_of

if TYPE_CHECKING:
    from asyncio_operator.lookup.known import KnownAnswers
    from asyncio_operator.lookup.options import LookupOptions


class OpenBatch:
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

    instant = True

    def __init__(self, batch: KeyBatch, positions: Sequence[int], source: KeySource) -> None:
        self.batch = batch
        self.positions = positions
        self.missing = len(positions)
        self.entered: Sequence[Any] = ()
        self.followers: list[tuple[OpenBatch, list[tuple[int, int]]]] = []
        self.eager = source.eager
        self.working = 0
        self._gate = gate = source.gate
        # The gate, if it has to hear how calls end.
        self._heard = gate if gate is not None and gate.hears else None
        plain = not (source.judges or source.keeps or source.slices or self._heard)
        self.results: list[Any] | None = batch.outcomes if plain else None
        self.begin = None if plain else self._begin
        self._source = source
        self._trouble: Trouble
        self._next = 0
        self._passed = 0
        # The keys of the windows that are not over, and the calls of the present one.
        self._admitted: Sequence[int] = ()
        self._slots: Sequence[Any] = ()
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())
        # When each call started, or its ticket.
        self._started: dict[Any, Any] = {}
        # What the gate has said of the call for the next key: since when it may start, or that it never may.
        self._let_at = inf
        self._refusal: BaseException | None = None
        self._not_before = -inf
        self._weights: Weights | None = None if gate is None else gate.one
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
            pending.found(self.flights(positions), answers, source)
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

    def admit(self, positions: Sequence[int], trouble: Trouble) -> None:
        """Open the window for these keys."""
        self._trouble = trouble
        self._admitted = [*self._admitted, *positions] if self._admitted else positions
        size = self._source.slices
        slots: Any = [positions[i : i + size] for i in range(0, len(positions), size)] if size else positions
        # `zip` takes a position before its key, so `_left` always knows how many keys no lane has taken.
        self._slots, self._left = slots, iter(slots)
        self._range = zip(self._left, map(self.values, slots) if size else self.values(positions), strict=False)

    def left_over(self) -> int:
        """The number of calls of the present window that no lane has taken."""
        # The iterator that the lanes share knows it, so that no key has to be counted.
        return int(self._left.__length_hint__())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        calls = self._range if self._gate is None else self._let_start(self._gate)
        return self._with_room(calls) if self._source.known else calls

    def _with_room(self, calls: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """The calls that may be made now, as long as their answers can be kept."""
        while self.left_over() and self._source.has_room() and (call := next(calls, None)) is not None:
            yield call

    def next_start(self, gate: Gate, now: float) -> float:
        """When the call for the next key may start, or is refused. A budget is asked once for each start."""
        self._refusal = None
        start = max(gate.next_start(now), self._not_before)
        if start <= now and gate.hears:
            try:
                if self._weights is None:
                    place = self._slots[len(self._slots) - self.left_over()]
                    self._weights = gate.weights(1, lambda: [self.batch.keys[place]])
                start = gate.admit(self._weights, now)
            except REFUSED as error:
                self._refusal = error
        self._let_at = now if start <= now else inf
        return start

    def _let_start(self, gate: Gate) -> Iterator[tuple[Any, Any]]:
        """The keys whose calls the gate lets start now. Those that it refuses fail."""
        left, take, hears, refused = self._left.__length_hint__, self._range.__next__, gate.hears, 0
        while left():
            if self._let_at == inf and self.next_start(gate, now := gate.now()) > now:
                return
            now, self._let_at = self._let_at, inf
            slot, value = take()
            weights, self._weights = self._weights or ONE, gate.one
            if self._refusal is not None:
                # It counts as a failed attempt, so retries and back-off bridge an open circuit.
                self._source.pending.figures.calls -= 1
                self._trouble.fail([self._in_trouble(slot, now)], self._refusal, now)
                refused += 1
                if refused == REFUSALS:
                    self._not_before = now + COARSEST
                    return
                continue
            if hears:
                self._started[slot] = gate.started(weights, now)
            else:
                gate.start_unheard(now)
            yield slot, value

    def _begin(self, slot: Any, started: float) -> float:
        if self._heard is None:
            self._started[slot] = started
        elif self._heard.weighs:
            running.set(self._started[slot])
        return self._source.limit

    def complete(self, slot: Any, result: Any) -> None:
        """A result that is judged, or kept, at once, or those of a slice."""
        source, trouble, started = self._source, self._trouble, self._started.pop(slot)
        now, ticket = trouble.now(), None
        if self._heard is not None:
            ticket = started
            self._heard.ended(ticket, now)
            started = ticket.started
        if source.slices:
            if len(slot) > 1:
                trouble.answered_together()
            source.pending.figures.latency.add_many(now - started, len(slot))
            self.batch.store(slot, result)
            return
        key, answer, status = self.batch.keys[slot], result, None
        if type(result) is Answer:
            answer, status = result.answer, result.http_status
        if source.judges and not trouble.is_satisfied(key, answer):
            trouble.unsatisfied(self._judged(slot, started, status, ticket), answer, now)
        elif not source.keeps:
            source.pending.figures.latency.add(now - started)
            self.batch.outcomes[slot] = result
        elif (
            outcomes := source.pending.outcomes((key,), (answer,), now - started, weights_of(ticket, 1), status)
        ) is not None:
            self.batch.outcomes[slot] = outcomes[0]
        else:
            trouble.satisfied(self._judged(slot, started, status, ticket), answer, now)

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        self.returned(slot, error)
        flights: list[Flight] = [self._in_trouble(i, started) for i in self._positions(slot)]
        self._trouble.failed(flights, error, self._trouble.now())

    def timed_out(self, slot: Any, started: float) -> None:
        if self._heard is not None:
            self._heard.judge(self._started[slot], self._trouble.now(), TimeoutError())
        for i in self._positions(slot):
            self._trouble.pass_limit(self._in_trouble(i, started), self._trouble.now())

    def _positions(self, slot: Any) -> Sequence[int]:
        return slot if self._source.slices else (slot,)

    def _in_trouble(self, slot: int, started: float) -> OpenKey:
        """A flight for a key whose first call has not given its outcome."""
        flight = self._source.pending.want(self.batch.keys[slot], self, slot)
        self._troubled.add(slot)
        self._trouble.begun(flight, started)
        return flight

    def _judged(self, slot: int, started: float, status: int | None, ticket: Ticket | None) -> OpenKey:
        """The same, where the call has given an answer."""
        flight = self._in_trouble(slot, started)
        flight.call = Call([flight])
        flight.call.http_status, flight.call.ticket = status, ticket
        return flight

    def returned(self, slot: Any, error: BaseException | None) -> None:
        """The keys have ended, or wait for their next attempts."""
        started = self._started.pop(slot, None)
        if self._heard is not None:
            self._heard.ended(started, self._heard.now(), error)

    def value_of(self, slot: Any) -> Any:
        return self.batch.keys[self._positions(slot)[0]]

    def left(self) -> None:
        if self.left_over():
            return
        answered, self._admitted = self._admitted, ()
        if self._troubled:
            answered = [i for i in answered if i not in self._troubled]
        if answered and not (self._source.keeps or self._source.slices):
            outcomes = self.batch.outcomes
            whole = len(answered) == len(outcomes)
            some = outcomes if whole else [outcomes[i] for i in answered]
            keys = self.batch.keys if whole else self.values(answered)
            self._source.pending.places.learn(keys, some, some, 1, 0.0)
        if answered:
            self._answered(len(answered))


class KeySource(AskingSource):
    """Hands out keys, in runs or in windows, and flights of refreshes; a `Source`.

    Args:
        known: see `AskingSource`.
        eager: each key gets a flight, because each is traced.
        direct: see `Source`.
        slices: keys stay in Arrow, and this many go into a call; 0: keys are Python's.
        keeps: whether each answer is kept at once, in a cache or a journal.
        refreshes: whether old answers are refreshed in the background.

    Attributes:
        limit: seconds that a first call may take.
        judges: whether a result may not be the last one of its key.
        remembers: whether answers that have come are used again.
    """

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
        keeps: bool,
        refreshes: bool,
    ) -> None:
        super().__init__(pending, known)
        self.delivery = delivery
        delivery.settle = self._settle
        self.eager = eager
        self.direct = direct
        self.slices = slices
        self.limit = min(options.timeout or inf, options.attempt_timeout or inf)
        self.judges = options.retry is not None and options.retry.if_result is not None
        self.keeps = keeps
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
        self._refreshes = refreshes

    @property
    def gate(self) -> Gate | None:
        """Lets calls of its windows start; None: nothing limits them."""
        gate = self.attempts.gate
        return gate if gate.limits else None

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

    def window(self, trouble: Trouble) -> OpenBatch | float | None:
        window, gate = self._window, self.gate
        if not self.left_over:
            piece = self.next_piece(sys.maxsize) if self.direct else None
            if piece is None:
                return None
            window = self._window = piece[0]
            assert window is not None
            window.admit(piece[1], trouble)
            self.pending.figures.calls += self.left_over
        if window is None or not self.has_room():
            return None
        if gate is None:
            return window
        now = trouble.now()
        start = window.next_start(gate, now)
        return window if start <= now else start

    def cut(self, most: int) -> Piece | None:
        self.read()
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

    def read(self) -> None:
        while self._current is None and self.delivery.takes_a_batch():
            batch = self._reader.read()
            if batch is NOTHING:
                return
            self._open(batch)

    def _open(self, batch: KeyBatch) -> None:
        places = self.pending.places
        current = OpenBatch(batch, range(len(batch.keys)) if self.slices else places.recall(batch), self)
        earlier = () if self.slices else self._share(current)
        self.delivery.take(batch)
        self._current = current
        self._opened[current] = self._apart[current] = None
        if self._refreshes:
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
        if not running.keys().isdisjoint(names):
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
        self.delivery.admit(current.passed(self.delivery.ordered))
        if current.is_cut:
            self._current = None

    def in_arrow(self, call: Call) -> Any:
        """The keys of a part of a slice in Arrow: Python may not be able to hold them."""
        waiters = [cast("OpenKey", flight).waiters[0] for flight in call.flights]
        return waiters[0][0].batch.keys.at([position for _, position in waiters])

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        run = call.run
        assert run is not None
        latency, weights = now - call.started, weights_of(call.ticket, call.count)
        outcomes = self.pending.outcomes(run.values(), results, latency, weights, call.http_status)
        if outcomes is None:
            return False
        start = 0
        for owner, positions in run.pieces:
            assert isinstance(owner, OpenBatch)
            stop = start + len(positions)
            owner.store(positions, outcomes if len(run.pieces) == 1 else outcomes[start:stop])
            start = stop
        return True

    def is_full(self) -> bool:
        stuck = self.delivery.room() <= 0 or (self._current is None and not self.delivery.takes_a_batch())
        return stuck and not self.asked

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self.delivery.wait(news)
