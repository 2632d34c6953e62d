"""The LRU order of cached answers: in memory, or on disk in the database of the answers.

With the last use of a key the order also keeps which keys have answers. A `LookupCache` changes an answer and its place
in the order together, through `put` and `remove`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from asyncio_operator.arrow.key_identity import identities, identity
from asyncio_operator.state.entries import Batch, Table
from asyncio_operator.state.layout import Stored

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend
    from asyncio_operator.state.heap_table import HeapValueTable
    from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBStateBackend

Slot = Any
"""What tells keys apart in the tables of a cache: the bytes of a key on disk, its `identity` in memory."""


class LruInMemory:
    """An order that ends with the process: that of the entries in the table of the answers.

    Args:
        backend: of both tables.
        answers: the table of the answers.
        used: the table of when they were used, if that is kept.

    Attributes:
        slot, slots: give the slot of a key, and of keys.
        use: counts a use of a slot that has an answer.
        close: releases memory, and writes what is not on disk.
    """

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._used = used
        self._answers = cast("HeapValueTable", answers).in_order()
        # A table on the heap takes anything that can be hashed for a slot, so no key has to be written as bytes.
        self.slot, self.slots = identity, identities
        self.use = self._answers.move_to_end
        self.close = self._answers.clear

    def __len__(self) -> int:
        return len(self._answers)

    def put(self, slot: Slot, answer: Stored, used: Stored | None) -> None:
        """Writes the answer of a slot, and when it was used if that is kept. Counts as a use."""
        if self._used is not None:
            self._used.put_slot(slot, used)
        self._answers[slot] = answer
        self._answers.move_to_end(slot)

    def put_many(self, slots: Sequence[Slot], answers: Iterable[Stored]) -> None:
        """The same for answers whose uses are not kept."""
        entries = self._answers
        if not entries.keys().isdisjoint(slots):
            deque(map(entries.pop, slots, repeat(None)), maxlen=0)
        entries.update(zip(slots, answers, strict=True))

    def remove(self, slot: Slot) -> None:
        """Removes what was put for a slot, if it has an answer."""
        self._answers.pop(slot, None)
        if self._used is not None:
            self._used.delete(slot, b"")

    def oldest(self) -> Slot:
        """The least recently used slot; None if there is none."""
        return next(iter(self._answers), None)

    def shrink(self, most: int) -> None:
        """Removes the least recently used slots above a number."""
        for _ in range(len(self._answers) - most):
            slot, _answer = self._answers.popitem(last=False)
            if self._used is not None:
                self._used.delete(slot, b"")


class LruOnDisk:
    """The same in the database of the answers. Each change is one batch. The backend is a `RocksDBStateBackend`."""

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._backend = backend
        self._answers, self._used = answers, used
        self._order = cast("RocksDBStateBackend", backend).order_of_use()
        self.slot = backend.slot_of
        self.use = self._order.use
        self.oldest = self._order.oldest
        self.close = self._order.flush

    def slots(self, keys: Sequence[Any]) -> list[bytes]:
        return list(map(self.slot, keys))

    def __len__(self) -> int:
        return len(self._order)

    def put(self, slot: bytes, answer: Stored, used: Stored | None) -> None:
        self._order.put(slot, self._staged(slot, answer, used))

    def remove(self, slot: bytes) -> None:
        self._order.remove(slot, self._staged(slot, None, None))

    def _staged(self, slot: bytes, answer: Stored | None, used: Stored | None) -> Batch:
        batch = self._backend.new_batch()
        self._answers.stage(batch, slot, [(b"", answer)], clear=False)
        if self._used is not None:
            self._used.stage(batch, slot, [(b"", used)], clear=False)
        return batch

    def shrink(self, most: int) -> None:
        while len(self) > most and (slot := self.oldest()) is not None:
            self.remove(slot)


LruOrder = LruInMemory | LruOnDisk
"""Slots, the least recently used first."""
