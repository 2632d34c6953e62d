"""Reads a snapshot or a checkpoint, without the program that wrote it and without pickle.

The law: the states, namespaces, keys and entries are those that the backend had when the snapshot was taken, expired
entries that were still stored included. Source: Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncio_operator.checks import check_directory
from asyncio_operator.errors import ConfigurationError, StateError, describe, describe_error
from asyncio_operator.state.checkpoint_format import MANIFEST, CheckpointFiles, rocksdb_snapshot
from asyncio_operator.state.descriptors import QUEUE, StateMeta
from asyncio_operator.state.key_groups import group_width
from asyncio_operator.state.keys import Key, KeySerializer, deserialize_key
from asyncio_operator.state.layout import (
    NOT_BEGUN,
    STAMP_BIAS,
    STAMP_SIZE,
    describe_slot,
    parse_slot,
    serialize_namespace,
    stamped_at,
)
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer
from asyncio_operator.state.snapshot import Row, StateSnapshot

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
        self._serializers = {**_BUILTIN, **_checked(serializers or {})}
        self._snapshot = source if isinstance(source, StateSnapshot) else _opened(check_directory(source))
        self._snapshot.check_readable()
        self._width = group_width(self._snapshot.max_parallelism)

    def states(self) -> list[StateInfo]:
        """The states, sorted by name. Queues, such as those of timers, are none."""
        known = sorted(self._known().items())
        return [StateInfo(name, meta.kind, meta.ttl, dict(meta.serializers)) for name, meta in known]

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
        decode = self._decoder(meta, "value serialiser")
        decode_key = self._decoder(meta, "key serialiser") if meta.kind == "map" else None
        for address, stored in self._rows(state):
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
        for address, _ in self._rows(state):
            if slot is None or not address.startswith(slot):
                key, namespace, length = parse_slot(address, self._width)
                slot = address[:length]
                yield key, namespace

    def _rows(self, state: str) -> Iterator[Row]:
        # In the order of addresses, in which the entries of a slot are neighbours.
        return self._snapshot.rows(state, self._snapshot.key_groups)

    def _meta(self, state: str) -> StateMeta:
        meta = self._known().get(state)
        if meta is None:
            known = ", ".join(map(repr, sorted(self._known()))) or "none"
            raise StateError(f"{self._snapshot!r} has no state {describe(state)}: its states are {known}")
        return meta

    def _known(self) -> dict[str, StateMeta]:
        return {name: meta for name, meta in self._snapshot.states.items() if meta.kind != QUEUE}

    def _decoder(self, meta: StateMeta, role: str) -> Callable[[bytes], Any]:
        serializer = self._serializers.get(meta.serializers[role])
        return bytes if serializer is None else serializer.deserialize

    def __repr__(self) -> str:
        return f"<SnapshotReader of {self._snapshot!r}>"


def _opened(path: Path) -> StateSnapshot:
    # For a directory that is neither, the error of a checkpoint says more.
    if (path / MANIFEST).is_file() or not (path / "CURRENT").is_file():
        return CheckpointFiles(path).snapshot()
    return rocksdb_snapshot(path)


def _checked(serializers: Mapping[str, Serializer]) -> dict[str, Serializer]:
    if not isinstance(serializers, Mapping):
        raise ConfigurationError(
            f"serializers={describe(serializers)}: a mapping is needed, serialisers by their names"
        )
    for name, serializer in serializers.items():
        if serializer is None or check_serializer("serializers", serializer).name != name:
            raise ConfigurationError(
                f"serializers: {describe(serializer)} under the name {describe(name)}: a serialiser under its own name "
                "is needed"
            )
    return dict(serializers)
