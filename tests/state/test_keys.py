"""Keys as bytes, and the layout of addresses: S3 and the order of S6."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.errors import StateError
from asyncio_operator.state.key_groups import KeyGroupRange, addresses_of, group_prefix, group_width, key_group
from asyncio_operator.state.keys import KeySerializer, deserialize_key, serialize_key
from asyncio_operator.state.layout import describe_slot, parse_slot, sequence_bytes, serialize_namespace
from asyncio_operator.state.rocksdb.state_directory import prefix_end

texts = st.text(st.characters(), max_size=5) | st.text("\x00\x01ab", max_size=4)
scalars = st.one_of(
    *(st.integers(), st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**512]), texts, st.binary(max_size=5)),
    *(st.booleans(), st.floats(), st.decimals(), st.dates(), st.datetimes(), st.uuids()),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(timezone(timedelta(hours=5)))),
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


def strictly_equal(a, b):
    """Equal and of the same types, all the way down; every NaN is the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(strictly_equal, a, b))
    if isinstance(a, Decimal) and (a.is_nan() or b.is_nan()):
        return a.is_nan() and b.is_nan()
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) and math.isnan(b)
    return a == b and (not isinstance(a, datetime) or (a.tzinfo is None) == (b.tzinfo is None))


@given(keys)
def test_S3_keys_come_back(key):
    data = serialize_key(key)
    found, end = deserialize_key(data)
    assert end == len(data)
    assert strictly_equal(found, key)


@given(keys | st.text("ab\x00é", max_size=200) | st.integers(-(2**33), 2**33), st.sampled_from([1, 2, 128, 129, 32768]))
def test_S3_an_address_begins_with_the_group_and_the_bytes_of_its_key(key, max_parallelism):
    group = key_group(key, max_parallelism)
    prefix = group_prefix(group, max_parallelism)
    address = addresses_of(KeyGroupRange(group, group), max_parallelism, {group: prefix}, {})
    assert [address(key) for _ in range(2)] == [prefix + serialize_key(key)] * 2
    other = addresses_of(KeyGroupRange(group, group), max_parallelism, {}, {})
    with pytest.raises(StateError, match="outside the range"):
        other(key)


@given(st.tuples(keys, keys | st.none(), keys), st.tuples(keys, keys | st.none(), keys))
def test_S3_different_triples_have_different_bytes(first, second):
    def address(triple):
        key, namespace, user_key = triple
        return serialize_key(key) + serialize_namespace(namespace) + serialize_key(user_key)

    def same(a, b):
        return (a is None) == (b is None) and (a is None or strictly_equal(a, b))

    assert (address(first) == address(second)) == all(map(same, first, second))


@given(keys, keys)
def test_S3_no_key_begins_with_another(first, second):
    a, b = serialize_key(first), serialize_key(second)
    assert a == b or not (a.startswith(b) or b.startswith(a))


sorting = (st.integers(), texts, st.binary(), st.dates(), st.datetimes(), st.floats(allow_nan=False))


@given(st.one_of(*(st.tuples(kind, kind) for kind in sorting)))
def test_S6_bytes_sort_as_values(pair):
    first, second = pair
    assert (serialize_key(first) < serialize_key(second)) == (first < second)


@given(st.lists(st.integers() | texts, max_size=3), st.lists(st.integers() | texts, max_size=3))
def test_S6_tuples_sort_item_by_item(first, second):
    def order(items):
        return [serialize_key(item) for item in items]

    assert (serialize_key(tuple(first)) < serialize_key(tuple(second))) == (order(first) < order(second))


def test_S1_one_key_where_python_calls_equal_what_has_one_type():
    assert serialize_key(0.0) == serialize_key(-0.0)
    assert serialize_key(Decimal("1.0")) == serialize_key(Decimal("1.00")) == serialize_key(Decimal("0.1E1"))
    assert serialize_key(Decimal(0)) == serialize_key(Decimal("-0.000"))
    assert serialize_key(float("nan")) == serialize_key(-float("nan"))
    there = datetime(2024, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))
    assert serialize_key(there) == serialize_key(datetime(2024, 1, 1, tzinfo=UTC))
    assert len({serialize_key(key) for key in (1, True, 1.0, Decimal(1), "1", b"1", (1,))}) == 7
    assert serialize_key(date(2024, 1, 1)) != serialize_key(datetime(2024, 1, 1))


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize("key", [None, [1], (1, (None,)), _Text("a"), {"a": 1}, timedelta(1)], ids=repr)
def test_a_wrong_key_is_named(key):
    with pytest.raises(StateError, match=r"cannot be a key"):
        serialize_key(key)


def test_a_key_that_is_too_deep_or_out_of_time_is_refused():
    deep: tuple = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(StateError, match="deep"):
        serialize_key(deep)
    with pytest.raises(StateError, match="9999"):
        serialize_key(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))))


@given(st.binary(max_size=40))
def test_damaged_bytes_are_a_state_error_or_a_key(data):
    try:
        found, end = deserialize_key(data)
    except StateError:
        return
    assert found is None or strictly_equal(deserialize_key(serialize_key(found))[0], found)
    assert 0 < end <= len(data)


@given(keys, keys | st.none(), st.binary(max_size=5), st.sampled_from([1, 128, 129, 32768]))
def test_S3_a_slot_is_found_in_its_address(key, namespace, sub, max_parallelism):
    slot = group_prefix(0, max_parallelism) + serialize_key(key) + serialize_namespace(namespace)
    found, namespace_bytes, length = parse_slot(slot + sub, group_width(max_parallelism))
    assert strictly_equal(found, key)
    assert namespace_bytes == serialize_namespace(namespace)
    assert length == len(slot)


def test_the_serialiser_of_keys_takes_the_bytes_of_one_key():
    for damaged in (b"", KeySerializer().serialize(1) + b"x"):
        with pytest.raises(StateError, match="damaged"):
            KeySerializer().deserialize(damaged)


def test_S3_the_layout_is_what_it_is_written_to_be():
    assert group_prefix(127, 128) == b"\x7f"
    assert group_prefix(128, 129) == b"\x00\x80"
    assert serialize_key("a\x00b") == b"\x05a\x00\xffb\x00\x01"
    assert serialize_key(b"") == b"\x04\x00\x01"
    assert serialize_key(-1) == b"\x07\x7f\xff\xff\xff\xff\xff\xff\xff"
    assert serialize_key(2**64) == b"\x08\x00\x00\x00\x09\x01" + bytes(8)
    assert serialize_key((True, False)) == b"\x0f\x03\x02\x00"
    assert serialize_namespace(None) == b"\x01"
    assert sequence_bytes(258) == bytes(6) + b"\x01\x02"
    assert describe_slot(b"\x00" + serialize_key("k") + b"\x01", 1) == "key 'k'"
    assert describe_slot(b"\x00" + serialize_key("k") + serialize_key(2), 1) == "key 'k', namespace 2"
    assert "zz" in describe_slot(b"\x00zz", 1) or "7a7a" in describe_slot(b"\x00zz", 1)


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_the_end_of_a_prefix_is_its_end(prefix, data):
    end = prefix_end(prefix)
    inside = data >= prefix and (end is None or data < end)
    assert inside == data.startswith(prefix)


class Vague(tzinfo):
    """A zone that gives no offset: the machine's own would be taken."""

    def utcoffset(self, moment):
        return None

    dst = utcoffset

    def tzname(self, moment):
        return "vague"


def test_S1_a_datetime_whose_zone_gives_no_offset_is_no_key():
    with pytest.raises(StateError, match="no offset"):
        serialize_key(datetime(2024, 7, 1, tzinfo=Vague()))
