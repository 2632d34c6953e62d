"""A complete enricher of your own: rows of JSON from memcached, over its text protocol, many keys in one command.

    python -m examples.own_enricher

The program starts a small server with the part of the protocol that the enricher needs, looks up keys, checks the
contract with `check_enricher`, and prints the results. If you have a memcached, pass its host and port to
`MemcachedEnricher`. The enricher fulfils the whole contract: a specification that is checked when it is made, clients
that `open` makes and that stay out of pickles, keys that cannot break out of the command, batches, errors that say
whether a retry may help, and connections that are closed when a lookup is cancelled, so that no other lookup reads a
late answer.

Source of the protocol: protocol.txt of memcached: ``get <key>*``, answered by ``VALUE <key> <flags> <bytes>`` and the
value for each existing key, then ``END``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import Found, as_schema, describe, positive_int
from asyncio_operator.testing import check_enricher
from enrichers.typed import typed_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONGEST_KEY = 250
"""The number of bytes of the longest key that memcached takes."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

AIRPORTS = {
    "EWR": {"name": "Newark Liberty Intl", "altitude": 18},
    "JFK": {"name": "John F Kennedy Intl", "altitude": 13},
    "LGA": {"name": "La Guardia", "altitude": None},
}


class MemcachedEnricher(Enricher):
    """Rows from the JSON objects that memcached has under ``prefix + key``.

    Args:
        host, port: of the server.
        schema: the columns of a row, as a `pyarrow.Schema` or DDL text.
        prefix: before every key.
        max_batch: keys in one command.
    """

    def __init__(
        self, host: str, port: int = 11211, *, schema: pa.Schema | str, prefix: str = "", max_batch: int = 100
    ) -> None:
        if not prefix.isascii() or any(character <= " " for character in prefix):
            raise ConfigurationError(f"prefix is {describe(prefix)}; it must be ASCII without blanks")
        self.host = host
        self.port = positive_int("port", port)
        self.prefix = prefix
        self.max_batch = positive_int("max_batch", max_batch)
        self._schema = as_schema(schema)
        self._idle: list[Connection] | None = None

    def schema(self) -> pa.Schema:
        """The columns of a row. No server is asked for them."""
        return self._schema

    async def open(self) -> None:
        """Prepares the list of connections. Lookups connect, because a failed lookup can be retried."""
        self._idle = []

    async def close(self) -> None:
        """Close the connections; those in use are closed by the lookups that use them."""
        idle, self._idle = self._idle, None
        for _, writer in idle or ():
            writer.close()

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The rows of keys, aligned with them, from one command."""
        names = [self._name(key) for key in keys]
        wanted = [*dict.fromkeys(name for name in names if name is not None)]
        if not wanted:
            return [None] * len(keys)
        try:
            async with self._connection() as connection:
                values = await self._get(connection, wanted)
        except (OSError, EOFError) as error:
            raise EnricherError(f"{self!r}: the connection failed ({error})", retryable=True) from error
        return [self._row(key, values.get(name or b"")) for key, name in zip(keys, names, strict=True)]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection that no other lookup uses. It is kept for the next lookup only if there was no error."""
        if self._idle is None:
            raise EnricherError(f"{self!r} is not open", retryable=False)
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self.host, self.port)
        try:
            yield reader, writer
        except BaseException:
            writer.close()
            raise
        if self._idle is None:
            writer.close()
        else:
            self._idle.append((reader, writer))

    async def _get(self, connection: Connection, names: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """The server's values for these names."""
        reader, writer = connection
        writer.write(b"get " + b" ".join(names) + b"\r\n")
        await writer.drain()
        found = {}
        while (line := await reader.readuntil(b"\r\n")) != b"END\r\n":
            match line.split():
                case [b"VALUE", name, _, size]:
                    found[name] = (await reader.readexactly(int(size) + 2))[:-2]
                case [b"SERVER_ERROR", *_]:
                    raise EnricherError(f"{self!r}: the server says {describe(line)}", retryable=True, overload=True)
                case _:
                    raise EnricherError(f"{self!r}: the server says {describe(line)}", retryable=False)
        return found

    def _name(self, key: Any) -> bytes | None:
        """The name of a key on the server; None for a value that cannot be a name, which is a miss."""
        name = f"{self.prefix}{key}".encode("utf-8", "surrogatepass")
        broken = not name or len(name) > LONGEST_KEY or any(byte <= 0x20 or byte == 0x7F for byte in name)
        return None if key is None or broken else name

    def _row(self, key: Any, value: bytes | None) -> Found:
        if value is None:
            return None
        try:
            return typed_row(json.loads(value), self._schema)
        except ValueError as error:
            raise EnricherError(f"{self!r}, key {describe(key)}: {error}", retryable=False) from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_idle": None}

    def __repr__(self) -> str:
        return f"MemcachedEnricher({self.host}:{self.port}, {self.prefix + '{key}'!r})"


class SmallServer:
    """The part of memcached that the example needs: ``get``, for given values.

    Attributes:
        port: the port on which it listens.
        answer: if set, the answer to every command, instead of the right one.
    """

    def __init__(self, values: Mapping[str, bytes]) -> None:
        self.port = 0
        self.answer: bytes | None = None
        self._values = {name.encode(): value for name, value in values.items()}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> SmallServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while command := await reader.readline():
                found = [(name, self._values[name]) for name in command.split()[1:] if name in self._values]
                rows = b"".join(b"VALUE %b 0 %d\r\n%b\r\n" % (name, len(value), value) for name, value in found)
                writer.write(rows + b"END\r\n" if self.answer is None else self.answer)
        except ConnectionError:
            pass
        finally:
            writer.close()


async def look_up(port: int) -> Sequence[Found]:
    """The enricher's answers for some keys, one of them unknown."""
    airports = MemcachedEnricher("127.0.0.1", port, schema="name string, altitude int", prefix="airport:")
    await airports.open()
    try:
        return await airports.lookup_many(["JFK", "XXX", "LGA"])
    finally:
        await airports.close()


def check(port: int) -> None:
    """The contract test: write the test of your own enricher like this."""
    check_enricher(
        lambda: MemcachedEnricher("127.0.0.1", port, schema="name string, altitude int", prefix="airport:"),
        known=AIRPORTS,
        missing=["XXX", "J F K", "JFK\r\nflush_all\r\n", "é" * 200],
    )


async def main() -> None:
    """Look keys up, and check the contract, against a server in this process."""
    async with SmallServer({f"airport:{key}": json.dumps(row).encode() for key, row in AIRPORTS.items()}) as server:
        for row in await look_up(server.port):
            print(row)
        await asyncio.to_thread(check, server.port)
        print("the contract holds")


if __name__ == "__main__":
    asyncio.run(main())
