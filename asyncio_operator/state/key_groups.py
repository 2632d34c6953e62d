"""Key groups: the units in which keyed state is divided, snapshotted and moved.

The key group of a key is ``murmur(hash code of the key) % max_parallelism`` and never depends on the process, the
machine or the version. The hash code is Java's for integers of up to 64 bits (``Integer`` if 32 bits hold it, else
``Long``) and for text (over UTF-16 code units), so that these keys fall where Flink puts them; for every other type it
is the CRC-32 of the key's bytes (`keys.serialize_key`).

A range of key groups belongs to one of `parallelism` operators; range and index formulas are inverse to each other.
Source: Flink's ``KeyGroupRangeAssignment`` and ``MathUtils.murmurHash``.

The beginning of an address (`layout`), key group and key, is made with every access to state (`addresses_of`). So short
texts and integers, which most keys are, are written and hashed in one step; keys that come again are remembered,
because hashing takes more time than the rest of a read in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from asyncio_operator.checks import must_be, natural
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.keys import Key, pack_int64, serialize_key

try:
    from mmh3 import hash as _murmur3
except ImportError:  # not every installation has the extra "rocksdb"
    _murmur3 = None  # type: ignore[assignment]

MAX_PARALLELISM = 1 << 15  # Flink's bound; two bytes hold every key group.

_MASK = 0xFFFFFFFF
_uint32 = Struct("<I").pack

_BLOCK = 128  # Bytes that are hashed in one step: `int` takes time in proportion to the square of the number of digits.

_BLOCK_FACTOR = pow(31, _BLOCK, 1 << 32)
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
ONES = bytes(_DIGITS[unit % 31] for unit in range(256))
THIRTY_ONES = bytes(_DIGITS[unit // 31] for unit in range(256))
"""For each byte its two digits to the base 31; see `java_bytes_hash`."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups from `start` to `end`, both inclusive.

    Raises:
        ConfigurationError: a bound is negative or no int, or `start` is larger than `end`.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        natural("start", self.start)
        natural("end", self.end)
        if self.start > self.end:
            raise must_be("start", self.start, "at most end: both belong to the range")

    def __contains__(self, group: object) -> bool:
        return type(group) is int and self.start <= group <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def key_group(key: Key, max_parallelism: int) -> int:
    """The key group of a key, from 0 to ``max_parallelism - 1``.

    Raises:
        StateError: the key is None, or not of a key type.
        ConfigurationError: `max_parallelism` is not from 1 to 32,768.
    """
    check_max_parallelism(max_parallelism)
    return key_hash(key) % max_parallelism


def key_hash(key: Key) -> int:
    """A key's hash code and one round of MurmurHash3 over it, made non-negative: 31 bits; StateError for no key."""
    kind = type(key)
    if kind is int:
        return murmur(key if -0x80000000 <= key <= 0x7FFFFFFF else java_long_hash(key))
    return murmur(java_string_hash(key) if kind is str else crc32(serialize_key(key)))


def murmur_in_python(code: int) -> int:
    """As `murmur`, where mmh3 is not installed: it takes four times as long."""
    # Each product is cut to 32 bits; what a rotation leaves above them is cut with the product that follows.
    code = code * 0xCC9E2D51 & _MASK
    code = (code << 15 | code >> 17) * 0x1B873593 & _MASK
    code = ((code << 13 | code >> 19) * 5 + 0xE6546B64 & _MASK) ^ 4
    code = (code ^ code >> 16) * 0x85EBCA6B & _MASK
    code = (code ^ code >> 13) * 0xC2B2AE35 & _MASK
    code ^= code >> 16
    return code if code < 0x80000000 else (0x100000000 - code) & 0x7FFFFFFF


def murmur_in_c(code: int) -> int:
    """One round of MurmurHash3 over the low 32 bits of a hash code, made non-negative: 31 bits."""
    return abs(_murmur3(_uint32(code & _MASK))) & 0x7FFFFFFF


murmur = murmur_in_python if _murmur3 is None else murmur_in_c


def java_long_hash(key: int) -> int:
    """``Long.hashCode`` of an integer of 64 bits; of a larger one the CRC-32 of its bytes."""
    if -(1 << 63) <= key < 1 << 63:
        return (key ^ ((key & 0xFFFFFFFFFFFFFFFF) >> 32)) & _MASK
    return crc32(serialize_key(key))


