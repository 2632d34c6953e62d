"""The files of a checkpoint: a directory, format version 1. Nothing in it is pickled.

    CHECKPOINT    one line of text, ``asyncio-operator checkpoint 1 CRC``, where CRC is the CRC-32 of what follows, 8
                  hexadecimal digits; then a JSON object (below). It is written last.
    state/        the snapshot of a RocksDB backend (`layout`), or
    rows          the entries of any other backend, in segments, one for each state and key group
    timers        the timers, in segments, one for each service and key group

The JSON object names a segment of a file by ``[offset, length, CRC-32]``. A segment of `rows` has for each entry, in
the order of addresses: the length of the address, 4 bytes big-endian, the address, the length of the stored entry, the
stored entry. Address and entry are those of `layout`. A segment of `timers` was written by the service: by an
`InternalTimerService` or a `TimerServiceManager` as its `snapshot` gives it, by a `BatchTimerService` as the built-in
serialisation of ``{"key": bytes of the key, "event": [bytes of a timer, ...], "processing": [...]}``. The timers of a
service of a kind that ends in " in the state" are in the state, as queues (`layout`), and it has no segments.

    {"max_parallelism": int, "key_groups": [start, end],
     "state": {"kind": "rocksdb"} or
              {"kind": "rows", "layout": 1, "sequence": int, "states": {name: `StateMeta.to_dict`},
               "segments": {name: {key group: segment}}},
     "services": [{"kind": "timers", "timer services", "batch timers" or "elements" (`in_flight`), "segments":
                   {key group: segment}}, ...],
     "files": {path of a file in the directory: its size in bytes}}
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from asyncio_operator.state.checkpoint_manifest import damaged, read_manifest
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.on_disk import rocksdb_class
from asyncio_operator.state.snapshot import HeapSnapshot, Row, StateSnapshot

STATE, ROWS, TIMERS = "state", "rows", "timers"

_length = struct.Struct(">I")

Segments = Mapping[str, list[int]]
"""By key group: offset, length and CRC-32 of a segment."""


class CheckpointFiles:
    """An existing checkpoint: its manifest was read, and every file has the size that the manifest gives.

    Raises:
        StateError: there is none, it is damaged, a file is missing, or it is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = read_manifest(path)
        self.max_parallelism: int = manifest["max_parallelism"]
        self.key_groups = KeyGroupRange(*manifest["key_groups"])
        self.services: list[dict[str, Any]] = manifest["services"]
        self.state: dict[str, Any] = manifest["state"]
        for name, size in manifest["files"].items():
            found = _size(path / name)
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes, not {size}"
                raise damaged(path, f"the file {name} {what}")

    def snapshot(self) -> StateSnapshot:
        """The keyed state."""
        about = self.state
        if about["kind"] == "rows":
            states = {name: StateMeta.from_dict(meta) for name, meta in about["states"].items()}
            groups = {name: RowsInFile(self, name, segments) for name, segments in about["segments"].items()}
            return HeapSnapshot(
                self.max_parallelism, self.key_groups, about["sequence"], states, groups, about["layout"]
            )
        opened: StateSnapshot = rocksdb_class("RocksDBSnapshot")(self.path / STATE)
        return opened

    def open(self, name: str) -> BinaryIO:
        """A file of the checkpoint, to read."""
        try:
            return (self.path / name).open("rb")
        except OSError as error:
            raise damaged(self.path, f"the file {name} cannot be read ({error})") from error

    def timers(self, service: int) -> dict[int, bytes]:
        """The timers of a service, as it wrote them, by key group."""
        segments = self.services[service]["segments"]
        with self.open(TIMERS) as file:
            return {int(group): read_segment(file, self.path, segments[group]) for group in segments}


class RowsInFile(Mapping[int, list[Row]]):
    """The entries of a state in the file `rows`, by key group: a segment is in memory while it is read."""

    def __init__(self, files: CheckpointFiles, name: str, segments: Segments) -> None:
        self._files, self._name = files, name
        self._segments = {int(group): segment for group, segment in segments.items()}

    def __getitem__(self, group: int) -> list[Row]:
        path = self._files.path
        with self._files.open(ROWS) as file:
            data = read_segment(file, path, self._segments[group])
        rows, size, position = [], len(data), 0
        while position < size:
            row = []
            for _ in range(2):
                start = position + _length.size
                position = start + (_length.unpack_from(data, position)[0] if start <= size else 0)
                row.append(data[start:position])
            if position > size:
                raise damaged(path, f"the entries of state {self._name!r} in key group {group} end within an entry")
            rows.append((row[0], row[1]))
        return rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)


def write_rows(snapshot: HeapSnapshot, file: BinaryIO) -> dict[str, Any]:
    """Writes the entries of a snapshot; returns their part of the manifest."""
    segments = {
        name: {str(group): append_segment(file, b"".join(_parts(sorted(rows)))) for group, rows in groups.items()}
        for name, groups in snapshot.groups.items()
    }
    states = {name: meta.to_dict() for name, meta in snapshot.states.items()}
    about = {"layout": snapshot.format, "sequence": snapshot.sequence, "states": states}
    return {"kind": "rows", **about, "segments": segments}


def append_segment(file: BinaryIO, data: bytes) -> list[int]:
    """Writes a segment; returns its offset, length and CRC-32."""
    offset = file.tell()
    file.write(data)
    return [offset, len(data), crc32(data)]


def read_segment(file: BinaryIO, path: Path, segment: list[int]) -> bytes:
    """Reads a segment of a file of the checkpoint at `path`; StateError if its bytes have changed."""
    offset, length, checksum = segment
    file.seek(offset)
    data = file.read(length) if offset + length <= os.fstat(file.fileno()).st_size else b""
    if len(data) != length or crc32(data) != checksum:
        raise damaged(
            path, f"the bytes {offset} to {offset + length} of {Path(file.name).name} are not what was written"
        )
    return data


def _parts(rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        for part in row:
            yield _length.pack(len(part))
            yield part


def _size(path: Path) -> int | None:
    """The size of a file; None if there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
