"""Stored entries as bytes: what a serialiser gives, after a timestamp if the state has time to live (`layout`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.layout import NOT_BEGUN, STAMP_BIAS, STAMP_SIZE, stamp, stamped_at
from asyncio_operator.state.serializers import BUILTIN, Serializer
from asyncio_operator.state.table import Codec


class BytesCodec(Codec):
    """A codec whose stored entries are bytes."""

    def __init__(self, serializer: Serializer) -> None:
        # The built-in serialiser gives bytes for certain; another one is checked at every write.
        self.encode = serializer.serialize if serializer is BUILTIN else checked(serializer)
        self.decode = serializer.deserialize

    def to_bytes(self, stored: bytes) -> bytes:
        return stored

    def from_bytes(self, data: bytes) -> bytes:
        return data

    def stamp(self, timestamp: int, stored: bytes) -> bytes:
        return stamp(timestamp + STAMP_BIAS) + stored

    def timestamp(self, stamped: bytes) -> int:
        timestamp: int = stamped_at(stamped)[0] - STAMP_BIAS
        return timestamp

    def unstamp(self, stamped: bytes) -> bytes:
        return stamped[STAMP_SIZE:]

    def after(self, stamped: bytes, deadline: int) -> bytes | None:
        return stamped[STAMP_SIZE:] if deadline < stamped_at(stamped)[0] - STAMP_BIAS < NOT_BEGUN else None


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
