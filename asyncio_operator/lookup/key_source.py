"""The keys of a partition on their way to calls: a `Source` of runs of keys, as far as the delivery has room.

A batch of keys is opened when it is read: keys that a place knows, or that calls for earlier batches will answer, need
no call (laws L1, L2). The others are cut into runs for the calls. A run costs one step for all of its keys, and its
results are stored at once. Only a call in trouble gives its keys a flight each (`pending`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.engine.flights import Call, Flight, Run
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import PENDING, KeyBatch
from asyncio_operator.lookup.pending import PendingKey, PendingKeys


class OpenBatch:
    """A batch whose keys, or those at some positions, wait for outcomes; an `Owner` of positions.

    Args:
        positions: those of the keys to call for, ascending.
    """

    __slots__ = ("_next", "_passed", "_source", "batch", "eager", "missing", "positions")

    def __init__(self, batch: KeyBatch, positions: Sequence[int], source: KeySource) -> None:
        self.batch = batch
        self.positions = positions
        self.missing = len(positions)
        self.eager = source.eager
        self._source = source
        self._next = 0
        self._passed = 0

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
        keys = self.batch.keys
        if type(positions) is range:
            return keys[positions.start : positions.stop]
        return [keys[i] for i in positions]

    def flights(self, positions: Sequence[int]) -> list[PendingKey]:
        return [self._source.pending.want(self.batch.keys[i], self, i) for i in positions]

    def store(self, positions: Sequence[int], outcomes: Sequence[Any]) -> None:
        """These keys have their outcomes."""
        mine = self.batch.outcomes
        if type(positions) is range:
            mine[positions.start : positions.stop] = outcomes
        else:
            for i, outcome in zip(positions, outcomes, strict=True):
                mine[i] = outcome
        self._left(len(positions))

    def answer(self, position: int, outcome: Any) -> None:
        """One key has its outcome."""
        self.batch.outcomes[position] = outcome
        self._left(1)

    def found(self, positions: Sequence[int], answers: Sequence[Any], source: str) -> None:
        """These keys are known in a place behind."""
        keys, pending = self.batch.keys, self._source.pending
        if self.eager:
            for flight, answer in zip(self.flights(positions), answers, strict=True):
                pending.found(flight, answer, source)
            return
        places = pending.places
        self.store(
            positions, [places.found(keys[i], answer, source) for i, answer in zip(positions, answers, strict=True)]
        )
        for i in positions:
            places.refresh_if_old(keys[i])

    def _left(self, count: int) -> None:
        self.missing -= count
        if not self.missing:
            self._source.delivery.answered(self.batch)


class KeySource:
    """Hands out runs of keys, and flights of refreshes; a `Source`.

    Args:
        eager: each key gets a flight, because each is traced.
    """

    def __init__(self, reader: Reader, delivery: Delivery, pending: PendingKeys, eager: bool = False) -> None:
        self.delivery = delivery
        self.pending = pending
        pending.awaits = delivery.awaits
        self.eager = eager
        self._reader = reader
        self._current: OpenBatch | None = None

    @property
    def waiting(self) -> int:
        return len(self.pending.background)

    @property
    def over(self) -> bool:
        return self._reader.over and self._current is None and not self.pending.background

    def take(self, now: float) -> Flight | None:
        # A refresh takes a place of the capacity like any call, but no room: its key is not a key of a batch.
        background = self.pending.background
        return background.popleft() if background else None

    def take_run(self, most: int, now: float) -> Run | None:
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
        self._pass(current)
        if not current.missing:
            self.delivery.answered(batch)

    def _pass(self, current: OpenBatch) -> None:
        self.delivery.admit(current.passed(self.delivery.ordered))
        if current.is_cut:
            self._current = None

    def store(self, call: Call, results: Sequence[Any], now: float) -> bool:
        run = call.run
        assert run is not None
        outcomes = self.pending.outcomes(run.values(), results, call, now)
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
