"""How workers and the driver talk: authenticated messages over TCP.

Both know a token, which never travels on the connection. The driver sends a magic text and a nonce; the worker sends a
nonce of its own and a proof, the HMAC of both nonces under the token; the driver sends its proof. So the worker knows
that it is the driver that answers, and not another program that got its port. From then on each message has a length,
an HMAC under a key of this connection and its direction, and JSON. The HMAC covers the number of the message: none can
be changed, repeated or left out. Messages are not encrypted, and must hold no secret.

    driver   MAGIC  nonce (32)
    worker   nonce (32)  HMAC(token, "worker" + nonces) (32)
    driver   HMAC(token, "driver" + nonces) (32)
    both     length (4, big endian)  HMAC(key, number (8) + JSON) (32)  JSON
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"asyncio-operator 1\n"

NONCE = 32
MAC = 32

LARGEST = 1 << 20
"""The most bytes of a message. A state with 256 entries has some 10,000."""

HELLO_TIMEOUT = 2.0
"""Seconds for a connection and its proofs."""


class WireError(Exception):
    """The other side does not know the token, or sent no valid message."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where the driver's service listens. Sent to the workers inside of the job, as Spark's own secrets are."""

    host: str
    port: int
    token: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Wire:
    """An authenticated connection. `driver` is the side that this process is on."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, nonces: bytes, *, driver: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        keys = [_mac(token, side + nonces) for side in (b"from driver", b"from worker")]
        self._own_key, self._other_key = keys if driver else reversed(keys)
        self._sent = 0
        self._received = 0

    async def send(self, message: Any) -> None:
        """Send a JSON value.

        Raises:
            WireError: it is too large.
            OSError: the connection is lost.
        """
        payload = json.dumps(message, separators=(",", ":")).encode()
        if len(payload) > LARGEST:
            raise WireError(f"a message has {len(payload):,} bytes, and at most {LARGEST:,} are allowed")
        mac = _mac(self._own_key, self._sent.to_bytes(8, "big") + payload)
        self._sent += 1
        self._writer.write(len(payload).to_bytes(4, "big") + mac + payload)
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next JSON value.

        Raises:
            WireError: what came is not a valid message.
            asyncio.IncompleteReadError: the connection has ended.
            OSError: the connection is lost.
        """
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > LARGEST:
            raise WireError(f"a message of {size:,} bytes")
        mac = await self._reader.readexactly(MAC)
        payload = await self._reader.readexactly(size)
        if not hmac.compare_digest(mac, _mac(self._other_key, self._received.to_bytes(8, "big") + payload)):
            raise WireError("a message that the other side did not write")
        self._received += 1
        return json.loads(payload)

    async def close(self) -> None:
        """Close the connection at once."""
        await abort(self._writer)


async def greet_worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> Wire:
    """The driver's side of a new connection.

    Raises:
        WireError: the other side does not know the token.
        asyncio.IncompleteReadError, OSError, TimeoutError: the connection ended, or nothing came.
    """
    own = secrets.token_bytes(NONCE)
    writer.write(MAGIC + own)
    async with asyncio.timeout(HELLO_TIMEOUT):
        nonces = own + await reader.readexactly(NONCE)
        proof = await reader.readexactly(MAC)
    if not hmac.compare_digest(proof, _mac(token, b"worker" + nonces)):
        raise WireError("a wrong proof")
    writer.write(_mac(token, b"driver" + nonces))
    return Wire(reader, writer, token, nonces, driver=True)


async def connect_to_driver(address: DriverAddress) -> Wire:
    """The worker's side of a new connection.

    Raises:
        WireError: what answers is not this application's driver.
        asyncio.IncompleteReadError, OSError, TimeoutError: the driver is not reachable, or refused the token.
    """
    async with asyncio.timeout(HELLO_TIMEOUT):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            if await reader.readexactly(len(MAGIC)) != MAGIC:
                raise WireError("another program listens there")
            nonces = await reader.readexactly(NONCE)
            own = secrets.token_bytes(NONCE)
            nonces += own
            writer.write(own + _mac(address.token, b"worker" + nonces))
            if not hmac.compare_digest(await reader.readexactly(MAC), _mac(address.token, b"driver" + nonces)):
                raise WireError("the driver of another application listens there")
        except BaseException:
            await abort(writer)
            raise
    return Wire(reader, writer, address.token, nonces, driver=False)


async def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once. What was not sent yet is dropped."""
    writer.transport.abort()
    with contextlib.suppress(Exception):
        await writer.wait_closed()


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
