"""Keyed state and time to live: the contract of the laws for each backend, and a state machine against dictionaries."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from asyncio_operator.state import (
    AggregatingStateDescriptor,
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    MigratingMapState,
    ReducingStateDescriptor,
    RocksDBSnapshot,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
    checkpoint,
    key_group,
    key_group_range,
    operator_index,
    restore_checkpoint,
)
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.testing.state_contract import LAWS, check_state_backend
from asyncio_operator.testing.time import ManualClock

TOUCH = UpdateType.ON_READ_AND_WRITE
# Other clean-ups begin the lives of entries that were written without time to live at moments of their own.
SWITCHED = [
    None,
    StateTtlConfig(0.01, cleanup=CleanupInCompaction()),
    StateTtlConfig(0.01, TOUCH, cleanup=CleanupInCompaction()),
    StateTtlConfig(0.025, cleanup=CleanupInCompaction()),
]
KEPT = [
    StateTtlConfig(0.01, update_type=update_type, cleanup=cleanup)
    for update_type in UpdateType
    for cleanup in ((), CleanupIncrementally(2, every_record=True), (CleanupFullSnapshot(), CleanupInCompaction()))
]

# Keys and namespaces that Python calls equal, and some that begin like others.
places = st.sampled_from([(1, None), (True, None), (1.0, "w"), ("1", None), ("1", ""), ("11", None), ((1, "a"), 1)])
user_keys = st.sampled_from(["1", "11", 0, -1, 7, 300, True, (1,)])
values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
elements = st.integers(0, 9) | st.text(max_size=2)
NAMES = ("value", "list", "map", "sum", "extent", "old", "new")


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


class Model:
    """The entries of each slot, which is a name with the bytes of a key and the repr of a namespace.

    An entry is a value with its time in milliseconds; None is the time of one that has no time to live, or whose life
    has not begun. Names of entries are (type, key) in a map, rising numbers in a list, and None elsewhere.
    """

    def __init__(self, ttl):
        self.now, self.ttl, self.numbers = 1_000_000, ttl, itertools.count()
        self.slots: dict[Any, dict[Any, tuple[Any, int | None]]] = {}
        self.places = {}

    def slot(self, name, place):
        at = serialize_key(place[0]), repr(place[1])
        self.places[at] = place
        return self.slots.setdefault((name, *at), {})

    def write(self, name, place, entries, clear=False):
        slot = self.slot(name, place)
        if clear:
            slot.clear()
        slot.update((entry, (value, self.now if self.ttl else None)) for entry, value in entries)

    def look(self, slot, entries=None, reads=True):
        """The values of a slot, or of some entries. What has expired goes, and a life that has not begun begins."""
        for entry in [*slot] if self.ttl else ():
            value, time = slot[entry]
            if entries is None or entry in entries:
                if time is not None and time + self.ttl.milliseconds <= self.now:
                    del slot[entry]
                elif time is None or (reads and self.ttl.update_type is TOUCH):
                    slot[entry] = value, self.now
        return {entry: value for entry, (value, _) in slot.items() if entries is None or entry in entries}

    def read(self, name, place):
        found = self.look(self.slot(name, place))
        match name:
            case "map" | "new":
                return sorted(
                    ((*entry, value) for entry, value in found.items()), key=lambda one: serialize_key(one[1])
                )
            case "list":
                return [*found.values()]
        return found.get(None)

    def migrate(self, place):
        """The dict of the old state becomes the map, with its age."""
        if self.look(self.slot("old", place)):
            old, time = self.slot("old", place).pop(None)
            new = self.slot("new", place)
            new.clear()
            new.update(((type(key), key), (value, time)) for key, value in old.items())

    def switch(self, ttl):
        if not (self.ttl and ttl):
            self.slots = {
                at: {one: (value, None) for one, (value, _) in slot.items()} for at, slot in self.slots.items()
            }
        self.ttl = ttl


class BackendMachine(RuleBasedStateMachine):
    """One model, and per kind of backend a list of operators that share the key groups."""

    ttls: list[StateTtlConfig | None]
    switches: bool
    """Whether a move may switch time to live on or off, or change it."""

    @initialize(data=st.data())
    def start(self, data):
        self.directory, self.numbers, self.clock = Path(tempfile.mkdtemp()), itertools.count(), ManualClock(1000.0)
        self.model = Model(data.draw(st.sampled_from(self.ttls)))
        self.most = data.draw(st.sampled_from([128, 300]))
        self.kinds = {kind: self.make(kind, 1) for kind in ("heap", "rocksdb")}

    def make(self, kind, parallelism):
        ranges = [key_group_range(self.most, parallelism, index) for index in range(parallelism)]
        return [self.make_one(kind, groups, self.path()) for groups in ranges]

    def make_one(self, kind, groups, directory):
        options: dict[str, Any] = {"key_groups": groups, "max_parallelism": self.most, "clock": self.clock}
        return HeapStateBackend(**options) if kind == "heap" else RocksDBStateBackend(directory, **options)

    def path(self):
        return self.directory / str(next(self.numbers))

    def both(self, place):
        return [self.states(operators, place) for operators in self.kinds.values()]

    def states(self, operators, place):
        backend = operators[operator_index(self.most, len(operators), key_group(place[0], self.most))]
        backend.set_current_namespace(place[1])
        backend.set_current_key(place[0])
        return self.states_of(backend)

    def states_of(self, backend):
        """All of them: what is not asked for keeps the time to live that it had."""
        ttl = self.model.ttl
        old = ValueStateDescriptor("old", ttl=ttl)
        return {
            "value": backend.value_state(ValueStateDescriptor("value", ttl=ttl)),
            "list": backend.list_state(ListStateDescriptor("list", ttl=ttl)),
            "map": backend.map_state(MapStateDescriptor("map", ttl=ttl)),
            "sum": backend.reducing_state(ReducingStateDescriptor("sum", operator.add, ttl=ttl)),
            "extent": backend.aggregating_state(AggregatingStateDescriptor("extent", EXTENT, ttl=ttl)),
            "old": backend.value_state(old),
            "new": MigratingMapState(backend, old, MapStateDescriptor("new", ttl=ttl)),
        }

    @rule(place=places, value=values)
    def update(self, place, value):
        self.model.write("value", place, [] if value is None else [(None, value)], clear=True)
        for states in self.both(place):
            states["value"].update(value)

    @rule(place=places, added=st.lists(elements, max_size=3), how=st.sampled_from(["add", "add_all", "update"]))
    def change_list(self, place, added, how):
        self.model.write("list", place, [(next(self.model.numbers), one) for one in added], clear=how == "update")
        for states in self.both(place):
            if how == "add":
                for one in added:
                    states["list"].add(one)
            else:
                getattr(states["list"], how)(added)

    @rule(place=places, entries=st.dictionaries(user_keys, values, max_size=3))
    def put_all(self, place, entries):
        self.model.write("map", place, [((type(key), key), value) for key, value in entries.items()])
        for states in self.both(place):
            states["map"].put_all(entries)

    @rule(place=places, key=user_keys, value=values, name=st.sampled_from(["map", "new"]))
    def put(self, place, key, value, name):
        if name == "new":
            self.model.migrate(place)
        self.model.write(name, place, [((type(key), key), value)])
        for states in self.both(place):
            states[name].put(key, value)

    @rule(place=places, key=user_keys, name=st.sampled_from(["map", "new"]))
    def get_and_remove(self, place, key, name):
        if name == "new":
            self.model.migrate(place)
        slot, entry = self.model.slot(name, place), (type(key), key)
        found = self.model.look(slot, [entry])
        slot.pop(entry, None)
        for states in self.both(place):
            assert (states[name].contains(key), states[name].get(key)) == (entry in found, found.get(entry))
            states[name].remove(key)

    @rule(place=places, old=st.dictionaries(st.integers(0, 3), values, max_size=3))
    def hold_as_one_value(self, place, old):
        """The old form of the migrating map: what is written there is the map from then on."""
        self.model.write("old", place, [(None, old)])
        for states in self.both(place):
            states["old"].update(old)

    @rule(place=places, value=st.integers(-5, 5))
    def add(self, place, value):
        for name in ("sum", "extent"):
            before = self.model.read(name, place)
            if name == "sum":
                after: Any = value if before is None else before + value
            else:
                after = [min(value, *before), max(value, *before)] if before else [value] * 2
            self.model.write(name, place, [(None, after)])
            for states in self.both(place):
                states[name].add(value)

    @rule(place=places, name=st.sampled_from(NAMES))
    def clear(self, place, name):
        for one in ("new", "old") if name == "new" else (name,):
            self.model.write(one, place, (), clear=True)
        for states in self.both(place):
            states[name].clear()

    @rule(place=places, name=st.sampled_from(NAMES))
    def read(self, place, name):
        self.check(self.model, place, self.both(place), [name])

    @rule(place=places)
    def look_whether_the_map_is_empty(self, place):
        """Which touches no entry. It is not said whether it begins a life."""
        slot, ttl = self.model.slot("map", place), self.model.ttl
        if ttl is None or all(time is not None for _, time in slot.values()):
            living = [time for _, time in slot.values() if ttl is None or time + ttl.milliseconds > self.model.now]
            assert [states["map"].is_empty() for states in self.both(place)] == [not living] * 2

    @precondition(lambda self: self.model.ttl)
    @rule(milliseconds=st.sampled_from([1, 9, 10, 30]))
    def let_time_pass(self, milliseconds):
        self.model.now += milliseconds
        self.clock.set(self.model.now / 1000)

    @rule(way=st.sampled_from(["snapshot", "checkpoint", "reopen"]), parallelism=st.integers(1, 3), data=st.data())
    def move(self, way, parallelism, data):
        """To other backends, kinds of backends crosswise or not; or a process is killed, and its directory reopened."""
        crosswise = way != "reopen" and data.draw(st.booleans())
        old, taken, self.kinds = self.kinds, dict[str, list[Any]](), {}
        for kind, operators in old.items():
            if way == "checkpoint":
                taken[kind] = [self.path() for _ in operators]
                for backend, path in zip(operators, taken[kind], strict=True):
                    checkpoint(path, backend)
                self.check_readers(self.model, taken[kind])
            else:
                taken[kind] = [backend.snapshot() for backend in operators]
        if self.switches:
            self.model.switch(data.draw(st.sampled_from(SWITCHED)))
        for kind, operators in old.items():
            if way == "reopen" and kind == "rocksdb":
                # What a killed process leaves is what is on disk now; test_crash kills one.
                copies = [(one.key_groups, self.copy_of(one.directory)) for one in operators]
                self.kinds[kind] = [self.make_one(kind, *each) for each in copies]
            else:
                self.kinds[kind] = self.make(kind, len(operators) if way == "reopen" else parallelism)
                source = taken["heap" if (kind == "heap") != crosswise else "rocksdb"]
                for backend in self.kinds[kind]:
                    restore_checkpoint(source, backend) if way == "checkpoint" else backend.restore(source)
            for backend in self.kinds[kind]:
                self.states_of(backend)
        for backend in itertools.chain(*old.values()):
            backend.close()
        if way != "checkpoint":
            for snapshot in itertools.chain(*taken.values()):
                snapshot.delete()
        for place in list(self.model.places.values()):
            # Behind what the list had: its numbers go on (S5).
            self.change_list(place, ["moved"], "add")
            self.read(place, "list")

    def copy_of(self, directory):
        """A copy of a living directory; taken again if RocksDB, in the background, removed a file meanwhile."""
        while True:
            path = self.path()
            try:
                return shutil.copytree(directory, path, ignore=shutil.ignore_patterns("LOCK", "LOG*"))
            except (OSError, shutil.Error):
                shutil.rmtree(path)

    @rule()
    def snapshot_is_a_point_in_time(self):
        """It is read as it was, by a restore and by a reader, whatever is written later."""
        taken = [[backend.snapshot() for backend in operators] for operators in self.kinds.values()]
        before = copy.deepcopy(self.model)
        for place in (("1", None), (True, "w")):
            self.update(place, "later")
            self.change_list(place, ["later"], "update")
            self.put(place, 300, "later", "map")
            self.get_and_remove(place, "11", "map")
            self.add(place, 9)
            self.hold_as_one_value(place, {9: "later"})
        for snapshots in taken:
            self.check_readers(before, snapshots)
            model = copy.deepcopy(before)
            [restored] = self.make("heap", 1)
            restored.restore(snapshots)
            for place in before.places.values():
                self.check(model, place, [self.states([restored], place)])
            for snapshot in snapshots:
                snapshot.delete()

    def check_readers(self, model, snapshots):
        """A reader gives what was written, in the order of a list. What has expired may appear as well."""
        found, listed = defaultdict(list), set()
        for snapshot in pickle.loads(pickle.dumps(snapshots)):
            reader = SnapshotReader(snapshot.directory if isinstance(snapshot, RocksDBSnapshot) else snapshot)
            for name in [state.name for state in reader.states()]:
                for one in reader.entries(name):
                    entry = (type(one.map_key), one.map_key) if name in ("map", "new") else None
                    found[name, serialize_key(one.key), repr(one.namespace)].append((entry, one.value, one.written))
                for space in reader.namespaces(name):
                    listed |= {(name, serialize_key(key), repr(space)) for key in reader.keys(name, space)}
        assert listed == found.keys()
        for at in model.slots.keys() | listed:
            rows = [(None if at[0] == "list" else one, *cell) for one, cell in model.slots.get(at, {}).items()]
            living = [[row for row in some if not self.is_over(row[2])] for some in (found[at], rows)]
            if at[0] != "list":
                living = [sorted(some, key=repr) for some in living]
            assert living[0] == living[1]

    def is_over(self, time):
        return self.model.ttl is not None and time is not None and time + self.model.ttl.milliseconds <= self.model.now

    @rule()
    def compact(self):
        ttl = self.model.ttl
        for operators in self.kinds.values():
            for backend in operators:
                backend.compact()
        if ttl is not None and ttl.strategy(CleanupInCompaction) is not None:
            left = sum(len(self.model.look(slot, reads=False)) for slot in self.model.slots.values())
            for operators in self.kinds.values():
                assert sum(backend.num_entries() for backend in operators) == left

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def look_everywhere(self, names):
        for place in list(self.model.places.values()):
            self.check(self.model, place, self.both(place), names)

    def check(self, model, place, both, names=NAMES):
        """Holds what is at a place against the model. To look at the new state migrates the old one."""
        for name in names:
            if name == "new":
                model.migrate(place)
            wanted = model.read(name, place)
            for states in both:
                state = states[name]
                if name in ("map", "new"):
                    assert [(type(key), key, value) for key, value in state.items()] == wanted
                    assert state.is_empty() == (not wanted)
                else:
                    assert (state.value() if name in ("value", "old") else state.get()) == wanted

    def teardown(self):
        if hasattr(self, "kinds"):
            for backend in itertools.chain(*self.kinds.values()):
                backend.close()
            shutil.rmtree(self.directory)


@pytest.mark.parametrize(
    ("ttls", "switches"), [([None], False), (KEPT, False), (SWITCHED, True)], ids=["none", "kept", "switched"]
)
def test_S_E_E8_E11_state_machine_against_dictionaries(ttls, switches):
    """Nothing is lost before its time, and afterwards everything is as if never written."""
    machine = type("Machine", (BackendMachine,), {"ttls": ttls, "switches": switches})
    run_state_machine_as_test(machine, settings=settings(max_examples=7, stateful_step_count=25, deadline=None))


# -- the laws of keyed state and of time to live, one test per law and backend


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_S_E_contract(law, make):
    law(make)


def test_check_state_backend_takes_a_class_or_a_function_with_keywords():
    check_state_backend(HeapStateBackend)
    check_state_backend(lambda **options: HeapStateBackend(**options))  # noqa: PLW0108 - the point is that it is one
