"""Tables in memory: dictionaries by slot, and by sub within a slot where a state has more than one entry.

A table of a state with time to live (`timed`) has stamped entries, which it also keeps in a `Round`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from operator import itemgetter

from asyncio_operator.state.heap_round import Round
from asyncio_operator.state.table import Stored, Table

_by_sub = itemgetter(0)


class HeapValueTable(Table):
    """One entry per slot, without a sub."""

    def __init__(self, timed: bool) -> None:
        self._entries: dict[bytes, Stored] = {}
        self._round = Round() if timed else None
        self.get_slot = self._entries.get
        self.put_slot = self._entries.__setitem__ if self._round is None else partial(self._round.put, self._entries)

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self._entries.get(slot)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self.empty(slot)

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        found = self._entries.pop(slot, None)
        if found is not None and self._round is not None:
            self._round.remove(found)

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(self.head(slot, 1))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        stored = self._entries.get(slot)
        return [] if stored is None else [(b"", stored)]

    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        assert self._round is not None
        return self._round.sweep(count, deadline, now, lambda record: self.empty(record[3]))

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((slot, b"", stored) for slot, stored in list(self._entries.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        if self._round is not None:
            self._round._check(list(self._entries.values()))


class HeapTable(Table):
    """Many entries per slot. A slot without entries is not kept."""

    def __init__(self, timed: bool) -> None:
        self._slots: dict[bytes, dict[bytes, Stored]] = {}
        self._round = Round() if timed else None
        self._size = 0

    def get_slot(self, slot: bytes) -> Stored | None:
        return self.get(slot, b"")

    def put_slot(self, slot: bytes, stored: Stored) -> None:
        self.put(slot, b"", stored)

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        inner = self._slots.get(slot)
        return None if inner is None else inner.get(sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        inner = self._slots.get(slot)
        if inner is None:
            inner = self._slots[slot] = {}
        before = len(inner)
        if self._round is None:
            inner[sub] = stored
        else:
            stored[4] = slot
            self._round.put(inner, sub, stored)
        self._size += len(inner) - before

    def delete(self, slot: bytes, sub: bytes) -> None:
        inner = self._slots.get(slot)
        found = None if inner is None else inner.pop(sub, None)
        if found is not None:
            self._size -= 1
            if not inner:
                del self._slots[slot]
            if self._round is not None:
                self._round.remove(found)

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        inner = self._slots.pop(slot, {})
        self._size -= len(inner)
        if self._round is not None:
            for found in inner.values():
                self._round.remove(found)

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(sorted(self._slots.get(slot, {}).items(), key=_by_sub))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        return list(islice(self._slots.get(slot, {}).items(), count))

    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        assert self._round is not None
        return self._round.sweep(count, deadline, now, lambda record: self.delete(record[4], record[3]))

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((slot, sub, stored) for slot, inner in list(self._slots.items()) for sub, stored in list(inner.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._slots))

    def __len__(self) -> int:
        return self._size

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        entries = [stored for inner in self._slots.values() for stored in inner.values()]
        assert len(entries) == self._size
        assert all(self._slots.values())
        if self._round is not None:
            self._round._check(entries)
