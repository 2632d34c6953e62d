"""Key groups: S1 and S2, against golden values and against the formulas."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.state import KeyGroupRange, default_max_parallelism, key_group, key_group_range, operator_index
from asyncio_operator.state.key_groups import java_string_hash, murmur_in_c, murmur_in_python
from asyncio_operator.state.keys import serialize_key

# Computed by Java: MathUtils.murmurHash(key.hashCode()) % 128 and % 32768, with Integer, Long and String keys.
GOLDEN = [
    (0, 94, 31198),
    (1, 86, 16342),
    (2, 127, 15231),
    (42, 29, 28189),
    (-1, 80, 15184),
    (-2, 66, 24130),
    (127, 27, 26779),
    (128, 41, 7209),
    (1_000_000, 17, 29457),
    (2**31 - 1, 62, 19646),
    (-(2**31), 108, 10348),
    (2**31, 108, 10348),
    (-(2**31) - 1, 108, 10348),
    (2**40, 54, 32054),
    (2**63 - 1, 108, 10348),
    (-(2**63), 108, 10348),
    (-(2**32), 80, 15184),
    ("", 94, 31198),
    ("a", 81, 19409),
    ("b", 22, 29846),
    ("key", 72, 31688),
    ("N14228", 38, 27302),
    ("hello world", 92, 28508),
    ("Grüße", 115, 9715),
    ("日本語", 27, 6683),
    ("😀", 54, 7350),
    ("a\x00b", 72, 10056),
    ("the quick brown fox jumps over the lazy dog", 56, 2104),
]


def rotated(number: int, by: int) -> int:
    return (number << by | number >> (32 - by)) & 0xFFFFFFFF


def murmur_by_definition(code: int) -> int:
    """MurmurHash3 of one 32-bit block with length 4, and its absolute value as a Java int."""
    block = rotated(code * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    digest = (rotated(block, 13) * 5 + 0xE6546B64 & 0xFFFFFFFF) ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        digest = (digest ^ digest >> shift) * factor & 0xFFFFFFFF
    signed = digest - 2**32 if digest >= 2**31 else digest
    return 0 if signed == -(2**31) else abs(signed)


def java_hash_by_definition(key: int | str) -> int:
    if isinstance(key, str):
        code, units = 0, key.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(units), 2):
            code = (31 * code + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
        return code
    if -(2**31) <= key < 2**31:
        return key & 0xFFFFFFFF
    return (key ^ (key & (2**64 - 1)) >> 32) & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "of_128", "of_32768"), GOLDEN)
def test_S1_golden_values(key, of_128, of_32768):
    assert key_group(key, 128) == of_128
    assert key_group(key, 32768) == of_32768
    assert murmur_by_definition(java_hash_by_definition(key)) % 32768 == of_32768


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(st.characters())), st.integers(1, 32768))
def test_S1_integers_and_text_follow_the_definition(key, max_parallelism):
    assert key_group(key, max_parallelism) == murmur_by_definition(java_hash_by_definition(key)) % max_parallelism


@pytest.mark.parametrize("murmur", [murmur_in_c, murmur_in_python])
@given(code=st.integers(0, 2**80) | st.sampled_from([0, 2**31, 2**32 - 1, 2_205_091_669]))
def test_S1_both_implementations_follow_the_definition(murmur, code):
    assert murmur(code) == murmur_by_definition(code)


@settings(max_examples=30)
@given(
    st.text(st.characters(exclude_categories=()), max_size=5),
    st.sampled_from(["a", "\x00", "ÿ", "日", "😀", "\ud800", "\udc00\ud800"]),
    st.sampled_from([99, 100, 101, 127, 128, 129, 255, 256, 257, 300]),
)
def test_S1_text_of_any_length_and_alphabet_has_javas_hash(text, letter, length):
    longer = (text + letter * length)[:length]
    for each in (text, longer, longer + text):
        assert java_string_hash(each) == java_hash_by_definition(each)
        assert key_group(each, 32768) == murmur_by_definition(java_hash_by_definition(each)) % 32768


OTHERS = [b"a", True, 1.5, date(2024, 1, 2), datetime(2024, 1, 2), datetime(2024, 1, 2, tzinfo=UTC), UUID(int=5)]
OTHERS += [Decimal("1.5"), (1, ("a", b"b")), 2**63]


@pytest.mark.parametrize("key", OTHERS, ids=repr)
def test_S1_other_types_take_the_checksum_of_their_bytes(key):
    assert key_group(key, 128) == murmur_by_definition(crc32(serialize_key(key))) % 128


@given(st.data(), st.integers(1, 32768))
def test_S2_ranges_tile_and_formulas_are_inverse(data, max_parallelism):
    parallelism = data.draw(st.integers(1, min(max_parallelism, 300)))
    ranges = [key_group_range(max_parallelism, parallelism, index) for index in range(parallelism)]
    assert ranges[0].start == 0
    assert ranges[-1].end == max_parallelism - 1
    assert all(after.start == before.end + 1 for before, after in pairwise(ranges))
    group = data.draw(st.integers(0, max_parallelism - 1))
    assert group in ranges[operator_index(max_parallelism, parallelism, group)]


def test_S2_wrong_arguments():
    max_parallelism: Any
    for max_parallelism, parallelism, index in [
        (0, 1, 0),
        (128, 0, 0),
        (128, 129, 0),
        (128, 4, 4),
        (128, 4, -1),
        (1.0, 1, 0),
    ]:
        with pytest.raises(ConfigurationError):
            key_group_range(max_parallelism, parallelism, index)
    group: Any
    for group in (-1, 128, None):
        with pytest.raises(ConfigurationError):
            operator_index(128, 4, group)
    end: Any
    for start, end in [(-1, 2), (3, 2), (0, None), (True, 3)]:
        with pytest.raises(ConfigurationError):
            KeyGroupRange(start, end)
    with pytest.raises(ConfigurationError):
        key_group("a", 0)


@pytest.mark.parametrize(
    ("parallelism", "expected"), [(1, 128), (85, 128), (86, 256), (128, 256), (200, 512), (20_000, 32768)]
)
def test_default_max_parallelism(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


def test_a_range_is_a_set_of_key_groups():
    groups = KeyGroupRange(3, 5)
    assert (list(groups), len(groups), 5 in groups, 6 in groups) == ([3, 4, 5], 3, True, False)
