"""`LivePage`: a page that shows the figures of running tasks, served by the driver.

The address has a token of 32 random bytes, and every path without it gets a 403. The page loads nothing from anywhere
else, and names, keys and errors only ever become text in it. It answers GET alone, and changes nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from asyncio_operator.checks import natural
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.driver.ledger import Ledger
from asyncio_operator.spark.driver.live_samples import LiveSamples

EVERY = 1.0
"""Seconds between two samples."""

IDLE_CONNECTION = 30.0
"""Seconds in which a request must come on an open connection."""

MOST_CONNECTIONS = 50
"""Open connections. Each takes a thread of the driver, also before its request has shown the token."""

PROMETHEUS = "text/plain; version=0.0.4"
"""The type of what Prometheus reads."""

Answer = tuple[HTTPStatus, str, dict[str, str], bytes]
"""Status, type, headers and body."""

FORBIDDEN: Answer = HTTPStatus.FORBIDDEN, "text/plain", {}, b"403: the address of this page has a token\n"
"""The answer to a request without the token."""

ANYWHERE = ("", "0.0.0.0", "::")
"""Hosts that mean all addresses of this machine."""


class LivePage:
    """A page that is served until it is closed, or until the process ends. Made by `EnrichmentMetrics.serve`.

    Attributes:
        url: its address, with the token: everyone who has it can see the page. ``url + "metrics"`` is for Prometheus.
    """

    def __init__(self, ledger: Ledger, port: int, host: str) -> None:
        if not isinstance(host, str):
            raise ConfigurationError(f"host is {describe(host)}; it must be a name or an address of this machine")
        natural("port", port)
        self._token = secrets.token_urlsafe(32)
        self._samples = LiveSamples(ledger)
        self._over = threading.Event()
        try:
            self._server = _Server(host, port, self._answer)
        except (OSError, OverflowError, ValueError, TypeError) as error:  # Not all texts can be the name of a host.
            raise ConfigurationError(
                f"the page cannot be served at {host}:{port} ({error}); give a free port, or 0, and a host of this "
                "machine"
            ) from error
        shown = socket.gethostname() if host in ANYWHERE else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/{self._token}/"
        self._samples.take()
        self._threads = [
            threading.Thread(target=work, name=f"asyncio-operator-{name}", daemon=True)
            for name, work in (("page", self._server.serve_forever), ("samples", self._take_samples))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop serving it, also on connections that are open. A second time does nothing."""
        if not self._over.is_set():
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            self._server.cut()
            for thread in self._threads:
                thread.join(5 * EVERY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LivePage({self.url!r}{', closed' if self._over.is_set() else ''})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noreferrer">The live page of the metrics</a>'

    def _take_samples(self) -> None:
        while not self._over.wait(EVERY):
            with contextlib.suppress(Exception):  # The next one may be taken.
                self._samples.take()

    def _answer(self, target: str) -> Answer:
        """The answer for a path."""
        try:
            address = urlsplit(target)
        except ValueError:  # As in http://[x/
            return FORBIDDEN
        _, _, rest = address.path.partition("/")
        token, _, page = rest.partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return FORBIDDEN
        if page == "":
            if not rest.endswith("/"):
                return HTTPStatus.MOVED_PERMANENTLY, "text/plain", {"Location": f"/{token}/"}, b""
            nonce = secrets.token_urlsafe(16)
            policy = (
                f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
                "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            content = files("asyncio_operator.spark.driver").joinpath("live_page.html").read_text(encoding="utf-8")
            body = content.replace("{{nonce}}", nonce).encode()
            return HTTPStatus.OK, "text/html; charset=utf-8", {"Content-Security-Policy": policy}, body
        if page == "figures.json":
            asked = parse_qs(address.query).get("after", ["0"])[0]
            after = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 19 else 0
            return HTTPStatus.OK, "application/json", {}, json.dumps(self._samples.page(after)).encode()
        if page == "metrics":
            return (
                HTTPStatus.OK,
                f"{PROMETHEUS}; charset=utf-8",
                {},
                self._samples.exposition().encode("utf-8", "backslashreplace"),
            )
        return HTTPStatus.NOT_FOUND, "text/plain", {}, b"404: there is no such page\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # Some versions of Python let two servers have one port.

    def __init__(self, host: str, port: int, answer: Any) -> None:
        self.answer = answer
        self._open: set[socket.socket] = set()
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Request)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection. One without room is closed at once."""
        return self._room.acquire(blocking=False)

    def server_bind(self) -> None:
        """Not that of `HTTPServer`, which asks DNS for the name of the host, and may wait long for it."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._room.release()

    def cut(self) -> None:
        """End all connections: a browser keeps its own, and asks on it for as long as it gets answers."""
        for connection in self._open.copy():
            with contextlib.suppress(OSError):  # Its client has gone.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_CONNECTION
    server: _Server

    def __getattr__(self, name: str) -> Any:
        """Every method is answered by the same function, so that each needs the token."""
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def _do(self) -> None:
        status, kind, headers, body = self.server.answer(self.path)
        if status is not HTTPStatus.FORBIDDEN and self.command not in ("GET", "HEAD"):
            status, kind, headers, body = HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", {"Allow": "GET, HEAD"}, b""
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if self.command not in ("GET", "HEAD"):
            # What the request has in its body was not read, and is no next request.
            self.close_connection = True
            fixed["Connection"] = "close"
        for name, value in (fixed | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "asyncio-operator"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged: their paths have the token."""
