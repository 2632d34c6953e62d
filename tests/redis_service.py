"""A real Redis for tests: started on a port of its own, stoppable in the middle of a test, gone with all its files.

Where there is no ``redis-server``, the fixture skips the tests that need it. The server asks for a password, and dies
with the test process, also when that is killed. With `tls` it takes TLS on a second port, with a certificate for
``localhost`` that nobody but `ca` vouches for.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.services import Server, free_port

BINARY = shutil.which("redis-server")
OPENSSL = shutil.which("openssl")


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
        self.tls_port = free_port() if tls else 0
        self._options = options
        if tls:
            self._make_certificate()

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
    def ca(self) -> Path:
        return self.directory / "certificate.pem"

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
        if self.tls_port:
            options |= {
                "tls-port": str(self.tls_port),
                "tls-cert-file": str(self.ca),
                "tls-key-file": str(self.directory / "key.pem"),
                "tls-ca-cert-file": str(self.ca),
                "tls-auth-clients": "no",
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

    def _make_certificate(self) -> None:
        assert OPENSSL is not None
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", str(self.directory / "key.pem"), "-out", str(self.ca)]
        subprocess.run(
            [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files],
            check=True,
            capture_output=True,
            env=os.environ,
        )


def _encoded(*parts: str | bytes) -> bytes:
    encoded: list[Any] = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded)


def needs_redis() -> None:
    """Skip the test where there is no Redis."""
    if BINARY is None:
        pytest.skip("redis-server is not installed (Debian's package redis-server)")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One running server for the whole session. Tests that stop it make one of their own."""
    needs_redis()
    with RedisServer() as server:
        yield server
