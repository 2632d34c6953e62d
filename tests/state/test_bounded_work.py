"""Work is bounded: E5 for the round of the clean-up, and reading where much was deleted. RocksDB counts the steps."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from asyncio_operator.state import (
    CleanupIncrementally,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
)
from asyncio_operator.state.rocksdb import database
from asyncio_operator.state.rocksdb.database import PATIENCE
from asyncio_operator.state.rocksdb.table import BLOCKS, STEPS, block_end
from asyncio_operator.testing.clock import ManualClock

SIZE = 5


@pytest.fixture
def skipped(monkeypatch):
    """Gives how many deleted entries RocksDB's iterators have passed so far, in the directory opened last."""
    plain, options = database._options, []

    def counting():
        options.append(plain())
        options[-1].enable_statistics()
        return options[-1]

    def count():
        found = [
            re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", each.get_statistics() or "") for each in options
        ]
        return max(int(match[1]) for match in found if match)

    monkeypatch.setattr(database, "_options", counting)
    return count


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
    for _ in range(20_000 // SIZE + 1):
        value.value()
    worst = max(steps_of(value.value, skipped) for _ in range(500))
    assert 0 < worst <= (BLOCKS + SIZE) * (STEPS + 1)
    assert backend.num_entries() == 1
    backend.close()


def test_E5_nobody_is_left_out_behind_what_was_removed(tmp_path):
    clock = ManualClock()
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(SIZE))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    backend.set_current_key("k")
    kept = [*range(0, 6000, 997), 5999]
    entries.put_all(dict.fromkeys(kept))
    backend.set_current_key("alive")
    clock.advance(5)
    entries.put("alive", 1)
    backend.set_current_key("k")
    for number in range(6000):
        if number not in kept:
            entries.put(number, 1)
            entries.remove(number)
    clock.advance(5)
    backend.set_current_key("other")
    for _ in range(2000):
        entries.contains("nothing")
    assert backend.num_entries() == 1
    backend.close()


@pytest.mark.parametrize("bits", [0, 1, 7, 8, 9, 20])
@pytest.mark.parametrize("address", [b"", b"\x00", b"\x7f", b"\xff", b"\xff\xff\xff", b"a\x80c", b"ab\x00"])
def test_E5_a_block_holds_the_addresses_of_equal_first_bits(address, bits):
    end = block_end(address, bits)
    first = int.from_bytes(address.ljust(4, b"\x00")[:4], "big") >> (32 - bits)
    assert end is None or end > address
    if end is None:
        assert first == (1 << bits) - 1
    else:
        assert int.from_bytes(end.ljust(4, b"\x00"), "big") >> (32 - bits) == first + 1


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


@pytest.mark.parametrize("access", ["is_empty", "items", "keys", "values"])
def test_E5_every_access_cleans_up_whether_it_ends_or_not(access, make):
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(SIZE))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    for key in range(10):
        backend.set_current_key(key)
        entries.put_all(dict.fromkeys(range(3)))
    clock.advance(9)
    backend.set_current_key("alive")
    entries.put(1, 1)
    clock.advance(1)
    for left in range(31 - SIZE, 0, -SIZE):
        found = getattr(entries, access)()
        if access != "is_empty":
            next(found)
        assert backend.num_entries() in (left, left + 1)
    for _ in range(3):
        getattr(entries, access)()
    assert backend.num_entries() == 1
