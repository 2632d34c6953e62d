"""Values as bytes.

A serialiser has a `name`, `serialize` and `deserialize`. Serialisers are compared by name: stored state keeps the name
of its serialiser. The built-in one can also copy a value. It takes the same values for both, so the heap backend keeps
values as objects.

The built-in serialiser keeps types. A value is one tag byte and a body:

    00 None    01 False    02 True
    03 int of 64 bits, 8 bytes signed           04 any other int: length, bytes signed
    05 float, 8 bytes IEEE 754                  06 text: length, UTF-8            07 bytes: length, bytes
    08 list   09 tuple: count, items            0A dict: count, keys and values in their order
    0B date: 4 bytes ordinal                    0C time, 0D datetime: length, ISO 8601; a fold of 1 is a final "F"
    0E timedelta: 4 + 4 + 4 bytes days, seconds, microseconds
    0F UUID: 16 bytes                           10 Decimal: length, text
    11 bytearray: length, bytes                 12 set, 13 frozenset: count, items in the order of their bytes

Numbers are big-endian, lengths and counts 4 bytes. The zone of a time is kept as its offset from UTC. Reading executes
no code, unlike pickle. Subclasses are refused, because the bytes do not hold their type. Values may be nested
`keys.MAX_DEPTH` levels deep.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from asyncio_operator.checks import must_be
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.keys import MAX_DEPTH, encode_text


@runtime_checkable
class Serializer(Protocol):
    """Turns values into bytes and back; equal names mean equal formats."""

    @property
    def name(self) -> str: ...

    def serialize(self, value: Any, /) -> bytes: ...

    def deserialize(self, data: bytes, /) -> Any: ...


class BuiltinSerializer:
    """The format above. Raises StateError for a value that it does not take, and for bytes that it did not write."""

    name = "builtin-1"

    def serialize(self, value: Any) -> bytes:
        if type(value) is str:
            try:
                raw = value.encode()
            except UnicodeEncodeError:
                raw = encode_text(value)
            return _TEXT_HEADS[len(raw)] + raw if len(raw) < 256 else _tagged_length(0x06, len(raw)) + raw
        return _write(value, 0)

    def deserialize(self, data: bytes) -> Any:
        try:
            if data[0] == 0x06 and _uint32.unpack_from(data, 1)[0] == len(data) - 5:
                return data[5:].decode("utf-8", "surrogatepass")
            value, end = _READERS[data[0]](data, 1)
        except RecursionError as error:
            raise StateError(
                "a value cannot be read: too many function calls are nested here for the levels of the value"
            ) from error
        except (LookupError, ValueError, TypeError, ArithmeticError, struct.error) as error:
            raise StateError(f"damaged value: {describe(data)}; restore the state from a snapshot") from error
        if end != len(data):
            raise StateError(f"damaged value: {describe(data)} goes on after byte {end}; restore from a snapshot")
        return value

    def keep(self, value: Any) -> Any:
        """A copy that no caller holds, from which `kept` makes others. It is not None.

        It takes what `serialize` takes, and nothing else.
        """
        kind = type(value)
        if kind in _IMMUTABLE:
            return NULL if value is None else value
        # As `_copy` finds it.
        flat = kind in _NESTED and len(value) >= WORTH and _IMMUTABLE.issuperset(map(type, value))
        if not flat or (kind is dict and not _IMMUTABLE.issuperset(map(type, value.values()))):
            return _copy(value, 0)
        fixed = kind is tuple or kind is frozenset
        return Flat(value if fixed else value.copy(), fixed)

    def kept(self, value: Any) -> Any:
        """A copy of what `keep` gave."""
        kind = type(value)
        if kind is Flat:
            return value.value if value.fixed else value.value.copy()
        return value if kind in _IMMUTABLE else _copy(value, 0)

    def __repr__(self) -> str:
        return "BuiltinSerializer()"


BUILTIN = BuiltinSerializer()

WORTH = 16  # Items from which on a `Flat` is made: it takes 32 bytes.


@dataclass(slots=True, eq=False)
class Flat:
    """A kept container of immutable values, or None. It was looked through once, and so each copy is made in C."""

    value: Any
    fixed: bool
    """Whether it cannot be changed, and needs no copy."""


NULL = Flat(None, fixed=True)


def check_serializer(argument: str, serializer: Any) -> Serializer:
    """The serialiser given, or the built-in one for None. ConfigurationError if it has no text `name`, no `serialize`
    or no `deserialize`."""
    if serializer is None:
        return BUILTIN
    named = isinstance(getattr(serializer, "name", None), str) and serializer.name
    if isinstance(serializer, type) or not (named and isinstance(serializer, Serializer)):
        raise must_be(argument, serializer, "an object with a `name`, `serialize` and `deserialize`, not a class")
    return serializer


def checked(serializer: Serializer) -> Callable[[Any], bytes]:
    """The serialiser's `serialize`, with a StateError for anything but bytes."""
    serialize = serializer.serialize

    def encode(value: Any) -> bytes:
        data = serialize(value)
        if type(data) is not bytes:
            raise StateError(
                f"the serialiser {serializer.name!r} gave {type(data).__name__} for {describe(value)}, not bytes"
            )
        return data

    return encode


