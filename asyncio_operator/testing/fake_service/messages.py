"""What a `FakeService` receives and sends: requests, answers, and how an answer with its faults is sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from asyncio_operator.checks import Duration, duration, flag, number, positive_int, seconds
from asyncio_operator.errors import ConfigurationError, describe

PIECES = 10  # The number of pieces in which a slow body is sent, if it has at least that many bytes.


class Headers(dict[str, str]):
    """Values by lower-case name, which are found by a name in any case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())


@dataclass
class FakeRequest:
    """A request that was received.

    Attributes:
        method: as sent.
        target: path and query as they were sent, with their escapes.
        path: the path, unescaped.
        query: the values of each name, unescaped.
        headers: by name, in any case.
        body: as sent.
        time: seconds since the service was started.
        status: that of the answer; None while there is none, and if the connection was reset.
        weights: what it counts for in the limits of the service, by unit.
    """

    method: str
    target: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    time: float
    status: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class FakeAnswer:
    """How the service answers one request.

    Attributes:
        body: bytes and str are sent as they are, anything else as JSON.
        status: the HTTP status.
        headers: added to the headers, or replacing them; names in any case.
        delay: seconds, or a timedelta, before the answer begins.
        slow: seconds, or a timedelta, over which the body is spread.
        truncated: whether the connection ends in the middle of the body.
        reset: whether the connection is reset instead of an answer.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: Duration = 0.0
    slow: Duration = 0.0
    truncated: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        for name, check in (("delay", duration), ("slow", duration), ("truncated", flag), ("reset", flag)):
            object.__setattr__(self, name, check(name, getattr(self, name)))
        number("status", positive_int("status", self.status), "from 200 to 599", lambda status: 200 <= status < 600)
        headers = [*self.headers.items()] if isinstance(self.headers, Mapping) else [(self.headers, None)]
        if not all(isinstance(text, str) for header in headers for text in header):
            raise ConfigurationError(f"headers is {describe(self.headers)}; it must be a mapping of text to text")

    def content(self) -> bytes:
        """The bytes of the body."""
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body, default=str)).encode()


async def send(incoming: web.BaseRequest, answer: FakeAnswer) -> web.StreamResponse:
    """Answer a request."""
    if answer.reset:
        if incoming.transport is not None:
            # A linger time of 0 makes the system send a reset instead of an orderly end.
            connection = incoming.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            incoming.transport.abort()
        return web.Response()
    content = answer.content()
    headers = {"content-type": "application/json"} | {name.lower(): said for name, said in answer.headers.items()}
    if not (answer.slow or answer.truncated):
        return web.Response(body=content, status=answer.status, headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(content)
    # A client may close the connection in the middle. That is no error of the service.
    with contextlib.suppress(ConnectionError):
        await response.prepare(incoming)
        if answer.truncated:
            await response.write(content[: len(content) // 2])
            # A close, as a server that stops does.
            if incoming.transport is not None:
                incoming.transport.close()
        else:
            size = -(-len(content) // PIECES) or 1
            starts = range(0, len(content) or 1, size)
            for start in starts:
                await asyncio.sleep(seconds(answer.slow) / len(starts))
                await response.write(content[start : start + size])
            await response.write_eof()
    return response
