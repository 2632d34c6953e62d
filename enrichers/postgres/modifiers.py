"""Type modifiers of a query's result: the 10 and 2 of ``numeric(10,2)``. Those of a table are in the catalog.

The server sends them with the description of a statement, and asyncpg ignores them. While the statement is prepared, a
`Listener` is between the connection's transport and its protocol, and reads them from the bytes. That uses two private
attributes of asyncpg, because no public way works with every server: a read-only transaction, and so every standby,
refuses a temporary table or view; ``pg_prepared_statements`` has the types without modifiers; ``cursor_to_xmlschema``
leaves out those of arrays, and needs a server built with libxml.

If another version of asyncpg has changed these attributes, nothing breaks: the modifiers are unknown, a numeric becomes
the widest decimal with the guard for unknown sizes, and a warning is logged.

Source: PostgreSQL documentation, "Message Formats": RowDescription, NoData.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from struct import unpack_from
from typing import Any

import asyncpg

logger = logging.getLogger("asyncio_operator.postgres")


class Listener(asyncio.Protocol):
    """Passes data from a connection's transport to its protocol for a while, and keeps a copy of it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._transport = getattr(connection, "_transport", None)
        self._protocol: Any = getattr(connection, "_protocol", None)
        if not (hasattr(self._transport, "set_protocol") and isinstance(self._protocol, asyncio.Protocol)):
            self._transport = None
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

    def modifiers(self, columns: int) -> list[int]:
        """The type modifiers of the described statement; -1 for a column without one, or if it is unknown."""
        try:
            description = self._described()
            # Per column a name, a zero byte, and 18 bytes of numbers.
            (count,) = unpack_from(">h", description)
            found, start = [], 2
            for _ in range(count):
                numbers = description.index(b"\0", start) + 1
                found.append(unpack_from(">ihihih", description, numbers)[4])
                start = numbers + 18
        except (ValueError, IndexError, struct.error):
            found = []
        if len(found) == columns:
            return found
        logger.warning(
            "this version of asyncpg (%s) does not show the precision and scale of a numeric: all are taken for "
            "decimal(38,18), and a value that does not fit is an error",
            asyncpg.__version__,
        )
        return [-1] * columns

    def _described(self) -> bytes:
        """The body of the first RowDescription, or an empty one for a statement without a result."""
        start = 0
        while start + 5 <= len(self._received):
            (length,) = unpack_from(">i", self._received, start + 1)
            match chr(self._received[start]):
                case "T":
                    return bytes(self._received[start + 5 : start + 1 + length])
                case "n":
                    return _NO_COLUMNS
            start += 1 + length
        return b""


_NO_COLUMNS = b"\0\0"
