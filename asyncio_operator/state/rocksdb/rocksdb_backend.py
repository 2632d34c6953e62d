"""Keyed state in a RocksDB directory.

Each state is a column family; addresses and records are those of `layout`. A write that has returned is in the log, and
a batch is whole or absent, so a process may die at any moment (see `database`). A directory that was closed, or left by
a process that died, can be opened again with all its state.

In a table the address is the key, the serialised entry the value. The entries of a slot are neighbours, so reading or
clearing a list or a map is one bounded scan. Clearing writes one deletion per entry, in one batch: a range deletion
would be one record, but slows every later read that passes it.

The endless round (`sweep`) is read by address. It goes to the address that was the last one when it began, so entries
that are added behind it cannot keep it from starting again at the first. Deleted entries slow it, as they slow every
read, and `Database` makes room.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from asyncio_operator.checks import check_directory, positive_int
from asyncio_operator.clock import Clock
from asyncio_operator.state.backend import Queue, StateBackend, StateStatistics
from asyncio_operator.state.descriptors import CleanupFullSnapshot, StateMeta
from asyncio_operator.state.entries import Batch, Codec, Table
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.layout import (
    NOT_BEGUN,
    RESTORING_KEY,
    RETIMING_KEY,
    STAMP_BIAS,
    STAMP_SIZE,
    STATE_PREFIX,
    Stored,
    parse_slot,
    retimed,
    stamp,
    stamped_at,
)
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.rocksdb.database import Database, is_store_error
from asyncio_operator.state.rocksdb.priority_queues import StateQueue
from asyncio_operator.state.rocksdb.processes import FOREIGN_PROCESS, belongs_here, check_process
from asyncio_operator.state.rocksdb.state_directory import Records, RocksDBSnapshot, prefix_end, prefixes
from asyncio_operator.state.rocksdb.use_order import OrderOfUse
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.state.serializers import BUILTIN, Serializer
from asyncio_operator.state.snapshot import Row, StateSnapshot, merged_rows

RESTORE_BATCH = 1000  # Entries written at once while restoring, or while time to live is switched.

_NOT_BEGUN = stamp(NOT_BEGUN + STAMP_BIAS)


class RocksDBStateBackend(StateBackend):
    """Keyed state in a directory that this backend alone uses; other arguments and errors as of `StateBackend`.

    It belongs to the process that opened it. In a forked child every use is a StateError, and `close` does nothing.

    Args:
        options: limits of memory, log and threads; None is the defaults.

    Raises:
        StateError: the directory is locked, damaged, foreign, or of another version, range or maximum parallelism.
    """

    snapshots_on_disk = True
    remedy = "open the directory again with a new RocksDBStateBackend"

    def __init__(
        self,
        directory: str | Path,
        *,
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int = 128,
        clock: Clock | None = None,
        options: RocksDBOptions | None = None,
    ) -> None:
        super().__init__(key_groups, max_parallelism, clock)
        self._database = Database(
            directory, look=lambda seen: Records(seen).check(self.key_groups, max_parallelism), options=options
        )
        try:
            self._records = Records(self._database)
            self._records.claim(self.key_groups, max_parallelism)
            self.metas = self._records.states()
            self._tables: dict[str, RocksDBTable] = {}
            self._retime()
            self._sequence = self._reserved = self._records.sequence()
        except BaseException:
            self._database.close()
            raise
        belongs_here(self)

    @staticmethod
    def check_process() -> None:
        """Raises StateError in a forked child of a process that has used RocksDB: such a child cannot open a
        directory."""
        check_process("a RocksDB directory")

    @property
    def directory(self) -> Path:
        """The directory of the state."""
        return self._database.path

    def table(self, name: str) -> RocksDBTable:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = RocksDBTable(self._database, name, self.group_width)
        return found

    def open_table(self, name: str, meta: StateMeta, serializer: Serializer) -> Table:
        self._retime()
        if name not in self.metas:
            self._records.write_state(name, meta)
        elif self.metas[name].ttl != meta.ttl:
            self._records.write_retiming(name, meta)
            self._retime()
        table = self.table(name)
        table.codec = Codec(serializer)
        return table

    def open_queue(self, name: str, meta: StateMeta, about: Queue) -> PriorityQueueSet[Any]:
        positive_int("cache_size", about.cache_size)
        if name not in self.metas:
            self._records.write_state(name, meta)
        return StateQueue(self._database, STATE_PREFIX + name, about, self.key_groups, self.max_parallelism)

    def drop_table(self, name: str) -> None:
        # The record goes first: an empty column family without a record is that of a new state.
        self._records.write_state(name, None)
        self._tables.pop(name, None)
        self._database.drop(STATE_PREFIX + name)

    def new_batch(self) -> Batch:
        return self._database.new_batch()

    def commit(self, batch: Batch) -> None:
        self._database.commit(batch)

    def next_sequence(self) -> int:
        sequence = self._sequence
        if sequence >= self._reserved:
            self._reserved = self._records.reserve_sequence(sequence)
        self._sequence = sequence + 1
        return sequence

    def compact(self) -> None:
        """As of `StateBackend`; then RocksDB rewrites every file, without what was deleted."""
        super().compact()
        self._database.compact()

    def order_of_use(self) -> OrderOfUse:
        """The order in which slots of this backend were used, for a cache; once for a backend."""
        return OrderOfUse(self._database, self.next_sequence)

    def statistics(self) -> StateStatistics:
        self.check_open()
        return self._database.statistics()

    def snapshot(self, directory: str | Path | None = None) -> StateSnapshot:
        """A checkpoint: hard links on the volume of the backend's directory, a copy on any other volume.

        A state that leaves expired entries out of snapshots has them deleted in the checkpoint, whose time is then
        proportional to that state.

        Args:
            directory: is made, with its parents, and must not exist. None is a new one beside the backend's directory,
                or in it where that is the root of a volume.

        Raises:
            ConfigurationError: `directory` is not a path.
            StateError: the backend is closed, `directory` exists, or it cannot be made.
        """
        self.settle()
        self._retime()
        if directory is None:
            # A name has 255 bytes at most.
            name = f"{self.directory.name.encode()[:200].decode(errors='ignore')}.snapshot-{uuid4().hex}"
            # Beside the directory if that is the same volume: hard links are made only within one.
            beside = self.directory.stat().st_dev == self.directory.parent.stat().st_dev
            target = self.directory.with_name(name) if beside else self.directory / name
        else:
            target = check_directory(directory)
        self._database.checkpoint(target)
        try:
            if leaving_out := list(self.lives(CleanupFullSnapshot)):
                with closing(Database(target, options=self._database.options)) as copy:
                    for name, lives in leaving_out:
                        lives.sweep_all(RocksDBTable(copy, name, self.group_width))
            return RocksDBSnapshot(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def load(self, snapshots: list[StateSnapshot], states: dict[str, StateMeta]) -> None:
        # Marked first: a directory whose restore was cut short is emptied when it is opened, and not taken for whole.
        self._records.write(RESTORING_KEY, True)
        try:
            for name, meta in states.items():
                self._records.write_state(name, meta)
                self._write_rows(name, merged_rows(snapshots, name, meta, self.key_groups))
        except BaseException:
            self._tables.clear()
            self._records.empty()
            for name in self._queues:
                self._records.write_state(name, self.metas[name])
            raise
        self._sequence = max([self._sequence, *(snapshot.sequence for snapshot in snapshots)])
        self._reserved = self._records.reserve_sequence(self._sequence)
        self._records.write(RESTORING_KEY, None)
        for queue in self._queues.values():
            queue.open()

    def close(self) -> None:
        self.mark_closed()
        self._tables.clear()
        self._database.close()

    def leave_to_parent(self) -> None:
        """In a forked child: every use is a StateError from here on, and `close` does nothing."""
        if not self.closed:
            self.mark_closed(FOREIGN_PROCESS)

    def _write_rows(
        self, name: str, rows: Iterator[Row], with_each: Callable[[Batch, bytes], None] | None = None
    ) -> None:
        """Writes entries in batches. `with_each` adds to each batch, and gets the address of its last entry."""
        table = self.table(name)
        while chunk := list(islice(rows, RESTORE_BATCH)):
            batch = self.new_batch()
            table.stage(batch, b"", chunk, clear=False)
            if with_each is not None:
                with_each(batch, chunk[-1][0])
            self.commit(batch)

    def _retime(self) -> None:
        """Goes on with the switch of a state's time to live, if one was begun: also by a process that died."""
        begun = self._records.retiming()
        if begun is None:
            return
        name, meta, after = begun
        rows = self._database.scan(STATE_PREFIX + name, after and _after(after), None)
        changed = ((address, retimed(stored, not meta.ttl, meta.ttl)) for address, stored in rows)
        # With each batch how far it is: an entry may get a timestamp, or lose it, only once.
        self._write_rows(name, changed, lambda batch, last: self._records.write_retiming(name, meta, last, batch))
        batch = self.new_batch()
        self._records.write_state(name, meta, batch)
        self._records.write(RETIMING_KEY, None, batch)
        self.commit(batch)
        self.metas[name] = meta

    def __repr__(self) -> str:
        return (
            f"<RocksDBStateBackend {str(self.directory)!r}, key groups {self.key_groups} of {self.max_parallelism}, "
            f"{len(self.metas)} states>"
        )


