"""E11: time to live switched on and off for stored state, beside the state machine: clean-ups, snapshots, crashes."""

from __future__ import annotations

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    CleanupFullSnapshot,
    CleanupIncrementally,
    KeyGroupRange,
    MapStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group_range,
)
from asyncio_operator.state.descriptors import describe_state
from asyncio_operator.state.layout import retimed
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBTable
from asyncio_operator.state.rocksdb.state_directory import Records, RocksDBSnapshot
from asyncio_operator.testing.time import ManualClock


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
    for moment, left in ((100, 20), (100.999, 20), (101, 0)):  # At first all are looked at, and their lives begin.
        clock.set(moment)
        for _ in range(7):
            state.contains(0)
        assert backend.num_entries() == left


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
