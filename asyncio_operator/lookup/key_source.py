"""The keys of a partition on their way to calls: a `Source` of keys, as far as the delivery has room.

A batch of keys is opened when it is read: keys that a place knows, or that calls for earlier batches will answer, need
no call (laws L1, L2). Where a call takes one key and no place is asked before it, the open batch is the window that the
lanes share: a key costs one step of an iterator and one store in a list. Limits are asked at that step, and a window
ends while its next key has to wait for them. So it is also where keys stay in Arrow, in slices:
no key has an object, is shared with another batch, or is remembered, because to ask a table in memory again costs less.
Otherwise the keys are cut into runs for the calls: a run costs one step for all of its keys, and its results are stored
at once. Only a call in trouble gives its keys a flight each (`pending`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, cast

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.budget.usage import ONE, Weights, running
from asyncio_operator.engine.contracts import Trouble
from asyncio_operator.engine.flights import Call, Flight, Run
from asyncio_operator.engine.gate import REFUSALS, REFUSED, Gate
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.timing import COARSEST
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import PENDING, Answer, KeyBatch
from asyncio_operator.lookup.pending import PendingKey, PendingKeys, weights_of


class OpenBatch:
    """A batch whose keys, or those at some positions, wait for outcomes: an `Owner` of positions, and a window of the
    lanes if the source is direct.

    Args:
        positions: those of the keys to call for, ascending.

    Attributes:
        missing: the number of keys without an outcome, as far as is known: it does not count the results of a window
            that is not over.
    """

    instant = True

    def __init__(self, batch: KeyBatch, positions: Sequence[int], source: KeySource) -> None:
        self.batch = batch
        self.positions = positions
        self.missing = len(positions)
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
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())
        self._over = False
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

    def flights(self, positions: Sequence[int]) -> list[PendingKey]:
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
        keys, pending = self.batch.keys, self._source.pending
        if self.eager:
            for flight, answer in zip(self.flights(positions), answers, strict=True):
                pending.found(flight, answer, source)
            return
        places = pending.places
        outcomes = [places.found(keys[i], answer, source) for i, answer in zip(positions, answers, strict=True)]
        self.store(positions, outcomes)
        for i in positions:
            places.refresh_if_old(keys[i])

    def _answered(self, count: int) -> None:
        self.missing -= count
        if not self.missing:
            self._source.answered(self)

    # -- the window of the lanes

    def admit(self, most: int, trouble: Trouble) -> None:
        """Open the next range of at most `most` keys."""
        self._trouble = trouble
        # `zip` takes a position before its key, so `_left` always knows how many keys no lane has taken.
        positions, size = self.cut(most), self._source.slices
        slots: Any = [positions[i : i + size] for i in range(0, len(positions), size)] if size else positions
        self._left = iter(slots)
        self._range = zip(self._left, map(self.values, slots) if size else self.values(positions), strict=False)

    def left_over(self) -> int:
        """The number of calls of the present range that no lane has taken."""
        # The iterator that the lanes share knows it, so that no key has to be counted.
        return int(self._left.__length_hint__())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._range if self._gate is None else self._let_start(self._gate)

    def next_start(self, gate: Gate, now: float) -> float:
        """When the call for the next key may start, or is refused. A budget is asked once for each start."""
        self._refusal = None
        start = max(gate.next_start(now), self._not_before)
        if start <= now and gate.hears:
            try:
                if self._weights is None:
                    place = self.positions[self._next - self.left_over()]
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
                self._trouble.fail([self._in_trouble(slot, now, self._trouble)], self._refusal, now)
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
        now = trouble.now()
        if self._heard is not None:
            self._heard.ended(started, now)
            started = started.started
        if source.slices:
            self._store(slot, result, now - started, trouble)
            return
        key, answer, status = self.batch.keys[slot], result, None
        if type(result) is Answer:
            answer, status = result.answer, result.http_status
        if source.judges and not trouble.is_satisfied(key, answer):
            trouble.unsatisfied(self._judged(slot, started, trouble, status), answer, now)
        elif not source.keeps:
            source.pending.figures.latency.add(now - started)
            self.batch.outcomes[slot] = result
        elif (outcomes := source.pending.outcomes((key,), (answer,), now - started, http_status=status)) is not None:
            self.batch.outcomes[slot] = outcomes[0]
        else:
            trouble.satisfied(self._judged(slot, started, trouble, status), answer, now)

    def _store(self, slot: range, answers: Any, latency: float, trouble: Trouble) -> None:
        if len(slot) > 1:
            trouble.answered_together()
        self._source.pending.figures.latency.add_many(latency, len(slot))
        self.batch.store(slot, answers)

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        self.returned(slot, error)
        flights: list[Flight] = [self._in_trouble(i, started, self._trouble) for i in self._positions(slot)]
        self._trouble.failed(flights, error, self._trouble.now())

    def timed_out(self, slot: Any, started: float) -> None:
        if self._heard is not None:
            self._heard.judge(self._started[slot], self._trouble.now(), TimeoutError())
        for i in self._positions(slot):
            self._trouble.pass_limit(self._in_trouble(i, started, self._trouble), self._trouble.now())

    def _positions(self, slot: Any) -> Sequence[int]:
        return slot if self._source.slices else (slot,)

    def _in_trouble(self, slot: int, started: float, trouble: Trouble) -> PendingKey:
        """A flight for a key whose first call has not given its outcome."""
        flight = self._source.pending.want(self.batch.keys[slot], self, slot)
        self._troubled.add(slot)
        trouble.begun(flight, started)
        return flight

    def _judged(self, slot: int, started: float, trouble: Trouble, status: int | None) -> PendingKey:
        """The same, where the call has given an answer."""
        flight = self._in_trouble(slot, started, trouble)
        flight.call = Call([flight])
        flight.call.http_status = status
        return flight

    def returned(self, slot: Any, error: BaseException | None) -> None:
        """The keys have ended, or wait for their next attempts."""
        if self._heard is not None:
            self._heard.ended(self._started.pop(slot), self._heard.now(), error)

    def value_of(self, slot: Any) -> Any:
        return self.batch.keys[self._positions(slot)[0]]

    def left(self) -> None:
        if self._over or not self.is_cut or self.left_over():
            return
        self._over = True
        answered: Sequence[int] = self.positions
        if self._troubled:
            answered = [i for i in answered if i not in self._troubled]
        if answered and not (self._source.keeps or self._source.slices):
            outcomes = self.batch.outcomes
            whole = len(answered) == len(outcomes)
            self._source.pending.learn(
                self.batch.keys if whole else self.values(answered),
                outcomes if whole else [outcomes[i] for i in answered],
            )
        if answered:
            self._answered(len(answered))


class KeySource:
    """Hands out keys, in runs or in windows, and flights of refreshes; a `Source`.

    Args:
        eager: each key gets a flight, because each is traced.
        direct: see `Source`.
        slices: keys stay in Arrow, and this many go into a call; 0: keys are Python's.
        limit: seconds that a first call may take.
        judges: whether a result may not be the last one of its key.
        keeps: whether each answer is kept at once, in a cache or a journal.

    Attributes:
        gate: lets calls of its windows start; None: nothing limits them.
    """

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        pending: PendingKeys,
        *,
        eager: bool = False,
        direct: bool = False,
        slices: int = 0,
        limit: float = inf,
        judges: bool = False,
        keeps: bool = False,
    ) -> None:
        self.gate: Gate | None = None
        self.delivery = delivery
        self.pending = pending
        pending.awaits = delivery.awaits
        self.eager = eager
        self.direct = direct
        self.slices = slices
        self.limit = limit
        self.judges = judges
        self.keeps = keeps
        self._reader = reader
        self._current: OpenBatch | None = None
        self._window: OpenBatch | None = None
        self._unanswered = 0
        self._trouble: Trouble | None = None

    @property
    def waiting(self) -> int:
        return len(self.pending.background)

    @property
    def over(self) -> bool:
        if not self._reader.over or self._current is not None or self.pending.background:
            return False
        # A key that a lane calls for may need another attempt.
        return not self.direct or not self._unanswered

    @property
    def left_over(self) -> int:
        """The number of calls in the window that no lane has taken."""
        return 0 if self._window is None else self._window.left_over()

    def take(self, now: float) -> Flight | None:
        # A refresh takes a place of the capacity like any call, but no room: its key is not a key of a batch.
        background = self.pending.background
        return background.popleft() if background else None

    def window(self, trouble: Trouble) -> OpenBatch | float | None:
        window = self._window if not self.direct or self.left_over else self._next_window(trouble)
        if self.gate is None or window is None:
            return window
        now = trouble.now()
        start = window.next_start(self.gate, now)
        return window if start <= now else start

    def _next_window(self, trouble: Trouble) -> OpenBatch | None:
        self.prepare(0.0)
        current = self._current
        # Keys in Arrow take no memory of their own.
        room = self.delivery.room() if current is None or not self.slices else len(current.positions)
        if current is None or room <= 0:
            return None
        self._trouble = trouble
        current.admit(room, trouble)
        self.pending.figures.calls += current.left_over()
        self._window = current
        self._pass(current)
        return current

    def take_run(self, most: int, now: float) -> Run | None:
        if self.direct:
            return None
        self.prepare(now)
        current, room = self._current, self.delivery.room()
        if current is None or room <= 0:
            return None
        positions = current.cut(min(most, room))
        self._pass(current)
        return Run((current, positions))

    def prepare(self, now: float) -> None:
        while self._current is None and self.delivery.takes_a_batch():
            batch = self._reader.read()
            if batch is NOTHING:
                return
            self._open(batch)

    def _open(self, batch: KeyBatch) -> None:
        asked: Sequence[int] = range(len(batch.keys))
        if not self.slices:
            asked = self.pending.places.recall(batch)
            following = self.delivery.follow(batch)
            if following is not None:
                left = [i for i in asked if i not in following and batch.outcomes[i] is PENDING]
                self.pending.figures.shared += len(asked) - len(left)
                asked = left
        current = OpenBatch(batch, asked, self)
        if self.pending.are_running:
            # Refreshes of keys whose old answer has expired meanwhile.
            current.positions = [i for i in asked if not self.pending.join(identity(batch.keys[i]), current, i)]
        batch.asked = None if len(current.positions) == len(batch.keys) else list(current.positions)
        self.delivery.take(batch)
        self._current = current
        self._unanswered += 1
        self._pass(current)
        if not current.missing:
            self.answered(current)

    def answered(self, opened: OpenBatch) -> None:
        """All keys of a batch have their outcomes."""
        self._unanswered -= 1
        self.delivery.answered(opened.batch)
        if self._trouble is not None and not self._unanswered:
            self._trouble.news()

    def _pass(self, current: OpenBatch) -> None:
        self.delivery.admit(current.passed(self.delivery.ordered))
        if current.is_cut:
            self._current = None

    def in_arrow(self, call: Call) -> Any:
        """The keys of a part of a slice in Arrow: Python may not be able to hold them."""
        keys = [cast("PendingKey", flight) for flight in call.flights]
        return cast("OpenBatch", keys[0].waiter).batch.keys.at([key.position for key in keys])  # type: ignore[attr-defined]

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        run = call.run
        assert run is not None
        latency, weights = now - call.started, weights_of(call)
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
        return self.delivery.room() <= 0 or (self._current is None and not self.delivery.takes_a_batch())

    async def wait(self, news: asyncio.Future[None]) -> None:
        await self.delivery.wait(news)
