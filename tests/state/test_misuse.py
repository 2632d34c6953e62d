"""Bad input, and calls that look right and are not: each is refused at once, with a message that says what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import state, timers
from asyncio_operator.errors import ConfigurationError, StateError, StateMigrationError
from asyncio_operator.state import (
    AggregatingStateDescriptor,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
    checkpoint,
)
from asyncio_operator.state.keys import MAX_DEPTH
from asyncio_operator.state.ttl import LivingEntries
from asyncio_operator.testing.state_contract import check_state_backend
from asyncio_operator.timers import RocksDBQueues
from tests.ids import shown

untyped: Any = state
VALUE, MAP = ValueStateDescriptor("value"), MapStateDescriptor("map")


class Text:
    """A serialiser that gives no bytes."""

    name = "text"
    serialize: Any = staticmethod(str)
    deserialize: Any = staticmethod(str)


class Broken:
    """A serialiser that fails, one way only."""

    name = "broken"

    def __init__(self, writing):
        self.writing = writing

    def serialize(self, value):
        if self.writing:
            raise LookupError("cannot write")
        return b"x"

    def deserialize(self, data):
        raise LookupError("cannot read")


class Mean:
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / (accumulator[1] - 1)

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Forgetful(Mean):
    def add(self, value):  # type: ignore[override]
        return value, 1


@pytest.mark.parametrize(
    "make",
    [
        RocksDBStateBackend,
        lambda tmp_path: HeapStateBackend(),
        HeapStateBackend(),
        5,
        None,
        dict,
        print,
        lambda **options: None,
    ],
    ids=shown,
)
def test_a_contract_check_refuses_what_makes_no_backend(make):
    with pytest.raises(ConfigurationError, match="make"):
        check_state_backend(make)


def test_a_contract_check_names_the_keywords_that_its_laws_need():
    with pytest.raises(ConfigurationError, match=r"clock.*key_groups.*max_parallelism.*\*\*options"):
        check_state_backend(lambda: HeapStateBackend())  # noqa: PLW0108 - the point is that it takes nothing
    with pytest.raises(ConfigurationError, match=r"key_groups, max_parallelism.*\*\*options"):
        check_state_backend(lambda clock=None: HeapStateBackend(clock=clock))


def test_a_contract_check_names_the_law_and_closes_what_it_has_made(monkeypatch):
    made: list[HeapStateBackend] = []

    def make(**options):
        made.append(HeapStateBackend(**options))
        return made[-1]

    monkeypatch.setattr(state.ListState, "add", lambda self, value: None)
    with pytest.raises(AssertionError, match=r"^law_s5_list \(S5: "):
        check_state_backend(make)
    assert len(made) > 4
    assert all(backend.closed for backend in made)
    monkeypatch.setattr(state.ListState, "add", lambda self, value: 1 / 0)
    with pytest.raises(AssertionError, match=r"^law_s5_list .*ZeroDivisionError"):
        check_state_backend(HeapStateBackend)


class ReplacesMaps(state.MapState[Any, Any]):
    def put_all(self, entries):
        self.clear()
        super().put_all(entries)


class ClearsOtherNamespaces(state.ValueState[Any]):
    def clear(self):
        for slot in self._backend.table(self.name).slots():
            self._delete(slot, b"")


class RenewsNothing(LivingEntries):
    def put(self, slot, sub, stored):
        found = self.table.get(slot, sub)
        begun = self._now() if found is None else self.codec.split(found)[0]
        self.table.put(slot, sub, self.codec.stamp(begun, stored))


class TakesOneSnapshot(HeapStateBackend):
    def load(self, snapshots, states):
        super().load(snapshots[:1], states)


class TakesAllKeyGroups(HeapStateBackend):
    def load(self, snapshots, states):
        groups, self.key_groups = self.key_groups, KeyGroupRange(0, self.max_parallelism - 1)
        super().load(snapshots, states)
        self.key_groups = groups


@pytest.mark.parametrize(
    ("part", "broken", "law"),
    [
        ("MapState", ReplacesMaps, "law_s6_map"),
        ("ValueState", ClearsOtherNamespaces, "law_s8_isolation"),
        ("LivingEntries", RenewsNothing, "law_e2_update_type"),
        (None, TakesOneSnapshot, "law_s1_range"),
        (None, TakesAllKeyGroups, "law_s1_range"),
    ],
    ids=shown,
)
def test_a_contract_check_finds_a_broken_backend(part, broken, law, monkeypatch):
    if part is not None:
        monkeypatch.setattr(f"asyncio_operator.state.backend.{part}", broken)
    with pytest.raises(AssertionError, match=f"^{law} "):
        check_state_backend(HeapStateBackend if part is not None else broken)


@pytest.mark.parametrize("serializer", [None, state.BuiltinSerializer()])
def test_P6_a_serializer_that_does_not_sort_is_refused(serializer, tmp_path):
    with pytest.raises(ConfigurationError, match=r"sort.*KeySerializer"):
        untyped.RocksDBCachingPriorityQueueSet(
            tmp_path,
            key_of=lambda element: element[1],
            key_groups=KeyGroupRange(0, 127),
            max_parallelism=128,
            serializer=serializer,
        )
    assert not list(tmp_path.iterdir())


NO_TIMES = (None, "now", float("nan"), float("inf"), 1j, Decimal("1e999999"))
BEYOND = (1e16, -1e16, 2**60, 9223372036854775.9, 10**400)


@pytest.mark.parametrize(
    ("time", "says"),
    [*((time, "seconds as a finite float") for time in NO_TIMES), *((time, "64 bits.*nanoseconds") for time in BEYOND)],
)
def test_E10_a_clock_that_gives_no_time_of_64_bits_is_named_at_once(time, says, make):
    times = iter([time, 9.2e15, 9.2e15])
    backend = make(clock=lambda: next(times))
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("ttl", ttl=StateTtlConfig(1, cleanup=())))
    with pytest.raises(StateError, match=rf"state 'ttl', key 1: the clock .*lambda.*{says}"):
        value.update("x")
    assert backend.num_entries() == 0
    value.update("y")
    assert value.value() == "y"
    backend.snapshot().delete()


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.map_state(MAP).put_all([("a", 1)]),
        lambda backend: backend.map_state(MAP).put_all(None),
        lambda backend: backend.list_state(ListStateDescriptor("list")).add_all(5),
        lambda backend: backend.list_state(ListStateDescriptor("list")).update(None),
    ],
)
def test_a_wrong_collection_is_named_with_state_and_key(call, make):
    backend = make()
    backend.set_current_key("the key")
    with pytest.raises(StateError, match=r"key 'the key': .*(mapping|iterable)"):
        call(backend)
    assert backend.num_entries() == 0


@pytest.mark.parametrize("wrong", [None, 5, "snapshot", [None]])
def test_restoring_what_is_no_snapshot_is_refused(wrong, make):
    backend = make()
    with pytest.raises(StateError, match=r"restore\(\) takes"):
        backend.restore(wrong)
    backend.restore([make().snapshot()])


@pytest.mark.parametrize(
    "arguments",
    [(None, VALUE, MAP), (HeapStateBackend(), "value", MAP), (HeapStateBackend(), MAP, VALUE), (VALUE, VALUE, MAP)],
)
def test_a_migration_of_the_wrong_things_is_refused(arguments):
    with pytest.raises(ConfigurationError, match="MigratingMapState"):
        untyped.MigratingMapState(*arguments)


def test_an_error_of_a_fold_names_state_key_and_function(make):
    backend = make()
    backend.set_current_key("the key")
    total = backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
    mean = backend.aggregating_state(AggregatingStateDescriptor("mean", Mean()))
    total.add(1)
    with pytest.raises(StateError, match=r"state 'sum', key 'the key': reduce.*TypeError") as caught:
        total.add("x")
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(StateError, match=r"state 'mean', key 'the key': add.*TypeError"):
        mean.add("x")
    mean.add(3)
    with pytest.raises(StateError, match=r"state 'mean', key 'the key': get_result.*ZeroDivisionError") as caught:
        mean.get()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert total.get() == 1


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(10)])
def test_an_error_of_a_serializer_says_whether_it_read_or_wrote(ttl, make):
    backend = make()
    backend.set_current_key("k")
    backend.set_current_namespace("n")
    with pytest.raises(StateError, match=r"^state 'text', key 'k', namespace 'n': .*gave str"):
        backend.value_state(ValueStateDescriptor("text", Text())).update(1)
    with pytest.raises(StateError, match=r"^state 'keys', key 'k', namespace 'n': .*gave str"):
        backend.map_state(MapStateDescriptor("keys", key_serializer=Text())).put(1, 1)
    for writing, word in ((True, "writing"), (False, "reading")):
        value = backend.value_state(ValueStateDescriptor(f"value {word}", Broken(writing), ttl=ttl))
        items = backend.list_state(ListStateDescriptor(f"list {word}", Broken(writing), ttl=ttl))
        entries = backend.map_state(MapStateDescriptor(f"map {word}", Broken(writing), ttl=ttl))
        for use in (
            lambda value=value: (value.update(1), value.value()),
            lambda items=items: (items.add(1), items.get()),
            lambda entries=entries: (entries.put(1, 1), list(entries.items())),
        ):
            with pytest.raises(
                StateError, match=rf"{word}', key 'k', namespace 'n': .*serialiser.* {word}: LookupError"
            ) as caught:
                use()
            assert isinstance(caught.value.__cause__, LookupError)


def test_a_closed_backend_says_how_to_go_on(tmp_path):
    for backend, says in ((HeapStateBackend(), "restore a snapshot"), (RocksDBStateBackend(tmp_path / "s"), "again")):
        backend.close()
        with pytest.raises(StateError, match=says):
            backend.set_current_key(1)


def test_S10_two_descriptors_of_one_name_in_one_program_are_told_so(make):
    backend = make()
    backend.value_state(VALUE)
    for other, error in (
        (ValueStateDescriptor("value", Broken(True)), StateMigrationError),
        (ValueStateDescriptor("value", ttl=StateTtlConfig(1)), StateError),
    ):
        with pytest.raises(error, match=r"requested before.*another name") as caught:
            backend.value_state(other)
        assert type(caught.value) is error


def test_S10_a_reopened_directory_refuses_what_does_not_fit_and_keeps_what_it_holds(tmp_path):
    ttl = StateTtlConfig(10.0)
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key(1)
    backend.value_state(VALUE).update(1)
    backend.value_state(ValueStateDescriptor("ttl", ttl=ttl)).update(2)
    backend.map_state(MAP).put("a", 3)
    backend.close()
    for ask, descriptor, says in (
        ("value_state", ValueStateDescriptor("value", Broken(True)), "'builtin-1'.*'broken'"),
        ("map_state", MapStateDescriptor("map", key_serializer=Broken(True)), "key serialiser 'builtin-key-1'"),
        ("map_state", MapStateDescriptor("map", value_serializer=Broken(True)), "value serialiser 'builtin-1'"),
    ):
        reopened = RocksDBStateBackend(tmp_path / "state")
        with pytest.raises(StateMigrationError, match=f"state {descriptor.name!r} was written") as caught:
            getattr(reopened, ask)(descriptor)
        assert re.search(says, str(caught.value))
        reopened.close()
    reopened = RocksDBStateBackend(tmp_path / "state")
    with pytest.raises(StateError, match="is a value state, not a list state"):
        reopened.list_state(ListStateDescriptor("value"))
    reopened.set_current_key(1)
    assert reopened.value_state(VALUE).value() == 1
    assert reopened.value_state(ValueStateDescriptor("ttl", ttl=StateTtlConfig(20.0))).value() == 2
    assert dict(reopened.map_state(MAP).items()) == {"a": 3}
    reopened.close()


@pytest.mark.parametrize("directory", ["~", "~/state", Path("~/state")])
@pytest.mark.parametrize(
    "make", [RocksDBStateBackend, RocksDBQueues, SnapshotReader, lambda at: checkpoint(at, HeapStateBackend())]
)
def test_a_home_directory_is_refused_because_only_a_shell_replaces_it(make, directory):
    with pytest.raises(ConfigurationError, match=r"directory=.*~.*expanduser"):
        make(directory)


def migrating(new, default):
    """A migration from "value", with this default, to `new`."""
    old = ValueStateDescriptor("value", default=default)
    return untyped.MigratingMapState(untyped.HeapStateBackend(), old, MapStateDescriptor(new))


def test_a_default_that_cannot_be_stored_is_refused_at_once(make):
    with pytest.raises(StateError, match="default"):
        make().value_state(ValueStateDescriptor("value", default=object()))


def test_a_descriptor_of_another_class_is_refused(make):
    with pytest.raises(ConfigurationError, match="MapStateDescriptor"):
        make().map_state(VALUE)


async def later(*values):
    """What could not be awaited."""


class LateMean(Mean):
    async def add(self, value, accumulator):
        """What could not be awaited."""


def test_E1_a_configuration_with_several_cleanups_is_a_value():
    cleanups = [untyped.CleanupFullSnapshot(), untyped.CleanupInCompaction()]
    ttl = untyped.StateTtlConfig(5, cleanup=cleanups)
    assert {ttl} == {untyped.StateTtlConfig(5, cleanup=tuple(cleanups))}


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: untyped.ValueStateDescriptor(""), "name"),
        (lambda: untyped.ListStateDescriptor("x", ttl=5), "StateTtlConfig"),
        (lambda: untyped.ReducingStateDescriptor("x", reduce=None), "reduce"),
        (lambda: untyped.ReducingStateDescriptor("x", reduce=later), "reduce.*'x'.*async def"),
        (lambda: untyped.AggregatingStateDescriptor("x", aggregate=max), "create_accumulator"),
        (lambda: untyped.AggregatingStateDescriptor("x", aggregate=LateMean()), "add of .*async def"),
        (lambda: untyped.StateTtlConfig(0), "ttl"),
        (lambda: untyped.StateTtlConfig(float("inf")), "ttl"),
        (lambda: untyped.StateTtlConfig(1e16), r"ttl is 1e\+16.*from 0.001 s to 9223372036854775 s"),
        (lambda: untyped.StateTtlConfig(9223372036854776), "to 9223372036854775 s"),
        (lambda: untyped.StateTtlConfig("5"), "ttl"),
        (lambda: untyped.StateTtlConfig(5, update_type="sometimes"), "on_read_and_write"),
        (lambda: untyped.StateTtlConfig(5, visibility=None), "never_return_expired"),
        (lambda: untyped.StateTtlConfig(5, cleanup=(untyped.CleanupIncrementally(),) * 2), "cleanup"),
        (lambda: untyped.StateTtlConfig(5, cleanup="all"), "cleanup"),
        (lambda: untyped.CleanupIncrementally(size=0), "size"),
        (lambda: untyped.CleanupIncrementally(size=5, every_record="no"), "every_record"),
        (lambda: untyped.ValueStateDescriptor("a\0b"), r"name is 'a\\x00b'.*NUL"),
        (lambda: untyped.MapStateDescriptor("\ud800"), r"name is '\\ud800'.*surrogates"),
        (lambda: untyped.HeapPriorityQueue(5), "key is 5"),
        (lambda: untyped.HeapPriorityQueue(later), "key is .*async def"),
        (lambda: untyped.HeapPriorityQueueSet(max, 5, KeyGroupRange(0, 0), 1), "key_of is 5"),
        (lambda: untyped.KeyGroupPartitionedPriorityQueue(5, max, KeyGroupRange(0, 0), 1), "key is 5"),
        (lambda: untyped.BatchPriorityQueueSet(max, 5), "key_of is 5"),
        (lambda: untyped.HeapPriorityQueue(lambda: 1), "key is .*; it must take one argument, the element"),
        (lambda: untyped.ReducingStateDescriptor("x", lambda value: value), "reduce of state 'x' is .* two arguments"),
        (lambda: untyped.AggregatingStateDescriptor("x", Forgetful()), "add of aggregate=.* two arguments"),
        (lambda: untyped.RocksDBStateBackend("a\0b"), "directory"),
        (lambda: untyped.RocksDBStateBackend("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.RocksDBSnapshot("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.RocksDBSnapshot(5), "directory=5"),
        (lambda: timers.RocksDBQueues("\ud800"), r"directory='\\ud800'"),
        (lambda: untyped.key_group(1, 128.0), "max_parallelism is 128.0"),
        (lambda: untyped.KeyGroupRange(10**5000, 0.5), "end is 0.5"),
        (lambda: untyped.HeapStateBackend(key_groups=KeyGroupRange(0, 128)), "key_groups"),
        (lambda: untyped.HeapStateBackend(key_groups=(0, 5)), r"KeyGroupRange\(0, 5\).*key_group_range\("),
        (lambda: untyped.AggregatingStateDescriptor("x", aggregate=Mean), r"Mean\(\)"),
        (lambda: untyped.ValueStateDescriptor("x", serializer=Broken), "serializer is .*Broken.*not a class"),
        (lambda: untyped.HeapStateBackend(max_parallelism=40_000), "max_parallelism"),
        (lambda: untyped.HeapStateBackend(clock=5), "clock"),
        (lambda: untyped.RocksDBStateBackend(5), "directory"),
        (lambda: migrating("value", None), "name"),
        (lambda: migrating("new", {1: 1}), "default"),
    ],
)
def test_a_wrong_option_is_named(make_it, says):
    with pytest.raises(ConfigurationError, match=says):
        make_it()


def test_E1_the_longest_time_to_live_that_the_message_names_is_taken(make):
    assert untyped.StateTtlConfig(9223372036854775).milliseconds == 9223372036854775000
    assert untyped.StateTtlConfig(1e15).milliseconds == 10**18
    backend = make()
    backend.set_current_key(1)
    value = backend.value_state(untyped.ValueStateDescriptor("value", ttl=untyped.StateTtlConfig(9223372036854775)))
    value.update(5)
    assert value.value() == 5


def test_enums_are_taken_by_name():
    assert untyped.StateTtlConfig(5, update_type="on_read_and_write").update_type is UpdateType.ON_READ_AND_WRITE


def test_another_version_or_range_is_refused(tmp_path):
    from asyncio_operator.state.rocksdb.database import Database
    from asyncio_operator.state.serializers import BUILTIN

    RocksDBStateBackend(tmp_path / "state").close()
    for options in ({"key_groups": KeyGroupRange(0, 5)}, {"max_parallelism": 256}):
        with pytest.raises(StateError, match=r"holds key groups 0..127 of 128"):
            RocksDBStateBackend(tmp_path / "state", **options)
    database = Database(tmp_path / "state")
    header = {"format": 2, "max_parallelism": 128, "start": 0, "end": 127}
    database.family("default").put(b"format", BUILTIN.serialize(header))
    database.close()
    with pytest.raises(StateError, match="has format 2, this version reads 1"):
        RocksDBStateBackend(tmp_path / "state")


def test_a_damaged_value_is_named(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    value = backend.value_state(VALUE)
    backend.table("value").put(backend.require_slot(), b"", b"\xffjunk")
    with pytest.raises(StateError, match="state 'value', key 'k': damaged value"):
        value.value()
    backend.close()


def test_a_missing_rocksdict_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("asyncio_operator.state.rocksdb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(state, "rocksdb", raising=False)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigurationError, match=r"asyncio-operator\[rocksdb\]"):
        state.__getattr__("RocksDBStateBackend")
    with pytest.raises(AttributeError, match="nothing"):
        state.__getattr__("nothing")


HUGE = 10**5000


def test_S1_an_integer_of_any_length_is_a_key_and_may_stand_in_a_message(make):
    backend = make(key_groups=KeyGroupRange(0, 0), max_parallelism=128)
    outside = next(number for number in range(HUGE, HUGE + 10_000) if state.key_group(number, 128))
    with pytest.raises(StateError, match="outside the range"):
        backend.set_current_key(outside)
    inside = next(number for number in range(HUGE, HUGE + 10_000) if not state.key_group(number, 128))
    backend.set_current_key(inside)
    backend.set_current_namespace(inside)
    value = backend.value_state(VALUE)
    value.update(HUGE)
    assert value.value() == HUGE
    for wrong in (object(), [HUGE, object()]):
        with pytest.raises(StateError, match=r"'value', key <int.*, namespace <int.*cannot be stored"):
            value.update(wrong)
    with pytest.raises(StateError, match="None cannot be an element"):
        backend.list_state(state.ListStateDescriptor("list")).add_all([HUGE, None])


def test_S8_a_refused_namespace_leaves_no_key(make):
    backend = make()
    backend.set_current_key("k")
    backend.set_current_namespace("w")
    value = backend.value_state(VALUE)
    value.update("of w")
    with pytest.raises(StateError, match="namespace"):
        backend.set_current_namespace([1])
    for use in (value.value, lambda: value.update("without a key")):
        with pytest.raises(StateError, match="set_current_key"):
            use()
    backend.set_current_key("k")
    assert value.value() is None
    backend.set_current_namespace("w")
    assert value.value() == "of w"


@pytest.mark.parametrize("write", ["value", "list", "map", "key"])
def test_S4_what_is_nested_deeper_than_can_be_read_again_is_refused_alike(write, make):
    backend = make()
    backend.set_current_key(1)
    writers: dict[str, Callable[[Any], None]] = {
        "value": backend.value_state(VALUE).update,
        "list": backend.list_state(state.ListStateDescriptor("list")).add,
        "map": lambda value: backend.map_state(MapStateDescriptor("map")).put(1, value),
        "key": backend.set_current_key,
    }
    containers: list[Any] = [tuple] if write == "key" else [tuple, frozenset, list, lambda items: {1: items[0]}]
    for container in containers:
        deep: Any = ()
        for _ in range(MAX_DEPTH - 1):
            deep = container([deep])
        writers[write](deep)
        with pytest.raises(StateError, match=f"nested too deeply, more than {MAX_DEPTH} levels"):
            writers[write](container([deep]))
    backend.snapshot().delete()


def test_S4_what_was_written_can_be_read_from_deep_in_a_program(make):
    backend = make()
    backend.set_current_key(1)
    value = backend.value_state(VALUE)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    value.update(deep)

    def descend(levels):
        return value.value() if levels == 0 else descend(levels - 1)

    assert descend(300) == deep


@pytest.mark.parametrize("key", [0, False, ""])
def test_S3_S8_a_namespace_that_is_set_after_a_key_belongs_to_it_also_if_the_key_is_falsy(make, key):
    backend = make()
    value = backend.value_state(VALUE)
    backend.set_current_key(key)
    backend.set_current_namespace("other")
    value.update(1)
    assert list(backend.keys(VALUE.name)) == [key]
    backend.set_current_namespace(None)
    assert value.value() is None
