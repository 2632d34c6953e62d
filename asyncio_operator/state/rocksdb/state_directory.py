"""A directory of keyed state: its records about itself (see `layout`), and a snapshot, which is such a directory.

A snapshot of a RocksDB backend is a checkpoint: hard links to the table files, and a copy of the log, so its cost is
that of the changes since the last flush, not that of all state. The snapshot object is a path: it may be pickled, and
restored any number of times, also after the backend is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from asyncio_operator.checks import check_directory
from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.entries import Batch
from asyncio_operator.state.key_groups import KeyGroupRange, group_prefix
from asyncio_operator.state.layout import (
    FORMAT_KEY,
    FORMAT_VERSION,
    RESTORING_KEY,
    RETIMING_KEY,
    SEQUENCE_BLOCK,
    SEQUENCE_KEY,
    STATE_PREFIX,
    USES_KEY,
    check_format,
)
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.state.snapshot import Row, StateSnapshot

_STATE = STATE_PREFIX.encode()


class Records:
    """The records of a state directory, in the column family ``default``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, key: bytes) -> Any:
        """A record, or None."""
        data = self._database.get("default", key)
        try:
            return None if data is None else BUILTIN.deserialize(data)
        except StateError as error:
            raise StateError(
                f"the RocksDB directory {self._database.path} holds something else than keyed state, or is damaged: "
                "take another directory, or restore a snapshot"
            ) from error

    def write(self, key: bytes, value: Any, batch: Batch | None = None) -> None:
        """Writes a record, or deletes it for None: at once, or together with a batch."""
        changes, default = self._database.new_batch() if batch is None else batch, self._database.handles["default"]
        if value is None:
            changes.delete(key, default)
        else:
            changes.put(key, BUILTIN.serialize(value), default)
        if batch is None:
            self._database.commit(changes)

    def key_groups(self) -> tuple[KeyGroupRange, int]:
        """The key groups and the maximum parallelism of the format record; StateError if there is none, or it is of
        another version."""
        header = self.read(FORMAT_KEY)
        where = f"the RocksDB directory {self._database.path}"
        if not isinstance(header, dict) or not {"format", "max_parallelism", "start", "end"} <= header.keys():
            raise StateError(f"{where} holds something else than keyed state: take another directory")
        check_format(where, header["format"])
        return KeyGroupRange(header["start"], header["end"]), header["max_parallelism"]

    def check(self, key_groups: KeyGroupRange, max_parallelism: int) -> bool:
        """Whether the directory has state of these key groups; False if it is empty. StateError if it is not keyed
        state, or of another version, range or maximum parallelism."""
        database = self._database
        fresh = self.read(FORMAT_KEY) is None and database.names == {"default"}
        if fresh and not database.head("default", b"", None, 1):
            return False
        found, most = self.key_groups()
        if (found, most) != (key_groups, max_parallelism):
            raise StateError(
                f"the RocksDB directory {database.path} holds key groups {found} of {most}, not {key_groups} of "
                f"{max_parallelism}: open it as it is, take a snapshot, and restore that"
            )
        return True

    def claim(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        """Writes the format record of a new directory, or empties one whose restore was cut short; else `check`."""
        if not self.check(key_groups, max_parallelism):
            wanted = {"start": key_groups.start, "end": key_groups.end, "max_parallelism": max_parallelism}
            self.write(FORMAT_KEY, {"format": FORMAT_VERSION, **wanted})
        elif self.read(RESTORING_KEY):
            self.empty()

    def states(self) -> dict[str, StateMeta]:
        """What is known of each state."""
        rows = self._database.scan("default", _STATE, prefix_end(_STATE))
        try:
            return {key[len(_STATE) :].decode(): StateMeta.from_dict(BUILTIN.deserialize(value)) for key, value in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the RocksDB directory {self._database.path} has a damaged record of a state") from error

    def write_state(self, name: str, meta: StateMeta | None, batch: Batch | None = None) -> None:
        """Writes the record of a state, or deletes it for None."""
        self.write(_STATE + name.encode(), meta and meta.to_dict(), batch)

    def sequence(self) -> int:
        """The first sequence number that was surely never used."""
        return int(self.read(SEQUENCE_KEY) or 1)

    def reserve_sequence(self, start: int) -> int:
        """Reserves a block of sequence numbers from `start`; returns the first one after it."""
        self.write(SEQUENCE_KEY, start + SEQUENCE_BLOCK)
        return start + SEQUENCE_BLOCK

    def retiming(self) -> tuple[str, StateMeta, bytes] | None:
        """The state whose entries get timestamps, or lose them, what it becomes, and the address up to which it has."""
        found = self.read(RETIMING_KEY)
        return None if found is None else (found["name"], StateMeta.from_dict(found["meta"]), found["after"])

    def write_retiming(self, name: str, meta: StateMeta, after: bytes = b"", batch: Batch | None = None) -> None:
        """Marks a state as one whose entries change as `meta` says, and have changed up to an address."""
        self.write(RETIMING_KEY, {"name": name, "meta": meta.to_dict(), "after": after}, batch)

    def empty(self) -> None:
        """Removes every state: those of a restore that failed or was cut short."""
        for name in self._database.names - {"default"}:
            self._database.drop(name)
        for name in self.states():
            self.write_state(name, None)
        self.write(USES_KEY, None)
        self.write(RESTORING_KEY, None)


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest bytes above everything that begins with `prefix`; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def prefixes(database: Database, name: str, length: Callable[[bytes], int]) -> Iterator[bytes]:
    """The beginnings of the rows of a column family, each once, with one look for each. `length` is of a row's."""
    start: bytes | None = b""
    while start is not None and (rows := database.head(name, start, None, 1)):
        prefix = rows[0][0][: length(rows[0][0])]
        yield prefix
        start = prefix_end(prefix)


class RocksDBSnapshot(StateSnapshot):
    """A checkpoint directory.

    Raises:
        ConfigurationError: `directory` is not a path.
        StateError: the directory is missing, damaged, or not state of this format.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = check_directory(directory)
        with closing(self._open()) as database:
            records = Records(database)
            self.key_groups, self.max_parallelism = records.key_groups()
            if records.read(RESTORING_KEY):
                raise StateError(
                    f"the RocksDB directory {self.directory} holds a part of what was to be restored, because its "
                    "process ended: restore the snapshot again"
                )
            if records.retiming() is not None:
                raise StateError(
                    f"the RocksDB directory {self.directory} was left while its time to live was switched: open it "
                    "with a RocksDBStateBackend, which goes on with that, and take a snapshot"
                )
            self.format = FORMAT_VERSION
            self.sequence = records.sequence()
            self.states: dict[str, StateMeta] = records.states()

    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        """The entries of a state that lie in the range, read in one scan."""
        start, end = max(key_groups.start, self.key_groups.start), min(key_groups.end, self.key_groups.end)
        if name not in self.states or start > end:
            return
        first = group_prefix(start, self.max_parallelism)
        last = group_prefix(end + 1, self.max_parallelism) if end + 1 < self.max_parallelism else None
        with closing(self._open()) as database:
            yield from database.scan(STATE_PREFIX + name, first, last)

    def delete(self) -> None:
        try:
            shutil.rmtree(self.directory)
        except OSError as error:
            if self.directory.exists():
                raise StateError(f"the snapshot {self.directory} was not deleted: {describe_error(error)}") from error

    def check_present(self) -> None:
        if not (self.directory / "CURRENT").is_file():
            raise StateError(f"the snapshot {self.directory} is gone or was never complete: take another one")

    def _open(self) -> Database:
        self.check_present()
        return Database(self.directory, read_only=True)

    def __repr__(self) -> str:
        return f"<RocksDBSnapshot {str(self.directory)!r}, key groups {self.key_groups}>"
