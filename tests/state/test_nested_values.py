"""What a state gives belongs to its caller, however it is nested (S4), and folds may change their arguments (S7)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)


def changed(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, list | tuple):
        for item in value:
            changed(item)
    elif isinstance(value, dict):
        for item in value.values():
            changed(item)
    if isinstance(value, list):
        value.append("changed")
    elif isinstance(value, dict):
        value["changed"] = True
    elif isinstance(value, set):
        value.add("changed")


MANY = range(40)
LARGE = [
    [*MANY],
    {n: n for n in MANY},
    {*MANY},
    (*MANY,),
    frozenset(MANY),
    [*MANY, [1]],
    {**dict.fromkeys(MANY), 7: [1]},
]


@pytest.mark.parametrize(
    "value", [[], {}, ([],), (0, {}), [([],)], {"a": ([],)}, ((([],),),), ({"a": [1]}, 2), *LARGE], ids=repr
)
def test_S4_what_a_state_gives_may_be_changed_however_it_is_nested(make, value):
    shown, backend = repr(value), make()
    never = backend.value_state(ValueStateDescriptor("never", default=value))
    held = backend.value_state(ValueStateDescriptor("held"))
    timed = backend.value_state(ValueStateDescriptor("timed", ttl=StateTtlConfig(60)))
    items = backend.list_state(ListStateDescriptor("items"))
    entries = backend.map_state(MapStateDescriptor("entries"))
    backend.set_current_key("k")
    given = deepcopy(value)
    held.update(given)
    timed.update(given)
    items.add(given)
    entries.put(1, given)
    changed(given)
    for _ in range(2):
        for got in (never.value(), held.value(), timed.value(), items.get()[0], entries.get(1), *entries.values()):
            assert repr(got) == shown
            changed(got)
    restored = make()
    restored.restore([backend.snapshot()])
    restored.set_current_key("k")
    again = restored.value_state(ValueStateDescriptor("held"))
    for _ in range(2):
        assert repr(again.value()) == shown
        changed(again.value())


class Bytes:
    """Keys that are their own bytes, as of a serialiser that inverts numbers to sort downwards."""

    name = "bytes"
    serialize = deserialize = staticmethod(bytes)


@pytest.mark.parametrize("namespace", [None, "w", 255, -1])
@pytest.mark.timeout(20)
def test_S6_a_map_has_every_key_whatever_its_bytes_begin_with(make, namespace):
    keys = [b"", b"\x00", b"\x7f", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff" * 9]
    backend = make()
    entries = backend.map_state(MapStateDescriptor("m", key_serializer=Bytes()))
    backend.set_current_namespace(namespace)
    for key in ("a", "b"):
        backend.set_current_key(key)
        entries.put_all(dict.fromkeys(keys, key))
    assert list(entries.items()) == [(one, "b") for one in keys]
    assert sorted(backend.keys("m")) == ["a", "b"]
    entries.clear()
    assert entries.is_empty()
    assert not any(map(entries.contains, keys))
    backend.set_current_key("a")
    assert list(entries.keys()) == keys
    for one in keys[:-1]:
        entries.remove(one)
    assert not entries.is_empty()


class InPlace:
    """Collects numbers in one list, which it changes, returns, and gives as the result."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        if value < 0:
            raise ValueError(value)
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


def extend(first, second):
    first.extend(second)
    return first


def test_S7_an_accumulator_that_is_changed_in_place_belongs_to_its_key(make):
    backend = make()
    state = backend.aggregating_state(AggregatingStateDescriptor("all", InPlace()))
    for key, values in (("a", [17, 11]), ("b", [1, 2]), ("a", [3]), ("b", [3, 2, 1])):
        backend.set_current_key(key)
        for value in values:
            state.add(value)
    for key, expected in (("a", [17, 11, 3]), ("b", [1, 2, 3, 2, 1])):
        backend.set_current_key(key)
        result = state.get()
        assert result == expected
        result.append("the caller's")
        assert state.get() == expected
        state.clear()
        assert state.get() is None
        state.add(5)
        assert state.get() == [5]


def test_S7_an_add_that_fails_leaves_the_accumulator_as_it_was(make):
    backend = make()
    state = backend.aggregating_state(AggregatingStateDescriptor("all", InPlace()))
    backend.set_current_key("a")
    with pytest.raises(StateError, match="ValueError"):
        state.add(-1)
    assert state.get() is None
    state.add(1)
    with pytest.raises(StateError, match="ValueError"):
        state.add(-1)
    assert state.get() == [1]


def test_S7_a_reduce_that_changes_its_arguments_changes_no_other_key(make):
    backend = make()
    state = backend.reducing_state(ReducingStateDescriptor("all", extend))
    shared = [0]
    for key in ("a", "b"):
        backend.set_current_key(key)
        state.add(shared)
        state.add([ord(key)])
    assert shared == [0]
    for key in ("a", "b"):
        backend.set_current_key(key)
        assert state.get() == [0, ord(key)]
