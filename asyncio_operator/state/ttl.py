"""State TTL: cells whose values expire. Written once, over both backends.

An entry is stored with the time of its last write (or, with ON_READ_AND_WRITE, its last touch), in milliseconds since
the epoch, and is expired once ``timestamp + ttl <= now``. Python's integers do not overflow; a timestamp in the future
is alive. Times are absolute, so time spent stopped counts.

What removes expired entries:

- reading: whatever a read finds expired is deleted, entry by entry;
- incrementally: after every access the next few entries of an endless round through the table are looked at, whoever
  they belong to. A round costs bounded work per access and no memory, where an index by expiry would cost a second
  write for each write and a third for each touch;
- in full snapshots: expired entries are left out of what is written (`Expiry.expired`);
- in compaction: `compact` sweeps the table once, in batches, then RocksDB drops the space. RocksDB's own expiry filter
  follows the wall clock, and would not obey the clock that was passed in.

This module does not know which backend it stands on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from asyncio_operator.state.cells import ABSENT, READING, WRITING, Cells, Expiry
from asyncio_operator.state.table import Batch, Codec, Table
from asyncio_operator.state.ttl_config import (
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
)

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend

SWEEP_BATCH = 1000
"""Entries that a compaction deletes in one batch: 100 KB of work between two writes."""


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
        incremental = ttl.strategy(CleanupIncrementally)
        self._sweep_size = incremental.size if incremental else 0
        self.expiry = Expiry(
            expired=self.is_expired if ttl.strategy(CleanupFullSnapshot) else None,
            compact=self.sweep_all if ttl.strategy(CleanupInCompaction) else None,
            on_key=self.sweep if incremental and incremental.every_record else None,
        )

    def is_expired(self, stored: Any) -> bool:
        """Whether a stored entry has outlived its time."""
        return self.codec.timestamp(stored) + self._ttl <= self._now()

    def get(self, slot: bytes, sub: bytes) -> Any:
        """The value of a cell, or ABSENT; an expired one is removed."""
        try:
            stored = self._get(slot, sub)
            rest = None if stored is None else self._living(slot, sub, stored, self._now())
            value = ABSENT if rest is None else self._decode(rest)
        except Exception as error:
            raise self.located(error, slot, READING) from error
        self.sweep()
        return value

    def put(self, slot: bytes, sub: bytes, value: Any) -> None:
        """Writes a cell, whose life begins now."""
        try:
            self._put(slot, sub, self._stored(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error
        self.sweep()

    def delete(self, slot: bytes, sub: bytes) -> None:
        """Empties a cell."""
        super().delete(slot, sub)
        self.sweep()

    def contains(self, slot: bytes, sub: bytes) -> bool:
        """Whether reading the cell would give a value; it counts as reading it."""
        return self.get(slot, sub) is not ABSENT

    def _decoded(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        now = self._now()
        for sub, stored in rows:
            try:
                rest = self._scanned(slot, sub, stored, now)
                value = ABSENT if rest is None else self._decode(rest)
            except Exception as error:
                raise self.located(error, slot, READING) from error
            if value is not ABSENT:
                yield sub, value
        self.sweep()

    def is_empty(self, slot: bytes) -> bool:
        """Whether no living cell is in the slot; what it passes that is expired is removed, nothing is touched."""
        for sub, stored in self.table.scan(slot, ordered=False):
            if self._return_expired or not self.is_expired(stored):
                return False
            self.table.delete(slot, sub)
        self.sweep()
        return True

    def stage(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Any]], clear: bool = False) -> None:
        """Adds writes of cells to a batch; their lives begin now."""
        super().stage(batch, slot, changes, clear)
        self.sweep()

    def stage_aged(self, batch: Batch, slot: bytes, changes: Iterable[tuple[bytes, Any]], timestamp: int) -> None:
        """Adds writes of cells to a batch, after emptying the slot; their lives began at `timestamp`."""
        stamp, encode = self.codec.stamp, self._encode
        self.table.stage(batch, slot, [(sub, stamp(timestamp, encode(value))) for sub, value in changes], True)

    def sweep(self) -> None:
        """Looks at the next few entries of the round and removes those that are expired."""
        if self._sweep_size:
            timestamp, deadline = self.codec.timestamp, self._now() - self._ttl
            for slot, sub, stored in self.table.next_entries(self._sweep_size):
                if timestamp(stored) <= deadline:
                    self.table.delete(slot, sub)

    def sweep_all(self) -> None:
        """Removes every expired entry."""
        batch, staged = self.backend.new_batch(), 0
        for slot, sub, stored in self.table.entries():
            if self.is_expired(stored):
                self.table.stage(batch, slot, [(sub, None)], False)
                staged += 1
                if staged % SWEEP_BATCH == 0:
                    self.backend.commit(batch)
                    batch = self.backend.new_batch()
        self.backend.commit(batch)

    def _load(self, slot: bytes) -> Any | None:
        stored = self.table.get_slot(slot)
        rest = None if stored is None else self._living(slot, b"", stored, self._now())
        self.sweep()
        return rest

    def _store(self, slot: bytes, stored: Any) -> None:
        self.table.put_slot(slot, self.codec.stamp(self._now(), stored))
        self.sweep()

    def _living(self, slot: bytes, sub: bytes, stored: Any, now: int) -> Any | None:
        """What is below the timestamp of an entry that was found, or None; deletes it if expired, else may touch it."""
        timestamp = self.codec.timestamp(stored)
        rest = self.codec.unstamp(stored)
        if timestamp + self._ttl <= now:
            self.table.delete(slot, sub)
            return rest if self._return_expired else None
        if self._touch and timestamp != now:
            self._put(slot, sub, self.codec.stamp(now, rest))
        return rest

    def _scanned(self, slot: bytes, sub: bytes, stored: Any, now: int) -> Any | None:
        """The same for an entry of a scan: the user may have changed it meanwhile, and then it is his."""
        timestamp = self.codec.timestamp(stored)
        expired = timestamp + self._ttl <= now
        ages = expired or (self._touch and timestamp != now)
        if ages and self.table.get(slot, sub) != stored:
            return None if expired and not self._return_expired else self.codec.unstamp(stored)
        return self._living(slot, sub, stored, now)

    def _stored(self, value: Any) -> Any:
        return None if value is ABSENT else self.codec.stamp(self._now(), self._encode(value))
