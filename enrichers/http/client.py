"""The session of one worker: connections, redirects, bodies of bounded size.

It belongs to the loop that opened it. Connections are kept and used again, by whoever needs one: nothing of a request
stays behind, cookies neither. How many there are is bounded by who calls, which is `capacity`, and by `per_host`;
aiohttp's own bound of 100 would be a second queue that nobody sees. A deadline comes from outside, as cancellation,
which cuts the connection. A body is always read to its end or its connection cut, so that none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client import URL  # type: ignore[attr-defined]

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import CLOSE_TIMEOUT, describe
from enrichers.http.plan import Request
from enrichers.http.proxies import Proxy, proxy_for

MOST_REDIRECTS = 5
"""In a row. A service that moved needs one or two; more is a circle."""

ERROR_BYTES = 65_536
"""Bytes that are read of an answer that is none, to show its beginning and to use the connection again."""

DEFAULT_HEADERS = {"Accept": "application/json", "User-Agent": "asyncio-operator"}
"""What the session sends unless a request says otherwise."""

_REDIRECTS = (301, 302, 303, 307, 308)
_HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})

Tls = str | Callable[[], ssl.SSLContext] | None


class Answer(NamedTuple):
    """What a service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_framed(self) -> bool:
        """Whether it tells where its body ends. If not, that is where the connection ended, for whatever reason."""
        told = "Content-Length" in self.headers or "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        return told or self.status == HTTPStatus.NO_CONTENT


class RefusedError(Exception):
    """An answer that is not taken, or not followed; the message says why."""


class Client:
    """The session of a worker.

    Args:
        per_host: connections to one host at most, or None.
        connect_timeout: seconds for a connection, TLS included.
        max_response_bytes: of a body, after decompression.
        redirects: "same_host", "any" or "never".
        trust_env: whether the environment's proxies are used.
        tls: the file of an authority, a function that gives a context, or None for the system's authorities.
    """

    def __init__(
        self,
        *,
        per_host: int | None,
        connect_timeout: float,
        max_response_bytes: int,
        redirects: str,
        trust_env: bool,
        tls: Tls,
    ) -> None:
        self._per_host = per_host
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout or None)
        self._limit = max_response_bytes
        self._redirects = redirects
        self._trust_env = trust_env
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, Proxy | None] = {}

    async def open(self) -> None:
        """Make the session. Nothing is connected yet.

        Raises:
            ConfigurationError: what `tls` names is not there, or not usable, in this process.
        """
        context = await self._context()
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=self._per_host or 0, ssl=context or True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=DEFAULT_HEADERS,
        )

    async def close(self) -> None:
        """Close every connection, within `CLOSE_TIMEOUT`."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(session.close(), CLOSE_TIMEOUT)

    async def fetch(self, request: Request, headers: Mapping[str, str]) -> Answer:
        """The answer to a request, after redirects.

        Raises:
            RefusedError: it is too large, or leads where it must not be followed.
            aiohttp.ClientError, OSError: there is none.
        """
        method, body = request.method, request.body
        url = URL(request.url, encoded=True)
        for _ in range(MOST_REDIRECTS + 1):
            response = await self._send(method, url, headers, body)
            try:
                content = await self._content(response)
            except BaseException:
                response.close()
                raise
            location = response.headers.get("Location") if response.status in _REDIRECTS else None
            if location is None or self._redirects == "never":
                return Answer(response.status, response.headers, content)
            target = _target(url, location)
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            if not _same_host(url, target):
                headers = self._elsewhere(url, target, method, headers)
            url = target
        raise RefusedError(f"it is redirected more than {MOST_REDIRECTS} times")

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RefusedError("it is not open")
        proxy = self._proxy(url) if self._trust_env else None
        if proxy is None:
            return await self._session.request(method, url, headers=headers, data=body, allow_redirects=False)
        credentials = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
        to_proxy = credentials if url.scheme == "https" else None
        if to_proxy is None:
            headers = {**headers, **credentials}
        return await self._session.request(
            method, url, headers=headers, data=body, allow_redirects=False, proxy=proxy.url, proxy_headers=to_proxy
        )

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        success = response.status < 300
        limit = self._limit if success else min(self._limit, ERROR_BYTES)
        headers = response.headers
        length = response.content_length
        if length is not None and length <= limit and "Content-Encoding" not in headers:
            return await response.read()
        chunks, size = [], 0
        too_large = length is not None and length > limit and success
        if not too_large:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    too_large = True
                    break
            else:
                return b"".join(chunks)
        response.close()
        if success:
            raise RefusedError(f"the answer is larger than max_response_bytes={limit}")
        return b"".join(chunks)[:limit]

    def _elsewhere(self, url: URL, target: URL, method: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers for another host: none that may be a secret.

        Raises:
            RefusedError: it is not to be followed there.
        """
        place = str(target.origin())
        if self._redirects != "any":
            raise RefusedError(f'it is redirected to another host, {place}; give its URL, or redirects="any"')
        if url.scheme == "https" and target.scheme != "https":
            raise RefusedError(f"it is redirected from https to {place}, where anybody could read it")
        if method != "GET":
            raise RefusedError(f"a {method} is redirected to another host, {place}; give its URL")
        return {name: value for name, value in headers.items() if name.lower() in _HARMLESS}

    def _proxy(self, url: URL) -> Proxy | None:
        origin = str(url.origin())
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(url.scheme, f"{url.host}:{url.port}")
        return self._proxies[origin]

    async def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        # Both read files.
        if isinstance(self._tls, str):
            try:
                return await asyncio.to_thread(ssl.create_default_context, cafile=self._tls)
            except OSError as error:
                raise ConfigurationError(
                    f"ssl is {describe(self._tls)}; it must be a file with certificates in PEM that can be read here: "
                    f"{type(error).__name__}: {error}"
                ) from error
        context: Any = await asyncio.to_thread(self._tls)
        if not isinstance(context, ssl.SSLContext):
            raise ConfigurationError(f"ssl: the function gave {describe(context)}; it must give an ssl.SSLContext")
        return context


def _target(url: URL, location: str) -> URL:
    try:
        target = url.join(URL(location)).with_user(None).with_fragment(None)
        if target.scheme in ("http", "https") and target.host:
            return target
    except ValueError:
        pass
    raise RefusedError("it is redirected to something that is no URL of http or https")


def _same_host(url: URL, target: URL) -> bool:
    """Whether credentials may go there too: to the same origin, or to the same host by TLS on the usual ports."""
    if url.origin() == target.origin():
        return True
    upgrade = (url.scheme, target.scheme) == ("http", "https") and url.is_default_port() and target.is_default_port()
    return upgrade and url.host == target.host
