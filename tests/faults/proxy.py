"""A TCP proxy that does to connections what networks do to them.

    with Proxy(("127.0.0.1", 5432)) as proxy:
        connect_to(proxy.host, proxy.port)
        proxy.set(Mode("trickle", 1000))

It listens on TCP, and its target is a TCP address or the path of a Unix socket. It runs in a thread of its own, with a
loop of its own, so it goes on while the loop of a test is busy or held up. A `Mode` holds for the connections that are
there and for those that come, until there is another one. It knows nothing of what passes through it.

Law: what it passes on it passes on in order and unchanged; whatever it does to a connection it does to both of its
sides, so the target never keeps a client that is gone.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

Address = tuple[str, int] | str | Path
"""Host and port, or the path of a Unix socket."""

Kind = Literal["pass", "delay", "trickle", "blackhole", "cut", "half_close", "reset"]

FAULTS: list[Kind] = ["cut", "reset", "half_close", "blackhole", "trickle", "delay"]

CHUNK = 65_536

PIECES = 64
"""Pieces of an answer that are on their way at a time: what a delayed connection holds."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What is done to connections.

    Attributes:
        kind: "delay" lets answers come `amount` seconds later, at full bandwidth; "trickle" lets `amount` bytes of
            answers pass in a second, on each connection; "blackhole" lets nothing pass, and goes on with what it has
            held back when the mode changes; "cut" closes, "reset" resets (RST); "half_close" tells the client that
            nothing more will come, and goes on reading what it sends.
        after: bytes of answers that still pass on a connection before any of this happens to it.
        times: connections that are ended or held at most, all others pass; None: all. A connection that ends before
            it is struck does not count: a request to cancel a query is one.
    """

    kind: Kind = "pass"
    amount: float = 0.0
    after: int = 0
    times: int | None = None

    @classmethod
    def drawn(cls, drawn: random.Random) -> Self:
        """Any fault, at once or in an answer."""
        kind = drawn.choice(FAULTS)
        amount = {"trickle": drawn.uniform(50, 5000), "delay": drawn.uniform(0.01, 1.0)}.get(kind, 0.0)
        return cls(kind, amount, after=drawn.choice([0, 0, 500, 5000]))


class Proxy:
    """A proxy for a target.

    Attributes:
        host, port: where it listens; the port stays the same for its life.
        target: of the connections that are made from now on.
        accepted: connections that were made to it.
        struck: connections that a mode has ended or held, by now.
    """

    def __init__(self, target: Address) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.accepted = 0
        self.struck = 0
        self.mode = Mode()
        self.target = target
        self._left: int | None = None
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def close(self) -> None:
        """Cut every connection and stop listening."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def open(self) -> int:
        """Connections that are there."""
        return len(self._connections)

    # -- modes; each holds from the moment that its method has returned

    def pass_on(self) -> None:
        self.set(Mode())

    def delay(self, seconds: float) -> None:
        self.set(Mode("delay", seconds))

    def blackhole(self) -> None:
        self.set(Mode("blackhole"))

    def set(self, mode: Mode) -> None:
        self._call(self._change(mode))

    # -- on the loop of the proxy

    def _call(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _change(self, mode: Mode) -> None:
        self.mode = mode
        self._left = mode.times
        for connection in list(self._connections):
            connection.change(mode)
        self._changed.set()
        self._changed = asyncio.Event()

    def strikes_again(self) -> bool:
        """Whether the mode strikes one connection more; counts it."""
        if self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        self.struck += 1
        return True

    async def until_changed(self) -> None:
        await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(self, task, reader, writer)
        self._connections.add(connection)
        try:
            with suppress(asyncio.CancelledError, OSError):
                connection.change(self.mode)
                await connection.run(self.target)
        finally:
            connection.abort()
            self._connections.discard(connection)


class _Connection:
    """A client and the target, joined."""

    def __init__(
        self, proxy: Proxy, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.task = task
        self._proxy = proxy
        self._mode = Mode()
        self._answered = 0
        self._reader = reader
        self._writer = writer
        self._writers = [writer]
        self._struck = False
        self._half_closed = False

    async def run(self, target: Address) -> None:
        await self._while_held()
        reader, writer = await _connect(target)
        self._writers.append(writer)
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)
        others = [asyncio.create_task(self._ask(writer)), asyncio.create_task(self._receive(reader, pieces))]
        try:
            await self._answer(pieces)
            self._writer.close()
            await self._writer.wait_closed()
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def change(self, mode: Mode) -> None:
        self._mode = mode
        self._answered = 0
        self._struck = self._half_closed
        self._strike()

    def abort(self) -> None:
        for writer in self._writers:
            if self._mode.kind == "reset":
                _reset_on_close(writer)
            writer.transport.abort()

    def _strike(self) -> None:
        """What the mode does once, when it is time."""
        kind = self._mode.kind
        if self._answered < self._mode.after or self._struck or kind not in ("cut", "reset", "half_close", "blackhole"):
            return
        if not self._proxy.strikes_again():
            self._mode = Mode()
            return
        self._struck = True
        if kind == "half_close":
            self._half_closed = True
            self._writer.write_eof()
        elif kind != "blackhole":
            self.task.cancel()

    async def _while_held(self) -> None:
        while self._mode.kind == "blackhole" and self._answered >= self._mode.after:
            await self._proxy.until_changed()

    async def _ask(self, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await self._reader.read(CHUNK):
                await self._while_held()
                writer.write(data)
                await writer.drain()
            await self._while_held()
            writer.write_eof()
        except OSError:
            self.task.cancel()

    async def _receive(self, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Read answers, with the time at which each is to pass; the last one is empty."""
        loop = asyncio.get_running_loop()
        data = b"answers"
        try:
            while data:
                data = await reader.read(CHUNK)
                late = self._mode.amount if self._mode.kind == "delay" else 0.0
                await pieces.put((loop.time() + late, data))
        except OSError:
            self.task.cancel()

    async def _answer(self, pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await pieces.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._while_held()
            if not data:
                return
            while data:
                data = await self._pass(data)

    async def _pass(self, data: bytes) -> bytes:
        """Pass on as much as the mode lets; what is left."""
        if self._half_closed:
            return b""
        await self._while_held()
        mode, size = self._mode, len(data)
        if self._answered < mode.after:
            size = min(size, mode.after - self._answered)
        elif mode.kind == "trickle":
            size = max(1, min(size, int(mode.amount / 20)))
            await asyncio.sleep(size / mode.amount)
        self._writer.write(data[:size])
        await self._writer.drain()
        self._answered += size
        self._strike()
        await asyncio.sleep(0)  # where it ends, if it was struck
        return data[size:]


async def _connect(target: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, tuple):
        return await asyncio.open_connection(*target)
    return await asyncio.open_unix_connection(str(target))


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("socket")
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
