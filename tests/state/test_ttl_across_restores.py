"""Time to live of every kind of state over snapshots, restores and rescales: E1 to E8 together with S9."""

from __future__ import annotations

import operator
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.state import (
    AggregatingStateDescriptor,
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    ValueStateDescriptor,
)
from asyncio_operator.testing.time import ManualClock

TTL = 0.1
RETURN_EXPIRED = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


class Total:
    """Adds numbers up in place. Its result is a text, so the accumulator is not taken for it."""

    def create_accumulator(self):
        return [0]

    def add(self, value, accumulator):
        accumulator[0] += value
        return accumulator

    def get_result(self, accumulator):
        return str(accumulator[0])

    def merge(self, a, b):
        return [a[0] + b[0]]


class World:
    """A backend with a state of every kind, which can move into another backend by way of a snapshot."""

    def __init__(self, make, **options):
        self.make = make
        self.clock = ManualClock()
        self.ttl = StateTtlConfig(TTL, **{"cleanup": (), **options})
        self.open(make(clock=self.clock))

    def open(self, backend):
        self.backend = backend
        self.value = backend.value_state(ValueStateDescriptor("value", ttl=self.ttl))
        self.items = backend.list_state(ListStateDescriptor("list", ttl=self.ttl))
        self.entries = backend.map_state(MapStateDescriptor("map", ttl=self.ttl))
        self.reduced = backend.reducing_state(ReducingStateDescriptor("sum", operator.add, ttl=self.ttl))
        self.total = backend.aggregating_state(AggregatingStateDescriptor("total", Total(), ttl=self.ttl))

    def move(self):
        snapshot = self.backend.snapshot()
        self.backend.close()
        self.restore(snapshot)

    def restore(self, snapshot, **options):
        backend = self.make(clock=self.clock, **options)
        backend.restore([snapshot])
        self.open(backend)

    def at(self, milliseconds, key=None, namespace=None):
        self.clock.set(milliseconds / 1000)
        self.backend.set_current_namespace(namespace)
        self.backend.set_current_key(key or "key")
        return self

    def write(self, number):
        self.value.update(number)
        self.items.update([number])
        self.entries.put("x", number)
        self.reduced.add(number)
        self.total.add(number)

    def read(self):
        return (
            self.value.value(),
            self.items.get(),
            self.entries.get("x"),
            self.reduced.get(),
            self.total.get(),
        )


def holds(last, total):
    return last, [last], last, total, str(total)


def test_S9_E5_cleaning_up_changes_no_snapshot(make):
    world = World(make, cleanup=CleanupIncrementally(5, every_record=True))
    for key in range(40):
        world.at(0, f"key {key}").write(1)
    snapshot = world.backend.snapshot()
    for _ in range(40):
        world.at(120, "another").read()
    assert world.backend.num_entries() == 0
    world.clock.set(0.05)
    world.restore(snapshot)
    for key in range(40):
        assert world.at(50, f"key {key}").read() == holds(1, 1)


def test_E7_compaction_after_a_rescale_drops_what_is_over_and_nothing_else(make):
    world = World(make, cleanup=CleanupInCompaction(), visibility=RETURN_EXPIRED)
    for key in range(20):
        world.at(50 if key % 2 else 0, key + 1).write(key)
    world.clock.set(0.08)
    snapshot = world.backend.snapshot()
    world.backend.close()
    halves = []
    for groups in (KeyGroupRange(0, 63), KeyGroupRange(64, 127)):
        world.restore(snapshot, key_groups=groups)
        world.backend.compact()
        halves.append(world.backend)
    assert sum(half.num_entries() for half in halves) == 20 * 5
    world.clock.set(0.12)
    for half in halves:
        half.compact()
    assert sum(half.num_entries() for half in halves) == 10 * 5
    for half in halves:
        world.open(half)
        for key in set(half.keys("value")):
            assert world.at(120, key).read() == holds(key - 1, key - 1)
    world.clock.set(0.15)
    for half in halves:
        half.compact()
        assert half.num_entries() == 0


class Writes:
    """The writes of one key, each with its time in milliseconds, and what they leave of each kind of state."""

    def __init__(self):
        self.all = []

    def leave(self, now):
        living = [(number, at) for number, at in self.all if at + 1000 * TTL > now]
        last = self.all[-1:]
        folded: Any = None
        before = float("-inf")
        for number, at in self.all:
            folded = number + (folded if before + 1000 * TTL > at else 0)
            before = at
        folded = folded if living and last == living[-1:] else None
        entries = {number % 3: (number, at) for number, at in self.all}
        return (
            last[0][0] if last == living[-1:] and last else None,
            [number for number, _ in living],
            {sub: number for sub, (number, at) in sorted(entries.items()) if at + 1000 * TTL > now},
            folded,
            None if folded is None else str(folded),
        )


def verify(world, steps):
    """Reads every state before and after each write, and compares it with what the writes say."""
    keys = {key: Writes() for key in ("a", "b")}
    now = 0

    def check():
        for key, writes in keys.items():
            world.at(now, key)
            entries = dict(world.entries.items())
            found = (world.value.value(), world.items.get(), entries, world.reduced.get(), world.total.get())
            assert found == writes.leave(now)

    for number, (later, key, move) in enumerate(steps):
        now += later
        check()
        world.at(now, key)
        world.value.update(number)
        world.items.add(number)
        world.entries.put(number % 3, number)
        world.reduced.add(number)
        world.total.add(number)
        keys[key].all.append((number, now))
        check()
        if move:
            world.move()
    check()


CLEANUPS = [(), CleanupIncrementally(2, every_record=True), (CleanupFullSnapshot(), CleanupInCompaction())]


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 30, 99, 100, 101]), st.sampled_from("ab"), st.booleans()), max_size=15),
    st.sampled_from(CLEANUPS),
)
def test_E1_E8_every_state_is_what_its_writes_say(steps, cleanup):
    verify(World(HeapStateBackend, cleanup=cleanup), steps)


@pytest.mark.parametrize("cleanup", CLEANUPS[1:], ids=["incremental", "snapshot"])
def test_E1_E8_every_state_on_disk_is_what_its_writes_say(cleanup, make):
    dice = random.Random(11)
    steps = [(dice.choice([0, 1, 30, 99, 100]), dice.choice("ab"), number in (20, 40)) for number in range(60)]
    verify(World(make, cleanup=cleanup), steps)
