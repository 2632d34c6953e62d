"""The address of an entry of keyed state, a composite key: format version 1.

    address = slot + sub
    slot    = key group, key, namespace
    sub     = nothing                          for value, reducing and aggregating state
              sequence number, 8 bytes         for list state; counted per backend, never used twice
              the serialised user key          for map state

    key group   big-endian; 1 byte up to a maximum parallelism of 128, else 2
    key         `keys.serialize_key`: self-delimiting, order-preserving
    namespace   the same; the byte 01 for the default namespace, None

Every state has a table of its own (a column family in RocksDB), so its name is not part of the address. The bytes of a
key and of a namespace say where they end, and a sub is the rest. So two different triples never have the same bytes;
the entries of a slot are neighbours, and so are the slots of a key group. No slot is the beginning of another slot, so
a prefix scan compares no keys: the bounds of the iterator are enough.

In RocksDB the column family ``default`` holds the data about the directory, in the built-in serialisation:

    "format"              {"format": 1, "max_parallelism": int, "start": int, "end": int}
    "sequence"            int; no sequence number from this one on was ever used
    "state/" + name       what `StateMeta.to_dict` gives
    "restoring"           True, while a restore is under way; a directory that is opened with it is emptied
    "retiming"            {"name": str, "meta": as "state/" + name, "after": bytes}, while the entries of a state get
                          timestamps or lose them: those up to the address `after` have changed
    "uses"                int; the number of slots in the order of use of a cache, if it has one

and the column family ``"state/" + name`` the entries of the state of that name. (A state of the kind "queue" is a
priority queue, such as of timers: its addresses are key group and serialised element, its entries empty.) A stored
entry is the serialised value;
with time to live, 8 bytes before it (`stamp`): milliseconds since the epoch + 2**63, big-endian. The largest timestamp,
`NOT_BEGUN`, is that of an entry from before its state got a time to live.
"""

from __future__ import annotations

import struct
from typing import Any

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.keys import NONE, Key, deserialize_key, serialize_key

FORMAT_VERSION = 1

Stored = Any  # A stored entry: bytes, or what the codec of the heap makes; never None.

SEQUENCE_BLOCK = 1 << 16
"""Sequence numbers are reserved in blocks of this size, so that a crash may lose numbers but never repeats one."""

FORMAT_KEY = b"format"
SEQUENCE_KEY = b"sequence"
RESTORING_KEY = b"restoring"
RETIMING_KEY = b"retiming"
USES_KEY = b"uses"
STATE_PREFIX = "state/"


STAMP_SIZE = 8
STAMP_BIAS = 1 << 63

_uint64 = struct.Struct(">Q")
stamp = _uint64.pack
"""The bytes of a timestamp + `STAMP_BIAS`, which come before an entry. `stamped_at` reads them: a tuple of one int."""
stamped_at = _uint64.unpack_from

NOT_BEGUN = STAMP_BIAS - 1
"""The timestamp of an entry whose life begins when it is first read, or met by a clean-up (law E11)."""


def check_format(what: str, found: Any, known: int = FORMAT_VERSION) -> None:
    """Raises StateError unless something was written in the version of its format that is known here."""
    if found != known:
        raise StateError(
            f"{what} has format {describe(found)}, this version reads {known}: take it to the version that wrote it"
        )


def retimed(stored: bytes, had: bool, has: bool) -> bytes:
    """A stored entry of a state that had a time to live, or had none, for the state that has one, or has none."""
    if had == has:
        return stored
    return stamp(NOT_BEGUN + STAMP_BIAS) + stored if has else stored[STAMP_SIZE:]


def serialize_namespace(namespace: Key | None) -> bytes:
    """The bytes of a namespace; None is the default one."""
    if namespace is None:
        return NONE
    try:
        return serialize_key(namespace)
    except StateError as error:
        raise StateError(f"the namespace {describe(namespace)} has to be of a type of keys, or None: {error}") from None


def parse_slot(address: bytes, width: int) -> tuple[Key, bytes, int]:
    """Key, bytes of the namespace, and length of the slot at the beginning of an address; StateError if it is none."""
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
