"""The entries of a state: what they are made of, and the table where its backend stores them.

A stored entry is bytes that a serialiser gives, after a timestamp if the state has time to live (`layout`). The heap
keeps objects instead (`heap_backend.HeapCodec`), and no other module knows what a stored entry is.

An address is ``slot + sub`` (`layout`). Tables store, find and iterate: they know no lists, no maps and no expiry. Each
change is one atomic write; changes that belong together are staged into one batch. With time to live
`ttl.LivingEntries` stand between a table and its state: they stamp what is written, and show what has not expired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final

from asyncio_operator.state.layout import STAMP_BIAS, STAMP_SIZE, Stored, stamp, stamped_at
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

    def split(self, stamped: Stored) -> tuple[int, Stored]:
        """The timestamp of a stamped entry, and the entry without it."""
        return stamped_at(stamped)[0] - STAMP_BIAS, stamped[STAMP_SIZE:]


class Entries(ABC):
    """The entries of one state, as it reads and writes them."""

    codec: Codec
    """Makes entries from values. Until the state is requested they are bytes, of whatever serialiser."""

    get_slot: Callable[[bytes], Stored | None]
    """The entry of a slot without sub, for states with one entry per slot; a bare function, as fast as the store."""

    put_slot: Callable[[bytes, Stored], None]
    """Writes such an entry."""

    @abstractmethod
    def error(self, error: Exception) -> Exception:
        """An error of the store as a StateError; any other error as it is."""

    @abstractmethod
    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        """The entry at an address, or None."""

    @abstractmethod
    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        """Writes one entry, at once."""

    @abstractmethod
    def delete(self, slot: bytes, sub: bytes) -> None:
        """Removes one entry, if there is one."""

    @abstractmethod
    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Stored | None]], clear: bool) -> None:
        """Adds changes of one slot to a batch: entries by sub, None to delete. `clear` empties the slot first."""

    @abstractmethod
    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        """The subs and entries of a slot as they are now, in the order of the subs."""

    @abstractmethod
    def is_empty(self, slot: bytes) -> bool:
        """Whether a slot has no entries."""

    def access(self) -> None:
        """Counts an access that reads and writes nothing, where a clean-up wants to know of it."""


class Table(Entries):
    """The entries of one state where they are stored."""

    def error(self, error: Exception) -> Exception:
        return error

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Stored | None]], clear: bool) -> None:
        batch.append((self, slot, list(changes), clear))

    def is_empty(self, slot: bytes) -> bool:
        return not self.head(slot, 1)

    def holds(self, slot: bytes, sub: bytes, stored: Stored) -> bool:
        """Whether an entry that was read is still stored. An equal entry that was written since does not count."""
        return self.get(slot, sub) is stored

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


ABSENT: Final = Absent.ABSENT  # Instead of a value, where there is none. None itself is a value.
