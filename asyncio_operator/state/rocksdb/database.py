"""One RocksDB directory: opening and closing it, its column families, iterating, and its errors as StateErrors.

A directory belongs to one process and one `Database` at a time; RocksDB's lock file sees to that. RocksDB keeps the
lock until the last iterator is gone, so iterators that outlive the call that made them are known here and end with
`close`.

Every write is in the write-ahead log, in the operating system's memory at least, when it returns: it survives the
death of the process, but not the loss of power, in which the last writes may go, in order, and nothing else.

This module does not know what the column families hold.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from asyncio_operator.errors import ConfigurationError, StateError

CHUNK = 256
"""Rows that a scan reads at once; most scans end within, and then leave no iterator open."""

Row = tuple[bytes, bytes]


class Database:
    """An open RocksDB directory.

    Args:
        directory: created if it is missing; its parent too.
        read_only: takes no lock and writes nothing.

    Raises:
        ConfigurationError: `directory` is no path.
        StateError: it is locked, damaged, or holds other files.
    """

    def __init__(self, directory: str | Path, *, read_only: bool = False) -> None:
        if not isinstance(directory, str | Path) or not str(directory):
            raise ConfigurationError(f"directory={directory!r:.200}: a path is needed")
        self.path = Path(directory).resolve()
        families = self._look()
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        try:
            if not read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(self.path), _options(), {name: _options() for name in families}, access)
        except Exception as error:
            raise self.error(error) from error
        self._families: dict[str, Rdict] = {"default": self._db}
        self._handles: dict[str, ColumnFamily] = {}
        self._names = set(families) | {"default"}
        self._iterators: weakref.WeakSet[Iterator[Row]] = weakref.WeakSet()
        self.closed = False

    def names(self) -> set[str]:
        """The names of the column families."""
        return set(self._names)

    def family(self, name: str) -> Rdict:
        """A column family, made if it is missing."""
        found = self._families.get(name)
        if found is None:
            try:
                if name in self._names:
                    found = self._db.get_column_family(name)
                else:
                    found = self._db.create_column_family(name, _options())
            except Exception as error:
                raise self.error(error) from error
            self._names.add(name)
            self._families[name] = found
        return found

    def handle(self, name: str) -> ColumnFamily:
        """What a batch needs to write to a column family. It keeps the lock too: nobody else may hold one."""
        found = self._handles.get(name)
        if found is None:
            self.family(name)
            found = self._handles[name] = self._db.get_column_family_handle(name)
        return found

    def drop(self, name: str) -> None:
        """Deletes a column family and everything in it."""
        try:
            self.family(name)
            self._handles.pop(name, None)
            self._families.pop(name).close()
            self._db.drop_column_family(name)
        except Exception as error:
            raise self.error(error) from error
        self._names.discard(name)

    def new_batch(self) -> WriteBatch:
        """An empty batch."""
        return WriteBatch(raw_mode=True)

    def commit(self, batch: WriteBatch) -> None:
        """Writes a batch, whole or not at all."""
        try:
            self._db.write(batch)
        except Exception as error:
            raise self.error(error) from error

    def scan(self, family: Rdict, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """The rows with ``start <= key < end``, in order, as they are now; the end is the iterator's, not a comparison.

        With a `limit` at most that many are given, all read at once.
        """
        try:
            options = ReadOptions()
            if end is not None:
                options.set_iterate_upper_bound(end)
            items = cast(Iterator[Row], family.items(from_key=start, read_opt=options))
            head: list[Row] = list(islice(items, CHUNK if limit is None else limit))
        except Exception as error:
            raise self.error(error) from error
        if limit is not None or len(head) < CHUNK:
            return iter(head)
        rows = self._rest(head, items, options)
        self._iterators.add(rows)
        return rows

    def _rest(self, head: list[Row], items: Iterator[Row], options: ReadOptions) -> Iterator[Row]:
        """The rows of a scan that did not end within its head.

        `options` is held for as long as the iterator is used: the upper bound lives in it, and RocksDB does not copy
        it.
        """
        yield from head
        while head := list(islice(items, CHUNK)):
            yield from head

    def flush(self) -> None:
        """Writes what is in memory to table files."""
        try:
            for family in self._all():
                family.flush()
        except Exception as error:
            raise self.error(error) from error

    def compact(self) -> None:
        """Compacts every column family, which drops what was deleted."""
        try:
            for family in self._all():
                family.compact_range(None, None)
        except Exception as error:
            raise self.error(error) from error

    def checkpoint(self, target: Path) -> None:
        """Makes a directory that holds this database as it is now: hard links to its table files, and its log."""
        try:
            Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:
            raise self.error(error) from error

    def close(self) -> None:
        """Gives the directory free."""
        if self.closed:
            return
        self.closed = True
        for rows in list(self._iterators):
            rows.close()  # type: ignore[attr-defined]
        self._handles.clear()
        for family in self._families.values():
            if family is not self._db:
                family.close()
        self._db.close()

    def error(self, error: Exception) -> StateError:
        """The StateError for an error of RocksDB: names the directory and the remedy."""
        text = str(error)
        if isinstance(error, StateError):
            return error
        if isinstance(error, DbClosedError):
            return StateError(f"the RocksDB directory {self.path} is closed: open it again")
        if "LOCK" in text:
            return StateError(
                f"the RocksDB directory {self.path} is in use by another backend, here or in another process: "
                f"close that one, or take another directory ({text})"
            )
        if "orruption" in text:
            return StateError(
                f"the RocksDB directory {self.path} is damaged: restore a snapshot into another directory ({text})"
            )
        return StateError(f"the RocksDB directory {self.path} cannot be used ({type(error).__name__}: {text})")

    def _look(self) -> list[str]:
        """The column families of an existing directory; none if there is nothing yet."""
        try:
            if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
                return []
            if not (self.path / "CURRENT").is_file() and not self._abandoned():
                raise StateError(f"{self.path} is not a RocksDB directory and not empty: take another directory")
            return Rdict.list_cf(str(self.path)) if (self.path / "CURRENT").is_file() else []
        except Exception as error:
            raise self.error(error) from error

    def _abandoned(self) -> bool:
        """Whether the directory holds only what a process leaves that died while making the database."""
        beginnings = ("LOCK", "LOG", "IDENTITY", "MANIFEST-", "OPTIONS-", "rocksdict-config.json")
        return self.path.is_dir() and all(
            entry.name.startswith(beginnings) or entry.name.endswith(".dbtmp") for entry in self.path.iterdir()
        )

    def _all(self) -> list[Rdict]:
        return [self.family(name) for name in sorted(self._names)]

    def __repr__(self) -> str:
        return f"<Database {str(self.path)!r}>"


def is_store_error(error: Exception) -> bool:
    """Whether RocksDB raised it: rocksdict raises bare exceptions."""
    return type(error) is Exception or isinstance(error, DbClosedError)


def _options() -> Options:
    """Raw bytes in and out; a Bloom filter, for reads of what is absent; one old log file of RocksDB's own.

    A backend belongs to one thread, so RocksDB need not make ready for several writers: a tenth of a put.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(1)
    options.set_allow_concurrent_memtable_write(False)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options
