"""Snapshots of a RocksDB backend: checkpoints, directories beside the database.

A checkpoint holds hard links to the table files and a copy of the log, so its cost is that of the changes since the
last flush, not that of all state. It is a database of its own, in the format of `layout`, and describes itself. The
snapshot object is a path: it may be pickled, and restored any number of times, also after the backend is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from asyncio_operator.checks import check_directory
from asyncio_operator.errors import StateError
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange, group_prefix
from asyncio_operator.state.layout import STATE_PREFIX
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.records import Records
from asyncio_operator.state.snapshot import Row, StateSnapshot


class RocksDBSnapshot(StateSnapshot):
    """A checkpoint directory.

    Raises:
        ConfigurationError: `directory` is not a path.
        StateError: the directory is missing, damaged, or not state of this format.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = check_directory(directory)
        database = self._open()
        try:
            records = Records(database)
            header = records.require_format()
            if records.is_incomplete():
                raise StateError(
                    f"the RocksDB directory {self.directory} holds a part of what was to be restored, because its "
                    "process ended: restore the snapshot again"
                )
            if records.retiming() is not None:
                raise StateError(
                    f"the RocksDB directory {self.directory} was left while its time to live was switched: open it "
                    "with a RocksDBStateBackend, which goes on with that, and take a snapshot"
                )
            self.format: int = header["format"]
            self.max_parallelism: int = header["max_parallelism"]
            self.key_groups = KeyGroupRange(header["start"], header["end"])
            self.sequence = records.sequence()
            self.states: dict[str, StateMeta] = records.states()
        finally:
            database.close()

    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        """The entries of a state that lie in the range, read in one scan."""
        start = max(key_groups.start, self.key_groups.start)
        end = min(key_groups.end, self.key_groups.end)
        if name not in self.states or start > end:
            return
        database = self._open()
        try:
            first = group_prefix(start, self.max_parallelism)
            last = group_prefix(end + 1, self.max_parallelism) if end + 1 < self.max_parallelism else None
            yield from database.scan(STATE_PREFIX + name, first, last)
        finally:
            database.close()

    def delete(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def check_present(self) -> None:
        if not (self.directory / "CURRENT").is_file():
            raise StateError(f"the snapshot {self.directory} is gone or was never complete: take another one")

    def _open(self) -> Database:
        self.check_present()
        return Database(self.directory, read_only=True)

    def __repr__(self) -> str:
        return f"<RocksDBSnapshot {str(self.directory)!r}, key groups {self.key_groups}>"
