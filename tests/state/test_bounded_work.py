"""Work is bounded: E5 for the round of the clean-up, and reading where much was deleted. RocksDB counts the steps."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.state import (
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group,
    key_groups,
)
from asyncio_operator.state.key_groups import group_prefix
from asyncio_operator.state.keys import NONE, serialize_key
from asyncio_operator.state.rocksdb.database import CHUNK, PATIENCE, Settings
from asyncio_operator.state.ttl import STRETCH
from asyncio_operator.testing.time import ManualClock

SIZE = 5


@pytest.fixture
def counted(monkeypatch):
    """Gives a counter of RocksDB, by its name, of the directory opened last."""
    plain, options = Settings.native, []

    def counting(settings):
        options.append(plain(settings))
        options[-1].enable_statistics()
        return options[-1]

    def count(name):
        found = [
            re.search(rf"^rocksdb\.{name} COUNT : (\d+)", each.get_statistics() or "", re.MULTILINE) for each in options
        ]
        return max(int(match[1]) for match in found if match)

    monkeypatch.setattr(Settings, "native", counting)
    return count


@pytest.fixture
def skipped(counted):
    """Gives how many deleted entries RocksDB's iterators have passed so far, in the directory opened last."""
    return lambda: counted(r"number\.iter\.skip")


def steps_of(action, skipped):
    before = skipped()
    action()
    return skipped() - before


def test_E5_a_round_through_what_was_removed_is_bounded_work(skipped, tmp_path):
    clock = ManualClock()
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(SIZE))
    value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
    for key in range(20_000):
        backend.set_current_key(key)
        value.update(key)
    clock.advance(20)
    backend.set_current_key("alive")
    value.update("alive")
    for _ in range((20_000 + 2 * STRETCH) // SIZE):
        value.value()
    assert skipped() > PATIENCE
    assert max(steps_of(value.value, skipped) for _ in range(500)) <= 2 * PATIENCE
    assert backend.num_entries() == 1
    backend.close()


def test_E5_looks_are_made_together_and_only_where_something_may_be_over(counted, tmp_path):
    clock = ManualClock()
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    value = backend.value_state(ValueStateDescriptor("value", ttl=StateTtlConfig(10)))
    for key in range(2_000):
        backend.set_current_key(key)
        value.update(key)

    def seeks_of(accesses):
        before = counted(r"number\.db\.seek")
        for _ in range(accesses):
            value.value()
        return counted(r"number\.db\.seek") - before

    seeks_of(2_000 // SIZE)
    assert seeks_of(2_000) == 0
    clock.advance(9.999)
    assert seeks_of(2_000) == 0
    clock.advance(0.001)
    assert 2_000 // STRETCH <= seeks_of(2_000 // SIZE) <= 2_000 // STRETCH + 4
    assert backend.num_entries() == 0
    backend.close()


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("kind", ["list", "map"])
def test_E5_who_writes_ahead_of_the_round_does_not_lead_it_away(kind, size, make):
    clock = ManualClock(0)
    backend = make(clock=clock)
    ttl = StateTtlConfig(0.1, cleanup=CleanupIncrementally(size))
    items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    backend.set_current_key("k")
    for number in range(3000):
        clock.set(number / 1000)
        if kind == "list":
            items.add_all([number] * size)
        else:
            entries.put_all(dict.fromkeys(range(size * number, size * number + size)))
    assert backend.num_entries() <= 2 * 100 * size


def test_S6_an_iteration_that_makes_room_sees_one_moment(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    entries = backend.map_state(MapStateDescriptor("map"))
    kept = [*range(CHUNK + 10), *range(8000, 8010)]
    entries.put_all(dict.fromkeys(range(8010)))
    for number in range(8010):
        if number not in kept:
            entries.remove(number)
    iteration = entries.keys()
    seen = [next(iteration)]
    entries.put_all(dict.fromkeys(range(CHUNK, 9000)))
    entries.remove(8005)
    assert seen + list(iteration) == kept
    backend.close()


def test_E7_compact_gives_the_space_back(tmp_path):
    clock = ManualClock()
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupInCompaction())
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    backend.set_current_key("k")
    entries.put_all(dict.fromkeys(range(10000), "x" * 100))
    clock.advance(10)
    backend.compact()
    assert sum(table.stat().st_size for table in backend.directory.glob("*.sst")) < 10_000
    backend.close()


@pytest.mark.parametrize("kind", ["list", "map"])
def test_S5_S6_filling_and_clearing_over_and_over_costs_the_same_each_time(kind, skipped, tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    items = backend.list_state(ListStateDescriptor("list"))
    entries = backend.map_state(MapStateDescriptor("map"))

    def use(number):
        new = range(10 * number, 10 * number + 10)
        if kind == "list":
            items.add_all(new)
            assert items.get() == list(new)
            items.clear()
        else:
            entries.put_all(dict.fromkeys(new))
            assert list(entries.keys()) == list(new)
            entries.clear()

    for number in range(450):
        use(number)
    worst = max(steps_of(lambda number=number: use(number), skipped) for number in range(450, 700))
    assert worst <= 4 * PATIENCE
    backend.close()


def test_S6_is_empty_looks_at_one_entry():
    backend = HeapStateBackend()
    backend.set_current_key("k")
    entries = backend.map_state(MapStateDescriptor("map"))
    entries.put_all(dict.fromkeys(range(10_000)))
    assert not entries.is_empty()
    tracemalloc.start()
    try:
        assert not entries.is_empty()
        assert tracemalloc.get_traced_memory()[1] < 20_000  # a list of all entries takes 80,000
    finally:
        tracemalloc.stop()


def test_S14_memory_does_not_follow_the_length_of_keys():
    backend = HeapStateBackend()
    value = backend.value_state(ValueStateDescriptor("value"))
    backend.set_current_key("warm")
    tracemalloc.start()
    try:
        for number in range(200):
            backend.set_current_key(f"{number:09}" + "k" * 20_000)
            value.value()
            backend.set_current_key((number, "k" * 20_000))
            value.value()
        assert tracemalloc.get_traced_memory()[0] < 300_000  # kept, they take 24 MB
    finally:
        tracemalloc.stop()


@given(
    st.lists(
        st.sampled_from(
            [*range(6), True, 1.0, "a", "b", "\x00", "é", b"a", (1, "a"), (True, "a"), (1, (1,)), "k" * 70]
        ),
        max_size=60,
    )
)
def test_S8_a_key_that_is_remembered_is_the_key_that_was_set(taken):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_groups, "MEMO_SIZE", 3)
        patch.setattr(key_groups, "MEMO_TRIAL", 2)
        patch.setattr(key_groups, "MEMO_REST", 2)
        backend = HeapStateBackend()
        for key in taken:
            backend.set_current_key(key)
            assert backend.require_slot() == group_prefix(key_group(key, 128), 128) + serialize_key(key) + NONE
            assert type(backend.current_key) is type(key)
            assert len(backend._memo) <= 3
