"""What a backend gives a state: a table from addresses to stored entries, with the codec that makes them from values.

An address is ``slot + sub`` (`layout`). Tables store, find and iterate: they know no lists, no maps and no expiry. Each
change is one atomic write; changes that belong together are staged into one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio_operator.state.codec import Codec
    from asyncio_operator.state.layout import Stored

Batch = Any
"""What a backend's `new_batch` gives."""


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
        """Adds changes of one slot to a batch: entries by sub, None to delete. `clear` empties the slot first.

        In this class a batch is a list of changes, which the backend carries out.
        """
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
        """All entries, as slot, sub, stored. Entries that were returned may be deleted during the iteration.

        The border between slot and sub may differ from that of the write; their concatenation is the address.
        """

    @abstractmethod
    def slots(self) -> Iterator[bytes]:
        """Each slot that has entries, once, as they are now."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of entries. It may take time in proportion to that number."""
