"""Calls that look right and are not: each is refused at once, with a message that says what to do instead."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import state
from asyncio_operator.errors import ConfigurationError, StateError, StateMigrationError
from asyncio_operator.state import (
    AggregatingStateDescriptor,
    HeapStateBackend,
    KeyGroupRange,
    KeySerializer,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBCachingPriorityQueueSet,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    ValueStateDescriptor,
    checkpoint,
)
from asyncio_operator.testing.state_contract.check_backend import check_state_backend
from asyncio_operator.timers import RocksDBQueues
from tests.ids import shown

untyped: Any = state
VALUE, MAP = ValueStateDescriptor("value"), MapStateDescriptor("map")


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


def test_a_contract_check_names_the_law(monkeypatch):
    monkeypatch.setattr(state.ListState, "add", lambda self, value: None)
    with pytest.raises(AssertionError, match=r"^law_s5_list \(S5: "):
        check_state_backend(HeapStateBackend)
    monkeypatch.setattr(state.ListState, "add", lambda self, value: 1 / 0)
    with pytest.raises(AssertionError, match=r"^law_s5_list .*ZeroDivisionError"):
        check_state_backend(HeapStateBackend)


@pytest.mark.parametrize("filled", [True, False])
def test_S9_a_deleted_snapshot_is_not_restored_as_empty(filled, make):
    source = make()
    if filled:
        source.set_current_key(1)
        source.value_state(VALUE).update(1)
    snapshot = source.snapshot()
    snapshot.delete()
    target = make()
    with pytest.raises(StateError, match=r"gone|deleted"):
        target.restore([snapshot])
    target.restore([source.snapshot()])
    assert target.num_entries() == int(filled)


@pytest.mark.parametrize("wrong", [None, [1], (1, None), "outside"])
def test_S1_a_refused_key_leaves_no_key(wrong, make):
    backend = make(key_groups=KeyGroupRange(0, 0), max_parallelism=128)
    inside = next(number for number in range(10_000) if state.key_group(number, 128) == 0)
    value = backend.value_state(VALUE)
    for key in (inside, inside):
        backend.set_current_key(key)
        value.update("mine")
    with pytest.raises(StateError):
        backend.set_current_key(wrong)
    assert backend.current_key is None
    with pytest.raises(StateError, match="set_current_key"):
        value.value()
    with pytest.raises(StateError, match="set_current_key"):
        value.update("another's")
    backend.set_current_key(inside)
    assert value.value() == "mine"


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


def test_P6_the_key_serializer_sorts(tmp_path):
    elements = [(-(2**70), "a"), (-5, "b"), (-5, "bb"), (0, ""), (3, "a\x00"), (2**63, "z")]
    queue: RocksDBCachingPriorityQueueSet[Any] = RocksDBCachingPriorityQueueSet(
        tmp_path / "queue",
        key_of=lambda element: element[1],
        key_groups=KeyGroupRange(0, 127),
        max_parallelism=128,
        serializer=KeySerializer(),
        cache_size=2,
    )
    queue.add_all(reversed(elements))
    assert [queue.poll() for _ in elements] == elements
    queue.close()
    for damaged in (b"", KeySerializer().serialize(1) + b"x"):
        with pytest.raises(StateError, match="damaged"):
            KeySerializer().deserialize(damaged)


@pytest.mark.parametrize("time", [None, "now", float("nan"), float("inf"), 1j, Decimal("1e999999")])
def test_E10_a_clock_that_gives_no_number_is_named(time, make):
    backend = make(clock=lambda: time)
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("ttl", ttl=StateTtlConfig(1)))
    with pytest.raises(StateError, match=r"clock .*lambda.*seconds"):
        value.update(1)


@pytest.mark.parametrize("time", [1e16, -1e16, 2**60, 9223372036854775.9, 10**400])
def test_E10_a_clock_beyond_64_bits_is_named_at_once(time, make):
    times = iter([time, 9.2e15, 9.2e15])
    backend = make(clock=lambda: next(times))
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("ttl", ttl=StateTtlConfig(1, cleanup=())))
    with pytest.raises(StateError, match=r"state 'ttl', key 1: the clock .*lambda.*64 bits.*nanoseconds"):
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
    for writing, word in ((True, "writing"), (False, "reading")):
        value = backend.value_state(ValueStateDescriptor(f"value {word}", Broken(writing), ttl=ttl))
        items = backend.list_state(ListStateDescriptor(f"list {word}", Broken(writing), ttl=ttl))
        entries = backend.map_state(MapStateDescriptor(f"map {word}", Broken(writing), ttl=ttl))
        for use in (
            lambda value=value: (value.update(1), value.value()),
            lambda items=items: (items.add(1), items.get()),
            lambda entries=entries: (entries.put(1, 1), list(entries.items())),
        ):
            with pytest.raises(StateError, match=rf"{word}', key 'k': .*serialiser.* {word}: LookupError") as caught:
                use()
            assert isinstance(caught.value.__cause__, LookupError)


class Copying(Broken):
    """A serialiser whose values cannot be written, only copied."""

    def copy(self, value):
        return value


def test_a_value_that_a_snapshot_could_not_write_is_refused_when_it_is_stored(make):
    backend = make()
    backend.set_current_key("k")
    value = backend.value_state(ValueStateDescriptor("value", Copying(True)))
    with pytest.raises(StateError, match=r"state 'value', key 'k': .*writing: LookupError"):
        value.update(1)
    backend.snapshot().delete()


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: AggregatingStateDescriptor("x", aggregate=Mean), r"Mean\(\)"),  # type: ignore[arg-type]
        (lambda: ValueStateDescriptor("x", serializer=Copying), r"Copying\(\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: untyped.HeapStateBackend(key_groups=(0, 5)), r"KeyGroupRange\(0, 5\).*key_group_range\("),
    ],
)
def test_a_class_or_a_pair_in_place_of_an_object_is_refused(make_it, says):
    with pytest.raises(ConfigurationError, match=says):
        make_it()


def test_a_closed_backend_says_how_to_go_on(tmp_path):
    for backend, says in ((HeapStateBackend(), "restore a snapshot"), (RocksDBStateBackend(tmp_path / "s"), "again")):
        backend.close()
        with pytest.raises(StateError, match=says):
            backend.set_current_key(1)


def test_None_as_a_map_key_or_in_a_namespace_has_its_own_words(make):
    backend = make()
    backend.set_current_key("k")
    with pytest.raises(StateError, match="None cannot be a key of a map state"):
        backend.map_state(MAP).put(None, 1)
    with pytest.raises(StateError, match=r"the namespace \[1\]"):
        backend.set_current_namespace([1])


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


def test_a_refused_value_lists_the_types_that_are_taken(make):
    backend = make()
    backend.set_current_key(1)
    with pytest.raises(StateError, match=r"set, frozenset.*timedelta"):
        backend.value_state(VALUE).update(object())


def test_a_star_import_needs_no_rocksdict():
    program = (
        "import sys\nsys.modules['rocksdict'] = None\nfrom asyncio_operator.state import *\n"
        "print(HeapStateBackend.__name__, 'RocksDBStateBackend' in globals())"
    )
    root = Path(__file__).resolve().parents[2]
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    assert output.stdout == "HeapStateBackend False\n", output.stderr


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
