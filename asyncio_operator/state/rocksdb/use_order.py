"""The order in which slots were used, on disk: for a cache that drops the least recently used.

Two column families beside those of the states:

    "order"    the number of the last use, 8 bytes, big-endian -> the slot
    "places"   the slot -> the same number: its place in the order

Numbers are sequence numbers of the backend, so a later use has a larger number. A use of a slot is kept in memory
first: of a slot that is used again and again only the last use is written. The order is exact. A process that dies
loses at most `UNWRITTEN` uses, and no slot: a slot is put or removed in one batch with its place in the order.

The oldest slots are read a few at a time, from behind the last one that was read. No slot can get a place before that,
because every new use has a larger number, and the uses in memory are written before the read. So no read passes deleted
entries.

Memory does not depend on the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.table import Batch

UNWRITTEN = 1000
"""The most slots whose uses are in memory. They are written as one batch, which takes some milliseconds."""

LONG = 1000
"""The use of a slot with more bytes is written at once, so the uses in memory take 1 MB at most."""

AHEAD = 64
"""Slots that are read at once."""

_ORDER, _PLACES = "order", "places"


class OrderOfUse:
    """The slots of a database in the order of their last use.

    Args:
        database: has no other column families of these names.
        next_number: gives a larger number with each call, also after the directory was opened again.

    Raises:
        StateError: by every method, if the database cannot be read or written.
    """

    def __init__(self, database: Database, next_number: Callable[[], int]) -> None:
        self._database = database
        self._next_number = next_number
        self._place_of = database.family(_PLACES).get
        database.family(_ORDER)
        # By slot, in the order of use.
        self._unwritten: dict[bytes, bytes] = {}
        # By number: the oldest ones. All that is not here, and is written, has a larger number.
        self._ahead: dict[bytes, bytes] = {}
        self._behind = b""
        self._count = sum(1 for _ in database.scan(_PLACES, b"", None))

    def __len__(self) -> int:
        return self._count

    def put(self, slot: bytes, batch: Batch) -> None:
        """Writes a batch, which counts as a use of a slot that may be new."""
        # A slot that has a place keeps it for now: like every use, this one is counted in memory first.
        if self._place(slot) is not None:
            self._database.commit(batch)
            self.use(slot)
            return
        handles, number = self._database.handles, self._next_number().to_bytes(8, "big")
        batch.put(number, slot, handles[_ORDER])
        batch.put(slot, number, handles[_PLACES])
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
        batch.delete(place, handles[_ORDER])
        batch.delete(slot, handles[_PLACES])
        self._database.commit(batch)
        self._unwritten.pop(slot, None)
        self._ahead.pop(place, None)
        self._count -= 1

    def oldest(self) -> bytes | None:
        """The least recently used slot; None if there is none."""
        while self._ahead or self._read_ahead():
            slot = next(iter(self._ahead.values()))
            if slot not in self._unwritten:
                return slot
            # It was used since it was read. Writing the uses takes it, and others like it, out of `_ahead`.
            self.flush()
        return None

    def flush(self) -> None:
        """Writes the uses that are in memory, as one batch."""
        if not self._unwritten:
            return
        batch, handles = self._database.new_batch(), self._database.handles
        moved = []
        for slot, number in self._unwritten.items():
            place = self._place(slot)
            if place is not None:
                batch.delete(place, handles[_ORDER])
                batch.put(number, slot, handles[_ORDER])
                batch.put(slot, number, handles[_PLACES])
                moved.append(place)
        # Cleared after the commit: if that fails, the uses are still here for the next attempt.
        self._database.commit(batch)
        self._unwritten.clear()
        for place in moved:
            self._ahead.pop(place, None)

    def _read_ahead(self) -> bool:
        self.flush()
        rows = self._database.head(_ORDER, self._behind, None, AHEAD)
        if rows:
            self._ahead = dict(rows)
            self._behind = rows[-1][0] + b"\x00"  # The smallest bytes that are larger.
        return bool(rows)

    def _place(self, slot: bytes) -> bytes | None:
        try:
            place: bytes | None = self._place_of(slot)
        except Exception as error:
            raise self._database.error(error, _PLACES) from error
        return place

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        order = dict(self._database.scan(_ORDER, b"", None))
        places = dict(self._database.scan(_PLACES, b"", None))
        assert {slot: number for number, slot in order.items()} == places
        assert len(order) == len(places) == self._count
        assert len(self._unwritten) <= UNWRITTEN
        assert self._unwritten.keys() <= places.keys()
        assert all(number > places[slot] for slot, number in self._unwritten.items())
        assert [number for number in order if number < self._behind] == list(self._ahead)
        assert all(order[number] == slot for number, slot in self._ahead.items())
