"""Snapshots of keyed state: what they hold, how several are checked before they are restored together, and the files
of a checkpoint.

A snapshot is a point in time of one backend: for every state its `StateMeta`, and for every key group the addresses and
serialised entries, in the form of `layout`. So a snapshot of one kind of backend restores into any other. It names its
version, its maximum parallelism and its range, and is refused if this version does not know them.

A checkpoint is a directory, format version 1. Nothing in it is pickled.

    CHECKPOINT    one line of text, ``asyncio-operator checkpoint 1 CRC``, where CRC is the CRC-32 of what follows, 8
                  hexadecimal digits; then a JSON object, the manifest (below). It is written last.
    state/        the snapshot of a RocksDB backend (`layout`), or
    rows          the snapshot of any other backend, a segment (`pack_rows`) for each state and key group
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

The checksum of the manifest finds damage, but not a change that was made on purpose. So all of it becomes typed objects
when it is read, and what does not fit is damage.
"""

from __future__ import annotations

import json
import os
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from asyncio_operator.errors import StateError, StateMigrationError, describe
from asyncio_operator.lazy import member
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange, check_key_groups
from asyncio_operator.state.layout import FORMAT_VERSION, check_format, retimed

_length = struct.Struct(">I")

Row = tuple[bytes, bytes]
"""An address and its serialised entry."""


class StateSnapshot(ABC):
    """A point in time of one backend; picklable.

    Attributes:
        format: the version of the layout.
        max_parallelism: of the backend.
        key_groups: the range of the backend.
        sequence: every sequence number in it is smaller.
        states: kind, serialisers and time to live of each state, by name.
    """

    format: int
    max_parallelism: int
    key_groups: KeyGroupRange
    sequence: int
    states: Mapping[str, StateMeta]

    @abstractmethod
    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        """The entries of a state that lie in the range, in the order of their addresses."""

    @abstractmethod
    def check_present(self) -> None:
        """Raises StateError if it was deleted."""

    def check_readable(self) -> None:
        """Raises StateError if it was deleted, or is of another version."""
        self.check_present()
        check_format(repr(self), self.format)

    @abstractmethod
    def delete(self) -> None:
        """Frees the memory or the files of the snapshot; it cannot be restored afterwards."""


@dataclass(slots=True, repr=False)
class HeapSnapshot(StateSnapshot):
    """A snapshot of a backend in memory, or the same in the files of a checkpoint: segments by state and key group.

    A segment (`pack_rows`) is bytes, and that of a checkpoint is read when it is asked for.
    """

    max_parallelism: int
    key_groups: KeyGroupRange
    sequence: int
    states: Mapping[str, StateMeta]
    groups: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    format: int = FORMAT_VERSION
    deleted: bool = False

    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        self.check_present()
        segments, length_at = self.groups.get(name, {}), _length.unpack_from
        for group in sorted(segments):
            if group in key_groups:
                segment, position = segments[group], 0
                try:
                    while position < len(segment):
                        start = position + 4
                        end = start + length_at(segment, position)[0]
                        position = end + 4 + length_at(segment, end)[0]
                        if position > len(segment):
                            raise ValueError(position)
                        yield segment[start:end], segment[end + 4 : position]
                except (ValueError, struct.error) as error:
                    raise StateError(
                        f"{self!r} is damaged: the entries of state {name!r} in key group {group} end within an entry; "
                        "restore another one"
                    ) from error

    def check_present(self) -> None:
        if self.deleted:
            raise StateError(f"{self!r} was deleted: restore another one")

    def delete(self) -> None:
        self.deleted = True
        self.groups = {}

    def __repr__(self) -> str:
        return f"<HeapSnapshot of {len(self.states)} states, key groups {self.key_groups}>"


def pack_rows(rows: Iterable[Row]) -> bytes:
    """A segment: for each row, in the order of addresses, the length of the address, 4 bytes big-endian, the address,
    the length of the stored entry, and the entry."""
    pack = _length.pack
    return b"".join([part for row in sorted(rows) for data in row for part in (pack(len(data)), data)])


