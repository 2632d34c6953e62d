"""The proxy for a URL, from the environment: ``http_proxy``, ``https_proxy``, ``all_proxy``, ``no_proxy``.

aiohttp itself would read the environment, and the file ``.netrc``, in a thread for each single request. Here the
environment is read once per host, and no file of passwords is read.

``no_proxy`` is a list, separated by commas or blanks. An entry names hosts without a proxy, as for curl and Go:

    example.com, .example.com    this host and all below it; with :8080 only at this port
    10.0.0.7, ::1, [::1]:443     an address
    10.0.0.0/8, fd00::/8         a network, for hosts that are addresses
    *                            every host; in a name it is any text, as in 10.1.*
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib import request as environment
from urllib.parse import unquote, urlsplit

from asyncio_operator import ConfigurationError

_Address = IPv4Address | IPv6Address


class Proxy(NamedTuple):
    """A proxy: its URL without credentials, and the header with the credentials, or None."""

    url: str
    authorization: str | None


def proxy_for(scheme: str, host: str) -> Proxy | None:
    """The proxy for a scheme and a host with its port, or None. An IPv6 address as a host is in brackets.

    Raises:
        ConfigurationError: the environment names a proxy that cannot be used. Its URL is not shown.
    """
    proxies = environment.getproxies_environment()
    named = proxies.get(scheme) or proxies.get("all")
    if not named or _bypassed(host, proxies.get("no", "")):
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


class _Target(NamedTuple):
    """What a request goes to. `address` is None if the host is a name."""

    host: str
    port: str
    address: _Address | None


def _bypassed(host_and_port: str, listed: str) -> bool:
    """Whether an entry of ``no_proxy`` names the host."""
    host, _, port = host_and_port.rpartition(":")
    host = host.strip("[]").partition("%")[0].rstrip(".").lower()
    target = _Target(host, port, _address(host))
    return any(_names(entry, target) for entry in listed.lower().replace(",", " ").split())


def _names(entry: str, target: _Target) -> bool:
    if "/" in entry:
        with suppress(ValueError):
            network = ip_network(entry.strip("[]"), strict=False)
            return target.address is not None and target.address in network
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d*))?", entry)
    # Anything else with a colon is an IPv6 address without brackets.
    name, port = (found[1].strip("[]"), found[2] or "") if found else (entry, "")
    if port not in ("", target.port):
        return False
    address = _address(name)
    if address is not None:
        return address == target.address
    if name.startswith("*.") or "*" not in name:
        name = name.removeprefix("*").strip(".")
        return bool(name) and f".{target.host}".endswith(f".{name}")
    return re.fullmatch(".*".join(map(re.escape, name.split("*"))), target.host) is not None


def _address(text: str) -> _Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
