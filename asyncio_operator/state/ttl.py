"""State TTL: cells whose values expire. Written once, over both backends.

An entry is stored with the time of its last write (or, with ON_READ_AND_WRITE, its last touch), in milliseconds since
the epoch, and is expired once ``timestamp + ttl <= now``. Python's integers do not overflow; a timestamp in the future
is alive. Times are absolute, so time spent stopped counts.

What removes expired entries:

- reading: whatever a read finds expired is deleted, entry by entry;
- incrementally: with every access the next few entries of an endless round through the table are looked at, whoever
  they belong to. A round ends where the table ended when it began. It costs no memory, and bounded work per access but
  for the room that RocksDB makes now and then; an index by expiry would cost a second write for each write and a third
  for each touch;
- in full snapshots: the backend leaves out of what it writes what `is_expired`;
- in compaction: `compact` sweeps the table once, in batches, then RocksDB drops the space. RocksDB's own expiry filter
  follows the wall clock, and would not obey the clock that was passed in.

This module does not know which backend it stands on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from asyncio_operator.errors import StateError
from asyncio_operator.state.cells import ABSENT, READING, WRITING, Cells
from asyncio_operator.state.table import Batch, Codec, Stored, Table
from asyncio_operator.state.ttl_config import (
    CleanupIncrementally,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
)

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend

REMOVAL_BATCH = 1000
"""Entries that are deleted in one batch: 100 KB of work between two writes."""


class TtlCells(Cells):
    """Cells of a state with time to live; the codec has to be a stamped one."""

    def __init__(self, name: str, backend: StateBackend, table: Table, codec: Codec, ttl: StateTtlConfig) -> None:
        super().__init__(name, backend, table, codec)
        self._ttl = ttl.milliseconds
        self._now = backend.now
        self._touch = ttl.update_type is UpdateType.ON_READ_AND_WRITE
        self._return_expired = ttl.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        self.load = self._load
        self.store = self._store
        self.strategy = ttl.strategy
        incremental = ttl.strategy(CleanupIncrementally)
        self._sweep_size = incremental.size if incremental else 0
        self.every_record = incremental is not None and incremental.every_record

    def is_expired(self, stored: Any) -> bool:
        """Whether a stored entry has outlived its time."""
        return self.is_over(stored, self._now())

    def is_over(self, stored: Any, now: int) -> bool:
        """The same at some time, in milliseconds."""
        return self.codec.timestamp(stored) + self._ttl <= now

    def get(self, slot: bytes, sub: bytes) -> Any:
        """The value of a cell, or ABSENT; an expired one is removed."""
        try:
            stored = self._get(slot, sub)
            rest = None if stored is None else self._living(slot, sub, stored, self._now())
            value = ABSENT if rest is None else self._decode(rest)
        except Exception as error:
            raise self.located(error, slot, READING) from error
        self.sweep(slot)
        return value

    def put(self, slot: bytes, sub: bytes, value: Any) -> None:
        """Writes a cell, whose life begins now."""
        try:
            self._put(slot, sub, self._stored(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error
        self.sweep(slot)

    def delete(self, slot: bytes, sub: bytes) -> None:
        """Empties a cell."""
        super().delete(slot, sub)
        self.sweep(slot)

    def contains(self, slot: bytes, sub: bytes) -> bool:
        """Whether reading the cell would give a value; it counts as reading it."""
        return self.get(slot, sub) is not ABSENT

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Any]]:
        """As of `Cells`; what an iteration passes that is expired is removed, what it does not reach is not read."""
        rows = super().scan(slot)
        self.sweep(slot)
        return rows

    def _decoded(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        decode, backend = self._decode, self.backend
        try:
            now = self._now()
            for sub, stored in rows:
                if backend.closed:
                    backend.check_open()
                rest = self._scanned(slot, sub, stored, now)
                if rest is not None:
                    yield sub, decode(rest)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def is_empty(self, slot: bytes) -> bool:
        """Whether no living cell is in the slot; what it passes that is expired is removed, nothing is touched."""
        try:
            empty = self._is_empty(slot)
        except Exception as error:
            raise self.located(error, slot, READING) from error
        self.sweep(slot)
        return empty

    def _is_empty(self, slot: bytes) -> bool:
        count = 1
        while rows := self.table.head(slot, count):
            for sub, stored in rows:
                if self._return_expired or not self.is_expired(stored):
                    return False
                self.table.delete(slot, sub)
            count = min(2 * count, REMOVAL_BATCH)
        return True

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Any]], clear: bool = False) -> None:
        """Adds writes of cells to a batch; their lives begin now."""
        super().stage(batch, slot, changes, clear)
        self.sweep(slot)

    def stage_aged(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Any]], timestamp: int) -> None:
        """Adds writes of cells to a batch, after emptying the slot; their lives began at `timestamp`."""
        stamp, encode = self.codec.stamp, self._encode
        try:
            self.table.stage(batch, slot, [(sub, stamp(timestamp, encode(value))) for sub, value in changes], True)
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def sweep(self, slot: bytes) -> None:
        """With an access to a slot: looks at the next few entries of the round and removes those that are expired."""
        if not self._sweep_size:
            return
        try:
            timestamp, deadline = self.codec.timestamp, self._now() - self._ttl
            for found, sub, stored in self.table.next_entries(self._sweep_size):
                if timestamp(stored) <= deadline:
                    self.table.delete(found, sub)
        except Exception as error:
            raise self.located(error, slot, "cleaning up failed") from error

    def sweep_all(self) -> None:
        """Removes every expired entry."""
        try:
            remove_expired(self.table, self.is_expired, self.backend.new_batch, self.backend.commit)
        except Exception as error:
            raise StateError(f"cleaning up state {self.name!r} failed: {self.table.error(error)}") from error

    def _load(self, slot: bytes) -> Any | None:
        stored = self.table.get_slot(slot)
        rest = None if stored is None else self._living(slot, b"", stored, self._now())
        self.sweep(slot)
        return rest

    def _store(self, slot: bytes, stored: Any) -> None:
        self.table.put_slot(slot, self.codec.stamp(self._now(), stored))
        self.sweep(slot)

    def _living(self, slot: bytes, sub: bytes, stored: Any, now: int) -> Any | None:
        """What is below the timestamp of an entry that was found, or None; deletes it if expired, else may touch it."""
        rest = self.codec.unstamp(stored)
        if self.is_over(stored, now):
            self.table.delete(slot, sub)
            return rest if self._return_expired else None
        if self._touch and self.codec.timestamp(stored) != now:
            self._put(slot, sub, self.codec.stamp(now, rest))
        return rest

    def _scanned(self, slot: bytes, sub: bytes, stored: Any, now: int) -> Any | None:
        """The same for an entry of a scan: the user may have changed it meanwhile, and then it is his."""
        expired = self.is_over(stored, now)
        ages = expired or (self._touch and self.codec.timestamp(stored) != now)
        if ages and not self.table.holds(slot, sub, stored):
            return None if expired and not self._return_expired else self.codec.unstamp(stored)
        return self._living(slot, sub, stored, now)

    def _stored(self, value: Any) -> Any:
        return None if value is ABSENT else self.codec.stamp(self._now(), self._encode(value))


def remove_expired(
    table: Table,
    expired: Callable[[Stored], bool],
    new_batch: Callable[[], Batch],
    commit: Callable[[Batch], None],
) -> None:
    """Removes every expired entry of a table, in batches of bounded size."""
    rows = (row for row in table.entries() if expired(row[2]))
    while chunk := list(islice(rows, REMOVAL_BATCH)):
        batch = new_batch()
        for slot, sub, _ in chunk:
            table.stage(batch, slot, [(sub, None)], False)
        commit(batch)
