"""A timer and its bytes.

The bytes of a timer are its timestamp + 2**63, 8 bytes big-endian, then its key and its namespace as `state.keys`
writes them: they sort by timestamp, negative ones included, and two timers have the same bytes only if they are the
same.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.keys import Key, deserialize_key, serialize_key
from asyncio_operator.state.layout import serialize_namespace

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1

_pack = struct.Struct(">Q").pack
_unpack = struct.Struct(">Q").unpack_from


class Timer(NamedTuple):
    """When (milliseconds since the epoch), for which key, in which namespace; None is the default namespace.

    Two timers are equal if their timestamps are and their keys and namespaces are the same key: 1, True and 1.0 are
    three.
    """

    timestamp: int
    key: Key
    namespace: Key | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timer):
            return NotImplemented
        if _is_plain(self) and _is_plain(other):
            return tuple.__eq__(self, other)
        return serialize_timer(self) == serialize_timer(other)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        if type(self[1]) in _PLAIN and type(self[2]) in _PLAIN:
            return _tuple_hash(self)
        return hash(serialize_timer(self))


_tuple_hash = tuple.__hash__
_PLAIN = frozenset({int, str, bytes, type(None)})


def _is_plain(timer: Timer) -> bool:
    """Whether Python's equality is that of keys."""
    return type(timer[1]) in _PLAIN and type(timer[2]) in _PLAIN


def serialize_timer(timer: Timer) -> bytes:
    """The bytes of a timer.

    Raises:
        StateError: a timestamp that is no int of 64 bits, or a key or a namespace that is none.
    """
    timestamp, key, namespace = timer
    check_timestamp(timestamp)
    return _pack(timestamp - MIN_TIMESTAMP) + serialize_key(key) + serialize_namespace(namespace)


def deserialize_timer(data: bytes) -> Timer:
    """The inverse of `serialize_timer`; StateError for other bytes."""
    if len(data) < 8:
        raise StateError(f"damaged timer {describe(data)}: restore a snapshot")
    key, position = deserialize_key(data, 8)
    namespace, end = deserialize_key(data, position)
    if end != len(data):
        raise StateError(f"damaged timer {describe(data)}: restore a snapshot")
    return Timer(_unpack(data)[0] + MIN_TIMESTAMP, key, namespace)


class All:
    """The type of `ALL`."""

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = All()
"""Stands for every namespace, where None is the default one."""


def check_timestamp(timestamp: int) -> None:
    """Raises StateError unless the timestamp is an int of 64 bits."""
    if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise StateError(
            f"timestamp {describe(timestamp)}: an int, milliseconds since the epoch, from -2**63 to 2**63 - 1 is needed"
        )


class TimerSerializer:
    """The serialiser of timers, for queues on disk."""

    name = "timer-1"

    def serialize(self, timer: Timer) -> bytes:
        """As `serialize_timer`."""
        return serialize_timer(timer)

    def deserialize(self, data: bytes) -> Timer:
        """As `deserialize_timer`."""
        return deserialize_timer(data)
