"""Keys as bytes: the order-preserving, self-delimiting, reversible form of a key, a namespace or a map's user key.

A key is one tag byte and a body. Integers, text, bytes, floats, dates and timestamps sort by value; all other types
sort in some fixed order; types sort by tag. The bytes of a key are never the beginning of those of another key. So keys
may follow each other without a separator, and two different sequences of keys never have the same bytes.

    tag  type                                   body
    01   None (as the default namespace only)   nothing
    02   False                                  nothing
    03   True                                   nothing
    04   bytes                                  00 written as 00 FF, then the end 00 01
    05   text                                   UTF-8, written as bytes are
    06   int below -2**63                       4 bytes 2**32-1-n, then the n bytes of magnitude, inverted
    07   int of 64 bits                         8 bytes, value + 2**63
    08   int from 2**63                         4 bytes n, then the n bytes of magnitude
    09   float                                  8 bytes IEEE 754; sign bit flipped, or all bits if negative
    0A   Decimal                                shortest digits and exponent, written as text is
    0B   date                                   4 bytes, proleptic ordinal
    0C   datetime without zone                  8 bytes, microseconds since year 1
    0D   datetime with zone                     the same, in UTC
    0E   UUID                                   16 bytes
    0F   tuple                                  its items, then 00

All numbers are big-endian. Two keys are the same key if they have the same type and Python calls them equal: 1, True
and 1.0 are three keys, 0.0 and -0.0 are one, Decimal("1.0") and Decimal("1.00") are one, and every NaN is the same key.
Refused are subclasses, because the bytes do not hold their type; a datetime whose zone has no offset, because it is a
different instant on every machine; and a tuple that is nested more than `MAX_DEPTH` deep.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from asyncio_operator.errors import StateError, describe

Key = Any
"""bytes, str, int, float, bool, date, datetime, UUID, Decimal, or a tuple of them."""

MAX_DEPTH = 100
"""Levels of nesting in a key or a value: far below the limit of Python's stack, so what was written can be read."""

NONE = b"\x01"
_END = 0
_BIAS = 1 << 63
_ALL = (1 << 64) - 1
_NAN = struct.unpack(">Q", struct.pack(">d", float("nan")))[0]
pack_int64 = struct.Struct(">BQ").pack  # The bytes of an integer of 64 bits: the tag 07, and the value + 2**63.
_ordinal = struct.Struct(">BI").pack
_float = struct.Struct(">d")
_uint64 = struct.Struct(">Q")
_uint32 = struct.Struct(">I")
_YEAR_1 = datetime(1, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def serialize_key(key: Key) -> bytes:
    """The bytes of a key; StateError if it is None, or not of a key type."""
    kind = type(key)
    if kind is int and -_BIAS <= key < _BIAS:
        return pack_int64(0x07, key + _BIAS)
    if kind is str and "\x00" not in key and key.isascii():
        return b"\x05" + key.encode() + b"\x00\x01"  # type: ignore[no-any-return]
    writer = _WRITERS.get(kind)
    if writer is None:
        raise _no_key(key)
    return writer(key)


def deserialize_key(data: bytes, position: int = 0) -> tuple[Key, int]:
    """The key that starts at `position`, and the position after it; StateError for other bytes."""
    try:
        return _READERS[data[position]](data, position + 1)
    except (IndexError, KeyError, ValueError, OverflowError, ArithmeticError, RecursionError, struct.error) as error:
        raise StateError(
            f"damaged key: {describe(data)} holds no key at byte {position}; restore the state from a snapshot"
        ) from error


class KeySerializer:
    """The serialiser of this format, whose bytes sort: integers, text, bytes, floats, dates and timestamps by value.

    It takes keys, and tuples of them, item by item, as a `RocksDBCachingPriorityQueueSet` needs.
    """

    name = "builtin-key-1"

    serialize = staticmethod(serialize_key)

    def deserialize(self, data: bytes) -> Key:
        """The inverse of `serialize`; StateError for other bytes."""
        key, end = deserialize_key(data)
        if end != len(data):
            raise StateError(f"damaged key: {describe(data)} goes on after byte {end}; restore from a snapshot")
        return key


def _no_key(key: Any) -> StateError:
    if key is None:
        return StateError("None cannot be a key: give elements without a key a key of their own, or leave them out")
    return StateError(
        f"{describe(key)} of type {type(key).__module__}.{type(key).__qualname__} cannot be a key: keys are bytes, "
        "str, int, float, bool, date, datetime, UUID, Decimal and tuples of them (not their subclasses, and without "
        "None)"
    )


def _write_int(key: int) -> bytes:
    if -_BIAS <= key < _BIAS:
        return pack_int64(0x07, key + _BIAS)
    size = (key.bit_length() + 7) // 8
    if size >= 1 << 32:
        raise StateError(f"an integer of {size} bytes is too large for a key")
    magnitude = abs(key).to_bytes(size, "big")
    if key > 0:
        return b"\x08" + _uint32.pack(size) + magnitude
    return b"\x06" + (_uint32.pack((1 << 32) - 1 - size)) + bytes(255 - byte for byte in magnitude)


def _write_float(key: float) -> bytes:
    # Every NaN has the bytes of one, and adding 0.0 makes 0.0 of -0.0: each is one key.
    bits = _NAN if key != key else _uint64.unpack(_float.pack(key + 0.0))[0]
    return b"\x09" + _uint64.pack(bits ^ _ALL if bits >> 63 else bits | _BIAS)


def _write_decimal(key: Decimal) -> bytes:
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int):
        text = "NaN" if key.is_nan() else str(key)
    else:
        # Without the zeros at the end, so Decimal("1.0") and Decimal("1.00") have the same bytes.
        shown = "".join(map(str, digits))
        kept = shown.rstrip("0")
        text = f"{'-' if sign else ''}{kept}E{exponent + len(shown) - len(kept)}" if kept else "0"
    return b"\x0a" + _escaped(text.encode())


