"""Type modifiers of a statement's result: the 10 and 2 of ``numeric(10,2)``.

The server sends them with the description of a statement, and asyncpg reads over them. A `Listener` stands between
a connection's transport and its protocol for as long as it takes to prepare the statement, and reads them from the
bytes. A connection that does not show its transport gives none, and whoever asks has to do with the type alone.

Source: PostgreSQL documentation, "Message Formats": RowDescription, NoData.
"""

from __future__ import annotations

import asyncio
from struct import unpack_from
from typing import Any

import asyncpg


class Listener(asyncio.Protocol):
    """Stands between a connection's transport and its protocol for a while, and keeps a copy of what comes in."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._transport = getattr(connection, "_transport", None)
        self._protocol: Any = getattr(connection, "_protocol", None)
        self._received = bytearray()

    def __enter__(self) -> Listener:
        if self._transport is not None:
            self._transport.set_protocol(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.set_protocol(self._protocol)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()  # type: ignore[no-any-return]

    def modifiers(self) -> list[int]:
        """The type modifiers of the first statement that was described, -1 where a type has none; none if unknown."""
        start = 0
        while start + 5 <= len(self._received):
            (length,) = unpack_from(">i", self._received, start + 1)
            match chr(self._received[start]):
                case "T":
                    return _modifiers(self._received[start + 5 : start + 1 + length])
                case "n":
                    return []
            start += 1 + length
        return []


def _modifiers(description: bytes | bytearray) -> list[int]:
    """The modifiers in the body of a RowDescription: per column a name, a zero byte, and 18 bytes of numbers."""
    (count,) = unpack_from(">h", description)
    found, start = [], 2
    for _ in range(count):
        numbers = description.index(b"\0", start) + 1
        found.append(unpack_from(">ihihih", description, numbers)[4])
        start = numbers + 18
    return found
