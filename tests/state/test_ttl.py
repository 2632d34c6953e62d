"""Time to live beside the contract: clocks, rounds of the clean-up, and iterations."""

from __future__ import annotations

import tempfile
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    KeyGroupRange,
    MapStateDescriptor,
    MigratingMapState,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
    key_group_range,
)
from asyncio_operator.state.descriptors import describe_state
from asyncio_operator.state.heap_backend import HeapTable, HeapValueTable
from asyncio_operator.state.layout import retimed
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBTable
from asyncio_operator.state.rocksdb.state_directory import Records, RocksDBSnapshot
from asyncio_operator.state.ttl import NEVER, LivingEntries
from asyncio_operator.testing.time import ManualClock
from tests.state.invariants import check


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (1.0, 1), ([1], [True]), (Decimal("1.0"), Decimal("1.00")), (0.0, -0.0)], ids=repr
)
def test_E2_what_is_written_meanwhile_outlives_the_touch_of_an_iteration(old, new, make):
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(60, update_type=UpdateType.ON_READ_AND_WRITE)
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    backend.set_current_key("k")
    entries.put("x", old)
    iteration = entries.items()
    entries.put("x", new)
    clock.advance(5)
    assert repr(list(iteration)) == repr([("x", old)])
    assert repr(entries.get("x")) == repr(new)


def test_E9_no_default_with_time_to_live(make):
    backend = make()
    backend.set_current_key(1)
    assert backend.value_state(ValueStateDescriptor("with", default=5, ttl=StateTtlConfig(1))).value() is None
    assert backend.value_state(ValueStateDescriptor("without", default=5)).value() == 5


def test_E10_time_is_the_clocks_in_whole_milliseconds(make):
    clock = ManualClock(0.0)
    backend = make(clock=clock)
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("value", ttl=StateTtlConfig(0.001, cleanup=())))
    value.update(1)
    clock.set(0.0004)
    assert value.value() == 1
    clock.set(0.0006)
    assert value.value() is None
    clock.set(-5.0)
    value.update(2)
    assert value.value() == 2
    clock.set(-4.999)
    assert value.value() is None


@given(
    size=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(-3, 6)), max_size=120),
)
def test_E5_no_entry_expires_before_the_time_until_which_no_look_is_made(size, steps):
    """Each step reads or writes a key, then the clock goes on, or back, by some seconds."""
    clock = ManualClock(1000.0)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(size))
    with HeapStateBackend(clock=clock) as backend:
        value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
        lives = value.entries
        assert isinstance(lives, LivingEntries)
        for key, writing, seconds in steps:
            backend.set_current_key(key)
            value.update(key) if writing else value.value()
            expiries = [lives.codec.split(stored)[0] + 10_000 for _, _, stored in lives.table.entries()]
            assert lives._schedule.horizon <= min(expiries, default=NEVER)
            clock.set(clock() + seconds)


def test_E5_a_clock_that_is_set_back_during_a_round_hides_nothing(make):
    clock = ManualClock(5.0)
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(1))
    value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))

    def write(keys):
        for key in keys:
            backend.set_current_key(key)
            value.update(key)
        backend.set_current_key("absent")

    def look(times):
        for _ in range(times):
            value.value()
        backend.num_entries()

    write([0])
    clock.set(9.0)
    write(range(1, 100))
    look(200)
    clock.set(15.0)
    look(50)  # Halfway through a round.
    clock.set(2.0)
    write(range(200, 210))
    clock.set(15.1)
    look(60)  # The round is over.
    clock.set(15.5)
    look(220)
    assert backend.num_entries() == 99


def test_E1_what_is_written_after_the_clock_was_set_back_is_alive(make):
    """A look that an access before owes does not take it for as old as it was at that access."""
    clock = ManualClock(500.0)
    backend = make(clock=clock)
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("value", ttl=StateTtlConfig(1)))
    value.update("before")
    clock.set(400.0)
    value.update("after")
    assert value.value() == "after"
    clock.advance(1.0)
    assert value.value() is None


