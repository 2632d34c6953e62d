"""S12: a value state becomes a map state; beside the contract: namespaces, time to live, and what does not fit."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import StateError, StateMigrationError
from asyncio_operator.state import (
    HeapStateBackend,
    MapStateDescriptor,
    MigratingMapState,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
)
from asyncio_operator.testing.time import ManualClock

OLD, NEW = ValueStateDescriptor("old"), MapStateDescriptor("new")

touches = st.sampled_from(
    [
        ("get", lambda s: s.get(1), lambda d: d.get(1)),
        ("contains", lambda s: s.contains(2), lambda d: 2 in d),
        ("put", lambda s: s.put(3, "x"), lambda d: d.update({3: "x"})),
        ("put_all", lambda s: s.put_all({1: None, 4: "y"}), lambda d: d.update({1: None, 4: "y"})),
        ("remove", lambda s: s.remove(1), lambda d: d.update() if d.pop(1, None) else None),
        ("items", lambda s: list(s.items()), lambda d: sorted(d.items())),
        ("keys", lambda s: list(s.keys()), sorted),
        ("values", lambda s: list(s.values()), lambda d: [d[key] for key in sorted(d)]),
        ("is_empty", lambda s: s.is_empty(), lambda d: not d),
        ("clear", lambda s: s.clear(), lambda d: d.clear()),
    ]
)


@pytest.mark.parametrize("wrong", [5, [1, 2], {None: 1}, {"a": 1, (1, None): 2}], ids=repr)
def test_S12_what_does_not_fit_stays_as_it_is(wrong, make):
    backend = make()
    backend.set_current_key("k")
    old = backend.value_state(OLD)
    old.update(wrong)
    state: MigratingMapState[Any, Any] = MigratingMapState(backend, OLD, NEW)
    for action in (lambda: state.get("a"), lambda: state.put("a", 1), lambda: list(state.items()), state.is_empty):
        with pytest.raises(StateMigrationError, match=r"state 'old', key 'k'"):
            action()
    assert old.value() == wrong
    assert backend.num_entries("new") == 0


@pytest.mark.parametrize("update_type", UpdateType)
def test_S12_E2_a_move_keeps_the_age_that_reading_leaves(update_type, make):
    clock = ManualClock()
    backend = make(clock=clock)
    backend.set_current_key(1)
    ttl = StateTtlConfig(10.0, update_type=update_type, cleanup=())
    backend.value_state(ValueStateDescriptor("before", ttl=ttl)).update({"a": 1, "b": 2})
    state: MigratingMapState[str, int] = MigratingMapState(
        backend, old=ValueStateDescriptor("before", ttl=ttl), new=MapStateDescriptor("after", ttl=ttl)
    )
    clock.advance(6)
    assert state.get("a") == 1
    clock.advance(6)
    assert state.get("b") == (2 if update_type is UpdateType.ON_READ_AND_WRITE else None)


class Refusing:
    name = "refusing"

    def serialize(self, value):
        raise LookupError("refused by the serialiser")

    def deserialize(self, data):
        return data


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(10.0)], ids=["for ever", "time to live"])
def test_S12_an_error_of_the_new_serialiser_leaves_the_old_value(ttl, make):
    backend = make()
    backend.set_current_key("k")
    old = ValueStateDescriptor("old", ttl=ttl)
    backend.value_state(old).update({"a": 1})
    state: MigratingMapState[str, int] = MigratingMapState(
        backend, old, MapStateDescriptor("new", value_serializer=Refusing(), ttl=ttl)
    )
    with pytest.raises(StateMigrationError, match=r"state 'old', key 'k'.*LookupError: refused"):
        state.get("a")
    assert backend.value_state(old).value() == {"a": 1}


@pytest.mark.parametrize("old_ttl", [None, StateTtlConfig(60)])
@pytest.mark.parametrize("new_ttl", [None, StateTtlConfig(60)])
def test_S12_a_dict_that_is_written_after_the_move_replaces_the_map(make, old_ttl, new_ttl):
    backend = make()
    old, new = ValueStateDescriptor("old", ttl=old_ttl), MapStateDescriptor("new", ttl=new_ttl)
    moving: MigratingMapState[Any, Any] = MigratingMapState(backend, old, new)
    value = backend.value_state(old)
    backend.set_current_key("k")
    for written in ({"a": 1, "b": 2}, {"a": 3}, {}, {"c": 4}):
        value.update(written)
        assert dict(moving.items()) == written
        assert value.value() is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_S12_every_method_sees_what_the_old_value_held_and_finish_moves_the_rest(data):
    """On both backends, with time to live or without: against the dicts that were written."""
    clock = ManualClock()
    ttl = data.draw(st.sampled_from([None, StateTtlConfig(10, cleanup=())]))
    old, new = ValueStateDescriptor("old", ttl=ttl), MapStateDescriptor("new", ttl=ttl)
    places = st.tuples(st.integers(0, 1), st.sampled_from([None, "w"]))
    entries = st.dictionaries(st.integers(0, 3), st.integers(), min_size=1, max_size=3)
    written = data.draw(st.dictionaries(places, entries, min_size=1))
    steps = data.draw(st.lists(st.tuples(places, touches), max_size=12))
    with tempfile.TemporaryDirectory() as directory:
        for backend in (HeapStateBackend(clock=clock), RocksDBStateBackend(f"{directory}/state", clock=clock)):
            value = backend.value_state(old)
            state: MigratingMapState[Any, Any] = MigratingMapState(backend, old, new)

            def at(place, backend=backend):
                backend.set_current_namespace(place[1])
                backend.set_current_key(place[0])

            for place, held in written.items():
                at(place)
                value.update(held)
            model = copy.deepcopy(written)
            for place, (_, on_state, on_model) in steps:
                at(place)
                assert on_state(state) == on_model(model.setdefault(place, {}))
            before = backend.slot
            state.finish()
            assert backend.slot == before
            assert backend.num_entries("old") == 0
            state.finish()
            backend.drop("old")
            assert [one.name for one in SnapshotReader(backend.snapshot()).states()] == ["new"]
            for place, expected in model.items():
                at(place)
                assert dict(state.items()) == expected
            backend.set_current_key(9)
            for use in (value.value, lambda value=value: value.update({}), value.clear):
                with pytest.raises(StateError, match="'old' was dropped"):
                    use()
            state.put(1, 1)
            state.clear()
            backend.value_state(old).update({"new": 1})
            assert backend.value_state(old).value() == {"new": 1}
            backend.close()


def test_S12_a_new_state_of_the_name_of_a_dropped_one_is_no_part_of_the_map(make):
    backend = make()
    state: MigratingMapState[Any, Any] = MigratingMapState(backend, OLD, NEW)
    backend.set_current_key("k")
    state.put("a", 1)
    state.finish()
    backend.drop("old")
    again = backend.value_state(OLD)
    again.update({"b": 2})
    state.finish()
    assert dict(state.items()) == {"a": 1}
    state.clear()
    assert state.is_empty()
    assert again.value() == {"b": 2}


def test_S12_what_does_not_fit_stops_the_end_of_a_migration(make):
    backend = make()
    state: MigratingMapState[Any, Any] = MigratingMapState(backend, OLD, NEW)
    backend.set_current_key("k")
    old = backend.value_state(OLD)
    old.update([1])
    with pytest.raises(StateMigrationError, match=r"state 'old', key 'k'"):
        state.finish()
    with pytest.raises(StateError, match="state 'old' has entries"):
        backend.drop("old")
    assert old.value() == [1]


def test_S12_only_a_state_that_is_there_is_dropped(make):
    backend = make(clock=(clock := ManualClock()))
    with pytest.raises(StateError, match="has no state 'old': its states are none"):
        backend.drop("old")
    backend.set_current_key(1)
    backend.value_state(ValueStateDescriptor("old", ttl=StateTtlConfig(1, cleanup=()))).update(1)
    clock.advance(1)
    backend.drop("old")  # What has expired is no entry.
    assert list(backend.keys("old")) == []
