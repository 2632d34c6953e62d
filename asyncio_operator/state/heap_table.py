"""Tables in memory: dictionaries by slot, and by sub within a slot where a state has more than one entry.

A table whose entries are looked at in an endless round (`next_entries`) is made of ordered dictionaries, whose first
entry can go to the end in constant time: the dictionary itself is the round, and no second structure has to agree with
it. Subs are therefore sorted when a slot is read, not when it is written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from asyncio_operator.state.table import Stored, Table

_by_sub = itemgetter(0)


class HeapValueTable(Table):
    """One entry per slot, without a sub."""

    def __init__(self, rotating: bool) -> None:
        self._entries: dict[bytes, Stored] = OrderedDict() if rotating else {}
        self.get_slot = self._entries.get
        self.put_slot = self._entries.__setitem__

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self._entries.get(slot)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self._entries[slot] = stored

    def delete(self, slot: bytes, sub: bytes) -> None:
        self._entries.pop(slot, None)

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        self._entries.pop(slot, None)

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(self.head(slot, 1))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        stored = self._entries.get(slot)
        return [] if stored is None else [(b"", stored)]

    def next_entries(self, count: int) -> list[tuple[bytes, bytes, Stored]]:
        entries = self._entries
        assert isinstance(entries, OrderedDict)
        found = []
        for _ in range(min(count, len(entries))):
            slot = next(iter(entries))
            entries.move_to_end(slot)
            found.append((slot, b"", entries[slot]))
        return found

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((slot, b"", stored) for slot, stored in list(self._entries.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


class HeapTable(Table):
    """Many entries per slot. A slot without entries is not kept."""

    def __init__(self, rotating: bool) -> None:
        self._rotating = rotating
        self._slots: dict[bytes, dict[bytes, Stored]] = OrderedDict() if rotating else {}
        self._size = 0
        # Of the first slot, the entries that the round has still to look at before the slot goes to the end.
        self._left = 0

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
            inner = self._slots[slot] = OrderedDict() if self._rotating else {}
        before = len(inner)
        inner[sub] = stored
        self._size += len(inner) - before

    def delete(self, slot: bytes, sub: bytes) -> None:
        inner = self._slots.get(slot)
        if inner is not None and inner.pop(sub, None) is not None:
            self._size -= 1
            if not inner:
                del self._slots[slot]

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        self._size -= len(self._slots.pop(slot, ()))

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(sorted(self._slots.get(slot, {}).items(), key=_by_sub))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        return list(islice(self._slots.get(slot, {}).items(), count))

    def next_entries(self, count: int) -> list[tuple[bytes, bytes, Stored]]:
        slots = self._slots
        assert isinstance(slots, OrderedDict)
        found: list[tuple[bytes, bytes, Stored]] = []
        count = min(count, self._size)
        while len(found) < count:
            slot, inner = next(iter(slots.items()))
            assert isinstance(inner, OrderedDict)
            if not 0 < self._left <= len(inner):
                self._left = len(inner)
            taken = min(count - len(found), self._left)
            for _ in range(taken):
                sub = next(iter(inner))
                inner.move_to_end(sub)
                found.append((slot, sub, inner[sub]))
            self._left -= taken
            if self._left == 0:
                slots.move_to_end(slot)
        return found

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((slot, sub, stored) for slot, inner in list(self._slots.items()) for sub, stored in list(inner.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._slots))

    def __len__(self) -> int:
        return self._size