def merge_states(snapshots: Sequence[StateSnapshot], max_parallelism: int) -> dict[str, StateMeta]:
    """The states of all snapshots, after checking that they fit this version, this maximum parallelism and each other.
    StateError if one is deleted, or of another version or maximum parallelism, or two hold the same key group;
    StateMigrationError if two have other kinds or serialisers for a state. A state with time to live in one of them has
    it in the result."""
    states: dict[str, StateMeta] = {}
    for index, snapshot in enumerate(snapshots):
        if not isinstance(snapshot, StateSnapshot):
            raise StateError(
                f"snapshot {index} is a {type(snapshot).__name__}: restore() takes what snapshot() returned"
            )
        snapshot.check_readable()
        if snapshot.max_parallelism != max_parallelism:
            raise StateError(
                f"{snapshot!r} was taken with max_parallelism={snapshot.max_parallelism}, this backend has "
                f"{max_parallelism}: the maximum parallelism of state never changes, make the backend with the old one"
            )
        for other in snapshots[:index]:
            one, two = other.key_groups, snapshot.key_groups
            if max(one.start, two.start) <= min(one.end, two.end):
                raise StateError(f"{other!r} and {snapshot!r} hold the same key groups: give each key group once")
        for name, meta in snapshot.states.items():
            known = states.setdefault(name, meta)
            if replace(known, ttl=meta.ttl) != meta:
                raise StateMigrationError(f"the snapshots disagree about state {name!r}: {known} and {meta}")
            if meta.ttl:
                states[name] = meta
    return states


def merged_rows(
    snapshots: Sequence[StateSnapshot], name: str, meta: StateMeta, key_groups: KeyGroupRange
) -> Iterator[Row]:
    """The entries of a state that lie in the range, as entries of the state that `merge_states` gave."""
    for snapshot in snapshots:
        if name in snapshot.states:
            had = snapshot.states[name].ttl
            for address, data in snapshot.rows(name, key_groups):
                yield address, retimed(data, had, meta.ttl)


CHECKPOINT_FORMAT = 1
MANIFEST, STATE, ROWS, TIMERS = "CHECKPOINT", "state", "rows", "timers"

_HEAD = re.compile(rb"asyncio-operator checkpoint (\d{1,9}) ([0-9a-f]{8})")


class CheckpointFiles:
    """An existing checkpoint: its manifest was read, and every file has the size that the manifest gives. StateError if
    there is none, it is damaged, a file is missing, or it is of another version. `services` has the kind of each timer
    service, and its timers as it wrote them, by key group."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            manifest = read_manifest(path)
            start, end = manifest["key_groups"]
            self.key_groups, self.max_parallelism = KeyGroupRange(start, end), manifest["max_parallelism"]
            check_key_groups(self.key_groups, self.max_parallelism)
            self.services = [
                (str(each["kind"]), Segments(self.path, TIMERS, each["segments"])) for each in manifest["services"]
            ]
            state = manifest["state"]
            self._rows: HeapSnapshot | None = None
            if state["kind"] == "rows":
                check_format(f"the state of the checkpoint {path}", state["layout"])
                states = {name: StateMeta.from_dict(meta) for name, meta in state["states"].items()}
                groups = {name: Segments(self.path, ROWS, segments) for name, segments in state["segments"].items()}
                sequence = _natural(state["sequence"])
                self._rows = HeapSnapshot(self.max_parallelism, self.key_groups, sequence, states, groups)
            elif state["kind"] != "rocksdb":
                raise ValueError(state["kind"])
            files = dict(manifest["files"].items())
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"{MANIFEST} does not have the fields of a checkpoint, or not their types"
            raise damaged(path, what) from error
        for name, size in files.items():
            try:
                found = (path / name).stat().st_size if (path / name).is_file() else None
            except OSError:
                found = None
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes, not {size}"
                raise damaged(path, f"the file {name} {what}")

    def snapshot(self) -> StateSnapshot:
        """The keyed state."""
        return rocksdb_snapshot(self.path / STATE) if self._rows is None else self._rows


def rocksdb_snapshot(path: Path) -> StateSnapshot:
    """The snapshot of a RocksDB backend in a directory; ConfigurationError if rocksdict is not installed."""
    snapshot: Any = member("asyncio_operator.state.rocksdb", "RocksDBSnapshot", "rocksdict", "rocksdb")
    return snapshot(path)  # type: ignore[no-any-return]


class Segments(Mapping[int, bytes]):
    """Segments of a file, by key group, given as offset, length and CRC-32. Each is read when it is asked for."""

    def __init__(self, path: Path, file: str, given: Mapping[str, list[int]]) -> None:
        self._path, self._file = path, file
        self._given = {
            int(group): (_natural(offset), _natural(length), _natural(checksum))
            for group, (offset, length, checksum) in given.items()
        }

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


def read_manifest(path: Path) -> Any:
    """The manifest of the checkpoint at `path`, as it was written."""
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
    check_format(f"the checkpoint {path}", int(found[1]), CHECKPOINT_FORMAT)
    if crc32(body) != int(found[2], 16):
        raise damaged(path, f"{MANIFEST} is not what was written")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} is not JSON") from error


def damaged(path: Path, what: str) -> StateError:
    """The error for a checkpoint whose files have changed since they were written."""
    return StateError(f"the checkpoint {path} is damaged: {what}; restore another one")


def _natural(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError(number)
    return number