def _write_datetime(key: datetime) -> bytes:
    tag = b"\x0c"
    if key.tzinfo is not None:
        if key.utcoffset() is None:
            raise StateError(f"the key {describe(key)} has a zone that gives no offset: take one that does, or none")
        tag = b"\x0d"
        # The same instant in two zones is one key.
        try:
            key = key.astimezone(UTC)
        except OverflowError:
            raise StateError(f"the key {describe(key)} lies outside the years 1 to 9999 in UTC") from None
    return tag + _uint64.pack((key.replace(tzinfo=None) - _YEAR_1) // _MICROSECOND)


def _write_tuple(key: tuple[Any, ...], depth: int = 1) -> bytes:
    if depth > MAX_DEPTH:
        raise StateError(f"the key is nested too deeply, more than {MAX_DEPTH} levels; from there on: {describe(key)}")
    parts = [b"\x0f"]
    for item in key:
        writer = _WRITERS.get(type(item))
        if writer is None:
            raise _no_key(item if item is not None else key)
        # A recursion that counts: without it a deep tuple would end Python's stack in the middle of a write.
        parts.append(writer(item) if writer is not _write_tuple else _write_tuple(item, depth + 1))
    parts.append(b"\x00")
    return b"".join(parts)


def encode_text(text: str) -> bytes:
    """UTF-8, with lone surrogates let through: every ``str`` has bytes, and they sort as the text does."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _escaped(data: bytes) -> bytes:
    # The end, 00 01, sorts before an escaped zero, 00 FF, and before every other byte: so a text sorts before those
    # that begin with it.
    return (data.replace(b"\x00", b"\x00\xff") if b"\x00" in data else data) + b"\x00\x01"


def _unescaped(data: bytes, position: int) -> tuple[bytes, int]:
    start = position
    while True:
        position = data.index(b"\x00", position)
        if data[position + 1] == 1:
            return data[start:position].replace(b"\x00\xff", b"\x00"), position + 2
        if data[position + 1] != 255:
            raise ValueError("a zero byte is neither escaped nor an end")
        position += 2


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    raw, end = _unescaped(data, position)
    return raw.decode("utf-8", "surrogatepass"), end


def _read_big(data: bytes, position: int) -> tuple[int, int]:
    start = position + 4
    if data[position - 1] == 0x08:
        end = start + _uint32.unpack_from(data, position)[0]
        return int.from_bytes(_exactly(data, start, end), "big"), end
    end = start + (1 << 32) - 1 - _uint32.unpack_from(data, position)[0]
    return -int.from_bytes(bytes(255 - byte for byte in _exactly(data, start, end)), "big"), end


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    bits = _uint64.unpack_from(data, position)[0]
    return _float.unpack(_uint64.pack(bits ^ _BIAS if bits >> 63 else bits ^ _ALL))[0], position + 8


def _read_decimal(data: bytes, position: int) -> tuple[Decimal, int]:
    raw, end = _unescaped(data, position)
    return Decimal(raw.decode()), end


def _read_tuple(data: bytes, position: int) -> tuple[tuple[Any, ...], int]:
    items = []
    while data[position] != _END:
        item, position = _READERS[data[position]](data, position + 1)
        items.append(item)
    return tuple(items), position + 1


def _read_instant(data: bytes, position: int) -> datetime:
    return _YEAR_1 + timedelta(microseconds=_uint64.unpack_from(data, position)[0])


def _exactly(data: bytes, start: int, end: int) -> bytes:
    if len(data) < end:
        raise ValueError("the bytes end too early")
    return data[start:end]


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    int: _write_int,
    str: lambda key: b"\x05" + _escaped(encode_text(key)),
    bytes: lambda key: b"\x04" + _escaped(key),
    bool: lambda key: b"\x03" if key else b"\x02",
    float: _write_float,
    Decimal: _write_decimal,
    date: lambda key: _ordinal(0x0B, key.toordinal()),
    datetime: _write_datetime,
    UUID: lambda key: b"\x0e" + key.bytes,
    tuple: _write_tuple,
}

_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0x01: lambda data, at: (None, at),
    0x02: lambda data, at: (False, at),
    0x03: lambda data, at: (True, at),
    0x04: _unescaped,
    0x05: _read_text,
    0x06: _read_big,
    0x07: lambda data, at: (_uint64.unpack_from(data, at)[0] - _BIAS, at + 8),
    0x08: _read_big,
    0x09: _read_float,
    0x0A: _read_decimal,
    0x0B: lambda data, at: (date.fromordinal(_uint32.unpack_from(data, at)[0]), at + 4),
    0x0C: lambda data, at: (_read_instant(data, at), at + 8),
    0x0D: lambda data, at: (_read_instant(data, at).replace(tzinfo=UTC), at + 8),
    0x0E: lambda data, at: (UUID(bytes=_exactly(data, at, at + 16)), at + 16),
    0x0F: _read_tuple,
}
