"""A table in a column family: the address is the key, the serialised entry the value.

The entries of a slot are neighbours, so reading or clearing a list or a map is one bounded scan. Clearing writes one
deletion per entry, in one batch: a range deletion would be one record, but slows every later read that passes it.

The endless round (`sweep`) is read by address. It goes to the address that was the last one when it began, so entries
that are added behind it cannot keep it from starting again at the first. Deleted entries slow it, as they slow every
read, and `Database` makes room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncio_operator.state.entries import Batch, Codec, Table
from asyncio_operator.state.layout import (
    NOT_BEGUN,
    STAMP_BIAS,
    STAMP_SIZE,
    STATE_PREFIX,
    Stored,
    parse_slot,
    stamp,
    stamped_at,
)
from asyncio_operator.state.rocksdb.database import Database, is_store_error
from asyncio_operator.state.rocksdb.records import prefix_end
from asyncio_operator.state.rocksdb.view import Row
from asyncio_operator.state.serializers import BUILTIN

_NOT_BEGUN = stamp(NOT_BEGUN + STAMP_BIAS)


class RocksDBTable(Table):
    """The entries of the state `name`, in its column family."""

    def __init__(self, database: Database, name: str, group_width: int) -> None:
        self.codec = Codec(BUILTIN)
        self._database = database
        self._name = STATE_PREFIX + name
        self._family = database.family(self._name)
        self._group_width = group_width
        self.get_slot = self._family.get
        self.put_slot = self._family.put
        # The round: its position, its end (None before it begins), and the smallest timestamp that it has passed.
        self._position = b""
        self._end: bytes | None = None
        self._oldest = 0

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self.get_slot(slot + sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot + sub, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self._family.delete(slot + sub)

    def holds(self, slot: bytes, sub: bytes, stored: Stored) -> bool:
        found: bool = self.get(slot, sub) == stored  # Equal bytes are the same value, of the same time.
        return found

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

    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        begun, oldest = False, None
        while count > 0:
            if self._end is None:
                # One round at most begins in a call: a small table must not be read again and again.
                last = None if begun else self._database.last(self._name)
                if last is None:
                    return oldest if begun else now
                begun = True
                self._position, self._end, self._oldest = b"", _after(last[0]), now
            rows = self._database.head(self._name, self._position, self._end, count)
            self._remove_over(rows, deadline, now)
            count -= len(rows)
            # Fewer rows than asked for: the round has come to its end.
            if count > 0:
                self._end, oldest = None, self._oldest
            else:
                self._position = _after(rows[-1][0])
        return oldest

    def _remove_over(self, rows: list[Row], deadline: int, now: int) -> None:
        """Removes from the rows of the round those stamped at the deadline or before, and begins the lives of others,
        in one batch."""
        if not rows:
            return
        entries = [stored for _, stored in rows]
        after = stamp(max(deadline + 1 + STAMP_BIAS, 0))  # A living entry begins with these bytes, or larger ones.
        if min(entries) < after or max(entries) >= _NOT_BEGUN:
            batch, handle, begun = (
                self._database.new_batch(),
                self._database.handles[self._name],
                stamp(now + STAMP_BIAS),
            )
            for address, stored in rows:
                if stored < after:
                    batch.delete(address, handle)
                elif stored >= _NOT_BEGUN:
                    batch.put(address, begun + stored[STAMP_SIZE:], handle)
            self._database.commit(batch)
            entries = [stored for stored in entries if stored >= after]
        if entries:
            self._oldest = min(self._oldest, stamped_at(min(entries))[0] - STAMP_BIAS)

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((address, b"", stored) for address, stored in self._database.scan(self._name, b"", None))

    def scan_from(self, after: bytes) -> Iterator[Row]:
        """The entries behind an address, or all for the empty one."""
        return self._database.scan(self._name, after and _after(after), None)

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


def _after(address: bytes) -> bytes:
    """The smallest address above another."""
    return address + b"\x00"
