"""The records of a state directory about itself, in the column family ``default``: see `layout` for the format.

One of them marks a directory whose restore was cut short. Such a directory is emptied when it is opened again.
"""

from __future__ import annotations

from typing import Any

from asyncio_operator.errors import StateError
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.entries import Batch
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.layout import (
    FORMAT_KEY,
    FORMAT_VERSION,
    RESTORING_KEY,
    RETIMING_KEY,
    SEQUENCE_BLOCK,
    SEQUENCE_KEY,
    STATE_PREFIX,
    USES_KEY,
)
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.serializers import BUILTIN

_STATE = STATE_PREFIX.encode()


class Records:
    """The records of a state directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def require_format(self) -> dict[str, Any]:
        """The format record.

        Raises:
            StateError: there is none, or it is of another version.
        """
        header = self._read(FORMAT_KEY)
        where = f"the RocksDB directory {self._database.path}"
        if not isinstance(header, dict) or not {"format", "max_parallelism", "start", "end"} <= header.keys():
            raise StateError(f"{where} holds something else than keyed state: take another directory")
        if header["format"] != FORMAT_VERSION:
            raise StateError(
                f"{where} has format {header['format']}, this version reads {FORMAT_VERSION}: "
                "open it with the version that wrote it, or take another directory"
            )
        return header

    def check(self, key_groups: KeyGroupRange, max_parallelism: int) -> bool:
        """Whether the directory has state of these key groups; False if it is empty.

        Raises:
            StateError: it is not keyed state, or of another version, range or maximum parallelism.
        """
        if self._is_new():
            return False
        header = self.require_format()
        found = KeyGroupRange(header["start"], header["end"])
        if header["max_parallelism"] != max_parallelism or found != key_groups:
            raise StateError(
                f"the RocksDB directory {self._database.path} holds key groups {found} of {header['max_parallelism']}, "
                f"not {key_groups} of {max_parallelism}: open it as it is, take a snapshot, and restore that"
            )
        return True

    def claim(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        """Writes the format record of a new directory, or empties one whose restore was cut short; else `check`."""
        if not self.check(key_groups, max_parallelism):
            wanted = {"start": key_groups.start, "end": key_groups.end, "max_parallelism": max_parallelism}
            self._write(FORMAT_KEY, {"format": FORMAT_VERSION, **wanted})
        elif self.is_incomplete():
            self.empty()

    def states(self) -> dict[str, StateMeta]:
        """What is known of each state."""
        rows = self._database.scan("default", _STATE, prefix_end(_STATE))
        try:
            return {key[len(_STATE) :].decode(): StateMeta.from_dict(BUILTIN.deserialize(value)) for key, value in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the RocksDB directory {self._database.path} has a damaged record of a state") from error

    def uses(self) -> int | None:
        """The number of slots in the order of use; None if it was never written."""
        found: int | None = self._read(USES_KEY)
        return found

    def stage_uses(self, batch: Batch, count: int) -> None:
        """Adds the number of slots in the order of use to a batch."""
        batch.put(USES_KEY, BUILTIN.serialize(count), self._database.handles["default"])

    def write_state(self, name: str, meta: StateMeta) -> None:
        """Writes the record of a state."""
        self._write(_STATE + name.encode(), meta.to_dict())

    def delete_state(self, name: str) -> None:
        """Deletes the record of a state."""
        self._delete(_STATE + name.encode())

    def sequence(self) -> int:
        """The first sequence number that was surely never used."""
        return int(self._read(SEQUENCE_KEY) or 1)

    def reserve_sequence(self, start: int) -> int:
        """Reserves a block of sequence numbers from `start`; returns the first one after it."""
        self._write(SEQUENCE_KEY, start + SEQUENCE_BLOCK)
        return start + SEQUENCE_BLOCK

    def begin_restore(self) -> None:
        """Marks the directory as incomplete, until `end_restore`."""
        self._write(RESTORING_KEY, True)

    def is_incomplete(self) -> bool:
        """Whether a restore was cut short, by the end of its process."""
        return self._read(RESTORING_KEY) is not None

    def end_restore(self) -> None:
        """Removes the mark: the restored state is complete."""
        self._delete(RESTORING_KEY)

    def begin_retiming(self, name: str, meta: StateMeta) -> None:
        """Marks a state as one whose entries get timestamps, or lose them, as `meta` says."""
        self._write(RETIMING_KEY, {"name": name, "meta": meta.to_dict(), "after": b""})

    def retiming(self) -> tuple[str, StateMeta, bytes] | None:
        """The state that is marked, what it becomes, and the address up to which its entries have changed."""
        found = self._read(RETIMING_KEY)
        return None if found is None else (found["name"], StateMeta.from_dict(found["meta"]), found["after"])

    def go_on_retiming(self, batch: Batch, name: str, meta: StateMeta, after: bytes) -> None:
        """Adds to a batch that the entries up to an address have changed with it."""
        mark = BUILTIN.serialize({"name": name, "meta": meta.to_dict(), "after": after})
        batch.put(RETIMING_KEY, mark, self._database.handles["default"])

    def end_retiming(self, name: str, meta: StateMeta) -> None:
        """Writes what a marked state has become, and removes the mark."""
        batch, default = self._database.new_batch(), self._database.handles["default"]
        batch.put(_STATE + name.encode(), BUILTIN.serialize(meta.to_dict()), default)
        batch.delete(RETIMING_KEY, default)
        self._database.commit(batch)

    def _is_new(self) -> bool:
        return (
            self._read(FORMAT_KEY) is None
            and self._database.names() == {"default"}
            and not self._database.head("default", b"", None, 1)
        )

    def empty(self) -> None:
        """Removes every state: those of a restore that failed or was cut short."""
        for name in self._database.names() - {"default"}:
            self._database.drop(name)
        for name in self.states():
            self.delete_state(name)
        self._delete(USES_KEY)
        self.end_restore()

    def _read(self, key: bytes) -> Any:
        data = self._database.get("default", key)
        try:
            return None if data is None else BUILTIN.deserialize(data)
        except StateError as error:
            raise StateError(
                f"the RocksDB directory {self._database.path} holds something else than keyed state, or is damaged: "
                "take another directory, or restore a snapshot"
            ) from error

    def _write(self, key: bytes, value: Any) -> None:
        self._database.put("default", key, BUILTIN.serialize(value))

    def _delete(self, key: bytes) -> None:
        self._database.put("default", key, None)


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest bytes above everything that begins with `prefix`; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
