"""Cells: a table as its state sees it. They hold values by slot and sub, and the five kinds of state are built on them.

`Cells` keeps every value for ever; `ttl.TtlCells` has the same methods and lets values expire. Here an error of a
serialiser becomes a StateError that names the state, the key and the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.state.layout import Stored, describe_slot

if TYPE_CHECKING:
    from asyncio_operator.state.entries import Batch, Table


class Owner(Protocol):
    """What cells use of their backend."""

    now: Callable[[], int]
    """The clock, in milliseconds."""
    group_width: int
    """Bytes of a key group in an address."""
    slot: bytes | None
    """Address of the current key and namespace; None if there is none, or the backend is closed."""
    closed: bool

    def require_slot(self) -> bytes:
        """`slot`, or StateError if there is none."""

    def next_sequence(self) -> int:
        """A number that was never returned before, for the place of a list's element."""

    def check_open(self) -> None:
        """Raise StateError if the backend is closed."""

    def new_batch(self) -> Batch:
        """A batch for `commit`."""

    def commit(self, batch: Batch) -> None:
        """Write a batch, whole or not at all."""


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"


READING: Final = "the serialiser failed while reading"
CLEANING: Final = "cleaning up failed"
WRITING: Final = "the serialiser failed while writing"

ABSENT: Final = Absent.ABSENT
"""The value of a cell that holds none. None itself is a value."""


class Cells:
    """The cells of one state.

    Attributes:
        name: the state's name.
        backend: gives the current slot and takes batches.
    """

    def __init__(self, name: str, backend: Owner, table: Table) -> None:
        self.name = name
        self.backend = backend
        self.table = table
        self.codec = table.codec
        self._get = table.get
        # For the only entry of a slot. They are the store's own functions where possible, to save a call on the path of
        # every value.
        self.load: Callable[[bytes], Stored | None] = table.get_slot
        self.store: Callable[[bytes, Stored], None] = table.put_slot
        self._put = table.put
        self._encode = self.codec.encode
        self._decode = self.codec.decode

    def get(self, slot: bytes, sub: bytes) -> Any:
        """The value of a cell, or ABSENT."""
        try:
            stored = self._get(slot, sub)
            return ABSENT if stored is None else self._decode(stored)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def put(self, slot: bytes, sub: bytes, value: Any) -> None:
        """Writes a cell."""
        try:
            self._put(slot, sub, self._encode(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def delete(self, slot: bytes, sub: bytes) -> None:
        """Empties a cell."""
        try:
            self.table.delete(slot, sub)
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def contains(self, slot: bytes, sub: bytes) -> bool:
        """Whether a cell holds a value."""
        return self.stored(slot, sub) is not None

    def stored(self, slot: bytes, sub: bytes) -> Stored | None:
        """The stored form of a cell's value, or None."""
        try:
            return self._get(slot, sub)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Any]]:
        """Subs and values of a slot as they are now, in the order of the subs. StateError after the backend is
        closed."""
        try:
            return self._decoded(slot, self.table.scan(slot))
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def _decoded(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        decode, backend = self._decode, self.backend
        try:
            for sub, stored in rows:
                if backend.closed:
                    backend.check_open()
                yield sub, decode(stored)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def is_empty(self, slot: bytes) -> bool:
        """Whether no cell of the slot holds a value."""
        try:
            return not self.table.head(slot, 1)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Any]], clear: bool = False) -> None:
        """Adds writes of cells to a batch, ABSENT to empty one; `clear` empties the slot before."""
        try:
            self.table.stage(batch, slot, [(sub, self._stored(value)) for sub, value in changes], clear)
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def write(self, slot: bytes, changes: Iterable[tuple[bytes, Any]], clear: bool = False) -> None:
        """Writes cells as one batch: after a crash all of it is there, or nothing."""
        batch = self.backend.new_batch()
        self.stage(batch, slot, changes, clear)
        self.commit(batch, slot)

    def commit(self, batch: Batch, slot: bytes) -> None:
        """Writes a batch of changes of a slot, whole or not at all."""
        try:
            self.backend.commit(batch)
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def clear(self, slot: bytes) -> None:
        """Empties every cell of a slot."""
        self.write(slot, (), clear=True)

    def _stored(self, value: Any) -> Any:
        return None if value is ABSENT else self._encode(value)

    def located(self, error: Exception, slot: bytes, doing: str = "") -> StateError:
        """The error as a StateError that says where it happened. `doing` says in which step code of the user raised
        it."""
        # An error that passes through two of these methods names the place already.
        error = self.table.error(error)
        where = f"state {self.name!r}, {describe_slot(slot, self.backend.group_width)}"
        kind = type(error) if isinstance(error, StateError) else StateError
        what = str(error) if isinstance(error, StateError) else f"{doing}: {describe_error(error)}"
        return kind(f"{where}: {what.removeprefix(where + ': ')}")
