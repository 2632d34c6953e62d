"""The beginning of an address (`layout`), key group and key, made fast: it is on the path of every access to state.

Most keys are short texts and integers: these are written and hashed in one step. Keys that come again are remembered,
because hashing takes a microsecond, and more than the rest of a read in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from zlib import crc32

from asyncio_operator.state.key_groups import (
    ONES,
    THIRTY_ONES,
    KeyGroupRange,
    java_long_hash,
    java_string_hash,
    murmur,
    outside,
)
from asyncio_operator.state.keys import Key, pack_int64, serialize_key

MEMO_SIZE, MEMO_KEY = 1 << 15, 64
"""The most keys that are remembered, and the most bytes of an address: so they take some 5 MB, and 12 MB at most."""

MEMO_TRIAL = 1 << 10
"""After this number of keys it is seen for the first time whether they come again; each time for twice as many."""

MEMO_REST = 32
"""If too few keys came again, this many times as many as were tried are not remembered: remembering a key that does not
come again costs a tenth of a write."""

_SHORT = 100  # Characters of a text that is hashed in one step.
_PLAIN = frozenset((str, int))
"""Types of keys, and of parts of keys, whose equal values are always the same key."""

_BIAS = 1 << 63


def addresses_of(
    key_groups: KeyGroupRange, max_parallelism: int, prefixes: Mapping[int, bytes], memo: dict[Key, bytes]
) -> Callable[[Key], bytes]:
    """A function that gives the address of a key, ``prefixes[key_group(key)] + serialize_key(key)``.

    It raises StateError if the key is None, not of a key type, or not in the key groups of the prefixes; `memo` has the
    keys that it remembers.
    """
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
            code, data = key, pack_int64(0x07, key + _BIAS)
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
