"""A table in a column family: the address is the key, the serialised entry the value.

A slot's entries stand together, so reading or clearing a list or a map is one bounded scan. Clearing writes one
deletion per entry, in one batch: a range deletion would be one record, but slows every later read that passes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncio_operator.state.layout import parse_slot, prefix_end
from asyncio_operator.state.rocksdb.database import Database, is_store_error
from asyncio_operator.state.table import Batch, Stored, Table


class RocksDBTable(Table):
    """The entries of one state, in the column family `name`."""

    def __init__(self, database: Database, name: str, group_width: int) -> None:
        self._database = database
        self._family = database.family(name)
        self._name = name
        self._group_width = group_width
        self.get_slot = self._family.get
        self.put_slot = self._family.put
        self._cursor = b""

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self.get_slot(slot + sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot + sub, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self._family.delete(slot + sub)

    def error(self, error: Exception) -> Exception:
        return self._database.error(error) if is_store_error(error) else error

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Stored | None]], clear: bool) -> None:
        handle = self._database.handle(self._name)
        if clear:
            for address, _ in self._database.scan(self._family, slot, prefix_end(slot)):
                batch.delete(address, handle)
        for sub, stored in changes:
            if stored is None:
                batch.delete(slot + sub, handle)
            else:
                batch.put(slot + sub, stored, handle)

    def scan(self, slot: bytes, ordered: bool = True) -> Iterator[tuple[bytes, Stored]]:
        length = len(slot)
        rows = self._database.scan(self._family, slot, prefix_end(slot))
        return ((address[length:], stored) for address, stored in rows)

    def rows(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Addresses and entries with ``start <= address < end``, as they are now."""
        return self._database.scan(self._family, start, end)

    def next_entries(self, count: int) -> list[tuple[bytes, bytes, Stored]]:
        start = self._cursor
        rows = list(self._database.scan(self._family, start, None, count))
        if start and len(rows) < count:
            rows += self._database.scan(self._family, b"", start, count - len(rows))
        # The smallest address above the last one.
        self._cursor = rows[-1][0] + b"\x00" if rows else b""
        return [(address, b"", stored) for address, stored in rows]

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((address, b"", stored) for address, stored in self.rows(b"", None))

    def slots(self) -> Iterator[bytes]:
        """Passes over the entries of a slot by seeking behind it."""
        family, width = self._family, self._group_width
        iterator = family.iter()
        iterator.seek(b"")
        found = []
        while iterator.valid():
            address = iterator.key()
            slot = address[: parse_slot(address, width)[2]]
            found.append(slot)
            iterator.next()
            if iterator.valid() and iterator.key().startswith(slot):
                end = prefix_end(slot)
                if end is None:
                    break
                iterator.seek(end)
        return iter(found)

    def __len__(self) -> int:
        return sum(1 for _ in self.rows(b"", None))
