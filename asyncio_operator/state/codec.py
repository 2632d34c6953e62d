"""What a table stores: bytes that a serialiser gives, after a timestamp if the state has time to live (`layout`).

The heap keeps objects instead (`heap_backend.HeapCodec`), and no other module knows what a stored entry is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.layout import NOT_BEGUN, STAMP_BIAS, STAMP_SIZE, Stored, stamp, stamped_at
from asyncio_operator.state.serializers import BUILTIN, Serializer


class Codec:
    """Turns values into stored entries and back.

    A state with time to live has stamped entries, whose timestamps are milliseconds since the epoch.

    Attributes:
        encode: gives the stored form of a value.
        decode: gives the value of a stored form.
    """

    encode: Callable[[Any], Stored]
    decode: Callable[[Stored], Any]

    def __init__(self, serializer: Serializer) -> None:
        # The built-in serialiser gives bytes for certain; another one is checked at every write.
        self.encode = serializer.serialize if serializer is BUILTIN else checked(serializer)
        self.decode = serializer.deserialize

    def to_bytes(self, stored: Stored) -> bytes:
        """A stored entry as a snapshot holds it."""
        return stored  # type: ignore[no-any-return]

    def from_bytes(self, data: bytes) -> Stored:
        """The inverse of `to_bytes`."""
        return data

    def stamp(self, timestamp: int, stored: Stored) -> Stored:
        """An entry with a timestamp."""
        return stamp(timestamp + STAMP_BIAS) + stored

    def timestamp(self, stamped: Stored) -> int:
        """The timestamp of a stamped entry."""
        timestamp: int = stamped_at(stamped)[0] - STAMP_BIAS
        return timestamp

    def unstamp(self, stamped: Stored) -> Stored:
        """The entry without its timestamp."""
        return stamped[STAMP_SIZE:]

    def after(self, stamped: Stored, deadline: int) -> Stored | None:
        """The entry without its timestamp if that is after the deadline; else, or if its life has not begun, None."""
        return stamped[STAMP_SIZE:] if deadline < stamped_at(stamped)[0] - STAMP_BIAS < NOT_BEGUN else None

    def living(self, stamped: Sequence[Stored | None], deadline: int, absent: Any) -> list[Any]:
        """The values of entries whose timestamps lie after the deadline, `absent` instead of the others.

        The life of each has to have begun.
        """
        after, decode = self.after, self.decode
        return [absent if one is None or (rest := after(one, deadline)) is None else decode(rest) for one in stamped]


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