class RocksDBTable(Table):
    """The entries of the state `name`, in its column family."""

    def __init__(self, database: Database, name: str, group_width: int) -> None:
        self.codec = Codec(BUILTIN)
        self._database = database
        self._name = STATE_PREFIX + name
        self._family = database.family(self._name)
        self._group_width = group_width
        self.get_slot = self._family.get
        # The round: its position, its end (None before it begins), and the smallest timestamp that it has passed.
        self._position = b""
        self._end: bytes | None = None
        self._oldest = 0

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self.get_slot(slot + sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot + sub, stored)

    def put_slot(self, slot: bytes, stored: Stored) -> None:
        try:
            self._family.put(slot, stored)
        except Exception:
            self._database.write(self._name, self._family.put, slot, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self._database.write(self._name, self._family.delete, slot + sub)

    def holds(self, slot: bytes, sub: bytes, stored: Stored) -> bool:
        return bool(self.get(slot, sub) == stored)  # Equal bytes are the same value, of the same time.

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
        # A living entry begins with these bytes, or larger ones; one whose life begins now, with `fresh`.
        after, fresh = stamp(max(deadline + 1 + STAMP_BIAS, 0)), stamp(now + STAMP_BIAS)
        while count > 0:
            if self._end is None:
                # One round at most begins in a call: a small table must not be read again and again.
                last = None if begun else self._database.last(self._name)
                if last is None:
                    return oldest if begun else now
                begun = True
                self._position, self._end, self._oldest = b"", _after(last[0]), now
            rows = self._database.head(self._name, self._position, self._end, count)
            entries = [stored for _, stored in rows]
            if entries and (min(entries) < after or max(entries) >= _NOT_BEGUN):
                batch, handles = self._database.new_batch(), self._database.handles
                for address, stored in rows:
                    if stored < after:
                        batch.delete(address, handles[self._name])
                    elif stored >= _NOT_BEGUN:
                        batch.put(address, fresh + stored[STAMP_SIZE:], handles[self._name])
                self._database.commit(batch)
                entries = [stored for stored in entries if stored >= after]
            if entries:
                self._oldest = min(self._oldest, stamped_at(min(entries))[0] - STAMP_BIAS)
            count -= len(rows)
            # Fewer rows than asked for: the round has come to its end.
            if count > 0:
                self._end, oldest = None, self._oldest
            else:
                self._position = _after(rows[-1][0])
        return oldest

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((address, b"", stored) for address, stored in self._database.scan(self._name, b"", None))

    def slots(self) -> Iterator[bytes]:
        width = self._group_width
        return iter([*prefixes(self._database, self._name, lambda address: parse_slot(address, width)[2])])

    def __len__(self) -> int:
        return sum(1 for _ in self.entries())


def _after(address: bytes) -> bytes:
    """The smallest address above another."""
    return address + b"\x00"