changes = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "delete", "empty"]), st.integers(0, 11)),
        st.tuples(st.just("sweep"), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(1, 3)),
    ),
    max_size=80,
)


# The oldest entry comes to stand where the round has been.
LEFT_BEHIND = [("pass", 1), ("put", 1), ("put", 2), ("sweep", 1), ("delete", 1), ("sweep", 1)]


def make_in(kind, directory, **options):
    return HeapStateBackend(**options) if kind == "heap" else RocksDBStateBackend(directory, **options)


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_E5_a_round_ends_with_a_bound_of_all_timestamps(kind):
    @settings(max_examples=200 if kind == "heap" else 20, deadline=None)
    @given(changes, st.sampled_from([ValueStateDescriptor, MapStateDescriptor]))
    @example([("put", 1), ("put", 2), ("put", 3), *LEFT_BEHIND], ValueStateDescriptor)
    @example([("put", 2), ("pass", 10), ("put", 1)], ValueStateDescriptor)
    @example([("pass", 9), ("put", 1), ("pass", -9), ("sweep", 1), ("put", 2), ("sweep", 1)], MapStateDescriptor)
    def run(taken, descriptor):
        with tempfile.TemporaryDirectory() as directory, make_in(kind, directory) as backend:
            ask = backend.value_state if descriptor is ValueStateDescriptor else backend.map_state
            state = ask(descriptor("state", ttl=StateTtlConfig(0.010, cleanup=())))
            sweeps(backend.table("state"), state.entries.codec, taken, descriptor)

    run()


def sweeps(table, codec, taken, descriptor):
    now, model = 100, {}
    for action, number in taken:
        place = (b"%x" % number, b"") if descriptor is ValueStateDescriptor else (b"%d" % (number % 3), b"%x" % number)
        match action:
            case "put":
                table.put(*place, codec.stamp(now, codec.encode(number)))
                model[place] = now
            case "delete":
                table.delete(*place)
                model.pop(place, None)
            case "empty" if isinstance(table, HeapTable | HeapValueTable):
                table.empty(place[0])
                model = {each: written for each, written in model.items() if each[0] != place[0]}
            case "pass":
                now += number
            case "sweep":
                bound = table.sweep(number, now - 10, now)
                left = {slot + sub: codec.split(stored)[0] for slot, sub, stored in table.entries()}
                assert bound is None or all(bound <= written for written in [now, *left.values()])
                model = {each: written for each, written in model.items() if each[0] + each[1] in left}
                assert left == {slot + sub: written for (slot, sub), written in model.items()}
                assert all(table.get(*place) is not None for place in model)
                if isinstance(table, HeapTable | HeapValueTable):
                    check(table)
    for _ in range(2 * len(model)):
        table.sweep(1, now - 10, now)
    assert len(table) == sum(written > now - 10 for written in model.values())


def test_E5_what_migrates_with_its_age_is_cleaned_up_in_time(make):
    clock = ManualClock()
    backend = make(clock=clock)
    old = ValueStateDescriptor("old", ttl=StateTtlConfig(100, cleanup=()))
    new = MapStateDescriptor("new", ttl=StateTtlConfig(100))
    backend.set_current_key("k")
    backend.value_state(old).update({1: 1})
    clock.advance(90)
    moving: MigratingMapState[int, int] = MigratingMapState(backend, old, new)
    backend.set_current_key("other")
    for _ in range(200):
        moving.put(2, 2)
    backend.set_current_key("k")
    assert moving.get(1) == 1
    clock.advance(10)
    backend.set_current_key("absent")
    moving.get(0), moving.get(0)
    assert backend.num_entries("new") == 1


