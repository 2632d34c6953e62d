"""A table in a column family: the address is the key, the serialised entry the value.

A slot's entries stand together, so reading or clearing a list or a map is one bounded scan. Clearing writes one
deletion per entry, in one batch: a range deletion would be one record, but slows every later read that passes it.

The endless round (`next_entries`) meets stretches where everything was deleted, which may be longer than one access
may last. It crosses them in blocks: all addresses whose first bits are those of the round's position. A block in which
an iterator has to pass more than `STEPS` deleted entries is halved, by one bit more; one that it gets through lets the
next be twice as large. So each access does bounded work, and no entry is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncio_operator.state.layout import STATE_PREFIX, parse_slot
from asyncio_operator.state.rocksdb.database import Database, is_store_error
from asyncio_operator.state.rocksdb.records import prefix_end
from asyncio_operator.state.table import Batch, Stored, Table

STEPS = 256
"""Deleted entries that the round passes at once: 15 microseconds, five times a new iterator."""

BLOCKS = 4
"""Blocks that one access looks into at most. One is the rule, two where the round begins anew."""


class RocksDBTable(Table):
    """The entries of the state `name`, in its column family."""

    def __init__(self, database: Database, name: str, group_width: int) -> None:
        self._database = database
        self._name = STATE_PREFIX + name
        self._family = database.family(self._name)
        self._group_width = group_width
        self.get_slot = self._family.get
        self.put_slot = self._family.put
        # Of the round: where it is, and how many first bits make a block; with none the table is one block.
        self._position = b""
        self._bits = 0

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self.get_slot(slot + sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot + sub, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self._family.delete(slot + sub)

    def error(self, error: Exception) -> Exception:
        return self._database.error(error, self._name) if is_store_error(error) else error

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Stored | None]], clear: bool) -> None:
        name, handles = self._name, self._database.handles
        if clear:
            for address, _ in self._database.scan(name, slot, prefix_end(slot)):
                batch.delete(address, handles[name])
        for sub, stored in changes:
            if stored is None:
                batch.delete(slot + sub, handles[name])
            else:
                batch.put(slot + sub, stored, handles[name])

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        length = len(slot)
        rows = self._database.scan(self._name, slot, prefix_end(slot))
        return ((address[length:], stored) for address, stored in rows)

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        rows = self._database.head(self._name, slot, prefix_end(slot), count)
        return [(address[len(slot) :], stored) for address, stored in rows]

    def next_entries(self, count: int) -> list[tuple[bytes, bytes, Stored]]:
        found: list[tuple[bytes, bytes]] = []
        beginning, wrapped = self._position, False
        for _ in range(BLOCKS):
            end = block_end(self._position, self._bits)
            last = wrapped and (end is None or end >= beginning)
            cursor = self._database.cursor(self._name, self._position, beginning if last else end, STEPS)
            rows = cursor.take(count - len(found))
            found += rows
            if rows:
                self._position = rows[-1][0] + b"\x00"  # the smallest address above it
            if len(found) == count:
                break
            if cursor.crowded:
                self._bits += 1
                continue
            self._bits = max(self._bits - 1, 0)
            if last or (end is None and not beginning):
                self._position = beginning
                break
            wrapped = wrapped or end is None
            self._position = end or b""
        return [(address, b"", stored) for address, stored in found]

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((address, b"", stored) for address, stored in self._database.scan(self._name, b"", None))

    def slots(self) -> Iterator[bytes]:
        """Passes over the entries of a slot by seeking behind it."""
        width, found, slot = self._group_width, [], None
        try:
            cursor = self._database.cursor(self._name, b"", None)
            while rows := cursor.take(1):
                address = rows[0][0]
                if slot is None or not address.startswith(slot):
                    slot = address[: parse_slot(address, width)[2]]
                    found.append(slot)
                elif (end := prefix_end(slot)) is not None:
                    cursor.seek(end)
                else:
                    break
        except Exception as error:
            raise self.error(error) from error
        return iter(found)

    def __len__(self) -> int:
        return sum(1 for _ in self.entries())


def block_end(address: bytes, bits: int) -> bytes | None:
    """The smallest bytes above every address that has the same first `bits` bits; None if there are none."""
    length = (bits + 7) // 8
    spare = 8 * length - bits
    first = int.from_bytes(address[:length].ljust(length, b"\x00"), "big") >> spare
    return (first + 1 << spare).to_bytes(length, "big") if (first + 1) >> bits == 0 else None
