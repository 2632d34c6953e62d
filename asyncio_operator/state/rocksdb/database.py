"""One RocksDB directory: opening and closing it, its column families, reading ranges, and its errors as StateErrors.

A directory belongs to one process and one `Database` at a time: `processes` locks it before its files are read, and
leaves it to the parent after a fork. RocksDB keeps its own lock until the last iterator and the last handle are gone.
So those that outlive the call that made them are recorded here, and end with `close`. A directory that is only read (a
snapshot, or a directory before it is opened) is read through a `view`: nothing in it changes, and it may be on a
read-only medium.

When a write returns it is in the write-ahead log, at least in the memory of the operating system. It survives the death
of the process. A loss of power may lose the last writes, but no write before one that is kept. A log that is cut short
at its end is opened; a log with any other damage is an error, never less data (`log`).

Deleted entries stay in the way of iterators until RocksDB rewrites their file: a read that passes too many of them has
the files of its range rewritten.

All databases of a process with equal options share one block cache and one budget of write buffers. When a database is
opened it takes half of the rest of the budget, at least `LEAST`, and returns it when it is closed. RocksDB has a write
buffer manager for several databases, but with it an idle database keeps its memory, and then the others write a file
for each entry. No object of RocksDB is made before the first database is opened, and those of a process are not used in
its children. This module does not know what the column families hold.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    ColumnFamily,
    CompactOptions,
    DataBlockIndexType,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from asyncio_operator.checks import check_directory, of_kind
from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.state.backend import StateStatistics
from asyncio_operator.state.rocksdb.log import LogCheck
from asyncio_operator.state.rocksdb.processes import FOREIGN_PROCESS, DirectoryLock, belongs_here, check_process, keep
from asyncio_operator.state.rocksdb.view import BEGUN, Cursor, is_database, leave, view_of
from asyncio_operator.state.rocksdb_options import MIB, RocksDBOptions
from asyncio_operator.state.snapshot import Row

ARENA: Final = 8 << 10
"""Bytes that a write buffer grows by. RocksDB's 1 MB would be taken by every state that was written once."""

FILTER: Final = 1 / 1024
"""The part of a write buffer that is a Bloom filter of its keys, which every state has from the beginning, 32 KiB by
default: reading a key that is new takes half of the time."""

LEAST: Final = 2 * MIB
"""Bytes of write buffers of a database. With 1 MB a write takes twice as long, because RocksDB merges small files."""

JOURNAL: Final = MIB
"""Bytes at which RocksDB begins a new journal of its work, and a new list of table files. Without a limit both grow as
long as the directory is used."""


