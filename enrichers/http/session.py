"""The session of one worker: connections, redirects, bodies of bounded size.

It belongs to the loop that opened it. Connections are kept and used again for any request; nothing of a request stays
behind, not even cookies. Content codings are decoded here, because aiohttp would raise its errors instead of
returning the status. The caller's `capacity` and `per_host` limit their number: aiohttp's own limit of 100 would be
a second, hidden queue. A deadline comes from outside as a cancellation, which closes the connection. A body is always
read to its end, or its connection is closed, so that no connection is lost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client import URL  # type: ignore[attr-defined]
from aiohttp.http_exceptions import LineTooLong

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.secrets import chain
from enrichers.http.bodies import ACCEPTED, BodyError, decompressed, too_large
from enrichers.http.proxies import Proxy, proxy_for
from enrichers.http.redirects import NO_TARGET, RefusedError, TargetError, target_of
from enrichers.http.request_plan import Request
from enrichers.http.url_parts import as_written

MOST_REDIRECTS = 5
"""The maximum number in a row. A service that moved needs one or two; more are a circle."""

ERROR_BYTES = 65_536
"""How many bytes of an error answer are read, to show its beginning and to use the connection again."""

DEFAULT_HEADERS = {"Accept": "application/json", "Accept-Encoding": ACCEPTED, "User-Agent": "asyncio-operator"}
"""The headers of the session; those of a request replace them."""

_REDIRECTS = (301, 302, 303, 307, 308)
_HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})

Tls = str | Callable[[], ssl.SSLContext] | None


class Answer(NamedTuple):
    """The answer of a service."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    forbidden: str = ""
    """The host to which it redirects, if `redirects` forbids to follow."""

    @property
    def is_framed(self) -> bool:
        """Whether it says where its body ends. If not, the body ends with the connection, for whatever reason."""
        framed = "Content-Length" in self.headers or "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        return framed or self.status == HTTPStatus.NO_CONTENT


