"""Both backends at once against plain dicts, with snapshot, restore, rescale, clear and crash among the rules."""

from __future__ import annotations

import copy
import itertools
import operator
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from asyncio_operator.state import (
    AggregatingStateDescriptor,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    MigratingMapState,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group,
    key_group_range,
    operator_index,
)
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.testing.time import ManualClock

keys = st.sampled_from([1, True, 1.0, "1", "11", b"1", (1, "a"), -5])
namespaces = st.sampled_from([None, "", "w", 1, True])
user_keys = st.sampled_from(["1", "11", 0, -1, 7, 300, True, (1,)])
values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
elements = st.integers(0, 9) | st.text(max_size=2)


EMPTY: dict[str, Any] = {"value": None, "list": [], "map": {}, "sum": None, "extent": None, "migrating": {}}


class Extent:
    """The smallest and the largest."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [min([value, *accumulator]), max([value, *accumulator])]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return [min(a + b), max(a + b)]


EXTENT = Extent()


class ByType(Mapping):
    """The entries of a dict by (type, key) as a mapping by key, in which 1 and True are two, as in a map state."""

    def __init__(self, entries):
        self.entries = entries

    def __getitem__(self, key):
        return self.entries[type(key), key]

    def __iter__(self):
        return (key for _, key in self.entries)

    def __len__(self):
        return len(self.entries)


class BackendMachine(RuleBasedStateMachine):
    """One model, and per kind of backend a list of operators that share the key groups."""

    ttl: StateTtlConfig | None = None

    @initialize()
    def start(self):
        self.directory = Path(tempfile.mkdtemp())
        self.numbers = itertools.count()
        self.clock = ManualClock(1000.0)
        self.model = {}
        self.kinds = {"heap": self.make("heap", 1), "rocksdb": self.make("rocksdb", 1)}

    def make(self, kind, parallelism):
        ranges = [key_group_range(128, parallelism, index) for index in range(parallelism)]
        return [self.make_one(kind, groups, self.directory / str(next(self.numbers))) for groups in ranges]

    def make_one(self, kind, groups, directory):
        if kind == "heap":
            return HeapStateBackend(key_groups=groups, clock=self.clock)
        return RocksDBStateBackend(directory, key_groups=groups, clock=self.clock)

    def at(self, key, namespace):
        """What both kinds have at a key and a namespace, with the model's entry."""
        name = serialize_key(key), repr(namespace)
        model = self.model.setdefault(name, copy.deepcopy(EMPTY))
        return model, [self.states(operators, key, namespace) for operators in self.kinds.values()]

    def states(self, operators, key, namespace):
        backend = operators[operator_index(128, len(operators), key_group(key, 128))]
        backend.set_current_namespace(namespace)
        backend.set_current_key(key)
        old = ValueStateDescriptor("old", ttl=self.ttl)
        return {
            "value": backend.value_state(ValueStateDescriptor("value", ttl=self.ttl)),
            "list": backend.list_state(ListStateDescriptor("list", ttl=self.ttl)),
            "map": backend.map_state(MapStateDescriptor("map", ttl=self.ttl)),
            "sum": backend.reducing_state(ReducingStateDescriptor("sum", operator.add, ttl=self.ttl)),
            "extent": backend.aggregating_state(AggregatingStateDescriptor("extent", EXTENT, ttl=self.ttl)),
            "old": backend.value_state(old),
            "migrating": MigratingMapState(backend, old, MapStateDescriptor("migrating", ttl=self.ttl)),
        }

    @rule(key=keys, namespace=namespaces, value=values)
    def update(self, key, namespace, value):
        model, both = self.at(key, namespace)
        model["value"] = value
        for states in both:
            states["value"].update(value)

    @rule(key=keys, namespace=namespaces, added=st.lists(elements, max_size=3), replace=st.booleans())
    def change_list(self, key, namespace, added, replace):
        model, both = self.at(key, namespace)
        model["list"] = added if replace else model["list"] + added
        for states in both:
            (states["list"].update if replace else states["list"].add_all)(added)

    @rule(
        key=keys,
        namespace=namespaces,
        entries=st.dictionaries(user_keys.map(lambda k: (type(k), k)), values, max_size=3),
    )
    def put_all(self, key, namespace, entries):
        model, both = self.at(key, namespace)
        model["map"].update(entries)
        for states in both:
            states["map"].put_all(ByType(entries))

    @rule(key=keys, namespace=namespaces, user_key=user_keys, value=values)
    def put(self, key, namespace, user_key, value):
        model, both = self.at(key, namespace)
        model["map"][type(user_key), user_key] = value
        for states in both:
            states["map"].put(user_key, value)

    @rule(key=keys, namespace=namespaces, added=elements)
    def append(self, key, namespace, added):
        model, both = self.at(key, namespace)
        model["list"] = [*model["list"], added]
        for states in both:
            states["list"].add(added)

    @rule(key=keys, namespace=namespaces, old=st.dictionaries(st.integers(0, 3), values, max_size=3))
    def hold_as_one_value(self, key, namespace, old):
        """The old form of the migrating map: what is written there is the map from then on."""
        model, both = self.at(key, namespace)
        model["migrating"] = dict(old)
        for states in both:
            states["old"].update(old)

    @rule(key=keys, namespace=namespaces, user_key=st.integers(0, 3), value=values)
    def change_what_migrates(self, key, namespace, user_key, value):
        model, both = self.at(key, namespace)
        for states in both:
            assert states["migrating"].get(user_key) == model["migrating"].get(user_key)
            states["migrating"].put(user_key, value)
        model["migrating"][user_key] = value

    @rule(key=keys, namespace=namespaces, user_key=user_keys)
    def remove(self, key, namespace, user_key):
        model, both = self.at(key, namespace)
        found = model["map"].pop((type(user_key), user_key), None)
        for states in both:
            assert states["map"].get(user_key) == found
            states["map"].remove(user_key)

    @rule(key=keys, namespace=namespaces, value=st.integers(-5, 5))
    def add(self, key, namespace, value):
        model, both = self.at(key, namespace)
        model["sum"] = value if model["sum"] is None else model["sum"] + value
        model["extent"] = (
            [min(value, *model["extent"]), max(value, *model["extent"])] if model["extent"] else [value] * 2
        )
        for states in both:
            states["sum"].add(value)
            states["extent"].add(value)

    @rule(key=keys, namespace=namespaces, name=st.sampled_from(list(EMPTY)))
    def clear(self, key, namespace, name):
        model, both = self.at(key, namespace)
        model[name] = copy.deepcopy(EMPTY[name])
        for states in both:
            states[name].clear()

    @rule()
    def look_at_all_that_migrates(self):
        self.compare(self.model, lambda *at: self.at(*at)[1], moving=True)

    @rule(parallelism=st.integers(1, 3), crosswise=st.booleans())
    def rescale(self, parallelism, crosswise):
        snapshots = {kind: [backend.snapshot() for backend in operators] for kind, operators in self.kinds.items()}
        for operators in self.kinds.values():
            for backend in operators:
                backend.close()
        if crosswise:
            snapshots = {"heap": snapshots["rocksdb"], "rocksdb": snapshots["heap"]}
        for kind in self.kinds:
            self.kinds[kind] = self.make(kind, parallelism)
            for backend in self.kinds[kind]:
                backend.restore(snapshots[kind])
        for taken in snapshots.values():
            for snapshot in taken:
                snapshot.delete()

    @rule()
    def snapshot_is_a_point_in_time(self):
        snapshots = {kind: [backend.snapshot() for backend in operators] for kind, operators in self.kinds.items()}
        before = copy.deepcopy(self.model)
        for key, namespace in (("1", None), (True, "w")):
            self.update(key, namespace, "later")
            self.change_list(key, namespace, ["later"], replace=True)
            self.put(key, namespace, 300, "later")
            self.remove(key, namespace, "11")
            self.add(key, namespace, 9)
            self.hold_as_one_value(key, namespace, {9: "later"})
        for taken in snapshots.values():
            restored = HeapStateBackend(key_groups=KeyGroupRange(0, 127), clock=self.clock)
            restored.restore(taken)
            self.compare(before, lambda *at, restored=restored: [self.states([restored], *at)], moving=True)
            for snapshot in taken:
                snapshot.delete()

    @rule()
    def crash(self):
        """What a killed process leaves is what is on disk now; test_crash kills one."""
        operators = self.kinds["rocksdb"]
        for index, backend in enumerate(operators):
            copy = self.copy_of(backend.directory)
            operators[index] = self.make_one("rocksdb", backend.key_groups, copy)
            backend.close()

    def copy_of(self, directory):
        """A copy of a living directory; taken again if RocksDB, in the background, removed a file meanwhile."""
        while True:
            copy = self.directory / str(next(self.numbers))
            try:
                return shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("LOCK", "LOG*"))
            except (OSError, shutil.Error):
                shutil.rmtree(copy)

    @rule()
    def compact(self):
        for operators in self.kinds.values():
            for backend in operators:
                backend.compact()

    @invariant()
    def agrees_with_the_model(self):
        if hasattr(self, "model"):
            self.compare(self.model, lambda *at: self.at(*at)[1])

    def compare(self, models, states_at, moving=False):
        """Holds what `states_at` a key and a namespace against what the model says of them; `moving` moves it."""
        for (key_bytes, namespace_text), model in list(models.items()):
            key = next(k for k in KEYS if serialize_key(k) == key_bytes)
            namespace = next(n for n in NAMESPACES if repr(n) == namespace_text)
            for states in states_at(key, namespace):
                assert states["value"].value() == model["value"]
                assert states["list"].get() == model["list"]
                expected = sorted(model["map"].items(), key=lambda entry: serialize_key(entry[0][1]))
                assert [(type(k), k, v) for k, v in states["map"].items()] == [(*k, v) for k, v in expected]
                assert states["map"].is_empty() == (not model["map"])
                assert states["sum"].get() == model["sum"]
                assert states["extent"].get() == model["extent"]
                if moving:
                    assert dict(states["migrating"].items()) == model["migrating"]
                    assert states["old"].value() is None

    def teardown(self):
        if hasattr(self, "kinds"):
            for backend in itertools.chain(*self.kinds.values()):
                backend.close()
            shutil.rmtree(self.directory)


KEYS = [1, True, 1.0, "1", "11", b"1", (1, "a"), -5]
NAMESPACES = [None, "", "w", 1, True]


class TtlMachine(BackendMachine):
    """The same with time to live: nothing is lost before its time, and afterwards everything is as if never written."""

    ttl = StateTtlConfig(10)

    @rule(key=keys, namespace=namespaces)
    def let_everything_expire(self, key, namespace):
        self.clock.advance(10)
        self.model.clear()
        self.at(key, namespace)


def test_S_state_machine_against_plain_dicts():
    run_state_machine_as_test(BackendMachine, settings=settings(max_examples=8, stateful_step_count=20, deadline=None))


def test_E_state_machine_with_time_to_live():
    run_state_machine_as_test(TtlMachine, settings=settings(max_examples=8, stateful_step_count=20, deadline=None))
