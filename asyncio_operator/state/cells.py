"""Cells of a state, over the table that its backend gives it, from addresses to stored entries.

A stored entry is bytes that a serialiser gives, after a timestamp if the state has time to live (`layout`). The heap
keeps objects instead (`heap_backend.HeapCodec`), and no other module knows what a stored entry is.

An address is ``slot + sub`` (`layout`). Tables store, find and iterate: they know no lists, no maps and no expiry. Each
change is one atomic write; changes that belong together are staged into one batch.

`Cells` hold values by slot and sub, and the five kinds of state are built on them. They keep every value for ever;
`ttl.TtlCells` has the same methods and lets values expire. Here an error of a serialiser becomes a StateError that
names the state, the key and the namespace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.state.layout import (
    NOT_BEGUN,
    STAMP_BIAS,
    STAMP_SIZE,
    Stored,
    describe_slot,
    stamp,
    stamped_at,
)
from asyncio_operator.state.serializers import BUILTIN, Serializer, checked

Batch = Any
"""What a backend's `new_batch` gives."""


class Codec:
    """Turns values into stored entries and back.

    A state with time to live has stamped entries, whose timestamps are milliseconds since the epoch.
    """

    encode: Callable[[Any], Stored]
    decode: Callable[[Stored], Any]

    def __init__(self, serializer: Serializer) -> None:
        # The built-in serialiser gives bytes for certain; another one is checked at every write.
        self.encode = serializer.serialize if serializer is BUILTIN else checked(serializer)
        self.decode = serializer.deserialize

    def to_bytes(self, stored: Stored) -> bytes:
        """A stored entry as a snapshot holds it."""
        return stored  # type: ignore[no-any-return]

    def from_bytes(self, data: bytes) -> Stored:
        """The inverse of `to_bytes`."""
        return data

    def stamp(self, timestamp: int, stored: Stored) -> Stored:
        """An entry with a timestamp."""
        return stamp(timestamp + STAMP_BIAS) + stored

    def timestamp(self, stamped: Stored) -> int:
        """The timestamp of a stamped entry."""
        timestamp: int = stamped_at(stamped)[0] - STAMP_BIAS
        return timestamp

    def unstamp(self, stamped: Stored) -> Stored:
        """The entry without its timestamp."""
        return stamped[STAMP_SIZE:]

    def after(self, stamped: Stored, deadline: int) -> Stored | None:
        """The entry without its timestamp if that is after the deadline; else, or if its life has not begun, None."""
        return stamped[STAMP_SIZE:] if deadline < stamped_at(stamped)[0] - STAMP_BIAS < NOT_BEGUN else None

    def living(self, stamped: Sequence[Stored | None], deadline: int, absent: Any) -> list[Any]:
        """The values of entries, whose lives have begun; `absent` instead of those that are not after the deadline."""
        after, decode = self.after, self.decode
        return [absent if one is None or (rest := after(one, deadline)) is None else decode(rest) for one in stamped]


class Table(ABC):
    """The entries of one state."""

    codec: Codec
    """Makes entries from values. Until the state is requested they are bytes, of whatever serialiser."""

    get_slot: Callable[[bytes], Stored | None]
    """The entry of a slot without sub, for states with one entry per slot; a bare function, as fast as the store."""

    put_slot: Callable[[bytes, Stored], None]
    """Writes such an entry."""

    def error(self, error: Exception) -> Exception:
        """An error of the store as a StateError; any other error as it is."""
        return error

    @abstractmethod
    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        """The entry at an address, or None."""

    @abstractmethod
    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        """Writes one entry, at once."""

    @abstractmethod
    def delete(self, slot: bytes, sub: bytes) -> None:
        """Removes one entry, if there is one."""

    def holds(self, slot: bytes, sub: bytes, stored: Stored) -> bool:
        """Whether an entry that was read is still stored. An equal entry that was written since does not count."""
        return self.get(slot, sub) is stored

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Stored | None]], clear: bool) -> None:
        """Adds changes of one slot to a batch, here a list: entries by sub, None to delete. `clear` empties the slot
        first."""
        batch.append((self, slot, list(changes), clear))

    @abstractmethod
    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        """The subs and entries of a slot as they are now, in the order of the subs."""

    @abstractmethod
    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        """`count` subs and entries of a slot, or all if there are fewer; the order does not matter."""

    @abstractmethod
    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        """Looks at the next `count` entries of an endless round, and removes those stamped at the deadline or before.

        Those whose life has not begun (`NOT_BEGUN`) are stamped `now`.
        The time is bounded by `count`. Only for tables with stamped entries.

        Returns:
            None. If a round ended: a lower bound of all timestamps. It holds while no write has a timestamp below the
            `now` of the calls before it.
        """

    @abstractmethod
    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        """All entries, as slot, sub, stored, of which slot + sub is the address. Those that were returned may be
        deleted during the iteration."""

    @abstractmethod
    def slots(self) -> Iterator[bytes]:
        """Each slot that has entries, once, as they are now."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of entries. It may take time in proportion to that number."""


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
        backend: the `StateBackend`, a class that is made of this one: it gives the current slot and takes batches.
    """

    def __init__(self, name: str, backend: Any, table: Table) -> None:
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