@dataclass(eq=False, repr=False)
class Client:
    """The session of a worker.

    Args:
        per_host: the maximum number of connections to one host, or None.
        connect_timeout: seconds for a connection, TLS included.
        max_response_bytes: the maximum size of a body, after decompression.
        max_header_bytes: the maximum size of a header.
        redirects: "same_host", "any" or "never".
        trust_env: whether the environment's proxies are used.
        tls: a file of certificate authorities, a function that returns a context, or None for the system's authorities.
    """

    per_host: int | None
    connect_timeout: float
    max_response_bytes: int
    max_header_bytes: int
    redirects: str
    trust_env: bool
    tls: Tls
    _session: aiohttp.ClientSession | None = field(default=None, init=False)
    _proxies: dict[str, Proxy | None] = field(default_factory=dict, init=False)

    async def open(self) -> None:
        """Make the session. It does not connect yet.

        Raises:
            ConfigurationError: the file or function of `tls` does not exist or is not usable in this process.
        """
        context = await self._context()
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=self.per_host or 0, ssl=context or True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout or None),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=DEFAULT_HEADERS,
            auto_decompress=False,
            max_line_size=self.max_header_bytes,
            max_field_size=self.max_header_bytes,
        )

    async def close(self) -> None:
        """Close every connection, within `CLOSE_TIMEOUT`."""
        session, self._session = self._session, None
        if session is not None:
            await closed_in_time(session.close())

    async def fetch(self, request: Request, headers: Mapping[str, str]) -> Answer:
        """The answer to a request, after redirects.

        Raises:
            RefusedError: the answer is too large, or a redirect must not be followed.
            aiohttp.ClientError, OSError: there is no answer.
        """
        method, body = request.method, request.body
        url = as_written(request.url)
        status = None
        for _ in range(MOST_REDIRECTS + 1):
            response = await self._send(method, url, headers, body)
            status = response.status
            try:
                content = await self._content(response, request.is_sent)
                location = response.headers.get("Location") if response.status in _REDIRECTS else None
                if location is None:
                    return Answer(response.status, response.headers, content)
                if self.redirects == "never":
                    return Answer(response.status, response.headers, content, _host_of(url, location))
                target = target_of(url, location)
                if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                    if request.is_sent:
                        raise RefusedError(f"the redirect to {target.host} makes it a GET: use its URL")
                    method, body = "GET", None
                if not _same_host(url, target):
                    headers = self._elsewhere(url, target, method, headers)
            except BaseException as error:
                response.close()
                if isinstance(error, RefusedError):
                    error.status = status
                raise
            url = target
        raise RefusedError(f"it is redirected more than {MOST_REDIRECTS} times", status=status)

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RefusedError("it is not open")
        more: dict[str, Any] = {}
        proxy = self._proxy(url) if self.trust_env else None
        if proxy is not None:
            credentials = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
            more = {"proxy": proxy.url}
            if url.scheme == "https":
                # The proxy opens a tunnel, so its credentials must not go to the service.
                more["proxy_headers"] = credentials
            else:
                headers = {**headers, **credentials}
        try:
            return await self._session.request(method, url, headers=headers, data=body, allow_redirects=False, **more)
        except aiohttp.ClientResponseError as error:
            if not any(isinstance(one, LineTooLong) for one in chain(error)):
                raise
        raise RefusedError(
            f"a header of the answer, or its first line, is larger than max_header_bytes={self.max_header_bytes}; "
            "raise it"
        )

    async def _content(self, response: aiohttp.ClientResponse, is_sent: bool) -> bytes:
        """The body without its content codings.

        The body of an error, or for what was sent, only explains its status. If it cannot be read, it is left out.
        """
        success = response.status < 300 and not is_sent
        limit = self.max_response_bytes if success else min(self.max_response_bytes, ERROR_BYTES)
        problem, retryable = "", False
        try:
            body = await self._body(response, limit, success)
            if "Content-Encoding" not in response.headers:
                return body
            return decompressed(body, ",".join(response.headers.getall("Content-Encoding")), limit)
        except BodyError as error:
            problem, retryable = str(error), error.retryable
        except (aiohttp.ClientError, OSError):
            response.close()
            if success:
                raise
        if success:
            raise RefusedError(problem, retryable)
        return b""

    async def _body(self, response: aiohttp.ClientResponse, limit: int, success: bool) -> bytes:
        """The body as it was sent; of an error its beginning.

        Raises:
            BodyError: it has more than `limit` bytes, so it also has them without its content codings.
        """
        length = response.content_length
        if length is not None and length <= limit:
            return await response.read()
        chunks, size = [], 0
        if length is None or not success:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    break
            else:
                return b"".join(chunks)
        response.close()
        if success:
            raise too_large(limit)
        return b"".join(chunks)[:limit]

    def _elsewhere(self, url: URL, target: URL, method: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers for another host, without those that may be a secret.

        Raises:
            RefusedError: the redirect must not be followed.
        """
        place = str(target.origin())
        if self.redirects != "any":
            raise RefusedError(f'it is redirected to another host, {place}; use its URL, or redirects="any"')
        if url.scheme == "https" and target.scheme != "https":
            raise RefusedError(f"it is redirected from https to {place}, which is not encrypted")
        if method != "GET":
            raise RefusedError(f"a {method} is redirected to another host, {place}; use its URL")
        return {name: value for name, value in headers.items() if name.lower() in _HARMLESS}

    def _proxy(self, url: URL) -> Proxy | None:
        origin = str(url.origin())
        if origin not in self._proxies:
            host = f"[{url.host}]" if ":" in (url.host or "") else url.host
            self._proxies[origin] = proxy_for(url.scheme, f"{host}:{url.port}")
        return self._proxies[origin]

    async def _context(self) -> ssl.SSLContext | None:
        if self.tls is None:
            return None
        # In threads, because both read files.
        if isinstance(self.tls, str):
            try:
                return await asyncio.to_thread(ssl.create_default_context, cafile=self.tls)
            except OSError as error:
                raise ConfigurationError(
                    f"ssl is {describe(self.tls)}; it must be a file with certificates in PEM that can be read here: "
                    f"{type(error).__name__}: {error}"
                ) from error
        context: Any = await asyncio.to_thread(self.tls)
        if not isinstance(context, ssl.SSLContext):
            raise ConfigurationError(f"ssl: the function gave {describe(context)}; it must return an ssl.SSLContext")
        return context


def _host_of(url: URL, location: str) -> str:
    try:
        return str(target_of(url, location).origin())
    except TargetError:
        return NO_TARGET


def _same_host(url: URL, target: URL) -> bool:
    """Whether credentials may be sent there too: the same origin, or the same host with TLS, both on default ports."""
    if url.origin() == target.origin():
        return True
    upgrade = (url.scheme, target.scheme) == ("http", "https") and url.is_default_port() and target.is_default_port()
    return upgrade and url.host == target.host
