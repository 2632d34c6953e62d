"""Snapshots and checkpoints are read without the program that wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateEntry,
    StateInfo,
    StateTtlConfig,
    ValueStateDescriptor,
)
from asyncio_operator.testing.time import ManualClock


class Json:
    name = "json-1"

    def serialize(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)


JSON = ValueStateDescriptor("json", Json())


def test_S15_a_reader_says_what_states_there_are(make):
    backend = make()
    backend.set_current_key(1)
    backend.value_state(JSON).update(3)
    backend.list_state(ListStateDescriptor("list")).add(3)
    backend.map_state(MapStateDescriptor("map that lives", ttl=StateTtlConfig(5.0, cleanup=()))).put(2, 3)
    backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b)).add(3)
    built_in = {"value serialiser": "builtin-1"}
    assert list(SnapshotReader(backend.snapshot()).states()) == [
        StateInfo("json", "value", False, {"value serialiser": "json-1"}),
        StateInfo("list", "list", False, built_in),
        StateInfo("map that lives", "map", True, {**built_in, "key serialiser": "builtin-key-1"}),
        StateInfo("sum", "reducing", False, built_in),
    ]


def test_S15_values_of_a_serialiser_of_ones_own_are_bytes_unless_it_is_given(make):
    backend = make()
    backend.set_current_key(1)
    backend.value_state(JSON).update({"a": [1]})
    snapshot = backend.snapshot()
    assert [entry.value for entry in SnapshotReader(snapshot).entries("json")] == [b'{"a": [1]}']
    reader = SnapshotReader(snapshot, serializers={"json-1": Json()})
    assert [entry.value for entry in reader.entries("json")] == [{"a": [1]}]


def test_S15_what_has_expired_and_was_not_cleaned_up_appears_with_its_time(make):
    backend = make(clock=(clock := ManualClock(1.5)))
    backend.set_current_key(1)
    backend.set_current_namespace("n")
    backend.map_state(MapStateDescriptor("map", ttl=StateTtlConfig(5.0, cleanup=()))).put("a", None)
    clock.advance(5)
    assert list(SnapshotReader(backend.snapshot()).entries("map")) == [StateEntry(1, "n", "a", None, 1500)]


def test_S15_what_cannot_be_read_is_named(tmp_path):
    with RocksDBStateBackend(tmp_path / "state") as backend:
        backend.set_current_namespace("n")
        backend.set_current_key(2)
        backend.value_state(ValueStateDescriptor("value")).update(1)
        backend.value_state(JSON).update(1)
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
        with pytest.raises(ConfigurationError, match="it must be"):
            SnapshotReader(HeapStateBackend().snapshot(), serializers=serializers)


def test_S15_a_snapshot_of_another_version_is_refused():
    snapshot = HeapStateBackend(key_groups=KeyGroupRange(0, 3)).snapshot()
    snapshot.format = 9
    with pytest.raises(StateError, match="has format 9, this version reads 1"):
        SnapshotReader(snapshot)
