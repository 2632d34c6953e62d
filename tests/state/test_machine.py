"""Both backends at once against plain dicts, with snapshot, restore, rescale, clear and crash among the rules."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group,
    key_group_range,
    operator_index,
)
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.testing.clock import ManualClock

keys = st.sampled_from([1, True, 1.0, "1", "11", b"1", (1, "a"), -5])
namespaces = st.sampled_from([None, "", "w", 1, True])
user_keys = st.sampled_from(["1", "11", 0, -1, 7, 300, True, (1,)])
values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
elements = st.integers(0, 9) | st.text(max_size=2)


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
        model = self.model.setdefault(name, {"value": None, "list": [], "map": {}, "sum": None})
        return model, [self.states(operators, key, namespace) for operators in self.kinds.values()]

    def states(self, operators, key, namespace):
        backend = operators[operator_index(128, len(operators), key_group(key, 128))]
        backend.set_current_namespace(namespace)
        backend.set_current_key(key)
        return {
            "value": backend.value_state(ValueStateDescriptor("value", ttl=self.ttl)),
            "list": backend.list_state(ListStateDescriptor("list", ttl=self.ttl)),
            "map": backend.map_state(MapStateDescriptor("map", ttl=self.ttl)),
            "sum": backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, ttl=self.ttl)),
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
            for (_, user_key), value in entries.items():
                states["map"].put(user_key, value)

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
        for states in both:
            states["sum"].add(value)

    @rule(key=keys, namespace=namespaces, name=st.sampled_from(["value", "list", "map", "sum"]))
    def clear(self, key, namespace, name):
        model, both = self.at(key, namespace)
        model[name] = {"value": None, "list": [], "map": {}, "sum": None}[name]
        for states in both:
            states[name].clear()

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
        snapshots = [backend.snapshot() for backend in self.kinds["rocksdb"]]
        before = sum(backend.num_entries() for backend in self.kinds["rocksdb"])
        self.update("1", None, "later")
        restored = HeapStateBackend(key_groups=KeyGroupRange(0, 127), clock=self.clock)
        restored.restore(snapshots)
        assert restored.num_entries() == before

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
        if not hasattr(self, "model"):
            return
        for (key_bytes, namespace_text), model in list(self.model.items()):
            key = next(k for k in KEYS if serialize_key(k) == key_bytes)
            namespace = next(n for n in NAMESPACES if repr(n) == namespace_text)
            for states in self.at(key, namespace)[1]:
                assert states["value"].value() == model["value"]
                assert states["list"].get() == model["list"]
                expected = sorted(model["map"].items(), key=lambda entry: serialize_key(entry[0][1]))
                assert [(type(k), k, v) for k, v in states["map"].items()] == [(*k, v) for k, v in expected]
                assert states["map"].is_empty() == (not model["map"])
                assert states["sum"].get() == model["sum"]

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
