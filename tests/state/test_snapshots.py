"""Snapshots, restore and rescale: S9, and S5 over all of them."""

from __future__ import annotations

import pickle

import pytest

from asyncio_operator.errors import StateError, StateMigrationError
from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBSnapshot,
    RocksDBStateBackend,
    SnapshotReader,
    ValueStateDescriptor,
    key_group,
    key_group_range,
    operator_index,
)
from asyncio_operator.state.layout import RESTORING_KEY
from asyncio_operator.state.snapshot import HeapSnapshot

VALUE, LIST, MAP = ValueStateDescriptor("value"), ListStateDescriptor("list"), MapStateDescriptor("map")
KEYS = [*range(150), *(f"key {number}" for number in range(150)), (1, "a"), True]


def fill(backends, max_parallelism):
    for number, key in enumerate(KEYS):
        group = key_group(key, max_parallelism)
        backend = backends[operator_index(max_parallelism, len(backends), group)]
        backend.set_current_key(key)
        backend.value_state(VALUE).update(number)
        backend.list_state(LIST).add_all([number, number])
        backend.map_state(MAP).put_all({"a": number, number: None})


def contents(backends):
    """What each key holds, and how often it is found."""
    found = []
    for backend in backends:
        for key in list(backend.keys("value")):
            backend.set_current_key(key)
            entries = list(backend.map_state(MAP).items())
            found.append((repr(key), backend.value_state(VALUE).value(), backend.list_state(LIST).get(), entries))
    return sorted(found)


@pytest.mark.parametrize(("before", "after"), [(15, 77), (77, 15), (1, 128)])
def test_S9_rescaling_between_any_parallelisms(before, after):
    ranges = [key_group_range(128, before, index) for index in range(before)]
    old = [HeapStateBackend(key_groups=groups) for groups in ranges]
    fill(old, 128)
    snapshots = [backend.snapshot() for backend in old]
    new = [HeapStateBackend(key_groups=key_group_range(128, after, index)) for index in range(after)]
    for backend in new:
        backend.restore(snapshots)
    assert contents(new) == contents(old)


def test_S9_a_rocksdb_snapshot_shares_its_files(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    fill([backend], 128)
    backend.compact()
    snapshot = backend.snapshot()
    assert isinstance(snapshot, RocksDBSnapshot)
    tables = {path.name: path.stat().st_ino for path in (tmp_path / "state").glob("*.sst")}
    assert tables
    assert {path.name: path.stat().st_ino for path in snapshot.directory.glob("*.sst")} == tables
    assert snapshot.directory.parent == tmp_path
    kept = snapshot.directory.rename(tmp_path / "kept")
    snapshot.directory.symlink_to(kept)  # As on a disk that is read only, nothing can be removed.
    with pytest.raises(StateError, match="was not deleted"):
        snapshot.delete()
    snapshot.directory.unlink()
    kept.rename(snapshot.directory)
    snapshot.delete()
    assert not snapshot.directory.exists()
    snapshot.delete()
    assert contents([backend])
    with pytest.raises(StateError, match="gone"):
        HeapStateBackend().restore([snapshot])
    backend.close()


def test_S9_snapshots_that_do_not_fit_are_refused(make):
    source = make()
    source.set_current_key(1)
    source.value_state(VALUE).update(1)
    snapshot = source.snapshot()
    with pytest.raises(StateError, match="max_parallelism=128"):
        make(key_groups=KeyGroupRange(0, 255), max_parallelism=256).restore([snapshot])
    with pytest.raises(StateError, match="same key groups"):
        make().restore([snapshot, snapshot])
    with pytest.raises(StateError, match="snapshot 0"):
        make().restore([b"x"])
    other = pickle.loads(pickle.dumps(snapshot))
    other.format = 99
    with pytest.raises(StateError, match="format 99"):
        make().restore([other])
    asked = make()
    asked.value_state(VALUE)
    with pytest.raises(StateError, match="before states are asked for"):
        asked.restore([snapshot])
    once = make()
    once.restore([])
    with pytest.raises(StateError, match="once"):
        once.restore([snapshot])
    halves = [make(key_groups=KeyGroupRange(0, 63)), make(key_groups=KeyGroupRange(64, 127))]
    halves[0].value_state(VALUE)
    halves[1].list_state(ListStateDescriptor("value"))
    with pytest.raises(StateMigrationError, match="disagree about state 'value'"):
        make().restore([half.snapshot() for half in halves])


def test_S9_a_restore_that_was_cut_short_leaves_nothing(make):
    source = HeapStateBackend()
    fill([source], 128)

    class Torn(HeapSnapshot):
        def rows(self, name, key_groups):
            if name == "map":
                raise KeyboardInterrupt
            return super().rows(name, key_groups)

    whole = source.snapshot()
    assert isinstance(whole, HeapSnapshot)
    torn = Torn(whole.max_parallelism, whole.key_groups, whole.sequence, whole.states, whole.groups)
    backend = make()
    with pytest.raises(KeyboardInterrupt):
        backend.restore([torn])
    backend.restore([])
    backend.value_state(VALUE)
    assert backend.num_entries() == 0
    fill([backend], 128)
    assert contents([backend]) == contents([source])


def test_S9_a_process_that_dies_while_restoring_leaves_an_empty_directory(tmp_path):
    source = HeapStateBackend()
    fill([source], 128)
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.restore([source.snapshot()])
    backend._records.write(RESTORING_KEY, True)
    backend.close()
    for read in (RocksDBSnapshot, SnapshotReader):
        with pytest.raises(StateError, match="a part of what was to be restored"):
            read(tmp_path / "state")
    again = RocksDBStateBackend(tmp_path / "state")
    assert again.num_entries() == 0
    source.value_state(VALUE).clear()
    again.restore([source.snapshot()])
    assert contents([again]) == contents([source])
    again.close()


def test_S11_a_directory_is_one_directory_however_it_is_spelt(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with RocksDBStateBackend(tmp_path / "real"), pytest.raises(StateError, match="in use"):
        RocksDBStateBackend(tmp_path / "link")
