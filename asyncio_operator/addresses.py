"""Addresses of servers, shown without their secrets. Their libraries need not be installed for that."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from asyncio_operator.errors import function_name

_HOST = r"(?:[^:\[\]@,]*|\[[^\[\]@,]*\])(?::[0-9]*)?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")


def shown_address(address: str | Callable[[], str]) -> str:
    """An address, or a function that returns one, for a ``repr`` and for messages: without user, password, options."""
    if callable(address):
        return function_name(address)
    scheme, _, rest = address.partition("://")
    try:
        parts = urlsplit(address)
    except ValueError:
        return repr(f"{scheme}://***")
    before, _, hosts = parts.netloc.rpartition("@")
    # With an @ elsewhere, or a host that is none, it is not known where the password ends.
    if rest.count("@") != parts.netloc.count("@") or "@" in before or not _HOSTS.fullmatch(hosts):
        return repr(f"{scheme}://***")
    return repr(f"{scheme}://{hosts}{parts.path}")
