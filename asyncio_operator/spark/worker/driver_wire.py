"""How workers and the driver talk: authenticated messages over TCP, and a worker's questions in them.

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

from asyncio_operator.clock import monotonic
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.quota.terms import ASK_TIMEOUT, Json

BUDGETS, FIGURES = "budgets", "figures"  # The topics of questions.

MAGIC = b"asyncio-operator 1\n"

NONCE = 32
MAC = 32

LARGEST = 1 << 20  # The most bytes of a message. A state with 256 entries has some 10,000.
HELLO_TIMEOUT = 2.0  # Seconds for a connection and its proofs.


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
        """Send a JSON value. Raises WireError if it is too large, and OSError if the connection is lost."""
        payload = json.dumps(message, separators=(",", ":")).encode()
        if len(payload) > LARGEST:
            raise WireError(f"a message has {len(payload):,} bytes, and at most {LARGEST:,} are allowed")
        mac = _mac(self._own_key, self._sent.to_bytes(8, "big") + payload)
        self._sent += 1
        self._writer.write(len(payload).to_bytes(4, "big") + mac + payload)
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next JSON value. WireError if what came is not a valid message, asyncio.IncompleteReadError if the
        connection has ended, OSError if it is lost."""
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
    """The driver's side of a new connection. WireError if the other side does not know the token; IncompleteReadError,
    OSError or TimeoutError if the connection ended, or nothing came."""
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
    """The worker's side of a new connection. WireError if what answers is not this application's driver;
    IncompleteReadError, OSError or TimeoutError if that is not reachable, or refused the token."""
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


class DriverClient:
    """Asks the driver, one question after the other. It connects when it is asked first, and again after an error."""

    def __init__(self, address: DriverAddress) -> None:
        self._address = address
        self._wire: Wire | None = None

    async def ask(self, topic: str, question: Any) -> tuple[Any, float]:
        """The driver's answer, and the monotonic time at which the question was sent. CoordinatorError if there is
        none."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                if self._wire is None:
                    self._wire = await connect_to_driver(self._address)
                sent = monotonic()
                await self._wire.send({"topic": topic, "question": question})
                return (await self._wire.receive())["answer"], sent
        except (OSError, EOFError, WireError, ValueError) as error:
            why = str(error)
            if isinstance(error, TimeoutError):
                why = "it did not answer in time"
            elif isinstance(error, EOFError):
                why = "the connection has ended"
            elif isinstance(error, OSError):
                why = (
                    f"it is not reachable ({error}); if a firewall lies between it and the executors, open a port and "
                    "set spark.asyncio_operator.driver.port to it, or name a coordinator in the Budget"
                )
            problem = CoordinatorError(f"the driver at {self._address}: {why}")
            await self.close()
        except BaseException:
            # Its answer must not be taken for that of the next question.
            await self.close()
            raise
        raise problem

    async def close(self) -> None:
        """Close the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()


class DriverCoordinator:
    """One budget that the driver of this application coordinates."""

    def __init__(self, address: DriverAddress, name: str) -> None:
        self.shown = f"the driver at {address}"
        self._client = DriverClient(address)
        self._name = name

    async def ask(self, message: Json) -> Json:
        answer, sent = await self._client.ask(BUDGETS, {"name": self._name, "message": message})
        return {**answer, "sent": sent}

    async def close(self) -> None:
        await self._client.close()