@pytest.mark.parametrize("visibility", StateVisibility)
def test_E5_each_access_has_looked_by_the_time_anything_shows_it(visibility, make):
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, visibility=visibility, cleanup=(CleanupIncrementally(2), CleanupFullSnapshot()))
    value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
    for key in range(20):
        backend.set_current_key(key)
        value.update(key)
    clock.advance(10)
    backend.set_current_key("absent")
    for accesses in range(1, 10):
        value.value()
        shown = accesses % 3
        if shown == 0:
            assert backend.num_entries() == 20 - 2 * accesses
        elif shown == 1:
            assert len(list(backend.keys("value"))) == 20 - 2 * accesses
        else:
            backend.snapshot().delete()
            assert len(backend.table("value")) == 20 - 2 * accesses


def test_E2_E4_what_is_written_during_an_iteration_stays(make):
    clock = ManualClock()
    backend = make(clock=clock)
    backend.set_current_key(1)
    touching = StateTtlConfig(10.0, update_type=UpdateType.ON_READ_AND_WRITE, cleanup=())
    touched = backend.map_state(MapStateDescriptor("touched", ttl=touching))
    expiring = backend.map_state(MapStateDescriptor("expiring", ttl=StateTtlConfig(10.0, cleanup=())))
    for state in (touched, expiring):
        state.put_all({1: "old1", 2: "old2", 3: "old3"})
    clock.advance(1)
    for key in touched.keys():  # noqa: SIM118
        if key == 1:
            touched.remove(2)
            touched.put(3, "new3")
    assert dict(touched.items()) == {1: "old1", 3: "new3"}
    clock.advance(10)
    items = expiring.items()
    expiring.put(2, "fresh")
    assert 1 not in dict(items)
    assert dict(expiring.items()) == {2: "fresh"}


@pytest.mark.parametrize("cleanup", [CleanupIncrementally(), CleanupInCompaction(every=20)])
def test_E5_E7_a_state_that_is_requested_for_each_element_is_cleaned_up(cleanup, make):
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, cleanup=cleanup)
    for key in range(1000):
        clock.advance(1)
        backend.set_current_key(key)
        # Another function each time, so another descriptor.
        backend.reducing_state(ReducingStateDescriptor("sum", lambda old, new: old + new, ttl=ttl)).add(1)
    assert backend.num_entries() < 100


def test_E7_compaction_by_itself_keeps_what_is_stored_bounded(make):
    """Every write looks at a bounded number of entries, and expired entries stay within what `every` says."""
    clock, every = ManualClock(), 500
    backend = make(clock=clock)
    ttl = StateTtlConfig(1, cleanup=CleanupInCompaction(every=every))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    backend.set_current_key(1)
    alive, most = 1000, 0
    for entry in range(20 * alive):
        clock.set(entry / alive)
        entries.put(entry, None)
        if not entry % 100:
            most = max(most, backend.num_entries())
    # Living ones, those of the period in which writes are counted together, and what may wait for a round and in it.
    assert alive <= most < alive * (1 + 1 / 16) + max(every, most / 4) + 100
    clock.advance(3)
    for entry in range(100):
        entries.put(entry, None)
    assert backend.num_entries() < 100 + every


@pytest.mark.parametrize("every", [0, True, 1.5])
def test_E7_a_number_of_entries_is_needed(every):
    with pytest.raises(ConfigurationError, match="CleanupInCompaction"):
        CleanupInCompaction(every=every)
    with pytest.raises(ConfigurationError, match="without CleanupIncrementally"):
        StateTtlConfig(1, cleanup=[CleanupIncrementally(), CleanupInCompaction(every=5)])


def test_S9_E5_cleaning_up_changes_no_snapshot(make):
    clock = ManualClock()
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(5, every_record=True))
    source, restored = make(clock=clock), make(clock=clock)
    entries = source.map_state(MapStateDescriptor("map", ttl=ttl))
    for key in range(40):
        source.set_current_key(key)
        entries.put("x", key)
    snapshot = source.snapshot()
    clock.set(12)
    for _ in range(40):
        source.set_current_key("another")
        entries.get("x")
    assert source.num_entries() == 0
    clock.set(5)
    restored.restore([snapshot])
    entries = restored.map_state(MapStateDescriptor("map", ttl=ttl))
    for key in range(40):
        restored.set_current_key(key)
        assert entries.get("x") == key


# -- E11


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
