"""The files of a checkpoint: a directory, format version 1. Nothing in it is pickled.

    CHECKPOINT    one line of text, ``asyncio-operator checkpoint 1 CRC``, where CRC is the CRC-32 of what follows, 8
                  hexadecimal digits; then a JSON object (below). It is written last.
    state/        the snapshot of a RocksDB backend (`layout`), or
    rows          the entries of any other backend, in segments, one for each state and key group
    timers        the timers, in segments, one for each service and key group

The JSON object names a segment of a file by ``[offset, length, CRC-32]``. A segment of `rows` has for each entry, in
the order of addresses: the length of the address, 4 bytes big-endian, the address, the length of the stored entry, the
stored entry. Address and entry are those of `layout`. A segment of `timers` was written by the service: by an
`InternalTimerService` as its `snapshot` gives it, by a `BatchTimerService` as the built-in serialisation of
``{"key": bytes of the key, "event": [bytes of a timer, ...], "processing": [...]}``.

    {"max_parallelism": int, "key_groups": [start, end],
     "state": {"kind": "rocksdb"} or
              {"kind": "rows", "layout": 1, "sequence": int, "states": {name: `StateMeta.to_dict`},
               "segments": {name: {key group: segment}}},
     "services": [{"kind": "timers" or "batch timers", "segments": {key group: segment}}, ...],
     "files": {path of a file in the directory: its size in bytes}}
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange, group_width
from asyncio_operator.state.layout import FORMAT_VERSION
from asyncio_operator.state.on_disk import rocksdb_class
from asyncio_operator.state.snapshot import Row, StateSnapshot

CHECKPOINT_FORMAT = 1
MANIFEST = "CHECKPOINT"
STATE, ROWS, TIMERS = "state", "rows", "timers"

_HEAD = re.compile(rb"asyncio-operator checkpoint (\d+) ([0-9a-f]{8})")
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
        manifest = _read_manifest(path)
        try:
            self.max_parallelism: int = manifest["max_parallelism"]
            self.key_groups = KeyGroupRange(*manifest["key_groups"])
            self.services: list[dict[str, Any]] = manifest["services"]
            self.state: dict[str, Any] = manifest["state"]
            files: dict[str, int] = manifest["files"]
        except (LookupError, TypeError, ValueError) as error:
            raise damaged(path, f"{MANIFEST} lacks something") from error
        for name, size in files.items():
            found = (path / name).stat().st_size if (path / name).is_file() else None
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes, not {size}"
                raise damaged(path, f"the file {name} {what}")

    def snapshot(self) -> StateSnapshot:
        """The keyed state."""
        if self.state["kind"] == "rows":
            return RowsSnapshot(self)
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


class RowsSnapshot(StateSnapshot):
    """The keyed state of a checkpoint of a backend in memory; a segment is in memory while it is read."""

    in_order = True

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._path = files.path
        self.max_parallelism = files.max_parallelism
        self.key_groups = files.key_groups
        self.format: int = files.state["layout"]
        self.sequence: int = files.state["sequence"]
        self.states = {name: StateMeta.from_dict(meta) for name, meta in files.state["states"].items()}
        self._segments: Mapping[str, Segments] = files.state["segments"]

    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        """The entries of a state that lie in the range, in the order of their addresses."""
        self.check_present()
        with self._files.open(ROWS) as file:
            for group, segment in sorted((int(group), span) for group, span in self._segments.get(name, {}).items()):
                if group in key_groups:
                    yield from _rows(read_segment(file, self._path, segment))

    def check_present(self) -> None:
        if not (self._path / MANIFEST).is_file():
            raise StateError(f"the checkpoint {self._path} is gone: restore another one")

    def delete(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self._path, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<checkpoint {str(self._path)!r}, key groups {self.key_groups}>"


def write_rows(snapshot: StateSnapshot, file: BinaryIO) -> dict[str, Any]:
    """Writes the entries of a snapshot; returns their part of the manifest."""
    width = group_width(snapshot.max_parallelism)
    segments: dict[str, dict[str, list[int]]] = {}
    for name in snapshot.states:
        rows = sorted(snapshot.rows(name, snapshot.key_groups))
        groups = groupby(rows, key=lambda row: int.from_bytes(row[0][:width], "big"))
        segments[name] = {str(group): append_segment(file, b"".join(_parts(entries))) for group, entries in groups}
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
    data = file.read(length)
    if len(data) != length or crc32(data) != checksum:
        raise damaged(
            path, f"the bytes {offset} to {offset + length} of {Path(file.name).name} are not what was written"
        )
    return data


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest, which makes a directory a checkpoint, with the sizes of all other files."""
    files = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    body = json.dumps({**manifest, "files": files}, indent=1).encode()
    head = b"asyncio-operator checkpoint %d %08x\n" % (CHECKPOINT_FORMAT, crc32(body))
    (path / MANIFEST).write_bytes(head + body)


def damaged(path: Path, what: str) -> StateError:
    """The error for a checkpoint whose files have changed since they were written."""
    return StateError(f"the checkpoint {path} is damaged: {what}; restore another one")


def _parts(rows: Iterator[Row]) -> Iterator[bytes]:
    for row in rows:
        for part in row:
            yield _length.pack(len(part))
            yield part


def _rows(data: bytes) -> Iterator[Row]:
    position = 0
    while position < len(data):
        row = []
        for _ in range(2):
            start = position + _length.size
            position = start + _length.unpack_from(data, position)[0]
            row.append(data[start:position])
        yield row[0], row[1]


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        data = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not path.exists():
            raise StateError(f"there is no checkpoint at {path}: correct the path") from None
        raise StateError(
            f"{path} is not a checkpoint, or was never completed: it has no file {MANIFEST}; restore another one"
        ) from None
    except OSError as error:
        raise StateError(
            f"the checkpoint {path} cannot be read: remove the cause, or restore another one ({error})"
        ) from error
    head, _, body = data.partition(b"\n")
    found = _HEAD.fullmatch(head)
    if found is None:
        raise damaged(path, f"{MANIFEST} begins with {describe(head)}")
    if int(found[1]) != CHECKPOINT_FORMAT:
        raise StateError(
            f"the checkpoint {path} has format {int(found[1])}, this version reads {CHECKPOINT_FORMAT}: "
            "restore it with the version that wrote it"
        )
    if crc32(body) != int(found[2], 16):
        raise damaged(path, f"{MANIFEST} is not what was written")
    manifest: dict[str, Any] = json.loads(body)
    if manifest["state"].get("layout", FORMAT_VERSION) != FORMAT_VERSION:
        raise StateError(
            f"the checkpoint {path} has state of format {manifest['state']['layout']}, this version reads "
            f"{FORMAT_VERSION}: restore it with the version that wrote it"
        )
    return manifest
