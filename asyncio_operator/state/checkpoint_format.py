"""The files of a checkpoint: a directory, format version 1. Nothing in it is pickled.

    CHECKPOINT    one line of text, ``asyncio-operator checkpoint 1 CRC``, where CRC is the CRC-32 of what follows, 8
                  hexadecimal digits; then a JSON object, the manifest (below). It is written last.
    state/        the snapshot of a RocksDB backend (`layout`), or
    rows          the snapshot of any other backend, a segment (`snapshot.pack_rows`) for each state and key group
    timers        the timers, in segments, one for each service and key group

The manifest names a segment of a file by ``[offset, length, CRC-32]``. A segment of `timers` was written by the
service: by an `InternalTimerService` or a `TimerServiceManager` as its `snapshot` gives it, by a `BatchTimerService` as
the built-in serialisation of ``{"key": bytes of the key, "event": [bytes of a timer, ...], "processing": [...]}``. The
timers of a service of a kind that ends in " in the state" are in the state, as queues (`layout`), and it has no
segments.

    {"max_parallelism": int, "key_groups": [start, end],
     "state": {"kind": "rocksdb"} or
              {"kind": "rows", "layout": 1, "sequence": int, "states": {name: `StateMeta.to_dict`},
               "segments": {name: {key group: segment}}},
     "services": [{"kind": "timers", "timer services", "batch timers" or "elements" (`checkpoints`), "segments":
                   {key group: segment}}, ...],
     "files": {path of a file in the directory: its size in bytes}}

The checksum of the manifest finds damage, but not a change that was made on purpose. So the whole manifest is checked
against one description when it is read, and nothing else checks its types again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from asyncio_operator.errors import StateError, describe
from asyncio_operator.lazy import member
from asyncio_operator.state.descriptors import QUEUE, StateMeta
from asyncio_operator.state.key_groups import MAX_PARALLELISM, KeyGroupRange
from asyncio_operator.state.layout import FORMAT_VERSION
from asyncio_operator.state.snapshot import HeapSnapshot, StateSnapshot

CHECKPOINT_FORMAT = 1
MANIFEST, STATE, ROWS, TIMERS = "CHECKPOINT", "state", "rows", "timers"

_HEAD = re.compile(rb"asyncio-operator checkpoint (\d{1,9}) ([0-9a-f]{8})")


class CheckpointFiles:
    """An existing checkpoint: its manifest was read, and every file has the size that the manifest gives. StateError if
    there is none, it is damaged, a file is missing, or it is of another version."""

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
            groups = {name: Segments(self.path, ROWS, segments) for name, segments in about["segments"].items()}
            return HeapSnapshot(self.max_parallelism, self.key_groups, about["sequence"], states, groups)
        return rocksdb_snapshot(self.path / STATE)

    def timers(self, service: int) -> Mapping[int, bytes]:
        """The timers of a service, as it wrote them, by key group."""
        return Segments(self.path, TIMERS, self.services[service]["segments"])


def rocksdb_snapshot(path: Path) -> StateSnapshot:
    """The snapshot of a RocksDB backend in a directory; ConfigurationError if rocksdict is not installed."""
    snapshot: Any = member("asyncio_operator.state.rocksdb", "RocksDBSnapshot", "rocksdict", "rocksdb")
    return snapshot(path)  # type: ignore[no-any-return]


class Segments(Mapping[int, bytes]):
    """Segments of a file, by key group, given as offset, length and CRC-32. Each is read when it is asked for."""

    def __init__(self, path: Path, file: str, given: Mapping[str, list[int]]) -> None:
        self._path, self._file = path, file
        self._given = {int(group): segment for group, segment in given.items()}

    def __getitem__(self, group: int) -> bytes:
        offset, length, checksum = self._given[group]
        try:
            with (self._path / self._file).open("rb") as file:
                file.seek(offset)
                data = file.read(length) if offset + length <= os.fstat(file.fileno()).st_size else b""
        except OSError as error:
            raise damaged(self._path, f"the file {self._file} cannot be read ({error})") from error
        if len(data) != length or crc32(data) != checksum:
            raise damaged(self._path, f"the bytes {offset} to {offset + length} of {self._file} have changed")
        return data

    def __iter__(self) -> Iterator[int]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def write_segments(file: BinaryIO, groups: Mapping[int, bytes]) -> dict[str, list[int]]:
    """Writes segments to the end of a file; returns their part of the manifest."""
    written = {}
    for group, data in groups.items():
        written[str(group)] = [file.tell(), len(data), crc32(data)]
        file.write(data)
    return written


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest, which makes a directory a checkpoint, with the sizes of all other files."""
    files = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    body = json.dumps({**manifest, "files": files}, indent=1).encode()
    head = b"asyncio-operator checkpoint %d %08x\n" % (CHECKPOINT_FORMAT, crc32(body))
    (path / MANIFEST).write_bytes(head + body)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at `path`: every part is there, of its type and within its bounds."""
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
        raise _other_version(path, f"format {int(found[1])}", CHECKPOINT_FORMAT)
    if crc32(body) != int(found[2], 16):
        raise damaged(path, f"{MANIFEST} is not what was written")
    try:
        manifest = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} is not JSON") from error
    if not _fits(_SHAPE, manifest):
        raise damaged(path, f"{MANIFEST} does not have the fields of a checkpoint, or not their types")
    start, end = manifest["key_groups"]
    if not start <= end < manifest["max_parallelism"]:
        raise damaged(path, f"{MANIFEST} has the key groups {start} to {end} of {manifest['max_parallelism']}")
    if (layout := manifest["state"].get("layout", FORMAT_VERSION)) != FORMAT_VERSION:
        raise _other_version(path, f"state of format {layout}", FORMAT_VERSION)
    return dict(manifest)


def damaged(path: Path, what: str) -> StateError:
    """The error for a checkpoint whose files have changed since they were written."""
    return StateError(f"the checkpoint {path} is damaged: {what}; restore another one")


def _fits(shape: Any, value: Any) -> bool:
    """Whether a value of JSON has a shape: a type, a range of ints, a list of shapes, an object of shapes by name (it
    may have more), or what a function says."""
    if isinstance(shape, type):
        return type(value) is shape
    if isinstance(shape, range):
        return type(value) is int and value in shape
    if isinstance(shape, list):
        return type(value) is list and len(value) == len(shape) and all(map(_fits, shape, value))
    if isinstance(shape, dict):
        return type(value) is dict and all(name in value and _fits(part, value[name]) for name, part in shape.items())
    return shape(value) is True


def _map(is_name: Callable[[str], object], shape: Any) -> Callable[[Any], bool]:
    return lambda value: type(value) is dict and all(is_name(name) and _fits(shape, value[name]) for name in value)


def _is_name(name: str) -> bool:
    return name != "" and "\0" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)


_is_group = re.compile("0|[1-9][0-9]{0,4}").fullmatch


def _is_state(value: Any) -> bool:
    if not _fits({"kind": str, "serializers": {"value serialiser": str}, "ttl": bool}, value):
        return False
    if value["kind"] == "map":
        return _fits({"key serialiser": str}, value["serializers"])
    return value["kind"] in ("value", "list", "reducing", "aggregating", QUEUE)


_SIZE = range(1 << 62)
_SEGMENTS = _map(_is_group, [_SIZE, _SIZE, range(1 << 32)])
_KINDS = {
    "rocksdb": {},
    "rows": {
        "layout": _SIZE,
        "sequence": _SIZE,
        "states": _map(_is_name, _is_state),
        "segments": _map(_is_name, _SEGMENTS),
    },
}
_SERVICE = {"kind": str, "segments": _SEGMENTS}
_SHAPE = {
    "max_parallelism": range(MAX_PARALLELISM + 1),
    "key_groups": [range(MAX_PARALLELISM), range(MAX_PARALLELISM)],
    "state": lambda value: (
        _fits({"kind": str}, value) and value["kind"] in _KINDS and _fits(_KINDS[value["kind"]], value)
    ),
    "services": lambda value: type(value) is list and all(_fits(_SERVICE, each) for each in value),
    "files": _map(_is_name, _SIZE),
}


def _other_version(path: Path, has: str, known: int) -> StateError:
    return StateError(
        f"the checkpoint {path} has {has}, this version reads {known}: restore it with the version that wrote it"
    )


def _size(path: Path) -> int | None:
    """The size of a file; None if there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
