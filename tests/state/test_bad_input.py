"""Bad input: each a StateError or a ConfigurationError that says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from asyncio_operator import state, timers
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    KeyGroupRange,
    MapStateDescriptor,
    RocksDBStateBackend,
    UpdateType,
    ValueStateDescriptor,
)
from asyncio_operator.state.keys import MAX_DEPTH

# What a caller without a type checker may write.
untyped: Any = state
VALUE = ValueStateDescriptor("value")


class Failing:
    name = "failing"

    def serialize(self, value):
        if value == "no bytes":
            return "text"
        if value == "refused":
            raise LookupError("refused by the serialiser")
        return b"x"

    def deserialize(self, data):
        raise ZeroDivisionError("cannot be read")


def migrating(new, default):
    """A migration from "value", with this default, to `new`."""
    old = ValueStateDescriptor("value", default=default)
    return untyped.MigratingMapState(untyped.HeapStateBackend(), old, MapStateDescriptor(new))


def test_an_error_of_a_serialiser_names_state_key_and_namespace(make):
    backend = make()
    backend.set_current_key("the key")
    backend.set_current_namespace("the namespace")
    value = backend.value_state(ValueStateDescriptor("the state", serializer=Failing()))
    entries = backend.map_state(MapStateDescriptor("the map", key_serializer=Failing()))
    where = "state 'the state', key 'the key', namespace 'the namespace': "
    for wrong, what in [("refused", "LookupError: refused by the serialiser"), ("no bytes", "gave str")]:
        with pytest.raises(StateError) as caught:
            value.update(wrong)
        assert str(caught.value).startswith(where)
        assert what in str(caught.value)
    value.update(1)
    with pytest.raises(StateError, match="ZeroDivisionError: cannot be read"):
        value.value()
    with pytest.raises(StateError, match="'the map'"):
        entries.put("refused", 1)
    entries.put("a", 1)
    with pytest.raises(StateError, match="ZeroDivisionError"):
        list(entries.items())


def test_a_default_that_cannot_be_stored_is_refused_at_once(make):
    with pytest.raises(StateError, match="default"):
        make().value_state(ValueStateDescriptor("value", default=object()))


def test_a_descriptor_of_another_class_is_refused(make):
    with pytest.raises(ConfigurationError, match="MapStateDescriptor"):
        make().map_state(VALUE)


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: untyped.ValueStateDescriptor(""), "name"),
        (lambda: untyped.ValueStateDescriptor(5), "name"),
        (lambda: untyped.ListStateDescriptor("x", ttl=5), "StateTtlConfig"),
        (lambda: untyped.ReducingStateDescriptor("x", reduce=None), "reduce"),
        (lambda: untyped.AggregatingStateDescriptor("x", aggregate=max), "create_accumulator"),
        (lambda: untyped.StateTtlConfig(0), "ttl"),
        (lambda: untyped.StateTtlConfig(-1.0), "ttl"),
        (lambda: untyped.StateTtlConfig(float("nan")), "ttl"),
        (lambda: untyped.StateTtlConfig(float("inf")), "ttl"),
        (lambda: untyped.StateTtlConfig(1e16), r"ttl=1e\+16.*from 0.001 s to 9223372036854775 s"),
        (lambda: untyped.StateTtlConfig(9223372036854776), "to 9223372036854775 s"),
        (lambda: untyped.StateTtlConfig(True), "ttl"),
        (lambda: untyped.StateTtlConfig("5"), "ttl"),
        (lambda: untyped.StateTtlConfig(5, update_type="sometimes"), "on_read_and_write"),
        (lambda: untyped.StateTtlConfig(5, visibility=None), "never_return_expired"),
        (lambda: untyped.StateTtlConfig(5, cleanup=(untyped.CleanupIncrementally(),) * 2), "cleanup"),
        (lambda: untyped.StateTtlConfig(5, cleanup="all"), "cleanup"),
        (lambda: untyped.CleanupIncrementally(size=0), "size"),
        (lambda: untyped.CleanupIncrementally(size=5, every_record="no"), "every_record"),
        (lambda: untyped.ValueStateDescriptor("a\0b"), r"name='a\\x00b'.*NUL"),
        (lambda: untyped.MapStateDescriptor("\ud800"), r"name='\\ud800'.*surrogates"),
        (lambda: untyped.HeapPriorityQueue(5), "key=5"),
        (lambda: untyped.HeapPriorityQueueSet(max, 5, KeyGroupRange(0, 0), 1), "key_of=5"),
        (lambda: untyped.KeyGroupPartitionedPriorityQueue(5, max, KeyGroupRange(0, 0), 1), "key=5"),
        (lambda: untyped.BatchPriorityQueueSet(max, 5), "key_of=5"),
        (lambda: untyped.RocksDBStateBackend("a\0b"), "directory"),
        (lambda: untyped.RocksDBStateBackend("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.RocksDBSnapshot("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.RocksDBSnapshot(5), "directory=5"),
        (lambda: timers.RocksDBQueues("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.key_group(1, 128.0), "max_parallelism=128.0"),
        (lambda: untyped.key_group(1, "128"), "max_parallelism='128'"),
        (lambda: untyped.KeyGroupRange(10**5000, 0.5), "end=0.5"),
        (lambda: untyped.HeapStateBackend(key_groups=KeyGroupRange(0, 128)), "key_groups"),
        (lambda: untyped.HeapStateBackend(key_groups=(0, 127)), "KeyGroupRange"),
        (lambda: untyped.HeapStateBackend(max_parallelism=40_000), "max_parallelism"),
        (lambda: untyped.HeapStateBackend(clock=5), "clock"),
        (lambda: untyped.RocksDBStateBackend(5), "directory"),
        (lambda: migrating("value", None), "name"),
        (lambda: migrating("new", {1: 1}), "default"),
    ],
)
def test_a_wrong_option_is_named(make_it, says):
    with pytest.raises(ConfigurationError, match=says):
        make_it()


def test_E1_the_longest_time_to_live_that_the_message_names_is_taken(make):
    assert untyped.StateTtlConfig(9223372036854775).milliseconds == 9223372036854775000
    assert untyped.StateTtlConfig(1e15).milliseconds == 10**18
    backend = make()
    backend.set_current_key(1)
    value = backend.value_state(untyped.ValueStateDescriptor("value", ttl=untyped.StateTtlConfig(9223372036854775)))
    value.update(5)
    assert value.value() == 5


def test_enums_are_taken_by_name():
    assert untyped.StateTtlConfig(5, update_type="on_read_and_write").update_type is UpdateType.ON_READ_AND_WRITE


def test_a_state_that_was_never_asked_for_is_empty(make):
    backend = make()
    assert list(backend.keys("nothing")) == []
    assert backend.num_entries("nothing") == 0


def test_a_directory_in_use_is_named(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    with pytest.raises(StateError, match=r"state is in use by another backend"):
        RocksDBStateBackend(tmp_path / "state")
    program = (
        "from asyncio_operator.errors import StateError\nfrom asyncio_operator.state import RocksDBStateBackend\n"
        f"try: RocksDBStateBackend({str(tmp_path / 'state')!r})\nexcept StateError as error: print(error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "in use by another backend" in output.stdout
    backend.close()


def test_foreign_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StateError, match="is not a RocksDB directory and not empty"):
        RocksDBStateBackend(tmp_path)
    with pytest.raises(StateError, match=r"notes\.txt"):
        RocksDBStateBackend(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_foreign_database_is_refused(tmp_path):
    from asyncio_operator.state.rocksdb.database import Database

    database = Database(tmp_path / "other")
    database.family("default").put(b"some", b"thing")
    database.close()
    with pytest.raises(StateError, match="something else than keyed state"):
        RocksDBStateBackend(tmp_path / "other")


def test_another_version_or_range_is_refused(tmp_path):
    from asyncio_operator.state.rocksdb.database import Database
    from asyncio_operator.state.serializers import BUILTIN

    RocksDBStateBackend(tmp_path / "state").close()
    for options in ({"key_groups": KeyGroupRange(0, 5)}, {"max_parallelism": 256}):
        with pytest.raises(StateError, match=r"holds key groups 0..127 of 128"):
            RocksDBStateBackend(tmp_path / "state", **options)
    database = Database(tmp_path / "state")
    header = {"format": 2, "max_parallelism": 128, "start": 0, "end": 127}
    database.family("default").put(b"format", BUILTIN.serialize(header))
    database.close()
    with pytest.raises(StateError, match="has format 2, this version reads 1"):
        RocksDBStateBackend(tmp_path / "state")


@pytest.mark.parametrize("damaged", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_damaged_directory_is_named(damaged, tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key(1)
    backend.value_state(VALUE).update(1)
    backend.compact()
    backend.close()
    for path in (tmp_path / "state").glob(damaged):
        path.write_bytes(b"\xffjunk\n")
    with pytest.raises(StateError, match=r"state is damaged: restore a snapshot"):
        RocksDBStateBackend(tmp_path / "state")


def test_a_damaged_value_is_named(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    value = backend.value_state(VALUE)
    backend.table("value").put(backend.require_slot(), b"", b"\xffjunk")
    with pytest.raises(StateError, match="state 'value', key 'k': damaged value"):
        value.value()
    backend.close()


def test_an_iteration_does_not_hold_a_closed_directory(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    entries = backend.map_state(MapStateDescriptor("map"))
    entries.put_all(dict.fromkeys(range(1000)))
    iteration = entries.items()
    next(iteration)
    backend.close()
    RocksDBStateBackend(tmp_path / "state").close()


def test_a_missing_rocksdict_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("asyncio_operator.state.rocksdb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(state, "rocksdb", raising=False)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigurationError, match=r"asyncio-operator\[rocksdb\]"):
        state.__getattr__("RocksDBStateBackend")
    with pytest.raises(AttributeError, match="nothing"):
        state.__getattr__("nothing")


HUGE = 10**5000


def test_S1_an_integer_of_any_length_is_a_key_and_may_stand_in_a_message(make):
    backend = make(key_groups=KeyGroupRange(0, 0), max_parallelism=128)
    outside = next(number for number in range(HUGE, HUGE + 10_000) if state.key_group(number, 128))
    with pytest.raises(StateError, match="outside the range"):
        backend.set_current_key(outside)
    inside = next(number for number in range(HUGE, HUGE + 10_000) if not state.key_group(number, 128))
    backend.set_current_key(inside)
    backend.set_current_namespace(inside)
    value = backend.value_state(VALUE)
    value.update(HUGE)
    assert value.value() == HUGE
    for wrong in (object(), [HUGE, object()]):
        with pytest.raises(StateError, match=r"'value', key <int.*, namespace <int.*cannot be stored"):
            value.update(wrong)
    with pytest.raises(StateError, match="None cannot be an element"):
        backend.list_state(state.ListStateDescriptor("list")).add_all([HUGE, None])


def test_S8_a_refused_namespace_leaves_no_key(make):
    backend = make()
    backend.set_current_key("k")
    backend.set_current_namespace("w")
    value = backend.value_state(VALUE)
    value.update("of w")
    with pytest.raises(StateError, match="namespace"):
        backend.set_current_namespace([1])
    for use in (value.value, lambda: value.update("of nobody")):
        with pytest.raises(StateError, match="set_current_key"):
            use()
    backend.set_current_key("k")
    assert value.value() is None
    backend.set_current_namespace("w")
    assert value.value() == "of w"


@pytest.mark.parametrize("write", ["value", "list", "map", "key"])
def test_S4_what_is_nested_deeper_than_can_be_read_again_is_refused_alike(write, make):
    backend = make()
    backend.set_current_key(1)
    writers: dict[str, Callable[[Any], None]] = {
        "value": backend.value_state(VALUE).update,
        "list": backend.list_state(state.ListStateDescriptor("list")).add,
        "map": lambda value: backend.map_state(MapStateDescriptor("map")).put(1, value),
        "key": backend.set_current_key,
    }
    containers: list[Any] = [tuple] if write == "key" else [tuple, frozenset, list, lambda items: {1: items[0]}]
    for container in containers:
        deep: Any = ()
        for _ in range(MAX_DEPTH - 1):
            deep = container([deep])
        writers[write](deep)
        with pytest.raises(StateError, match=f"nested too deeply, more than {MAX_DEPTH} levels"):
            writers[write](container([deep]))
    backend.snapshot().delete()


def test_S4_what_was_written_can_be_read_from_deep_in_a_program(make):
    backend = make()
    backend.set_current_key(1)
    value = backend.value_state(VALUE)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    value.update(deep)

    def descend(levels):
        return value.value() if levels == 0 else descend(levels - 1)

    assert descend(300) == deep
