"""E11: time to live switched on and off for stored state, against a model, over every way that state takes."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
    checkpoint,
    key_group_range,
    restore_checkpoint,
)
from asyncio_operator.state.descriptors import describe_state
from asyncio_operator.state.layout import retimed
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBTable
from asyncio_operator.state.rocksdb.state_directory import Records, RocksDBSnapshot
from asyncio_operator.testing.time import ManualClock

TTL = StateTtlConfig(0.01, cleanup=CleanupInCompaction())
RENEWED = StateTtlConfig(0.01, UpdateType.ON_READ_AND_WRITE, cleanup=CleanupInCompaction())
OTHER = StateTtlConfig(0.025, cleanup=CleanupInCompaction())

entries = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("put"), entries, st.integers()),
    st.tuples(st.just("get"), entries),
    st.tuples(st.just("scan")),
    st.tuples(st.just("pass"), st.sampled_from([1, 9, 10, 30])),
    st.tuples(st.just("compact")),
    st.tuples(
        st.just("move"),
        st.sampled_from(["snapshot", "checkpoint", "reopen"]),
        st.sampled_from(["heap", "rocksdb"]),
        st.sampled_from([None, TTL, RENEWED, OTHER]),
    ),
)


class Model:
    """By entry its value and time; None is the time of an entry whose life has not begun, or that has none."""

    def __init__(self):
        self.now, self.entries, self.ttl = 0, {}, None

    def put(self, entry, value):
        self.entries[entry] = value, self.now if self.ttl else None

    def look(self, entry, reads=True):
        if entry not in self.entries or self.ttl is None:
            return self.entries.get(entry, (None,))[0]
        value, time = self.entries[entry]
        if time is not None and time + self.ttl.milliseconds <= self.now:
            del self.entries[entry]
            return None
        if time is None or (reads and self.ttl.update_type is UpdateType.ON_READ_AND_WRITE):
            self.entries[entry] = value, self.now
        return value

    def move(self, ttl):
        if not (self.ttl and ttl):
            self.entries = {entry: (value, None) for entry, (value, _) in self.entries.items()}
        self.ttl = ttl


class Real:
    """A map, values and a list that are used alike."""

    def __init__(self, directory):
        self.directory, self.numbers, self.clock = directory, itertools.count(), ManualClock()
        self.open(HeapStateBackend(clock=self.clock), None)

    def make(self, kind):
        if kind == "heap":
            return HeapStateBackend(clock=self.clock)
        return RocksDBStateBackend(self.directory / f"{next(self.numbers)}", clock=self.clock)

    def open(self, backend, ttl):
        self.backend = backend
        backend.set_current_key("k")
        self.map = backend.map_state(MapStateDescriptor("map", ttl=ttl))
        self.value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
        self.list = backend.list_state(ListStateDescriptor("list", ttl=ttl))

    def put(self, entry, value):
        self.map.put(entry, value)
        self.backend.set_current_key(entry)
        self.value.update(value)
        self.list.update([value])
        self.backend.set_current_key("k")

    def get(self, entry):
        found = self.map.get(entry)
        self.backend.set_current_key(entry)
        assert self.value.value() == found
        assert self.list.get() == ([] if found is None else [found])
        self.backend.set_current_key("k")
        return found

    def move(self, way, kind, ttl):
        old, place = self.backend, self.directory / f"moved-{next(self.numbers)}"
        if way == "reopen" and isinstance(old, RocksDBStateBackend):
            old.close()
            new = RocksDBStateBackend(old.directory, clock=self.clock)
        elif way == "checkpoint":
            checkpoint(place, old)
            restore_checkpoint(place, new := self.make(kind))
        else:
            (new := self.make(kind)).restore([old.snapshot()])
        old.close()
        self.open(new, ttl)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_E11_time_to_live_switched_on_and_off(taken):
    directory, model = Path(tempfile.mkdtemp()), Model()
    real = Real(directory)
    try:
        for step, *arguments in taken:
            if step == "put":
                model.put(*arguments)
                real.put(*arguments)
            elif step == "get":
                assert real.get(*arguments) == model.look(*arguments)
            elif step == "scan":
                expected = {entry: value for entry in range(4) if (value := model.look(entry)) is not None}
                assert dict(real.map.items()) == expected
                assert all(real.get(entry) == expected.get(entry) for entry in range(4))
            elif step == "pass":
                model.now += arguments[0]
                real.clock.set(model.now / 1000)
            elif step == "compact":
                real.backend.compact()
                for entry in list(model.entries):
                    model.look(entry, reads=False)
                assert [real.backend.num_entries(name) for name in ("map", "value", "list")] == [len(model.entries)] * 3
            else:
                model.move(arguments[-1])
                real.move(*arguments)
    finally:
        real.backend.close()
        shutil.rmtree(directory)


def without_ttl(backend, count=20):
    """A snapshot of a map that was written without time to live."""
    backend.set_current_key("k")
    backend.map_state(MapStateDescriptor("map")).put_all({entry: entry for entry in range(count)})
    return backend.snapshot()


def test_E11_the_incremental_clean_up_begins_lives_and_ends_them(make):
    clock = ManualClock()
    backend = make(clock=clock)
    backend.restore([without_ttl(make())])
    clock.set(100)
    state = backend.map_state(MapStateDescriptor("map", ttl=StateTtlConfig(1, cleanup=CleanupIncrementally(size=3))))
    backend.set_current_key("other")
    for _ in range(7):
        state.contains(0)
    assert backend.num_entries() == 20  # Looked at, and begun.
    clock.set(100.999)
    for _ in range(7):
        state.contains(0)
    assert backend.num_entries() == 20
    clock.set(101)
    for _ in range(7):
        state.contains(0)
    assert backend.num_entries() == 0


def test_E11_a_full_snapshot_begins_lives_in_what_it_writes_alone(make):
    clock = ManualClock()
    backend = make(clock=clock)
    backend.restore([without_ttl(make())])
    descriptor = MapStateDescriptor("map", ttl=StateTtlConfig(1, cleanup=CleanupFullSnapshot()))
    backend.map_state(descriptor)
    assert {entry.written for entry in SnapshotReader(backend.snapshot()).entries("map")} == {0}
    clock.set(5)
    state = backend.map_state(descriptor)
    backend.set_current_key("k")
    assert len(dict(state.items())) == 20
    clock.set(6)
    assert dict(state.items()) == {}


def test_E11_what_was_not_looked_at_has_no_time_in_a_snapshot(make):
    backend = make(clock=ManualClock())
    backend.restore([without_ttl(make())])
    state = backend.map_state(MapStateDescriptor("map", ttl=StateTtlConfig(1, cleanup=())))
    backend.set_current_key("k")
    state.get(3)
    assert {entry.map_key: entry.written for entry in SnapshotReader(backend.snapshot()).entries("map")} == {
        entry: 0 if entry == 3 else None for entry in range(20)
    }


def test_E11_one_of_two_snapshots_has_time_to_live(make):
    clock = ManualClock()
    ranges = [key_group_range(128, 2, index) for index in range(2)]
    halves = [make(clock=clock, key_groups=each) for each in ranges]
    for half, ttl in zip(halves, (None, StateTtlConfig(1, cleanup=())), strict=True):
        state = half.value_state(ValueStateDescriptor("v", ttl=ttl))
        for key in range(10):
            try:
                half.set_current_key(key)
            except StateError:
                continue
            state.update(key)
    clock.set(2)
    whole = make(clock=clock, key_groups=KeyGroupRange(0, 127))
    whole.restore([half.snapshot() for half in halves])
    state = whole.value_state(ValueStateDescriptor("v", ttl=StateTtlConfig(1, cleanup=())))
    found = set()
    for key in range(10):
        whole.set_current_key(key)
        found.add(state.value())
    # Those of the first half had no time, so their lives begin now; the others are over.
    assert found - {None} == set(halves[0].keys("v"))
    assert None in found


def test_E11_a_process_that_dies_while_it_switches_leaves_the_rest_to_the_next(tmp_path):
    source = RocksDBStateBackend(tmp_path / "state")
    without_ttl(source)
    source.close()
    descriptor = MapStateDescriptor("map", ttl=StateTtlConfig(1, cleanup=()))
    database = Database(tmp_path / "state")
    records, table, meta = Records(database), RocksDBTable(database, "map", 1), describe_state(descriptor)
    records.write_retiming("map", meta)
    rows = database.head("state/map", b"", None, 7)
    batch = database.new_batch()
    table.stage(batch, b"", [(address, retimed(stored, False, True)) for address, stored in rows], False)
    records.write_retiming("map", meta, rows[-1][0], batch)
    database.commit(batch)
    database.close()
    with pytest.raises(StateError, match="open it with a RocksDBStateBackend"):
        RocksDBSnapshot(tmp_path / "state")
    with RocksDBStateBackend(tmp_path / "state", clock=ManualClock()) as backend:
        backend.set_current_key("k")
        assert dict(backend.map_state(descriptor).items()) == {entry: entry for entry in range(20)}
    with RocksDBStateBackend(tmp_path / "state") as backend:
        backend.set_current_key("k")
        assert dict(backend.map_state(MapStateDescriptor("map")).items()) == {entry: entry for entry in range(20)}
