"""The LRU order of cached answers: in memory, or on disk in the database of the answers.

With the last use of a key the order also keeps which keys have answers. A `LookupCache` changes an answer and its place
in the order together, through `put` and `remove`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from asyncio_operator.arrow.key_identity import identities, identity
from asyncio_operator.state.entries import Table
from asyncio_operator.state.layout import Stored

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend
    from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBStateBackend

Slot = Any
"""What tells keys apart in the tables of a cache: the bytes of a key on disk, its `identity` in memory."""


class LruOrder(Protocol):
    """Slots, the least recently used first."""

    @property
    def slot(self) -> Callable[[Any], Slot]:
        """Gives the slot of a key."""

    @property
    def slots(self) -> Callable[[Sequence[Any]], Sequence[Slot]]:
        """Gives the slots of keys."""

    @property
    def use(self) -> Callable[[Slot], None]:
        """Counts a use of a slot that has an answer."""

    @property
    def close(self) -> Callable[[], None]:
        """Releases memory, and writes what is not on disk."""

    def __len__(self) -> int: ...

    def put(self, slot: Slot, answer: Stored, used: Stored | None) -> None:
        """Writes the answer of a slot, and when it was used if that is kept. Counts as a use."""

    def remove(self, slot: Slot) -> None:
        """Removes what was put for a slot, if it has an answer."""

    def oldest(self) -> Slot:
        """The least recently used slot; None if there is none."""


class LruInMemory:
    """An order that ends with the process.

    Args:
        backend: of both tables.
        answers: the table of the answers.
        used: the table of when they were used, if that is kept.
    """

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._answers, self._used = answers, used
        self._put_answer = answers.put_slot
        self._order: OrderedDict[Slot, None] = OrderedDict()
        # A table on the heap takes anything that can be hashed for a slot, so no key has to be written as bytes.
        self.slot, self.slots = identity, identities
        self.use = self._order.move_to_end
        self.close = self._order.clear

    def __len__(self) -> int:
        return len(self._order)

    def put(self, slot: Slot, answer: Stored, used: Stored | None) -> None:
        self._put_answer(slot, answer)
        if self._used is not None:
            self._used.put_slot(slot, used)
        self._order[slot] = None
        self._order.move_to_end(slot)

    def remove(self, slot: Slot) -> None:
        if slot in self._order:
            del self._order[slot]
            self._answers.delete(slot, b"")
            if self._used is not None:
                self._used.delete(slot, b"")

    def oldest(self) -> Slot:
        return next(iter(self._order), None)


class LruOnDisk:
    """An order in the database of the answers. Each change is one batch.

    The arguments are those of `LruInMemory`. The backend is a `RocksDBStateBackend`.
    """

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
        batch = self._backend.new_batch()
        self._answers.stage(batch, slot, [(b"", answer)], clear=False)
        if self._used is not None:
            self._used.stage(batch, slot, [(b"", used)], clear=False)
        self._order.put(slot, batch)

    def remove(self, slot: bytes) -> None:
        batch = self._backend.new_batch()
        self._answers.stage(batch, slot, [(b"", None)], clear=False)
        if self._used is not None:
            self._used.stage(batch, slot, [(b"", None)], clear=False)
        self._order.remove(slot, batch)
