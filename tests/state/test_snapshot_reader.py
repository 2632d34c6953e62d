"""Snapshots and checkpoints are read without the program that wrote them."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    AggregatingStateDescriptor,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBSnapshot,
    RocksDBStateBackend,
    SnapshotReader,
    StateBackend,
    StateEntry,
    StateInfo,
    StateTtlConfig,
    ValueStateDescriptor,
    checkpoint,
)
from asyncio_operator.testing.time import ManualClock

KINDS = ("heap", "rocksdb")
TTL = StateTtlConfig(5.0, cleanup=())


class Json:
    name = "json-1"

    def serialize(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)


class Count:
    def create_accumulator(self) -> list[Any]:
        return [0]

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [accumulator[0] + 1, value]

    def get_result(self, accumulator: list[Any]) -> Any:
        return accumulator[0]

    def merge(self, a: Any, b: Any) -> Any:
        raise NotImplementedError


def latest(old: Any, new: Any) -> Any:
    return new


MAKERS: dict[str, Callable[..., Any]] = {
    "value": ValueStateDescriptor,
    "list": ListStateDescriptor,
    "map": MapStateDescriptor,
    "reducing": lambda name, ttl: ReducingStateDescriptor(name, latest, ttl=ttl),
    "aggregating": lambda name, ttl: AggregatingStateDescriptor(name, Count(), ttl=ttl),
    "json": lambda name, ttl: ValueStateDescriptor(name, Json(), ttl=ttl),
}
DESCRIPTORS: dict[str, Any] = {
    name + suffix: make(name + suffix, ttl=ttl)
    for suffix, ttl in (("", None), (" that lives", TTL))
    for name, make in MAKERS.items()
}

keys = st.one_of(
    st.integers(-3, 3),
    st.booleans(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.tuples(st.integers(0, 2), st.text(max_size=2)),
    st.dates(date(2024, 1, 1), date(2024, 1, 3)),
    st.floats(allow_nan=False, width=16),
)
values = st.one_of(st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3), st.booleans())
writes = st.lists(st.tuples(st.sampled_from(sorted(DESCRIPTORS)), keys, st.none() | keys, keys, values), max_size=40)


def same(key: Any) -> Any:
    """A key as a dictionary's: values that are equal in Python and different keys are different here."""
    if isinstance(key, tuple):
        return tuple(map(same, key))
    return type(key).__name__, 0.0 if key == 0 and isinstance(key, float) else key


class Model:
    """The entries that a backend should have after some writes."""

    def __init__(self) -> None:
        self.slots: dict[str, dict[Any, tuple[Any, Any, list[tuple[Any, Any, int | None]]]]] = {}

    def write(self, now: int, name: str, key: Any, namespace: Any, map_key: Any, value: Any) -> None:
        slot = self.slots.setdefault(name, {}).setdefault((same(key), same(namespace)), (key, namespace, []))[2]
        written = now if DESCRIPTORS[name].ttl else None
        if name.startswith("map"):
            slot[:] = [entry for entry in slot if same(entry[0]) != same(map_key)] + [(map_key, value, written)]
        elif name.startswith("list"):
            slot.append((None, value, written))
        elif name.startswith("aggregating"):
            slot[:] = [(None, [slot[0][1][0] + 1 if slot else 1, value], written)]
        else:
            slot[:] = [(None, value, written)]

    def entries(self, name: str) -> list[str]:
        found = [
            repr((same(key), same(namespace), same(map_key), value, written))
            for key, namespace, rows in self.slots.get(name, {}).values()
            for map_key, value, written in rows
        ]
        return found if name.startswith("list") else sorted(found)


def write(backend: StateBackend, name: str, key: Any, namespace: Any, map_key: Any, value: Any) -> None:
    backend.set_current_key(key)
    backend.set_current_namespace(namespace)
    descriptor = DESCRIPTORS[name]
    match descriptor:
        case MapStateDescriptor():
            backend.map_state(descriptor).put(map_key, value)
        case ListStateDescriptor():
            backend.list_state(descriptor).add(value)
        case ReducingStateDescriptor():
            backend.reducing_state(descriptor).add(value)
        case AggregatingStateDescriptor():
            backend.aggregating_state(descriptor).add(value)
        case ValueStateDescriptor():
            backend.value_state(descriptor).update(value)


def shown(entry: StateEntry) -> str:
    return repr((same(entry.key), same(entry.namespace), same(entry.map_key), entry.value, entry.written))


def open_backend(kind: str, directory: str | Path, **options: Any) -> StateBackend:
    return HeapStateBackend(**options) if kind == "heap" else RocksDBStateBackend(Path(directory) / "state", **options)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(max_parallelism=st.sampled_from([1, 128, 300]), written=writes)