def _copy(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind in _NESTED:
        depth = _deeper(value, depth)
        # Most containers are flat: looked through and copied in C, they take a fifth of the time.
        flat = _IMMUTABLE.issuperset(map(type, value))
        if kind is dict:
            if flat and _IMMUTABLE.issuperset(map(type, value.values())):
                return value.copy()
            return {_copy(k, depth): v if type(v) in _IMMUTABLE else _copy(v, depth) for k, v in value.items()}
        if flat:
            return value if kind is tuple or kind is frozenset else value.copy()
        items = [v if type(v) in _IMMUTABLE else _copy(v, depth) for v in value]
        return items if kind is list else kind(items)
    if kind is bytearray:
        return bytearray(value)
    # The bytes keep a zone as its offset. The copy does the same, so that both backends return the same value.
    if kind is time or kind is datetime:
        return value if value.tzinfo is None else BUILTIN.deserialize(BUILTIN.serialize(value))
    raise _no_value(value)


def _deeper(value: Any, depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise StateError(
            f"a value is nested too deeply, more than {MAX_DEPTH} levels, or holds itself; from there on: "
            f"{describe(value)}"
        )
    return depth + 1


def _no_value(value: Any) -> StateError:
    return StateError(
        f"{describe(value)} of type {type(value).__module__}.{type(value).__qualname__} cannot be stored: the built-in "
        "serialiser takes None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, dates, "
        "times, timedelta, UUID and Decimal (not their subclasses); give the descriptor a serialiser of your own"
    )


_uint32 = struct.Struct(">I")
_tagged_int = struct.Struct(">Bq").pack
_tagged_float = struct.Struct(">Bd").pack
_tagged_length = struct.Struct(">BI").pack
_TEXT_HEADS = [_tagged_length(0x06, length) for length in range(256)]
_int64 = struct.Struct(">q")
_float64 = struct.Struct(">d")
_duration = struct.Struct(">iii")


def _write_int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _tagged_int(0x03, value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return _tagged_length(0x04, len(raw)) + raw


def _raw(tag: int, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        raw = encode(value)
        return _tagged_length(tag, len(raw)) + raw

    return write


def _write(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind in _NESTED:
        return _NESTED[kind](value, _deeper(value, depth))
    writer = _WRITERS.get(kind)
    if writer is None:
        raise _no_value(value)
    return writer(value)


def _write_items(tag: int, items: Any, depth: int) -> bytes:
    return _tagged_length(tag, len(items)) + b"".join([_write(item, depth) for item in items])


def _write_dict(value: dict[Any, Any], depth: int) -> bytes:
    parts = [_write(part, depth) for pair in value.items() for part in pair]
    return _tagged_length(0x0A, len(value)) + b"".join(parts)


def _write_set(tag: int, value: Any, depth: int) -> bytes:
    # Sorted, because equal sets may be iterated in different orders, and equal values have to have equal bytes.
    return _tagged_length(tag, len(value)) + b"".join(sorted(_write(item, depth) for item in value))


def _iso(value: time | datetime) -> bytes:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise StateError(f"the time {describe(value)} has a zone whose offset is unknown without a date")
    return (value.isoformat() + ("F" if value.fold else "")).encode()


def _read_raw(decode: Callable[[bytes], Any]) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + 4
        end = start + _uint32.unpack_from(data, at)[0]
        if end > len(data):
            raise ValueError("the bytes end too early")
        return decode(data[start:end]), end

    return read


def _read_items(data: bytes, at: int, each: int = 1) -> tuple[list[Any], int]:
    count = _uint32.unpack_from(data, at)[0] * each
    at += 4
    items: list[Any] = []
    for _ in range(count):
        kind = data[at]
        if kind == 0x06:
            # As its reader, without a call: most items are texts, such as the keys of a dictionary.
            start = at + 5
            at = start + _uint32.unpack_from(data, at + 1)[0]
            if at > len(data):
                raise ValueError("the bytes end too early")
            items.append(data[start:at].decode("utf-8", "surrogatepass"))
            continue
        item, at = _READERS[kind](data, at + 1)
        items.append(item)
    return items, at


def _read_collection(make: Callable[[list[Any]], Any]) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        items, end = _read_items(data, at)
        return make(items), end

    return read


def _read_dict(data: bytes, at: int) -> tuple[dict[Any, Any], int]:
    flat, end = _read_items(data, at, each=2)
    return dict(zip(flat[::2], flat[1::2], strict=True)), end


def _read_iso(kind: type[time] | type[datetime], raw: bytes) -> time | datetime:
    text = raw.decode()
    return kind.fromisoformat(text.removesuffix("F")).replace(fold=text.endswith("F"))


_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, date, timedelta, UUID, Decimal})

_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x00",
    bool: lambda value: b"\x02" if value else b"\x01",
    int: _write_int,
    float: lambda value: _tagged_float(0x05, value),
    str: _raw(0x06, encode_text),
    bytes: lambda value: _tagged_length(0x07, len(value)) + value,
    date: lambda value: b"\x0b" + _uint32.pack(value.toordinal()),
    time: _raw(0x0C, _iso),
    datetime: _raw(0x0D, _iso),
    timedelta: lambda value: b"\x0e" + _duration.pack(value.days, value.seconds, value.microseconds),
    UUID: lambda value: b"\x0f" + value.bytes,
    Decimal: _raw(0x10, lambda value: str(value).encode()),
    bytearray: _raw(0x11, bytes),
}

_NESTED: dict[type, Callable[[Any, int], bytes]] = {
    list: lambda value, depth: _write_items(0x08, value, depth),
    tuple: lambda value, depth: _write_items(0x09, value, depth),
    dict: _write_dict,
    set: lambda value, depth: _write_set(0x12, value, depth),
    frozenset: lambda value, depth: _write_set(0x13, value, depth),
}

_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0x00: lambda data, at: (None, at),
    0x01: lambda data, at: (False, at),
    0x02: lambda data, at: (True, at),
    0x03: lambda data, at: (_int64.unpack_from(data, at)[0], at + 8),
    0x04: _read_raw(lambda raw: int.from_bytes(raw, "big", signed=True)),
    0x05: lambda data, at: (_float64.unpack_from(data, at)[0], at + 8),
    0x06: _read_raw(lambda raw: raw.decode("utf-8", "surrogatepass")),
    0x07: _read_raw(bytes),
    0x08: _read_collection(list),
    0x09: _read_collection(tuple),
    0x0A: _read_dict,
    0x0B: lambda data, at: (date.fromordinal(_uint32.unpack_from(data, at)[0]), at + 4),
    0x0C: _read_raw(partial(_read_iso, time)),
    0x0D: _read_raw(partial(_read_iso, datetime)),
    0x0E: lambda data, at: (timedelta(*_duration.unpack_from(data, at)), at + 12),
    0x0F: lambda data, at: (UUID(bytes=data[at : at + 16]), at + 16),
    0x10: _read_raw(lambda raw: Decimal(raw.decode())),
    0x11: _read_raw(bytearray),
    0x12: _read_collection(set),
    0x13: _read_collection(frozenset),
}
