"""Checkpoints: a backend and its timer services at one moment, as a directory.

`snapshot` describes the files. The directory is written under another name, forced to the disk and renamed, so
a checkpoint is whole or absent, also after a loss of power. The law: `restore_checkpoint` gives a backend of any kind
and any range of key groups what the backend and the services had when `checkpoint` was called.

`SnapshotReader` reads a snapshot or a checkpoint without the program that wrote it and without pickle: expired entries
that were still stored are there too. Source: Flink's State Processor API.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from asyncio_operator.checks import check_directory, must_be
from asyncio_operator.elements import OperatorSnapshot, Record, Watermark
from asyncio_operator.errors import ConfigurationError, StateError, describe, describe_error
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.descriptors import QUEUE, ROLES, StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange, group_width
from asyncio_operator.state.keys import Key, KeySerializer, deserialize_key
from asyncio_operator.state.layout import (
    NOT_BEGUN,
    STAMP_BIAS,
    STAMP_SIZE,
    check_format,
    describe_slot,
    parse_slot,
    serialize_namespace,
    stamped_at,
)
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer
from asyncio_operator.state.snapshot import (
    MANIFEST,
    ROWS,
    STATE,
    TIMERS,
    CheckpointFiles,
    HeapSnapshot,
    StateSnapshot,
    rocksdb_snapshot,
    write_manifest,
    write_segments,
)

IN_STATE = " in the state"  # Ends the kind of a service whose timers are kept by the backend.


@runtime_checkable
class CheckpointedService(Protocol):
    """The methods of a timer service that a checkpoint uses; `InternalTimerService`, `BatchTimerService`,
    `TimerServiceManager` and `InFlightElements` have them."""

    checkpoint_kind: ClassVar[str]

    @property
    def state_backend(self) -> StateBackend | None: ...

    def checkpoint_groups(self, key_groups: KeyGroupRange, max_parallelism: int, /) -> dict[int, bytes]: ...

    def prepare_restore(
        self, key_groups: KeyGroupRange, max_parallelism: int, groups: Mapping[int, bytes], /
    ) -> Callable[[], None]: ...


def checkpoint(path: str | Path, backend: StateBackend, *services: CheckpointedService) -> None:
    """Writes a checkpoint of a backend and its timer services, which stay usable.

    A RocksDB backend on the same volume as `path` makes hard links, so the cost is that of the changes since its last
    flush. Any other backend is written in full, and so are timers that the backend does not keep. Watermarks are not
    part of a checkpoint.

    Args:
        path: the directory to make; its parents are made if they are missing.
        backend: the keyed state.
        services: `InternalTimerService`, `TimerServiceManager` or `BatchTimerService`, of the same key groups as the
            backend, and `InFlightElements`.

    Raises:
        ConfigurationError: an argument is of another type, or a service has other key groups than the backend.
        StateError: `path` exists, the backend is closed, or the disk cannot be written. No files are left behind.
    """
    target = check_directory(path)
    _check(backend, services)
    if os.path.lexists(target):
        raise StateError(f"{target} exists already: take another path for the checkpoint")
    # On the same volume, because a rename between volumes is a copy, and no longer all or nothing.
    part = target.with_name(f".checkpoint-{uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
        snapshot = backend.snapshot(part / STATE if backend.snapshots_on_disk else None)
        state: dict[str, Any] = {"kind": "rocksdb"}
        if isinstance(snapshot, HeapSnapshot):
            with (part / ROWS).open("xb") as file:
                segments = {name: write_segments(file, groups) for name, groups in snapshot.groups.items()}
            states = {name: meta.to_dict() for name, meta in snapshot.states.items()}
            state = {"kind": "rows", "layout": snapshot.format, "sequence": snapshot.sequence, "states": states}
            state["segments"] = segments
        manifest: dict[str, Any] = {
            "max_parallelism": backend.max_parallelism,
            "key_groups": [backend.key_groups.start, backend.key_groups.end],
            "state": state,
            "services": [],
        }
        with (part / TIMERS).open("xb") as file:
            for service in services:
                groups: Mapping[int, bytes] = {}
                if service.state_backend is None:
                    groups = service.checkpoint_groups(backend.key_groups, backend.max_parallelism)
                manifest["services"].append({"kind": _kind(service), "segments": write_segments(file, groups)})
        write_manifest(part, manifest)
        # In this order: after a loss of power a directory could otherwise have its name, and not its files.
        for entry in (*part.rglob("*"), part):
            _force(entry)
        part.rename(target)
        _force(target.parent)
    except OSError as error:
        raise StateError(
            f"the checkpoint {target} cannot be written: remove the cause, or take another path ({error})"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def restore_checkpoint(
    path: str | Path | Sequence[str | Path], backend: StateBackend, *services: CheckpointedService
) -> None:
    """Restores a checkpoint into a new, empty backend and new services, before any state is requested.

    Args:
        path: the checkpoint; to restore other key groups, all checkpoints that hold a part of the backend's.
        backend: of any kind, with the same maximum parallelism.
        services: the same number as were written, in the same order, of the same classes.

    Raises:
        ConfigurationError: an argument is of another type, or a service has other key groups than the backend.
        StateError: a checkpoint is missing, damaged, never completed, of another version or maximum parallelism or
            number of services; two hold one key group, or a key group is in none; the backend or a service is not
            empty. Backend and services are then as they were, unless a disk failed.
        StateMigrationError: the checkpoints disagree about a state.
    """
    paths = [path] if isinstance(path, str | Path) or not isinstance(path, Sequence) else path
    found = [CheckpointFiles(check_directory(each)) for each in paths]
    _check(backend, services)
    backend.check_open()
    for each in found:
        if each.max_parallelism != backend.max_parallelism:
            raise StateError(
                f"the checkpoint {each.path} was taken with max_parallelism={each.max_parallelism}, this backend has "
                f"{backend.max_parallelism}: the maximum parallelism of state never changes, make the backend with "
                "the old one"
            )
        kinds = [kind for kind, _ in each.services]
        # What a service wrote to the checkpoint may also go into a backend, but not the other way round.
        given = [(service.checkpoint_kind, _kind(service)) for service in services]
        if len(kinds) != len(given) or any(kind not in fit for kind, fit in zip(kinds, given, strict=True)):
            raise StateError(
                f"the checkpoint {each.path} holds the services {kinds}, and {[kind for _, kind in given]} are to be "
                "restored: give the services that were written, in the same order"
                + ", with BackendQueues(backend) for timers in the state"
                * any(k.endswith(IN_STATE) for k in kinds)
            )
    missing = [group for group in backend.key_groups if not any(group in each.key_groups for each in found)]
    if missing:
        raise StateError(
            f"key group {missing[0]} of {backend.key_groups} is in none of the checkpoints "
            f"{', '.join(str(each.path) for each in found)}: give all that hold a part of the backend's key groups"
        )
    # All is checked before anything is changed: an error leaves backend and services as they were.
    ready, groups = [], backend.key_groups
    for index, service in enumerate(services):
        timers = {group: data for each in found for group, data in each.services[index][1].items() if group in groups}
        ready.append(service.prepare_restore(groups, backend.max_parallelism, timers))
    backend.restore([each.snapshot() for each in found])
    for add in ready:
        add()


def _check(backend: StateBackend, services: Sequence[CheckpointedService]) -> None:
    if not isinstance(backend, StateBackend):
        raise must_be("backend", backend, "a StateBackend")
    for service in services:
        if isinstance(service, type) or not isinstance(service, CheckpointedService):
            known = "an InternalTimerService, a TimerServiceManager or a BatchTimerService"
            raise must_be("services", service, f"InFlightElements(operator.snapshot()), {known}")
        if service.state_backend not in (None, backend):
            raise ConfigurationError(
                f"{service!r} keeps its timers in {service.state_backend!r}, not in {backend!r}: give that backend"
            )


def _kind(service: CheckpointedService) -> str:
    return service.checkpoint_kind if service.state_backend is None else service.checkpoint_kind + IN_STATE


def _force(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


ELEMENTS_FORMAT = 1
"""One segment, of the first key group of the backend, in the built-in serialisation:

    {"format": 1, "elements": [[element, attempts], ...], "collected": [element, ...]}
    element: [value] or [value, timestamp] for a record, [timestamp, None, None] for a watermark; a value is bytes