class Settings:
    """The settings of one open database: its part of the shared budget, none if it is read-only, and native options."""

    def __init__(self, options: RocksDBOptions, read_only: bool) -> None:
        owner = os.getpid(), options
        self._options = options
        self.writes = WriteOptions()
        self.writes.no_slowdown = True  # RocksDB refuses what has to wait: see `Database.write`.
        if owner not in _shared:
            cache = Cache.new_hyper_clock_cache(options.block_cache_bytes, 0)  # 0: entries of any size.
            _shared.setdefault(owner, Shared(cache))
        self.shared = shared = _shared[owner]
        least = min(LEAST, options.write_buffer_bytes)
        with shared.lock:
            taken = sum(each.write_buffer for each in shared.open)
            self.write_buffer: int = max((options.write_buffer_bytes - taken) // 2, least)
            if not read_only:
                shared.open.add(self)

    def native(self) -> Options:
        """Options for a database and each of its column families: raw bytes in and out.

        A backend belongs to one thread, so RocksDB need not prepare for several writers: a tenth of a put.
        """
        given = self._options
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_allow_concurrent_memtable_write(False)
        options.set_db_write_buffer_size(self.write_buffer)
        options.set_write_buffer_size(self.write_buffer)
        options.set_arena_block_size(ARENA)
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(FILTER)
        # A log can be deleted once every family that wrote into it was written out; the limit makes RocksDB do so.
        options.set_max_total_wal_size(given.max_log_bytes)
        # Point-in-time recovery, the default of RocksDB, opens with the records before a damaged one and loses the
        # rest.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(JOURNAL)
        options.set_max_manifest_file_size(JOURNAL)
        options.set_max_background_jobs(given.background_jobs)
        # Writes wait at 36 files, as by default, but RocksDB slows none down: it would count each refused attempt.
        options.set_level_zero_slowdown_writes_trigger(36)
        options.set_level_zero_stop_writes_trigger(36)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_compression_type(getattr(DBCompressionType, given.compression)())
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(10, False)  # For reads of what is absent.
        blocks.set_block_cache(self.shared.cache)
        # Otherwise indexes and filters are outside of the cache, and grow with every file. Finding them in the cache
        # makes a read 4 % slower, which the hash index within blocks and the cache without locks make up for.
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
        blocks.set_data_block_hash_ratio(0.75)
        options.set_block_based_table_factory(blocks)
        return options

    def release(self) -> None:
        """Returns the part of the write buffers; called again it does nothing."""
        with self.shared.lock:
            self.shared.open.discard(self)


@dataclass(slots=True, eq=False)
class Shared:
    """What the databases of a process with equal options share."""

    cache: Cache
    # Those that have a part of the write buffers; one that is dropped without being closed has none.
    open: WeakSet[Settings] = field(default_factory=WeakSet)
    lock: threading.Lock = field(default_factory=threading.Lock)


_shared: dict[tuple[int, RocksDBOptions], Shared] = {}
"""By process: a child does not touch the objects of its parent, not even to free them."""


def rewriting() -> CompactOptions:
    """Options to rewrite all files: RocksDB would only move one that overlaps no other, with its deleted entries."""
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    return options


T = TypeVar("T")

CHUNK = 256  # Rows that a scan reads at once. Most scans have fewer rows, and then leave no iterator open.

_MISSING = re.compile("orruption|No such file")
_DAMAGED = re.compile(r"orruption|No such file.*(\.sst|MANIFEST)|(\.sst|MANIFEST).*No such file", re.DOTALL)

BUFFERS = "rocksdb.cur-size-all-mem-tables"
READERS = "rocksdb.estimate-table-readers-mem"
PENDING = "rocksdb.estimate-pending-compaction-bytes"

PATIENCE = 2000
"""Deleted entries that a read passes before its range is rewritten: passing them takes 0.1 ms, rewriting some 4 ms."""


class Database:
    """An open RocksDB directory. ConfigurationError if `directory` is not a path, or `options` has the wrong type;
    StateError if it is locked, damaged, or holds other files."""

    def __init__(
        self,
        directory: str | Path,  # Created if it is missing; its parent too.
        *,
        # Called with a read-only `Database` on an existing directory, before it is opened. If it raises, the directory
        # is not changed.
        look: Callable[[Database], object] | None = None,
        read_only: bool = False,  # It takes no lock and writes nothing.
        options: RocksDBOptions | None = None,  # The limits of RocksDB; None is the defaults.
    ) -> None:
        self.path = check_directory(directory)
        check_process(f"the RocksDB directory {self.path}")
        of_kind("options", options, RocksDBOptions)
        self.options = options or RocksDBOptions()
        self.closed = False
        # By column family. RocksDB is closed only when the last handle is gone, and an error may keep its frames for
        # long: so no frame holds a handle, only this dictionary.
        self.handles: dict[str, ColumnFamily] = {}
        self._families: dict[str, Rdict] = {}
        self._patience: dict[str, int] = {}
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._view: Path | None = None
        self._read_only = read_only
        self.why_closed = "is closed: open it again"
        with self._errors():
            lock = None if read_only else DirectoryLock(self.path)
        try:
            there, logs = is_database(self.path), None
            # Before RocksDB reads anything. The logs of a directory that is looked at are checked for `look`.
            if there and look is not None:
                self._show(look)
            elif there:
                logs = LogCheck(self.path)
                if logs.damage is not None:
                    raise self._damaged(f"a record is wrong: {logs.damage}")
            names = Rdict.list_cf(str(self.path)) if there else []
            if not there and not read_only:
                (self.path / BEGUN).touch()
            self._settings = Settings(self.options, read_only)
            self._db = self._open(names, logs)
            if not read_only:
                (self.path / BEGUN).unlink(missing_ok=True)
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, StateError) or not isinstance(error, Exception):
                raise
            raise self.error(error) from error
        self._families["default"] = self._db
        self.handles["default"] = self._db.get_column_family_handle("default")
        self.names = set(names) | {"default"}  # Of the column families.
        # The last attribute: an object is freed in the order of its attributes, and RocksDB has to go before the lock.
        self._directory_lock = lock
        belongs_here(self)

    def family(self, name: str) -> Rdict:
        """A column family, made if it is missing."""
        found = self._families.get(name)
        if found is None:
            with self._errors(name):
                if name in self.names:
                    found = self._db.get_column_family(name)
                else:
                    found = self._db.create_column_family(name, self._settings.native())
                self.handles[name] = self._db.get_column_family_handle(name)
            found.set_write_options(self._settings.writes)
            self.names.add(name)
            self._families[name] = found
        return found

    def drop(self, name: str) -> None:
        """Deletes a column family and everything in it."""
        with self._errors(name):
            self.family(name)
            self.handles.pop(name)
            self._families.pop(name).close()
            self._db.drop_column_family(name)
        self.names.discard(name)

    def get(self, name: str, key: bytes) -> bytes | None:
        """The value of a key in a column family, or None."""
        try:
            return self.family(name).get(key)
        except Exception as error:
            raise self.error(error, name) from error

    def new_batch(self) -> WriteBatch:
        """An empty batch."""
        return WriteBatch(raw_mode=True)

    def commit(self, batch: WriteBatch) -> None:
        """Writes a batch, whole or not at all."""
        self.write("default", self._db.write, batch)

    def write(self, name: str, write: Callable[..., object], *what: object) -> object:
        """Writes, and waits while RocksDB is behind with earlier writes.

        RocksDB does not wait itself. It would hold the GIL, and on a full disk it would wait for ever: its recovery for
        the write, the write for the recovery.
        """
        while True:
            try:
                return write(*what)
            except Exception as error:
                if "Write stall" not in str(error):
                    raise self.error(error, name) from error
            threading.Event().wait(0.001)

    def head(self, name: str, start: bytes, end: bytes | None, count: int) -> list[Row]:
        """The first rows of a column family with ``start <= key < end``, in order, `count` at most, read now."""
        return self._read(name, start, end, lambda cursor: cursor.take(count))

    def last(self, name: str) -> Row | None:
        """The last row of a column family."""
        return self._read(name, b"", None, Cursor.last)

    def scan(self, name: str, start: bytes, end: bytes | None) -> Iterator[Row]:
        """The rows of a column family with ``start <= key < end``, in order, as they are now."""
        head = self.head(name, start, end, CHUNK)
        if len(head) < CHUNK:
            return iter(head)
        with self._errors(name):
            patient = 0 if self._read_only else self._patience.get(name, PATIENCE)
            # Both now, because they have to see the same moment; `spare` goes on if `rest` meets too many deletions.
            rest = self.cursor(name, head[-1][0] + b"\x00", end, patient)
            spare = self.cursor(name, None, end) if patient else rest
        return self._rows(name, head, end, rest, spare)

    def cursor(self, name: str, start: bytes | None, end: bytes | None, steps: int = 0) -> Cursor:
        """An iterator that ends with `close`. Its errors are RocksDB's own: the caller maps them. See `Cursor`."""
        cursor = Cursor(self.family(name), start, end, steps)
        self._cursors.add(cursor)
        return cursor

    def compact(self) -> None:
        """Rewrites every column family, without what was deleted."""
        for name in sorted(self.names):
            with self._errors(name):
                self.family(name).compact_range(None, None, rewriting())

    def statistics(self) -> StateStatistics:
        """What it takes of memory and disk now."""
        totals = dict.fromkeys((BUFFERS, READERS, PENDING), 0)
        disk = log = 0
        with self._errors():
            for family in map(self.family, sorted(self.names)):
                for name in totals:
                    totals[name] += family.property_int_value(name) or 0
            for path in self.path.iterdir():
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue  # RocksDB deletes files in the background.
                disk += size
                if path.suffix == ".log":
                    log += size
            cache = self._settings.shared.cache.get_usage()
        return StateStatistics(totals[BUFFERS] + totals[READERS], disk, log, totals[PENDING], cache)

    def checkpoint(self, target: Path) -> None:
        """Makes a directory that holds this database as it is now: its table files, as hard links on the same volume.
        StateError if it exists, or cannot be made."""
        # RocksDB clears and fills a directory of the target's name and `.tmp`, which may be somebody's.
        part = target.parent / f".{uuid4().hex}.part"
        try:
            part.mkdir(parents=True)
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists")
            Checkpoint(self._db).create_checkpoint(str(part / "snapshot"))
            (part / "snapshot").rename(target)
        except Exception as error:
            at_target = str(part) in str(error) and not _DAMAGED.search(str(error))
            if isinstance(error, OSError) or at_target:
                raise StateError(f"a snapshot cannot be put at {target}: take another place ({error})") from error
            raise self.error(error) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def close(self) -> None:
        """Closes and unlocks the directory, whatever happens; called again it does nothing. StateError if RocksDB could
        not close in order (a full disk, damage): acknowledged writes are in its log."""
        if self.closed:
            return
        self.closed = True
        for cursor in list(self._cursors):
            cursor.close()
        self.handles.clear()
        failure: Exception | None = None
        for family in [*(family for family in self._families.values() if family is not self._db), self._db]:
            try:
                family.close()
            except Exception as error:
                failure = failure or error
        leave(self._view)
        self._settings.release()
        if self._directory_lock is not None:
            self._directory_lock.release()
        if failure is not None:
            raise self.error(failure) from failure

    def leave_to_parent(self) -> None:
        """In a forked child: marks it closed, and never touches a native object, not even to free it."""
        if self.closed:
            return
        self.closed, self.why_closed = True, FOREIGN_PROCESS
        keep(self)
        for cursor in list(self._cursors):
            cursor.leave_to_parent()

    def error(self, error: Exception, name: str = "default") -> StateError:
        """The StateError for an error of RocksDB: names the directory, the column family and the remedy."""
        if isinstance(error, StateError):
            return error
        where = f"the RocksDB directory {self.path}" + ("" if name == "default" else f", column family {name!r},")
        if isinstance(error, DbClosedError):
            return StateError(f"{where} {self.why_closed}")
        text = describe_error(error).removeprefix("Exception: ")
        if self._view is not None:
            text = text.replace(str(self._view), str(self.path))
        # The name of the directory may contain any of the words that are searched for.
        cause = text.replace(str(self.path), "")
        if isinstance(error, BlockingIOError) or "lock hold by" in cause or "While lock file" in cause:
            return StateError(
                f"{where} is in use by another backend, here or in another process: "
                f"close that one, or take another directory ({text})"
            )
        if _DAMAGED.search(cause):
            return StateError(f"{where} is damaged: restore a snapshot into another directory ({text})")
        other = "take another directory" if self._view is None else "set TMPDIR to a directory that can be written"
        return StateError(f"{where} cannot be used: remove the cause and open it again, or {other} ({text})")

    def _read(self, name: str, start: bytes, end: bytes | None, read: Callable[[Cursor], T]) -> T:
        patience = self._patience.get(name, PATIENCE)
        try:
            cursor = self.cursor(name, start, end, 0 if self._read_only else patience)
            found = read(cursor)
            if cursor.crowded:
                self._make_room(name, start, end, patience)
                found = read(self.cursor(name, start, end))
            return found
        except Exception as error:
            raise self.error(error, name) from error

    def _rows(self, name: str, rows: list[Row], end: bytes | None, rest: Cursor, spare: Cursor) -> Iterator[Row]:
        """The first rows and the rest. `spare` goes on where the rest meets too many deletions."""
        while rows:
            yield from rows
            after = rows[-1][0] + b"\x00"
            with self._errors(name):
                rows = rest.take(CHUNK)
                if rest.crowded:
                    self._make_room(name, after, end, rest.steps)
                    spare.seek(after)
                    rest = spare
                    rows = rest.take(CHUNK)

    def _make_room(self, name: str, start: bytes, end: bytes | None, patience: int) -> None:
        """After a read that passed `patience` deleted entries: rewrites its range, or raises the patience.

        With n entries in a family, passing p deleted ones costs p for each read, and rewriting costs n for each p
        deletions. Their sum is smallest if p grows as the square root of n. The factor was measured.
        """
        family = self._families[name]
        worth = max(PATIENCE, 16 * isqrt(family.property_int_value("rocksdb.estimate-num-keys") or 0))
        self._patience[name] = worth
        if patience >= worth:
            family.compact_range(start, end, rewriting())

    def _open(self, names: list[str], logs: LogCheck | None) -> Rdict:
        try:
            access = AccessType.read_write()
            if self._read_only:
                self._view, access = view_of(self.path), AccessType.read_only(False)
            native = self._settings.native
            opened = Rdict(str(self._view or self.path), native(), {name: native() for name in names}, access)
            opened.set_write_options(self._settings.writes)
            if self._read_only and logs is not None:
                hole = logs.hole(opened.property_int_value("rocksdb.min-log-number-to-keep") or 0)
                if hole is not None:
                    opened.close()
                    raise self._damaged(f"writes are missing before {hole}")
            return opened
        except Exception:
            leave(self._view)
            self._settings.release()
            raise

    def _show(self, look: Callable[[Database], object]) -> None:
        try:
            seen = Database(self.path, read_only=True)
        except StateError as error:
            cause = error.__cause__
            if cause is None or not is_store_error(cause) or not _MISSING.search(str(cause)):
                raise
            return  # Damaged, or in use and changing while it was read: opening it tells which.
        try:
            look(seen)
        finally:
            seen.close()

    @contextmanager
    def _errors(self, name: str = "default") -> Iterator[None]:
        """Any error of its block is a StateError."""
        try:
            yield
        except Exception as error:
            raise self.error(error, name) from error

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"the RocksDB directory {self.path} is damaged: restore a snapshot into another directory ({what})"
        )

    def __repr__(self) -> str:
        return f"<Database {str(self.path)!r}>"


def is_store_error(error: BaseException) -> bool:
    """Whether RocksDB raised it: rocksdict raises bare exceptions."""
    return type(error) is Exception or isinstance(error, DbClosedError)
