"""The order in which slots were used, on disk: for a cache that drops the least recently used.

Two column families beside those of the states:

    "order"    a number, 8 bytes, big-endian -> the slot; each slot once
    "places"   the slot -> the number of its last use, then that of its row in "order", which is not larger

Numbers are sequence numbers of the backend, so a later use has a larger number. A use changes only "places". The row in
"order" stays behind and moves when it comes to the front, because only there the order matters: the first row whose two
numbers are equal is the oldest, as all others were used later than their rows say. So the order is exact, and a slot
that is used a hundred times moves once. The number of slots is written with each change (`layout`).

A use of a slot is kept in memory first: of a slot that is used again and again only the last use is written. A process
that dies loses at most `UNWRITTEN` uses, and no slot: a slot is put or removed in one batch with its rows.

The rows at the front are read a few at a time, from behind the last one that was read. What moves to a place before
that is kept with those that were read, and every new slot has a larger number. So no read passes deleted entries.

Memory does not depend on the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncio_operator.state.entries import Batch
from asyncio_operator.state.layout import USES_KEY
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.state_directory import Records

UNWRITTEN = 1000
"""The most slots whose uses are in memory. They are written as one batch, which takes some milliseconds."""

LONG = 1000  # The use of a slot with more bytes is written at once, so the uses in memory take 1 MB at most.
AHEAD = 64  # Slots that are read at once.

_ORDER, _PLACES = "order", "places"


class OrderOfUse:
    """The slots of a database in the order of their last use. Every method raises StateError if the database fails.

    `next_number` gives a larger number with each call, also after the directory was opened again.
    """

    def __init__(self, database: Database, next_number: Callable[[], int]) -> None:
        self._database = database
        self._next_number = next_number
        for name in (_ORDER, _PLACES):
            database.family(name)
        # By slot, in the order of use.
        self._unwritten: dict[bytes, bytes] = {}
        # By number: the first rows of the order. All that are not here have a larger number.
        self._ahead: dict[bytes, bytes] = {}
        self._behind = b""
        self._records = Records(database)
        # Written with every change, so that opening does not count; counted in a directory of before that.
        known: int | None = self._records.read(USES_KEY)
        self._count = sum(1 for _ in database.scan(_PLACES, b"", None)) if known is None else known

    def __len__(self) -> int:
        return self._count

    def put(self, slot: bytes, batch: Batch) -> None:
        """Writes a batch, which counts as a use of a slot that may be new."""
        if self._place(slot) is not None:
            self._database.commit(batch)
            self.use(slot)
            return
        handles, number = self._database.handles, self._next_number().to_bytes(8, "big")
        batch.put(number, slot, handles[_ORDER])
        batch.put(slot, number + number, handles[_PLACES])
        self._records.write(USES_KEY, self._count + 1, batch)
        self._database.commit(batch)
        self._count += 1

    def use(self, slot: bytes) -> None:
        """Counts a use of an existing slot."""
        unwritten = self._unwritten
        unwritten.pop(slot, None)
        unwritten[slot] = self._next_number().to_bytes(8, "big")
        if len(unwritten) > UNWRITTEN or len(slot) > LONG:
            self.flush()

    def remove(self, slot: bytes, batch: Batch) -> None:
        """Removes a slot and writes a batch, if the slot exists."""
        place = self._place(slot)
        if place is None:
            return
        handles = self._database.handles
        batch.delete(place[8:], handles[_ORDER])
        batch.delete(slot, handles[_PLACES])
        self._records.write(USES_KEY, self._count - 1, batch)
        self._database.commit(batch)
        self._unwritten.pop(slot, None)
        self._ahead.pop(place[8:], None)
        self._count -= 1

    def oldest(self) -> bytes | None:
        """The least recently used slot; None if there is none."""
        while True:
            if not self._ahead:
                rows = self._database.head(_ORDER, self._behind, None, AHEAD)
                if not rows:
                    return None
                self._ahead = dict(rows)
                self._behind = rows[-1][0] + b"\x00"  # The smallest bytes that are larger.
            row, slot = next(iter(self._ahead.items()))
            place = self._place(slot)
            if slot not in self._unwritten and place == row + row:
                return slot
            self._move_ahead()

    def flush(self) -> None:
        """Writes the uses that are in memory, as one batch."""
        if not self._unwritten:
            return
        batch, places = self._database.new_batch(), self._database.handles[_PLACES]
        for slot, number in self._unwritten.items():
            place = self._place(slot)
            if place is not None:
                batch.put(slot, number + place[8:], places)
        # Cleared after the commit: if that fails, the uses are still here for the next attempt.
        self._database.commit(batch)
        self._unwritten.clear()

    def _move_ahead(self) -> None:
        """Moves the first rows of slots that were used since to where these uses belong, as one batch."""
        self.flush()
        batch, handles = self._database.new_batch(), self._database.handles
        rows = {}
        for row, slot in self._ahead.items():
            place = self._place(slot)
            assert place is not None  # A slot that is removed takes its row with it.
            used = place[:8]
            if used != row:
                batch.delete(row, handles[_ORDER])
                batch.put(used, slot, handles[_ORDER])
                batch.put(slot, used + used, handles[_PLACES])
            if used < self._behind:
                rows[used] = slot
        self._database.commit(batch)
        self._ahead = dict(sorted(rows.items()))

    def _place(self, slot: bytes) -> bytes | None:
        return self._database.get(_PLACES, slot)