"""


class InFlightElements:
    """The elements in flight of an operator, as a part of a checkpoint: state, timers and elements of one moment.

    Give it to `checkpoint` and `restore_checkpoint` among the services.

    Args:
        snapshot: what `operator.snapshot()` gave; None for one that is restored.
        serializer: of the values of the elements; None is the built-in one.

    Attributes:
        snapshot: the elements, after a restore those of the checkpoint: for ``operator.process(restore=)``.

    Raises:
        ConfigurationError: one of them has another type.
    """

    checkpoint_kind: ClassVar[str] = "elements"
    state_backend = None

    def __init__(self, snapshot: OperatorSnapshot | None = None, *, serializer: Serializer | None = None) -> None:
        if snapshot is not None and not isinstance(snapshot, OperatorSnapshot):
            raise must_be("snapshot", snapshot, "what operator.snapshot() gave")
        self.snapshot = OperatorSnapshot() if snapshot is None else snapshot
        self._serializer = check_serializer("serializer", serializer)

    def checkpoint_groups(self, key_groups: KeyGroupRange, max_parallelism: int) -> dict[int, bytes]:
        """The elements, by the first key group; empty without elements.

        Raises:
            StateError: the serialiser refuses a value.
        """
        elements = [[self._written(element), attempts] for element, attempts in self.snapshot.elements]
        collected = [self._written(record) for record in self.snapshot.collected]
        if not elements and not collected:
            return {}
        body = {"format": ELEMENTS_FORMAT, "elements": elements, "collected": collected}
        return {key_groups.start: BUILTIN.serialize(body)}

    def prepare_restore(
        self, key_groups: KeyGroupRange, max_parallelism: int, groups: Mapping[int, bytes]
    ) -> Callable[[], None]:
        if self.snapshot != OperatorSnapshot():
            raise StateError(f"{self!r} has elements already: restore a checkpoint into InFlightElements()")
        found = []
        for _, data in sorted(groups.items()):
            try:
                body = BUILTIN.deserialize(data)
                check_format("it", body["format"], ELEMENTS_FORMAT)
                elements = tuple((self._read(parts), int(attempts)) for parts, attempts in body["elements"])
                found.append(OperatorSnapshot(elements, tuple(self._read(parts) for parts in body["collected"])))
            except (LookupError, TypeError, ValueError, StateError) as error:
                raise StateError(f"{describe(data)} does not hold elements of an operator: {error}") from error
        marked = any(type(element) is Watermark for each in found for element, _ in each.elements)
        if len(found) > 1 and marked:
            raise StateError(
                f"the checkpoints hold elements of {len(found)} operators, with watermarks: those of one would make "
                "records of the others late: give each operator the checkpoint of one"
            )
        whole = OperatorSnapshot(
            tuple(pair for each in found for pair in each.elements),
            tuple(record for each in found for record in each.collected),
        )

        def restore() -> None:
            self.snapshot = whole

        return restore

    def _written(self, element: Any) -> list[Any]:
        if type(element) is Watermark:
            return [element.timestamp, None, None]
        if type(element) is Record:
            return [self._serializer.serialize(element.value), element.timestamp]
        return [self._serializer.serialize(element)]

    def _read(self, parts: list[Any]) -> Any:
        if len(parts) == 3:
            return Watermark(parts[0])
        value = self._serializer.deserialize(parts[0])
        return Record(value, parts[1]) if len(parts) == 2 else value

    def __repr__(self) -> str:
        return f"<InFlightElements, {len(self.snapshot.elements)} of them>"


_BUILTIN: dict[str, Serializer] = {BUILTIN.name: BUILTIN, KeySerializer.name: KeySerializer()}


@dataclass(frozen=True, slots=True)
class StateInfo:
    """What a snapshot says about a state.

    Attributes:
        name: of the state.
        kind: "value", "list", "map", "reducing" or "aggregating".
        ttl: whether its entries have time to live. How long is in the descriptor, and not in the snapshot.
        serializers: the names of its serialisers, by what they are for: "value serialiser", and for a map also "key
            serialiser".
    """

    name: str
    kind: str
    ttl: bool
    serializers: Mapping[str, str]


class StateEntry(NamedTuple):
    """A value, a list element, a map entry or an accumulator.

    Attributes:
        key: of the state.
        namespace: None is the default one.
        map_key: the key of a map's entry; None for other kinds.
        value: of an aggregating state the accumulator; bytes if the reader has no serialiser for it.
        written: when it was written, or read with `ON_READ_AND_WRITE`, in milliseconds since the epoch; None without
            time to live, or if it is from before the state got one and was not read since.
    """

    key: Key
    namespace: Key | None
    map_key: Any
    value: Any
    written: int | None


class SnapshotReader:
    """The keyed state of a snapshot or a checkpoint.

    Args:
        source: the path of a checkpoint or of a RocksDB snapshot, or the snapshot of a backend.
        serializers: serialisers of your own, by name. Values of a serialiser that is neither here nor built in are
            read as bytes.

    Raises:
        ConfigurationError: `source` or a serialiser has the wrong type, a serialiser has another name, or the source is
            a RocksDB snapshot and the package rocksdict is missing.
        StateError: the source is missing, damaged, not a snapshot, or of another version.
    """

    def __init__(
        self, source: str | Path | StateSnapshot, *, serializers: Mapping[str, Serializer] | None = None
    ) -> None:
        given = serializers or {}
        if not isinstance(given, Mapping):
            raise must_be("serializers", given, "a mapping, serialisers by their names")
        for name, serializer in given.items():
            if serializer is None or check_serializer("serializers", serializer).name != name:
                raise must_be(f"serializers[{describe(name)}]", serializer, "a serialiser of that name")
        self._serializers = {**_BUILTIN, **given}
        if not isinstance(source, StateSnapshot):
            path = check_directory(source)
            # For a directory that is neither, the error of a checkpoint says more.
            is_checkpoint = (path / MANIFEST).is_file() or not (path / "CURRENT").is_file()
            source = CheckpointFiles(path).snapshot() if is_checkpoint else rocksdb_snapshot(path)
        self._snapshot = source
        self._snapshot.check_readable()
        self._width = group_width(self._snapshot.max_parallelism)
        self._states = {name: meta for name, meta in self._snapshot.states.items() if meta.kind != QUEUE}

    def states(self) -> list[StateInfo]:
        """The states, sorted by name. Queues, such as those of timers, are none."""
        states = sorted(self._states.items())
        return [StateInfo(name, meta.kind, meta.ttl, dict(meta.serializers)) for name, meta in states]

    def namespaces(self, state: str) -> list[Key | None]:
        """The namespaces that have entries of a state, each once; None is the default one. Reads the whole state.

        Raises:
            StateError: there is no such state, or it is damaged. The same holds for the other methods.
        """
        self._meta(state)
        found = {namespace for _, namespace in self._slots(state)}
        return [deserialize_key(data)[0] for data in sorted(found)]

    def keys(self, state: str, namespace: Key | None = None) -> Iterator[Key]:
        """The keys that have entries of a state in a namespace, each once, in the order of their key groups."""
        self._meta(state)
        wanted = serialize_namespace(namespace)
        return (key for key, found in self._slots(state) if found == wanted)

    def entries(self, state: str) -> Iterator[StateEntry]:
        """The entries of a state in all namespaces, those of one key together: a list's in its order, a map's in the
        order of its serialised keys."""
        meta = self._meta(state)
        return self._entries(state, meta)

    def _entries(self, state: str, meta: StateMeta) -> Iterator[StateEntry]:
        found = [self._serializers.get(meta.serializers[role]) for role in ROLES[meta.kind]]
        decode, *others = [bytes if one is None else one.deserialize for one in found]
        decode_key = others[0] if others else None  # Of a map.
        for address, stored in self._snapshot.rows(state, self._snapshot.key_groups):
            try:
                key, namespace, length = parse_slot(address, self._width)
                written = stamped_at(stored)[0] - STAMP_BIAS if meta.ttl else NOT_BEGUN
                value = decode(stored[STAMP_SIZE:] if meta.ttl else stored)
                map_key = None if decode_key is None else decode_key(address[length:])
            except Exception as error:
                raise StateError(
                    f"{self._snapshot!r}, state {state!r}, {describe_slot(address, self._width)}: "
                    f"an entry cannot be read: {describe_error(error)}"
                ) from error
            at = None if written == NOT_BEGUN else written
            yield StateEntry(key, deserialize_key(namespace)[0], map_key, value, at)

    def _slots(self, state: str) -> Iterator[tuple[Key, bytes]]:
        """Key and namespace of each slot, once: the entries of a slot are neighbours."""
        slot = None
        for address, _ in self._snapshot.rows(state, self._snapshot.key_groups):
            if slot is None or not address.startswith(slot):
                key, namespace, length = parse_slot(address, self._width)
                slot = address[:length]
                yield key, namespace

    def _meta(self, state: str) -> StateMeta:
        if state not in self._states:
            known = ", ".join(map(repr, sorted(self._states))) or "none"
            raise StateError(f"{self._snapshot!r} has no state {describe(state)}: its states are {known}")
        return self._states[state]

    def __repr__(self) -> str:
        return f"<SnapshotReader of {self._snapshot!r}>"