def java_string_hash(text: str) -> int:
    """``String.hashCode`` as an unsigned 32-bit number: the sum of unit[i] * 31**(n - 1 - i) over UTF-16 units."""
    if text.isascii():
        return java_bytes_hash(text.encode())
    units = text.encode("utf-16-le", "surrogatepass")
    return (java_bytes_hash(units[::2]) + (java_bytes_hash(units[1::2]) << 8)) & _MASK


def java_bytes_hash(units: bytes) -> int:
    """The same sum over bytes.

    That sum is a number to the base 31 whose digits are the units, and `int` reads a number in C. A digit is at most
    30, and a byte may be larger. So each byte gives a digit to two numbers: its ones, and its thirty-ones.
    """
    total = 0
    for end in range(len(units) % _BLOCK or _BLOCK, len(units) + 1, _BLOCK):  # The first block may be shorter.
        block = units[max(end - _BLOCK, 0) : end]
        digits = int(block.translate(ONES), 31) + 31 * int(block.translate(THIRTY_ONES), 31)
        total = (total * _BLOCK_FACTOR + digits) & _MASK
    return total


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> KeyGroupRange:
    """The key groups of operator `index` of `parallelism`.

    Raises:
        ConfigurationError: not ``1 <= parallelism <= max_parallelism <= 32,768``, or no such index.
    """
    _check_parallelism(max_parallelism, parallelism)
    if type(index) is not int or not 0 <= index < parallelism:
        raise must_be("index", index, f"an int from 0 to {parallelism - 1}")
    start = (index * max_parallelism + parallelism - 1) // parallelism
    return KeyGroupRange(start, ((index + 1) * max_parallelism - 1) // parallelism)


def operator_index(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """The operator, of `parallelism`, that a key group belongs to.

    Raises:
        ConfigurationError: not ``1 <= parallelism <= max_parallelism <= 32,768``, or no such key group.
    """
    _check_parallelism(max_parallelism, parallelism)
    if type(key_group) is not int or not 0 <= key_group < max_parallelism:
        raise must_be("key_group", key_group, f"an int from 0 to {max_parallelism - 1}")
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """The smallest power of two that is at least 1.5 times `parallelism`, between 128 and 32,768 (Flink's rule)."""
    _check_parallelism(MAX_PARALLELISM, parallelism)
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_PARALLELISM)


def check_max_parallelism(max_parallelism: int) -> None:
    """Raises ConfigurationError unless `max_parallelism` is an int from 1 to 32,768."""
    if type(max_parallelism) is not int or not 0 < max_parallelism <= MAX_PARALLELISM:
        raise must_be("max_parallelism", max_parallelism, f"an int from 1 to {MAX_PARALLELISM}")


def check_key_groups(key_groups: KeyGroupRange, max_parallelism: int) -> None:
    """Raises ConfigurationError unless the range lies inside ``0..max_parallelism - 1``."""
    check_max_parallelism(max_parallelism)
    if not isinstance(key_groups, KeyGroupRange):
        raise must_be("key_groups", key_groups, "KeyGroupRange(0, 5), key_group_range(128, 4, 0), or the like")
    if key_groups.end >= max_parallelism:
        raise must_be("key_groups", key_groups, f"below max_parallelism, {max_parallelism}")


def resolve_key_groups(key_groups: KeyGroupRange | None, max_parallelism: int) -> KeyGroupRange:
    """The range given, or all key groups for None; raises as `check_key_groups` does."""
    check_max_parallelism(max_parallelism)
    if key_groups is None:
        return KeyGroupRange(0, max_parallelism - 1)
    check_key_groups(key_groups, max_parallelism)
    return key_groups


def group_of(key: Key, key_groups: KeyGroupRange, max_parallelism: int) -> int:
    """The key group of a key; StateError if it is outside the range, or the key is of no key type."""
    group = key_group(key, max_parallelism)
    if not key_groups.start <= group <= key_groups.end:
        raise outside(key, key_groups, max_parallelism)
    return group


def outside(key: Key, key_groups: KeyGroupRange, max_parallelism: int) -> StateError:
    """The error for a key whose key group is not in the range."""
    return StateError(
        f"the key {describe(key)} is of key group {key_group(key, max_parallelism)}, outside the range {key_groups} of "
        f"{max_parallelism}: it belongs to another operator"
    )


def check_group(group: int, key_groups: KeyGroupRange) -> None:
    """Raises StateError unless the key group lies in the range."""
    if group not in key_groups:
        raise StateError(
            f"key group {describe(group)} is outside the range {key_groups}: it belongs to another operator"
        )


def _check_parallelism(max_parallelism: int, parallelism: int) -> None:
    check_max_parallelism(max_parallelism)
    if type(parallelism) is not int or not 0 < parallelism <= max_parallelism:
        raise must_be("parallelism", parallelism, f"an int from 1 to {max_parallelism}")


def group_prefix(group: int, max_parallelism: int) -> bytes:
    """The first bytes of every address in a key group."""
    return group.to_bytes(group_width(max_parallelism), "big")


def group_width(max_parallelism: int) -> int:
    """The number of bytes of a key group in an address."""
    return 1 if max_parallelism <= 128 else 2


MEMO_SIZE, MEMO_KEY = 1 << 15, 64
"""The most keys that are remembered, and the most bytes of an address: so they take some 5 MB, and 12 MB at most."""

MEMO_TRIAL = 1 << 10
"""After this number of keys it is seen for the first time whether they come again; each time for twice as many."""

MEMO_REST = 32
"""If too few keys came again, this many times as many as were tried are not remembered: remembering a key that does not
come again costs a tenth of a write."""

_SHORT = 100  # Characters of a text that is hashed in one step.
_PLAIN = frozenset((str, int))  # Types of keys, and of parts of keys, whose equal values are always the same key.


def addresses_of(
    key_groups: KeyGroupRange, max_parallelism: int, prefixes: Mapping[int, bytes], memo: dict[Key, bytes]
) -> Callable[[Key], bytes]:
    """A function that gives ``prefixes[key_group(key)] + serialize_key(key)``, or raises StateError if the key is none,
    or of no group of the prefixes. `memo` has the keys that it remembers."""
    # Local variables of a function are read in a quarter of the time of attributes.
    hits = rest = 0
    limit = MEMO_TRIAL

    def address(key: Key) -> bytes:
        nonlocal hits, rest
        kind = type(key)
        # Only plain keys are looked up: 1, True and 1.0 are three keys, and one key of a dictionary.
        if memo and (kind in _PLAIN or _is_plain(key)) and (found := memo.get(key)) is not None:
            hits += 1
            return found
        if kind is str and 0 < len(key) <= _SHORT and key.isascii() and "\x00" not in key:
            # The bytes of a short ASCII text are its UTF-16 units, and one block: `java_bytes_hash` without its loop.
            units = key.encode()
            code = int(units.translate(ONES), 31) + 31 * int(units.translate(THIRTY_ONES), 31)
            data = b"\x05" + units + b"\x00\x01"
        elif kind is int and -0x80000000 <= key <= 0x7FFFFFFF:
            code, data = key, pack_int64(0x07, key + (1 << 63))
        else:
            data = serialize_key(key)
            code = java_long_hash(key) if kind is int else java_string_hash(key) if kind is str else crc32(data)
        prefix = prefixes.get(murmur(code) % max_parallelism)
        if prefix is None:
            raise outside(key, key_groups, max_parallelism)
        made: bytes = prefix + data
        if rest:
            rest -= 1
        elif len(made) <= MEMO_KEY and (kind in _PLAIN or _is_plain(key)):
            memo[key] = made
            if len(memo) >= limit:
                review()
        return made

    def review() -> None:
        """After a trial: goes on with twice as many keys, or forgets them, because too few came again or they are too
        many."""
        nonlocal hits, rest, limit
        whole = limit >= MEMO_SIZE
        # Of random keys, eight times as many as were tried, a sixteenth have come again.
        seldom = hits < (limit if whole else limit // 16)
        rest = MEMO_REST * limit if seldom else 0
        limit = min(2 * limit, MEMO_SIZE)
        if whole or seldom:
            memo.clear()
            hits = 0

    def single(key: Key) -> bytes:
        if not prefixes:
            raise outside(key, key_groups, max_parallelism)
        return prefixes[0] + serialize_key(key)

    return single if max_parallelism == 1 else address


def _is_plain(key: Key) -> bool:
    """Whether every plain key that is equal to this tuple in Python is the same key."""
    return type(key) is tuple and _PLAIN.issuperset(map(type, key))
