"""The proxy for a URL, from the environment: ``http_proxy``, ``https_proxy``, ``all_proxy``, ``no_proxy``.

aiohttp itself would read the environment, and the file ``.netrc``, in a thread for each single request. Here the
environment is read once per host, and no file of passwords is read.
"""

from __future__ import annotations

import base64
from typing import NamedTuple
from urllib import request as environment
from urllib.parse import unquote, urlsplit

from asyncio_operator import ConfigurationError


class Proxy(NamedTuple):
    """A proxy: its URL without credentials, and the header with the credentials, or None."""

    url: str
    authorization: str | None


def proxy_for(scheme: str, host: str) -> Proxy | None:
    """The proxy for a scheme and a host with its port, or None.

    Raises:
        ConfigurationError: the environment names a proxy that cannot be used. Its URL is not shown.
    """
    proxies = environment.getproxies_environment()
    named = proxies.get(scheme) or proxies.get("all")
    if not named or _bypassed(host, proxies):
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host_and_port = parts.netloc.rpartition("@")[2]
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable, parts, host_and_port = False, urlsplit(""), ""
    if not usable:
        raise ConfigurationError(
            f"the environment names a proxy for {scheme} (not shown, it may hold a password) that is not a URL like "
            "http://user:password@host:port"
        )
    authorization = None if parts.username is None else basic(parts.username, parts.password or "")
    return Proxy(f"{parts.scheme}://{host_and_port}", authorization)


def basic(user: str, password: str) -> str:
    """The header for a user and a password, which are percent-encoded, as in a URL."""
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _bypassed(host: str, proxies: dict[str, str]) -> bool:
    return bool(environment.proxy_bypass_environment(host, proxies))  # type: ignore[attr-defined]
