"""The plain way: one call for every distinct key of a batch, in order of arrival, and nothing else.

A batch is the window that the lanes share. So a key costs one step of an iterator and one store in a list, and no
object of its own. If a call for the key already runs for an earlier batch, the key takes over that outcome (law L2).
Such keys are searched batch by batch, on arrival and on delivery. The search costs nothing while no earlier batch is
open.

Lookups that need more use `managed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import PENDING, KeyBatch
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.lookup.memory import Memory


class KeyWindow:
    """The keys of a batch, as a window of the lanes.

    Args:
        asked: the positions of the keys to call for; None for all.
        ordered: whether keys leave in their order.
        left: called when each of these keys has an outcome.
    """

    instant = True
    begin = None

    def __init__(
        self,
        batch: KeyBatch,
        asked: list[int] | None,
        failures: KeyFailures,
        left: Callable[[KeyWindow], None],
        ordered: bool = True,
    ) -> None:
        self.batch = batch
        self.working = 0
        self.admitted = 0
        self._passed = 0
        self._ordered = ordered
        self.results: list[Any] | None = batch.outcomes
        self._asked = asked
        self._count = len(batch.keys) if asked is None else len(asked)
        self._failures = failures
        self._on_left = left
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())

    def admit(self, room: int) -> int:
        """Open the next range of at most `room` keys. Returns the number of keys in it."""
        # `zip` takes a position before its key, so `_left` always knows how many keys no lane has taken.
        start, keys = self.admitted, self.batch.keys
        self.admitted = stop = min(self._count, start + room)
        if self._asked is None:
            self._left = iter(range(start, stop))
            self._range = zip(self._left, keys[start:stop], strict=False)
        else:
            positions = self._asked[start:stop]
            self._left = iter(positions)
            self._range = zip(self._left, [keys[i] for i in positions], strict=False)
        return stop - start

    def passed(self) -> int:
        """The number of keys, since the last call, before the next one to be called for. A key whose outcome is known
        takes no room before one that is before it: in order it cannot leave first, and would hold its room for ever. In
        any order it leaves first."""
        before, total = self._passed, len(self.batch.keys)
        if not self._ordered:
            self._passed = total - self._count + self.admitted
        elif self.admitted < self._count:
            self._passed = self.admitted if self._asked is None else self._asked[self.admitted]
        else:
            self._passed = total
        return self._passed - before

    def left_over(self) -> int:
        """The number of keys of the current range that no lane has taken."""
        # The iterator that the lanes share knows it, so that no key has to be counted.
        return int(self._left.__length_hint__())

    def all_admitted(self) -> bool:
        return self.admitted == self._count

    def outcomes(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The keys that were called for, and their outcomes."""
        keys, outcomes, asked = self.batch.keys, self.batch.outcomes, self._asked
        return (keys, outcomes) if asked is None else ([keys[i] for i in asked], [outcomes[i] for i in asked])

    # -- the window

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._range

    def value_of(self, slot: int) -> Any:
        return self.batch.keys[slot]

    def complete(self, slot: int, result: Any) -> None:
        self.batch.outcomes[slot] = result

    def failed(self, slot: int, error: BaseException, started: float) -> None:
        self.batch.outcomes[slot] = self._failures.failure(self.batch.keys[slot], error, started)

    def timed_out(self, slot: int, started: float) -> None:
        self.batch.outcomes[slot] = self._failures.timeout(self.batch.keys[slot], started)

    def returned(self, slot: int) -> None:
        """The key has ended."""

    def left(self) -> None:
        if self.all_admitted() and not self.left_over():
            self._on_left(self)


class PlainIntake:
    """The intake of the lanes: opens windows as far as the delivery has room."""

    def __init__(self, reader: Reader, delivery: Delivery, failures: KeyFailures, memory: Memory) -> None:
        self._figures = failures.figures
        self._memory = memory
        self._reader = reader
        self._delivery = delivery
        self._failures = failures
        self._window: KeyWindow | None = None
        self._unlearnt: list[KeyWindow] = []
        self._admitted = 0

    @property
    def calls(self) -> int:
        """Calls that have been started."""
        return self._admitted - (0 if self._window is None else self._window.left_over())

    async def window(self) -> KeyWindow | None:
        while (window := self._window) is None or not window.left_over():
            if window is None or window.all_admitted():
                if not await self._next_batch():
                    return None
                continue
            room = self._delivery.room()
            if room <= 0:
                await self._wait_for_room()
                continue
            self._admitted += window.admit(room)
            self._delivery.admit(window.passed())
        return window

    def stop(self) -> None:
        """Stop reading the input."""
        self._reader.stop()

    async def _next_batch(self) -> bool:
        self._window = None
        while not self._delivery.takes_a_batch():
            await self._wait_for_room()
        while await self._reader.ready():
            batch = self._reader.read()
            if batch is not NOTHING:
                self._take(batch)
                return True
        return False

    def _take(self, batch: KeyBatch) -> None:
        # A lane whose call ignores its cancellation is still in its window when the batch has long ended.
        for ended in [window for window in self._unlearnt if window.batch.ended]:
            self._learn(ended)
        asked = self._memory.recall(batch)
        waiting = self._delivery.follow(batch)
        if waiting is not None:
            asked = [i for i, outcome in enumerate(batch.outcomes) if outcome is PENDING and i not in waiting]
        batch.asked = asked
        if asked is not None:
            self._figures.shared += len(batch.keys) - len(asked)
        self._delivery.take(batch)
        window = KeyWindow(batch, asked, self._failures, self._left, self._delivery.ordered)
        if asked is not None:
            self._delivery.admit(window.passed())
        # No lane will enter this window, and so none will leave it.
        if asked == [] or not batch.keys:
            self._left(window)
        else:
            self._window = window
            self._unlearnt.append(window)

    async def _wait_for_room(self) -> None:
        await self._delivery.wait(asyncio.get_running_loop().create_future())

    def _learn(self, window: KeyWindow) -> None:
        self._unlearnt.remove(window)
        self._memory.learn(*window.outcomes())

    def _left(self, window: KeyWindow) -> None:
        if window in self._unlearnt:
            self._learn(window)
        self._delivery.answered(window.batch)
