"""Where an entry of keyed state stands: the composite key, format version 1.

    address = slot + sub
    slot    = key group, key, namespace
    sub     = nothing                          for value, reducing and aggregating state
              sequence number, 8 bytes         for list state; counted per backend, never given twice
              the serialised user key          for map state

    key group   big-endian; 1 byte up to a maximum parallelism of 128, else 2
    key         `keys.serialize_key`: self-delimiting, order-preserving
    namespace   the same; the byte 01 for the default namespace, None

Every state has a table of its own (a column family in RocksDB), so its name is no part of the address. Key and
namespace delimit themselves and a sub is the rest, so two different triples never give the same bytes, all entries of
a slot stand together, and all slots of a key group do. A slot never begins another slot, so a prefix scan needs no
comparing of keys: the iterator's bounds are the whole test.

In RocksDB the column family ``default`` holds what is not state, each value in the built-in serialisation:

    "format"              {"format": 1, "max_parallelism": int, "start": int, "end": int}
    "sequence"            int; no sequence number from here on was ever given
    "state/" + name       what `StateMeta.to_dict` gives
    "restoring"           True, while a restore is under way; a directory that is opened with it is emptied

and the column family ``"state/" + name`` the entries of the state of that name. A stored entry is the serialised value;
with time to live, 8 bytes before it (`stamp`): milliseconds since the epoch + 2**63, big-endian.
"""

from __future__ import annotations

import struct

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.keys import NONE, Key, deserialize_key, serialize_key

FORMAT_VERSION = 1

SEQUENCE_BLOCK = 1 << 16
"""Sequence numbers are reserved by the block, so that a crash can lose numbers but never repeat one."""

FORMAT_KEY = b"format"
SEQUENCE_KEY = b"sequence"
RESTORING_KEY = b"restoring"
STATE_PREFIX = "state/"


STAMP_SIZE = 8
STAMP_BIAS = 1 << 63

_uint64 = struct.Struct(">Q")
stamp = _uint64.pack
"""The bytes of a timestamp + `STAMP_BIAS` before an entry; `stamped_at` reads them, as a tuple of one."""
stamped_at = _uint64.unpack_from


def serialize_namespace(namespace: Key | None) -> bytes:
    """The bytes of a namespace; None is the default one."""
    if namespace is None:
        return NONE
    try:
        return serialize_key(namespace)
    except StateError as error:
        raise StateError(f"the namespace {describe(namespace)} has to be of a type of keys, or None: {error}") from None


def parse_slot(address: bytes, width: int) -> tuple[Key, bytes, int]:
    """The key, the namespace's bytes and the length of the slot that begins an address.

    Raises:
        StateError: the bytes are no address.
    """
    key, end = deserialize_key(address, width)
    _, length = deserialize_key(address, end)
    return key, address[end:length], length


def describe_slot(address: bytes, width: int) -> str:
    """Key and namespace of an address, for a message."""
    try:
        key, namespace, _ = parse_slot(address, width)
        where = f"key {describe(key)}"
        return where if namespace == NONE else f"{where}, namespace {describe(deserialize_key(namespace)[0])}"
    except StateError:
        return f"address {address.hex()[:200]}"


def sequence_bytes(sequence: int) -> bytes:
    """The sub of a list element."""
    return _uint64.pack(sequence)
