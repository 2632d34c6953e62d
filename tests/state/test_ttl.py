"""Time to live beside the contract: folds, restarts, defaults, clocks, and a property against a model."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.state import (
    AggregatingStateDescriptor,
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from asyncio_operator.testing.clock import ManualClock


class Count:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


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


@pytest.mark.parametrize("visibility", StateVisibility)
def test_E3_folds_begin_anew_or_go_on_once(visibility, make):
    clock = ManualClock()
    backend = make(clock=clock)
    backend.set_current_key(1)
    ttl = StateTtlConfig(timedelta(seconds=10), visibility=visibility, cleanup=())
    total = backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, ttl=ttl))
    count = backend.aggregating_state(AggregatingStateDescriptor("count", Count(), ttl=ttl))
    for state in (total, count):
        state.add(5)
        state.add(5)
    clock.advance(10)
    expired = (10, 2) if visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP else (None, None)
    assert (total.get(), count.get()) == expired
    assert (total.get(), count.get()) == (None, None)
    assert backend.num_entries() == 0


def test_E8_time_spent_stopped_counts(tmp_path):
    clock = ManualClock(1000.0)
    descriptor = ValueStateDescriptor("value", ttl=StateTtlConfig(10, cleanup=()))
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    for key in (1, 2):
        backend.set_current_key(key)
        backend.value_state(descriptor).update(key)
        clock.advance(5)
    backend.close()
    clock.advance(3)
    again = RocksDBStateBackend(tmp_path / "state", clock=clock)
    found = []
    for key in (1, 2):
        again.set_current_key(key)
        found.append(again.value_state(descriptor).value())
    assert found == [None, 2]
    again.close()


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


def test_E5_the_round_goes_on_while_the_table_changes(make):
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(size=2))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    for step in range(400):
        clock.advance(1)
        backend.set_current_key(step % 7)
        entries.put(step, step)
        if step % 3 == 0:
            entries.clear()
        assert backend.num_entries("map") <= 40
    clock.advance(10)
    backend.set_current_key("other")
    for _ in range(40):
        entries.get(0)
    assert backend.num_entries("map") == 0


CONFIGURATIONS = [
    StateTtlConfig(4, update_type=update_type, cleanup=cleanup)
    for update_type in UpdateType
    for cleanup in ((), CleanupIncrementally(2, every_record=True), (CleanupFullSnapshot(), CleanupInCompaction()))
]

keys = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["put", "get", "contains", "remove"]), st.tuples(keys, keys)),
        st.tuples(st.sampled_from(["add", "list", "items", "values", "is_empty", "update", "value", "clear"]), keys),
        st.tuples(st.sampled_from(["compact", "restore"]), st.none()),
    ),
    max_size=40,
)


class Model:
    """What time to live means: entries with the time of their last write or touch, and nothing is ever cleaned up."""

    def __init__(self, touch):
        self.now, self.touch, self.cells = 0, touch, {}

    def read(self, cell):
        value, written = self.cells.get(cell, (None, None))
        if written is None or written + 4 <= self.now:
            self.cells.pop(cell, None)
            return None
        if self.touch:
            self.cells[cell] = (value, self.now)
        return value

    def read_all(self, kind, key):
        found = [(cell[2], self.read(cell)) for cell in sorted(c for c in self.cells if c[:2] == (kind, key))]
        return [(sub, value) for sub, value in found if value is not None]

    def is_empty(self, kind, key):
        return not any(c[:2] == (kind, key) and at + 4 > self.now for c, (_, at) in self.cells.items())


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_E_against_a_model(kind):
    @settings(max_examples=60 if kind == "heap" else 12, deadline=None)
    @given(steps, st.sampled_from(CONFIGURATIONS))
    def run(taken, ttl):
        with tempfile.TemporaryDirectory() as directory:
            against_a_model(kind, Path(directory), taken, ttl)

    run()


def against_a_model(kind, directory, taken, ttl):
    clock, model = ManualClock(), Model(ttl.update_type is UpdateType.ON_READ_AND_WRITE)

    def make(number):
        return (
            HeapStateBackend(clock=clock)
            if kind == "heap"
            else RocksDBStateBackend(directory / str(number), clock=clock)
        )

    backend = make("first")
    for number, (action, argument) in enumerate(taken):
        entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
        items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
        value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
        key, sub = argument if isinstance(argument, tuple) else (argument, 0)
        if action not in ("advance", "compact", "restore"):
            backend.set_current_key(key)
        match action:
            case "advance":
                clock.advance(argument)
                model.now += argument
            case "put":
                entries.put(sub, number + 1)
                model.cells["map", key, sub] = (number + 1, model.now)
            case "get":
                assert entries.get(sub) == model.read(("map", key, sub))
            case "contains":
                assert entries.contains(sub) == (model.read(("map", key, sub)) is not None)
            case "remove":
                entries.remove(sub)
                model.cells.pop(("map", key, sub), None)
            case "add":
                items.add(number + 1)
                model.cells["list", key, number] = (number + 1, model.now)
            case "list":
                assert items.get() == [found for _, found in model.read_all("list", key)]
            case "items":
                assert list(entries.items()) == model.read_all("map", key)
            case "values":
                assert list(entries.values()) == [found for _, found in model.read_all("map", key)]
            case "is_empty":
                assert entries.is_empty() == model.is_empty("map", key)
            case "update":
                value.update(number + 1)
                model.cells["value", key, 0] = (number + 1, model.now)
            case "value":
                assert value.value() == model.read(("value", key, 0))
            case "clear":
                entries.clear()
                model.cells = {cell: found for cell, found in model.cells.items() if cell[:2] != ("map", key)}
            case "compact":
                backend.compact()
            case "restore":
                restored = make(number)
                restored.restore([backend.snapshot()])
                backend.close()
                backend = restored
    backend.close()


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
