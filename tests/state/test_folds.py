"""Folds whose accumulators are changed in place: S7, S8 and S4 for what the user's function does to its arguments."""

from __future__ import annotations

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import AggregatingStateDescriptor, ListStateDescriptor, ReducingStateDescriptor


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


def test_S5_adding_nothing_changes_nothing(make):
    backend = make()
    backend.set_current_key("a")
    state = backend.list_state(ListStateDescriptor("list"))
    state.add_all([])
    assert state.get() == []
    assert backend.num_entries() == 0
    state.add_all([3, 4])
    state.add_all(())
    state.add_all([5])
    assert state.get() == [3, 4, 5]