def test_S15_a_reader_gives_what_was_written(kind, max_parallelism, written):
    model, clock = Model(), ManualClock(1000.0)
    with tempfile.TemporaryDirectory() as directory:
        with open_backend(kind, directory, max_parallelism=max_parallelism, clock=clock) as backend:
            for step in written:
                write(backend, *step)
                model.write(round(clock() * 1000), *step)
                clock.advance(0.25)  # Some of what lives has expired at the end, and appears all the same.
            snapshot = backend.snapshot()
            checkpoint(directory + "/checkpoint", backend)
            sources = [snapshot, pickle.loads(pickle.dumps(snapshot)), directory + "/checkpoint"]
            sources += [snapshot.directory] if isinstance(snapshot, RocksDBSnapshot) else []
        for source in sources:
            reader = SnapshotReader(source, serializers={"json-1": Json()})
            assert [state.name for state in reader.states()] == sorted(model.slots)
            for name, slots in model.slots.items():
                found = list(map(shown, reader.entries(name)))
                if name.startswith("list"):
                    # Of each slot in order; slots stand in an order of their own.
                    assert sorted(found) == sorted(model.entries(name))
                    for key, namespace, rows in slots.values():
                        mine = [shown(StateEntry(key, namespace, *row)) for row in rows]
                        assert [each for each in found if each in mine] == mine
                else:
                    assert sorted(found) == model.entries(name)
                namespaces = {same(namespace): namespace for _, namespace, _ in slots.values()}
                assert sorted(map(repr, map(same, reader.namespaces(name)))) == sorted(map(repr, namespaces))
                for namespace in namespaces.values():
                    wanted = sorted(
                        repr(same(key)) for key, other, _ in slots.values() if same(other) == same(namespace)
                    )
                    assert sorted(repr(same(key)) for key in reader.keys(name, namespace)) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_S15_a_reader_says_what_states_there_are(kind, tmp_path):
    with open_backend(kind, tmp_path) as backend:
        for name in DESCRIPTORS:
            write(backend, name, 1, None, 2, 3)
        reader = SnapshotReader(backend.snapshot())
    built_in = {"value serialiser": "builtin-1"}
    states = {state.name: state for state in reader.states()}
    assert list(states) == sorted(DESCRIPTORS)
    assert states["list"] == StateInfo("list", "list", False, built_in)
    assert states["map that lives"] == StateInfo(
        "map that lives", "map", True, {**built_in, "key serialiser": "builtin-key-1"}
    )
    assert states["json"] == StateInfo("json", "value", False, {"value serialiser": "json-1"})


@pytest.mark.parametrize("kind", KINDS)
def test_S15_values_of_a_serialiser_of_ones_own_are_bytes_unless_it_is_given(kind, tmp_path):
    with open_backend(kind, tmp_path) as backend:
        write(backend, "json", 1, None, None, {"a": [1]})
        snapshot = backend.snapshot()
        assert [entry.value for entry in SnapshotReader(snapshot).entries("json")] == [b'{"a": [1]}']
        reader = SnapshotReader(snapshot, serializers={"json-1": Json()})
        assert [entry.value for entry in reader.entries("json")] == [{"a": [1]}]


def test_S15_what_cannot_be_read_is_named(tmp_path):
    with open_backend("rocksdb", tmp_path) as backend:
        write(backend, "value", 1, None, None, 1)
        write(backend, "json", 2, "n", None, 1)
        snapshot = backend.snapshot()

    class Broken(Json):
        def deserialize(self, data: bytes) -> Any:
            raise ValueError("no such value")

    reader = SnapshotReader(snapshot, serializers={"json-1": Broken()})
    with pytest.raises(StateError, match=r"snapshot.*state 'json', key 2, namespace 'n': .*no such value"):
        list(reader.entries("json"))
    for method in (reader.entries, reader.namespaces, reader.keys):
        with pytest.raises(StateError, match=r"has no state 'valeu': its states are 'json', 'value'"):
            method("valeu")
    with pytest.raises(StateError, match="namespace"):
        reader.keys("value", [])
    snapshot.delete()
    with pytest.raises(StateError, match="is gone"):
        list(reader.entries("value"))
    with pytest.raises(StateError, match="correct the path"):
        SnapshotReader(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    with pytest.raises(StateError, match="is not a checkpoint"):
        SnapshotReader(tmp_path / "other")
    wrongs: list[Any] = [1, None, b"path"]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="a path is needed"):
            SnapshotReader(wrong)
    mappings: list[Any] = [{"json-2": Json()}, {"json-1": Json}, {"json-1": None}, [Json()]]
    for serializers in mappings:
        with pytest.raises(ConfigurationError, match="needed"):
            SnapshotReader(HeapStateBackend().snapshot(), serializers=serializers)


def test_S15_a_snapshot_of_another_version_is_refused():
    snapshot = HeapStateBackend(key_groups=KeyGroupRange(0, 3)).snapshot()
    snapshot.format = 9
    with pytest.raises(StateError, match="has format 9, this version reads 1"):
        SnapshotReader(snapshot)
