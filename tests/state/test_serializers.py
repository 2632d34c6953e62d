"""The built-in serialiser: what goes in comes out, with its types, and nothing is executed."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import BuiltinSerializer, Serializer, ValueStateDescriptor
from asyncio_operator.state.serializers import BUILTIN
from tests.ids import shown

scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters()), st.binary()),
    *(st.dates(), st.datetimes(), st.times(), st.timedeltas(timedelta(-(10**8)), timedelta(10**8)), st.uuids()),
    *(st.decimals(allow_nan=False), st.binary().map(bytearray)),
    st.datetimes(timezones=st.just(timezone(timedelta(hours=-7, seconds=3)))),
)
hashable = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars | st.frozensets(hashable),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_values_come_back_with_their_types(value):
    found = BUILTIN.deserialize(BUILTIN.serialize(value))
    assert found == value
    assert repr(found) == repr(value) or isinstance(value, frozenset | dict | list | tuple)
    assert BUILTIN.serialize(found) == BUILTIN.serialize(value)
    assert type(found) is type(value)


@given(values)
def test_a_copy_is_equal_and_shares_nothing_that_changes(value):
    held = BUILTIN.keep(value)
    for _ in range(2):
        copy = BUILTIN.kept(held)
        assert BUILTIN.serialize(copy) == BUILTIN.serialize(value)
        assert copy is not value or BUILTIN.kept(BUILTIN.keep([value]))[0] is value


def test_special_numbers_and_times():
    found = BUILTIN.deserialize(BUILTIN.serialize([float("nan"), -0.0, Decimal("NaN"), Decimal("1.500")]))
    assert repr(found) == "[nan, -0.0, Decimal('NaN'), Decimal('1.500')]"
    for value in (datetime(2024, 10, 27, 2, fold=1), time(2, fold=1), time(1, tzinfo=UTC)):
        found = BUILTIN.deserialize(BUILTIN.serialize(value))
        assert (found, found.fold) == (value, value.fold)
    zoned = datetime(2024, 7, 1, tzinfo=ZoneInfo("UTC"))
    assert BUILTIN.deserialize(BUILTIN.serialize(zoned)).utcoffset() == timedelta(0)


class _Number(int):
    pass


@pytest.mark.parametrize(
    "value", [object(), _Number(1), [1, {2: object}], {object(): 1}, range(3), {_Number(1)}], ids=shown
)
def test_what_it_does_not_take_is_named(value):
    for attempt in (BUILTIN.serialize, BUILTIN.keep):
        with pytest.raises(StateError, match="cannot be stored"):
            attempt(value)


def test_a_value_that_holds_itself_is_refused():
    value: list = []
    value.append(value)
    for attempt in (BUILTIN.serialize, BUILTIN.keep):
        with pytest.raises(StateError, match="holds itself"):
            attempt(value)


@given(st.binary(max_size=30))
def test_damaged_bytes_are_a_state_error_or_a_value(data):
    try:
        value = BUILTIN.deserialize(data)
    except StateError:
        return
    BUILTIN.serialize(value)


def test_it_reads_no_pickle():
    with pytest.raises(StateError, match="damaged"):
        BUILTIN.deserialize(pickle.dumps({"a": 1}))


def test_a_serializer_is_checked_when_the_descriptor_is_made():
    assert isinstance(BuiltinSerializer(), Serializer)

    class Nameless:
        def serialize(self, value):
            return b""

        def deserialize(self, data):
            return None

    wrong: Any
    for wrong in (object(), Nameless(), "json"):
        with pytest.raises(ConfigurationError, match=r"serializer is .*`deserialize`"):
            ValueStateDescriptor("x", serializer=wrong)


class Money:
    def __init__(self, cents):
        self.cents = cents


class MoneySerializer(BuiltinSerializer):
    name = "money-1"

    def serialize(self, value):
        return super().serialize(value.cents)

    def deserialize(self, data):
        return Money(super().deserialize(data))


def test_S12_a_serializer_made_of_the_builtin_one_takes_its_own_values(make):
    backend = make()
    backend.set_current_key("k")
    descriptor = ValueStateDescriptor("price", serializer=MoneySerializer())
    price = backend.value_state(descriptor)
    price.update(Money(5))
    assert price.value().cents == 5
    with pytest.raises(StateError, match="has no attribute 'cents'"):
        price.update(5)
    restored = make()
    restored.restore([backend.snapshot()])
    restored.set_current_key("k")
    assert restored.value_state(descriptor).value().cents == 5
