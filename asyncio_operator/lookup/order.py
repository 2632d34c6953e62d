"""Which answers a cache has, in the order of their last use.

In memory that is a dictionary from keys to slots. On disk the slot of a key is computed, and the order is on disk too,
so memory does not depend on the number of keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from asyncio_operator.keys import identity
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.table import Stored, Table

if TYPE_CHECKING:
    from asyncio_operator.state.rocksdb.backend import RocksDBStateBackend


class Order(Protocol):
    """Names of keys in the order of their last use. A name is what tells keys apart."""

    @property
    def name(self) -> Callable[[Any], Any]:
        """Gives the name of a key."""

    @property
    def get(self) -> Callable[[Any], bytes | None]:
        """Gives the slot of a name; None if there is no answer. With a slot there may be none either."""

    @property
    def use(self) -> Callable[[Any], None]:
        """Counts a use of a name that is there."""

    @property
    def close(self) -> Callable[[], None]:
        """Releases memory, and writes what is not on disk."""

    def __len__(self) -> int: ...

    def put(self, name: Any, slot: bytes, answer: Stored, used: Stored | None) -> None:
        """Writes the answer of a slot, and when it was used if that is kept. Counts as a use of its name."""

    def remove(self, name: Any) -> None:
        """Removes a name and what was put for it, if the name is there."""

    def oldest(self) -> Any:
        """The least recently used name; None if there is none."""


class OrderInMemory:
    """An order that ends with the process.

    Args:
        backend: of both tables.
        answers: the table of the answers.
        used: the table of when they were used, if that is kept.
    """

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._answers, self._used = answers, used
        self._put_answer = answers.put_slot
        self._slots: OrderedDict[Any, bytes] = OrderedDict()
        self.name = identity
        self.get = self._slots.get
        self.use = self._slots.move_to_end
        self.close = self._slots.clear

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, name: Any, slot: bytes, answer: Stored, used: Stored | None) -> None:
        self._put_answer(slot, answer)
        if self._used is not None:
            self._used.put_slot(slot, used)
        self._slots[name] = slot
        self._slots.move_to_end(name)

    def remove(self, name: Any) -> None:
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._answers.delete(slot, b"")
            if self._used is not None:
                self._used.delete(slot, b"")

    def oldest(self) -> Any:
        return next(iter(self._slots), None)


class OrderOnDisk:
    """An order in the database of the answers, in which a name is a slot. Each change is one batch.

    The arguments are those of `OrderInMemory`. The backend is a `RocksDBStateBackend`.
    """

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._backend = backend
        self._answers, self._used = answers, used
        self._order = cast("RocksDBStateBackend", backend).order_of_use()
        self.use = self._order.use
        self.oldest = self._order.oldest
        self.close = self._order.flush

    def name(self, key: Any) -> bytes:
        self._backend.set_current_key(key)
        return self._backend.require_slot()

    def get(self, name: bytes) -> bytes | None:
        return name

    def __len__(self) -> int:
        return len(self._order)

    def put(self, name: bytes, slot: bytes, answer: Stored, used: Stored | None) -> None:
        batch = self._backend.new_batch()
        self._answers.stage(batch, slot, [(b"", answer)], clear=False)
        if self._used is not None:
            self._used.stage(batch, slot, [(b"", used)], clear=False)
        self._order.put(slot, batch)

    def remove(self, name: bytes) -> None:
        batch = self._backend.new_batch()
        self._answers.stage(batch, name, [(b"", None)], clear=False)
        if self._used is not None:
            self._used.stage(batch, name, [(b"", None)], clear=False)
        self._order.remove(name, batch)
